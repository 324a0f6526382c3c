"""History: what a queue keeps after it is settled, read and pushed once more."""

from datetime import UTC, datetime, timedelta

import pytest

from segue import Item, QueueRules
from segue.errors import InvalidArgument, QueueFull
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, push_all
from tests.contract.worlds import World

WEEK = QueueRules(keep_seconds=7 * 86_400)


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue that keeps what is settled for a week."""
    return store.queue("jobs", WEEK)


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


def moment(clock: ManualClock) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock())


# Reading -----------------------------------------------------------------------------------


def test_what_is_settled_can_be_read_for_as_long_as_it_is_kept(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Settled or not, in the order of priorities and pushes, as it was pushed."""
    pushed_us = clock()
    ids = queue.push_many(
        [
            Item(body=b"a", headers={"h": "v"}),
            Item(body=b"b", priority=1, key="k"),
            Item(body=b"c"),
        ]
    )
    queue.pop()
    queue.lease().bury()
    clock.advance(seconds=60)
    found = list(there.history())

    assert [message.body for message in found] == [b"a", b"c", b"b"]
    assert [message.id for message in found] == [ids[0], ids[2], ids[1]]
    assert (dict(found[0].headers), found[2].key) == ({"h": "v"}, "k")
    assert {message.pushed_us for message in found} == {pushed_us}


