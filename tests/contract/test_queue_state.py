"""A queue in the words of seed 000: `metadata` and `queue_<p>_seg_<n>`."""

import json

import pytest

from segue import QueueRules
from segue.stores.contract import Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import push_all
from tests.contract.worlds import World


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue as the seed has it: a hundred items to a segment."""
    return store.queue("jobs")


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


def push_items(queue: Queue, count: int, *, priority: int = 0, first: int = 0) -> None:
    for number in range(first, first + count):
        queue.push(json.dumps({"id": number}), priority=priority)


def items(first: int, stop: int) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, stop)]


def metadata(size: int = 100, **queues: tuple[int, int, int]) -> dict[str, object]:
    """Return what the seed's metadata says of queues with so many items and these segments."""
    return {
        "config": {"segment_size": size},
        "queues": {
            name: {"metadata": {"count": count, "head_segment": head, "tail_segment": tail}}
            for name, (count, head, tail) in queues.items()
        },
    }


def test_two_hundred_and_fifty_items_are_the_seeds_example(queue: Queue, there: Queue) -> None:
    """0.1.14: segments 0 and 1 with a hundred each, segment 2 with fifty, in JSON."""
    push_items(queue, 250)
    state = there.state()

    assert json.loads(json.dumps(state)) == {
        "queue_0_seg_0": items(0, 100),
        "queue_0_seg_1": items(100, 200),
        "queue_0_seg_2": items(200, 250),
        "metadata": metadata(queue_0=(250, 0, 2)),
    }


def test_fewer_than_a_hundred_are_one_segment(queue: Queue) -> None:
    """0.1.31: head and tail are the same."""
    push_items(queue, 7)

    assert queue.state() == {
        "queue_0_seg_0": items(0, 7),
        "metadata": metadata(queue_0=(7, 0, 0)),
    }


def test_an_empty_queue_has_no_entry(queue: Queue, there: Queue) -> None:
    """0.1.33: neither before the first push nor after the last pop."""
    before = queue.state()
    push_items(queue, 3)
    queue.pop_many(3)

    assert before == {"metadata": metadata()}
    assert there.state() == {"metadata": metadata()}


def test_each_priority_has_segments_of_its_own(queue: Queue) -> None:
    """0.1.27: 150 each make two segments each."""
    push_items(queue, 150)
    push_items(queue, 150, priority=1, first=1_000)
    queue.pop_many(150)
    queue.pop_many(20)

    assert queue.state() == {
        "queue_1_seg_0": items(1_020, 1_100),
        "queue_1_seg_1": items(1_100, 1_150),
        "metadata": metadata(queue_1=(130, 0, 1)),
    }


def test_an_emptied_head_segment_is_gone(queue: Queue) -> None:
    """0.1.30: the head moves on when its segment is drained."""
    push_items(queue, 250)
    queue.pop_many(99)
    last_of_first = queue.state()
    queue.pop()
    first_gone = queue.state()

    assert last_of_first["queue_0_seg_0"] == items(99, 100)
    assert sorted(first_gone) == ["metadata", "queue_0_seg_1", "queue_0_seg_2"]
    assert first_gone["metadata"] == metadata(queue_0=(150, 1, 2))


def test_segment_numbers_never_start_over(world: World, queue: Queue) -> None:
    """0.1.b: not even when the queue was empty, or the machine was started anew."""
    push_items(queue, 150)
    queue.pop_many(150)
    world.restart()
    reopened = world.open().queue("jobs")
    push_items(reopened, 60)

    assert reopened.state() == {
        "queue_0_seg_1": items(0, 50),
        "queue_0_seg_2": items(50, 60),
        "metadata": metadata(queue_0=(60, 1, 2)),
    }


def test_what_came_back_stands_at_the_front_of_the_head(queue: Queue, there: Queue) -> None:
    """0.1.32: the head segment may then hold more than its size; nothing is split."""
    push_items(queue, 150)
    jobs = queue.lease_many(60)
    for job in jobs[10:]:
        job.release()
    for job in jobs[:10]:
        job.ack()
    before = there.state()
    taken = queue.lease_many(100)
    for job in taken[:50]:
        job.release()

    assert before["metadata"] == metadata(queue_0=(140, 0, 1))
    assert before["queue_0_seg_0"] == items(10, 100)
    assert there.state() == {
        "queue_0_seg_1": items(10, 60) + items(110, 150),
        "metadata": metadata(queue_0=(90, 1, 1)),
    }


def test_what_is_out_or_waits_for_later_is_not_shown(queue: Queue, clock: ManualClock) -> None:
    """Only what could be had now; a delayed message joins the head when it is due."""
    push_items(queue, 3)
    queue.push('{"id": 9}', delay=5)
    queue.lease()
    early = queue.state()
    clock.advance(seconds=5)

    assert early["queue_0_seg_0"] == items(1, 3)
    assert queue.state()["queue_0_seg_0"] == [{"id": 9}, *items(1, 3)]


