"""What a queue is made of: all of it if that is little, else judged by some."""

import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest

from segue import Item, QueueRules
from segue.server import estimate_readers, estimates
from segue.server.estimate_readers import NO_REASON, PageReader, Reader, task_of
from segue.server.estimates import Estimate, Estimates, estimate_of, reader_of
from segue.server.open_queues import OpenQueues
from segue.stores.contract import Queue, Store
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.contract.worlds import FileWorld, RedisWorld, World
from tests.unit.server_support import Place, placed
from tests.unit.support import flip_bit
from tests.waiting import LIMIT_SECONDS

BREAKDOWN: Final = "/api/v1/queues/jobs/breakdown"


@pytest.fixture(params=[partial(FileWorld, sync="os"), RedisWorld], ids=["file", "redis"])
def world(request: pytest.FixtureRequest, scratch: Path) -> Iterator[World]:
    world: World = request.param(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def store(world: World) -> Store:
    return world.open()


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queue("jobs", QueueRules(backoff_base=0, backoff_jitter=0))


def never() -> bool:
    return False


def reader(store: Store, queue: Queue) -> Reader:
    return reader_of(store, queue, random.Random(7))


def sampled(store: Store, queue: Queue) -> Estimate:
    """Return what is found if it may take as long as it likes."""
    return estimate_of(reader(store, queue), random.Random(7), is_over=never)


def test_a_queue_of_a_directory_takes_no_client_of_redis_to_look_at(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To load that takes a second, also for a queue that is not there yet."""
    client = "segue.stores.redis.queue"
    monkeypatch.delitem(sys.modules, client, raising=False)
    with open_directory(scratch, sync="os") as store:
        absent = OpenQueues(store, lambda _: False).find("absent")
        found = sampled(store, absent)

    assert client not in sys.modules
    assert (found.sampled, found.is_exact) == (0, True)


# Looking ---------------------------------------------------------------------------------------


def test_what_is_little_is_looked_at_whole(store: Store, queue: Queue) -> None:
    """New messages of all priorities, delayed ones, and such as came back."""
    queue.push_many(
        [
            *[Item(body=b"x", group="red")] * 3,
            Item(body=b"x", group="blue", priority=5),
            Item(body=b"x", key="once"),
            Item(body=b"x", group="red", delay=60),
            Item(body=b'{"task":"resize","args":{}}', priority=2),
        ]
    )
    queue.push(b"x", priority=1)
    queue.nack(queue.lease_many(1)[0], reason="port 80 is closed")
    found = sampled(store, queue)

    assert (found.sampled, found.of, found.is_exact) == (8, 8, True)
    assert found.keys == {"red": 4, "blue": 1, "once": 1}
    assert found.tasks == {"resize": 1}
    assert found.returned == {"port # is closed": 1}


def test_what_is_leased_or_dead_does_not_wait(store: Store, queue: Queue) -> None:
    """Nor what is settled."""
    queue.push_many([Item(body=b"x", key=f"k{number}") for number in range(5)])
    leased, buried, done = queue.lease_many(3)
    buried.bury("no")
    done.ack()
    found = sampled(store, queue)

    assert leased.message.key == "k0"
    assert (found.sampled, found.of) == (2, 2)
    assert found.keys == {"k3": 1, "k4": 1}


def test_an_empty_queue_is_made_of_nothing(store: Store, queue: Queue) -> None:
    found = sampled(store, queue)

    assert (found.sampled, found.of, found.is_exact) == (0, 0, True)
    assert (found.keys, found.tasks, found.returned) == ({}, {}, {})


def test_of_much_some_is_looked_at_and_weighed(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every part of it: a third is red, however few were looked at."""
    monkeypatch.setattr(estimates, "SAMPLE_MAX", 300)
    monkeypatch.setattr(estimates, "STRETCH", 2)
    queue.push_many([Item(body=b"x", group=f"r{number % 2}") for number in range(1_000)])
    queue.push_many([b"x"] * 2_000)
    found = sampled(store, queue)

    assert (found.of, found.is_exact) == (3_000, False)
    assert 290 <= found.sampled <= 300
    assert abs(found.keys["r0"] + found.keys["r1"] - 1_000) < 100
    assert abs(found.keys["r0"] - found.keys["r1"]) < 200


def test_few_that_came_back_weigh_no_more_than_they_are(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are looked at, and of what was never delivered some: each counts by its share."""
    monkeypatch.setattr(estimates, "SAMPLE_MAX", 100)
    monkeypatch.setattr(estimates, "RESTING_MAX", 10)
    queue.push_many([b"x"] * 1_000)
    for job in queue.lease_many(40):
        queue.nack(job, reason="late", delay=3_600)
    found = sampled(store, queue)

    assert found.of == 1_000
    assert found.sampled <= 110
    assert found.returned == {"late": 40}


def test_a_message_that_came_back_without_a_reason_is_told(store: Store, queue: Queue) -> None:
    """One that was only ever delayed did not come back."""
    queue.push(b"x", delay=60)
    queue.push(b"y")
    queue.nack(queue.lease_many(1)[0])

    assert sampled(store, queue).returned == {NO_REASON: 1}


def test_looking_ends_when_it_has_taken_long_enough(store: Store, queue: Queue) -> None:
    """What was read by then stands for all."""
    queue.push_many([Item(body=b"x", key="k")] * 1 + [b"x"] * 499)
    looks = iter([False, False, False, True])
    found = estimate_of(reader(store, queue), random.Random(7), is_over=lambda: next(looks, True))

    assert 0 < found.sampled < 500
    assert found.of == 500
    assert not found.is_exact


def test_large_messages_are_read_one_by_one(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of eight megabytes at once would be too much."""
    monkeypatch.setattr(estimates, "STRETCH_BYTES_MAX", 10)
    queue.push_many([b"x" * 100] * 5)
    spans: list[int] = []
    real = reader(store, queue)
    fresh = type(real).fresh

    def counted(self: Reader, span: estimate_readers.Span) -> list[estimate_readers.Seen]:
        spans.append(span.stop - span.start)
        return fresh(self, span)

    monkeypatch.setattr(type(real), "fresh", counted)
    found = sampled(store, queue)

    assert found.is_exact
    assert spans == [1] * 5


def test_another_store_is_judged_by_its_first_page(queue: Queue) -> None:
    """It is not known where its messages lie."""
    queue.push_many([Item(body=b"x", key="a")] * 1 + [Item(body=b"x", group="b", delay=60)])
    found = estimate_of(PageReader(queue), random.Random(7), is_over=never)

    assert found.is_exact
    assert found.keys == {"a": 1, "b": 1}


def test_what_was_found_is_told_again_for_a_few_seconds(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks every second costs next to nothing; and no more queues are kept than said."""
    monkeypatch.setattr(estimates, "QUEUES_KEPT", 3)
    monkeypatch.setattr(estimates, "SECONDS_MAX", LIMIT_SECONDS)
    clock = ManualClock()
    samples = Estimates(clock.ticks)
    queue.push(b"x")
    first = samples.of(store, queue)
    queue.push(b"y")
    again = samples.of(store, queue)
    clock.advance(seconds=estimates.KEPT_SECONDS)
    later = samples.of(store, queue)
    for number in range(estimates.QUEUES_KEPT):
        samples.of(store, store.queue(f"q{number}"))

    assert (first.of, again.of, later.of) == (1, 1, 2)
    assert len(samples._kept) == estimates.QUEUES_KEPT
    assert "jobs" not in samples._kept


# Tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "task"),
    [
        (b'{"task":"resize"}', "resize"),
        (b'{"args":[1],"task":"resize"}', "resize"),
        (b'{"task":5}', None),
        (b"[1]", None),
        (b"\xff", None),
        (b'{"task":"' + b"n" * 500 + b'"}', None),
        (b' { "task" : "a\\"b" , "args": "' + b"x" * 100_000 + b'"}', 'a"b'),
        (b'{"args": "' + b"x" * 100_000 + b'"}', None),
    ],
)
def test_the_name_of_a_task_is_read(body: bytes, task: str | None) -> None:
    """Of a large message only its beginning is looked at."""
    assert task_of(body) == task


def test_without_the_extra_no_message_is_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate_readers, "_reading_tasks", lambda: None)

    assert task_of(b'{"task":"resize"}') is None


# Over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(scratch: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A machine that is busy finds as much as one that is not."""
    monkeypatch.setattr(estimates, "SECONDS_MAX", LIMIT_SECONDS)
    with placed(scratch, ticks=clock.ticks) as place:
        yield place


def test_a_breakdown_is_told(place: Place) -> None:
    """Shares are of all that waits; causes are of the dead letters."""
    queue = place.store.queue("jobs", QueueRules(max_deliveries=1))
    queue.push_many([b"a", b"b", b"c"])
    one, two, three = queue.lease_many(3)
    one.bury("no")
    two.bury("never")
    three.fail("late")
    queue.push_many([Item(body=b"x", group="red"), b'{"task":"resize"}', b"x", b"x"])
    told = place.ask("GET", BREAKDOWN)
    while not cast("list[object]", told.json["causes"]):
        told = place.ask("GET", BREAKDOWN)

    assert told.json == {
        "sampled": 4,
        "of": 4,
        "is_exact": True,
        "keys": [{"key": "red", "count": 1, "share": 0.25}],
        "tasks": [{"task": "resize", "count": 1, "share": 0.25}],
        "causes": [{"cause": "dead", "count": 2}, {"cause": "failed", "count": 1}],
        "returned": [],
    }


def test_no_more_keys_are_shown_than_said(place: Place) -> None:
    """Those with most messages."""
    queue = place.store.queue("jobs")
    queue.push_many([Item(body=b"x", group=f"g{number}") for number in range(30)])
    queue.push_many([Item(body=b"x", group="g29")] * 2)
    keys = cast("list[dict[str, object]]", place.ask("GET", BREAKDOWN).json["keys"])

    assert len(keys) == 20
    assert (keys[0]["key"], keys[0]["count"]) == ("g29", 3)


def test_a_queue_that_is_not_there_is_made_of_nothing_and_not_made(place: Place) -> None:
    told = place.ask("GET", BREAKDOWN)

    assert told.json == {
        "sampled": 0,
        "of": 0,
        "is_exact": True,
        "keys": [],
        "tasks": [],
        "causes": [],
        "returned": [],
    }
    assert place.store.queues() == []


def test_a_queue_that_is_removed_is_made_of_nothing(place: Place, clock: ManualClock) -> None:
    """Once what was found is not told again."""
    place.store.queue("jobs").push(b"x")
    before = place.ask("GET", BREAKDOWN).json["of"]
    place.ask("DELETE", "/api/v1/queues/jobs")
    clock.advance(seconds=estimates.KEPT_SECONDS)

    assert before == 1
    assert place.ask("GET", BREAKDOWN).json["of"] == 0


def test_damaged_messages_are_passed_over(
    place: Place, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stand for them."""
    monkeypatch.setattr("segue.log.segment.SETTLE_SECONDS", 0)
    monkeypatch.setattr(estimates, "STRETCH_WHOLE", 1)
    queue = place.store.queue("jobs")
    for name in ("first", "second", "third"):
        queue.push(b"x", group=name)
    (path,) = (scratch / "queues" / "jobs" / "lanes" / "0").glob("*.q")
    flip_bit(path, path.read_bytes().index(b"second"))
    told = place.ask("GET", BREAKDOWN).json

    assert (told["sampled"], told["of"], told["is_exact"]) == (2, 3, False)
    assert {key["key"] for key in cast("list[dict[str, object]]", told["keys"])} == {
        "first",
        "third",
    }