def test_reading_history_takes_nothing(queue: Queue, there: Queue) -> None:
    """It can be read again and again, and everything is still to be had."""
    push_all(queue, 5)
    list(there.history())
    list(there.history())

    assert drain(queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_history_is_read_by_offset(queue: Queue) -> None:
    """From one up to, not including, another, within a priority."""
    push_all(queue, 10)
    push_all(queue, 3, priority=1, first=50)
    drain(queue)

    def read(**where: int) -> list[bytes]:
        return [message.body for message in queue.history(**where)]

    assert read(priority=0, start=7) == [b"7", b"8", b"9"]
    assert read(priority=0, stop=2) == [b"0", b"1"]
    assert read(priority=0, start=4, stop=6) == [b"4", b"5"]
    assert read(priority=1) == [b"50", b"51", b"52"]
    assert read(priority=9) == []
    assert [m.body for m in queue.history(priority="high", start=2)] == [b"52"]


def test_history_is_read_by_time(queue: Queue, clock: ManualClock) -> None:
    """Over all priorities."""
    times = []
    for number in range(4):
        times.append(moment(clock))
        queue.push_many([b"%d" % number, Item(body=b"%d" % (10 + number), priority=1)])
        clock.advance(seconds=60)
    drain(queue)

    def read(start: datetime | None, stop: datetime | None) -> list[bytes]:
        return [message.body for message in queue.history(start=start, stop=stop)]

    assert read(times[2], None) == [b"2", b"3", b"12", b"13"]
    assert read(None, times[1]) == [b"0", b"10"]
    assert read(times[1], times[2]) == [b"1", b"11"]
    assert read(times[1] + timedelta(seconds=1), times[3]) == [b"2", b"12"]


def test_an_offset_without_a_priority_means_nothing(queue: Queue) -> None:
    """Each priority counts its own."""
    push_all(queue, 2)
    for bounds in ({"start": 0}, {"stop": 1}):
        with pytest.raises(InvalidArgument):
            list(queue.history(**bounds))
        with pytest.raises(InvalidArgument):
            queue.replay(**bounds)

    assert queue.count().ready == 2


def test_history_has_what_was_pushed_with_a_delay(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """It was pushed, too, and is kept, settled or not."""
    later = queue.push(b"later", delay=5, priority=1)
    plain = queue.push(b"now", priority=1)
    clock.advance(seconds=5)
    drain(queue)

    assert {message.id: message.body for message in there.history()} == {
        later: b"later",
        plain: b"now",
    }


# Replaying ---------------------------------------------------------------------------------


def test_a_replay_pushes_once_more(queue: Queue, there: Queue) -> None:
    """Everything that is kept, once, with attempts above one and with new ids."""
    ids = queue.push_many([b"a", Item(body=b"b", priority=2, headers={"h": "v"}), b"c"])
    drain(queue)
    pushed = there.replay()
    messages = queue.pop_many(10)

    assert pushed == 3
    assert [message.body for message in messages] == [b"a", b"c", b"b"]
    assert {message.attempt for message in messages} == {2}
    assert dict(messages[2].headers) == {"h": "v"}
    assert not {message.id for message in messages} & set(ids)


def test_a_replay_of_a_replay_says_so(queue: Queue) -> None:
    """Each adds one to the attempt."""
    push_all(queue, 1)
    attempts = []
    for _ in range(3):
        message = queue.pop()
        assert message is not None
        attempts.append(message.attempt)
        queue.replay(priority=0, start=len(attempts) - 1)

    assert attempts == [1, 2, 3]


def test_a_replay_may_take_a_part(queue: Queue, clock: ManualClock) -> None:
    """By offset or by time, as history is read."""
    push_all(queue, 5)
    clock.advance(seconds=60)
    since = moment(clock)
    push_all(queue, 3, first=5)
    drain(queue)
    by_offset = queue.replay(priority=0, start=1, stop=3)
    first = drain(queue)
    by_time = queue.replay(start=since, stop=since + timedelta(seconds=1))

    assert (by_offset, first) == (2, [b"1", b"2"])
    # The two that were replayed just now were pushed in that second, too.
    assert (by_time, drain(queue)) == (5, [b"5", b"6", b"7", b"1", b"2"])


def test_a_replayed_message_is_neither_late_nor_a_duplicate(
    queue: Queue, clock: ManualClock
) -> None:
    """It is meant to come once more."""
    queue.push(b"brief and keyed", ttl=5, key="k")
    drain(queue)
    clock.advance(seconds=100)
    queue.replay()

    assert drain(queue) == [b"brief and keyed"]


def test_a_replay_of_messages_that_wait_makes_them_two(queue: Queue) -> None:
    """Settled or not: what is kept is pushed once more."""
    push_all(queue, 2)
    queue.replay()

    assert [(m.body, m.attempt) for m in queue.pop_many(9)] == [
        (b"0", 1),
        (b"1", 1),
        (b"0", 2),
        (b"1", 2),
    ]


def test_a_replay_does_not_depend_on_the_size_of_segments(store: Store) -> None:
    """However small segments are, all of the history can be replayed."""
    queue = store.queue("jobs", QueueRules(keep_seconds=1_000, segment_items=4))
    bodies = push_all(queue, 10)
    drain(queue)

    assert queue.replay() == 10
    assert drain(queue) == bodies


def test_a_long_history_is_replayed_in_several_steps(queue: Queue) -> None:
    """And none of it is read twice, though it grows meanwhile."""
    bodies = push_all(queue, 250)
    drain(queue)

    assert queue.replay() == 250
    assert drain(queue) == bodies


def test_a_replay_minds_the_capacity(store: Store) -> None:
    """A queue takes no more than its rules say, whoever pushes."""
    queue = store.queue("jobs", QueueRules(keep_seconds=1_000, capacity=3))
    push_all(queue, 3)
    drain(queue)
    push_all(queue, 2)
    with pytest.raises(QueueFull):
        queue.replay()

    assert queue.count().total <= 3


def test_a_replay_of_delayed_messages_brings_them_too(queue: Queue, clock: ManualClock) -> None:
    """Their delay is over; they come at once."""
    queue.push(b"later", delay=5)
    clock.advance(seconds=5)
    drain(queue)

    assert queue.replay() == 1
    assert drain(queue) == [b"later"]


# Keeping -----------------------------------------------------------------------------------


def test_settled_messages_go_when_their_time_is_over(store: Store, clock: ManualClock) -> None:
    """keep_seconds: what is younger stays, what waits stays however old it is."""
    queue = store.queue("jobs", QueueRules(keep_seconds=100, segment_items=10))
    work_off(queue, 300)
    clock.advance(seconds=50)
    work_off(queue, 300, first=300)
    kept = len(list(queue.history()))
    clock.advance(seconds=60)
    work_off(queue, 300, first=600)
    left = [int(message.body) for message in queue.history()]

    assert kept == 600
    assert left == list(range(left[0], 900))
    assert 290 <= left[0] <= 300


def test_settled_messages_go_when_there_are_too_many(store: Store, clock: ManualClock) -> None:
    """keep_bytes: the youngest that fit stay; without either nothing stays."""
    queue = store.queue("jobs", QueueRules(keep_bytes=0, segment_items=10))
    work_off(queue, 300)
    clock.advance(seconds=5)
    work_off(queue, 300, first=300)

    assert len(list(queue.history())) < 300


def test_every_priority_is_kept_by_the_same_rule(store: Store, clock: ManualClock) -> None:
    """A busy priority does not keep another's old messages from going."""
    queue = store.queue("jobs", QueueRules(keep_seconds=100, segment_items=10))
    work_off(queue, 100, priority=5)
    for _ in range(10):
        clock.advance(seconds=40)
        work_off(queue, 300)

    assert len(list(queue.history(priority=5))) <= 10


def test_history_survives_everybody(world: World, queue: Queue) -> None:
    """Kept is kept."""
    bodies = push_all(queue, 5)
    drain(queue)
    world.restart()
    reopened = world.open().queue("jobs")

    assert [message.body for message in reopened.history()] == bodies
    assert reopened.count() == Counts(ready=0, delayed=0, leased=0, dead=0)


def work_off(queue: Queue, count: int, *, first: int = 0, priority: int = 0) -> None:
    """Push and settle `count` messages, a few at a time."""
    for number in range(first, first + count, 10):
        queue.push_many(
            [Item(body=b"%d" % (number + place), priority=priority) for place in range(10)]
        )
        queue.ack_many(queue.lease_many(10))