def test_the_size_of_segments_is_the_rules(store: Store) -> None:
    """0.1.42: `config.segment_size` says what it is."""
    queue = store.queue("jobs", QueueRules(segment_items=4))
    push_items(queue, 10)

    assert queue.state() == {
        "queue_0_seg_0": items(0, 4),
        "queue_0_seg_1": items(4, 8),
        "queue_0_seg_2": items(8, 10),
        "metadata": metadata(4, queue_0=(10, 0, 2)),
    }


def test_anything_can_be_shown(queue: Queue) -> None:
    """JSON as what it says, other text as text, other bytes as base64; headers do not matter."""
    queue.push(b'{"a": [1, null]}', headers={"h": "v"})
    queue.push("plain text")
    queue.push(b"\xff\x00")
    queue.push(b"")
    state = queue.state()

    assert state["queue_0_seg_0"] == [{"a": [1, None]}, "plain text", {"base64": "/wA="}, ""]
    json.dumps(state)


def test_what_is_shown_is_valid_json(queue: Queue) -> None:
    """JSON knows no NaN: whoever reads the state must be able to."""
    for body in [b"NaN", b"[Infinity]", b"-Infinity"]:
        queue.push(body)

    json.dumps(queue.state(), allow_nan=False)


def check_keys(queue: Queue) -> dict[str, object]:
    """Return the state; assert that each key, asked for alone, is the same."""
    state = queue.state()
    for key, found in state.items():
        assert queue.state(key) == {key: found}
    return state


def test_one_key_is_what_all_of_them_say_of_it(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Fresh ones, those that came back, those that were delayed, of several priorities."""
    push_items(queue, 250)
    push_items(queue, 120, priority=3, first=1_000)
    queue.push('{"id": 9}', delay=5)
    queue.push('{"id": 10}', delay=5, priority=7)
    jobs = queue.lease_many(130)
    for job in jobs[20:40]:
        job.release()
    for job in jobs[60:]:
        job.ack()
    clock.advance(seconds=5)
    state = check_keys(queue)

    assert check_keys(there) == state
    assert sorted(state) == [
        "metadata",
        "queue_0_seg_1",
        "queue_0_seg_2",
        "queue_3_seg_0",
        "queue_3_seg_1",
        "queue_7_seg_0",
    ]
    assert state["metadata"] == metadata(
        queue_0=(120 + 20 + 1, 1, 2), queue_3=(120, 0, 1), queue_7=(1, 0, 0)
    )


def test_one_key_is_right_where_groups_hold_messages_back(store: Store) -> None:
    """They were looked at and stand where they were pushed."""
    queue = store.queue("jobs", QueueRules(segment_items=4))
    for number in range(30):
        queue.push(json.dumps({"id": number}), group="ada" if number % 3 else None)
    jobs = [queue.lease() for _ in range(6)]
    state = check_keys(queue)
    jobs[1].release()

    assert len(state) > 2
    assert check_keys(queue) != state


def test_one_key_of_segments_that_changed_their_size(store: Store) -> None:
    """Whatever they are cut by below, what is shown goes by the size that holds now."""
    queue = store.queue("jobs", QueueRules(segment_items=4))
    push_items(queue, 10)
    queue.pop_many(3)
    queue.configure(QueueRules(segment_items=7))
    push_items(queue, 20, first=10)

    assert sorted(check_keys(queue)) == [
        "metadata",
        *(f"queue_0_seg_{number}" for number in range(5)),
    ]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "queue_0",
        "queue_0_seg_",
        "queue_0_seg_-1",
        "queue_0_seg_01",
        "queue_0_seg_3",
        "queue_0_seg_999999999999999",
        "queue_0_seg_9999999999999999999",
        "queue_1_seg_0",
        "queue_9999999999_seg_0",
        "queue_0_seg_0\n",
        "Metadata",
        "../metadata",
    ],
)
def test_a_key_that_is_not_there_is_nothing(queue: Queue, key: str) -> None:
    push_items(queue, 250)

    assert queue.state(key) == {}


def test_a_key_of_a_queue_in_which_nothing_waits(queue: Queue) -> None:
    before = queue.state("metadata")
    push_items(queue, 3)
    queue.lease_many(3)

    assert before == queue.state("metadata") == {"metadata": metadata()}
    assert queue.state("queue_0_seg_0") == {}


def test_looking_changes_nothing(queue: Queue, there: Queue) -> None:
    """Neither the queue nor what is shown next."""
    push_all(queue, 3)
    shown = [queue.state(), there.state(), queue.state()]

    assert shown[0] == shown[1] == shown[2]
    assert there.count().ready == 3
