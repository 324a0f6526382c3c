"""Bytes of a queue that rot, and files that are gone: the rest of it goes on.

A damaged batch of messages costs those messages, a damaged batch of the ledger redeliveries.
"""

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from segue import Log, Queue, QueueRules, Store
from segue.delivery.events import Carried, Deferred, Event, Leased, decode
from segue.log.slots import slot_at
from segue.testing import ManualClock
from tests.crash.damage import flip_bit, overwrite
from tests.crash.queue_story import (
    CHECKPOINT_EVENTS,
    DAY_SECONDS,
    LEDGER_KEPT_BYTES,
    QUEUE,
    START_US,
    STORY,
    TIDY_EVERY_ITEMS,
    Held,
    allowed,
    drain,
    open_store,
    play,
    snapshot_of,
)
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed

COUNT: Final = 14
SMALL: Final = QueueRules(segment_items=4)
PAGE_BYTES: Final = 4096
FLIPS: Final = 1_500 if TORTURE else 20


def path_of(root: Path, name: str) -> Path:
    """Return the directory of one of the queue's logs."""
    return root / "queues" / QUEUE / name


def damage_record(directory: Path, offset: int) -> None:
    """Flip a bit in the payload of a record."""
    with Log(directory, read_only=True) as log:
        info = [
            info
            for info in log.segments()
            if info.first_offset is not None and info.first_offset <= offset
        ][-1]
    assert info.first_offset is not None
    slot = slot_at(memoryview(info.path.read_bytes()), offset - info.first_offset)
    flip_bit(info.path, slot.position + slot.length // 2)


def damage_body(directory: Path, body: str) -> None:
    """Flip a bit of the message with that body."""
    with Log(directory, read_only=True) as log:
        offsets = [record.offset for record in log.records() if body.encode() in record.payload]
    damage_record(directory, offsets[0])


def ledger_events(root: Path) -> list[tuple[int, Event | None]]:
    """Return offset and meaning of every record of the ledger."""
    with Log(path_of(root, "ledger"), read_only=True) as log:
        return [(record.offset, decode(record.payload, record.attr)) for record in log.records()]


def damage_event(root: Path, is_it: Callable[[Event | None], bool]) -> None:
    """Flip a bit of the first event that is the one."""
    found = [offset for offset, event in ledger_events(root) if is_it(event)]
    damage_record(path_of(root, "ledger"), found[0])


def names_in_quarantine(root: Path) -> list[str]:
    return [path.name for path in root.rglob("quarantine/*")]


def filled(root: Path, rules: QueueRules = SMALL, count: int = COUNT) -> Store:
    """Return a store with a queue of messages "0-one", "1-one" and so on, each a batch."""
    store = open_store(root, "os")
    queue = store.queue(QUEUE, rules)
    for number in range(count):
        queue.push(f"{number}-one")
    return store


def bodies_of(queue: Queue) -> list[str]:
    return [job.text for job in drain(queue)]


# Lanes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 5, COUNT - 1], ids=["first", "sealed", "active"])
@pytest.mark.parametrize("live", [False, True], ids=["reopened", "open"])
def test_a_damaged_message_is_reported_and_set_aside_and_all_others_flow(
    scratch: Path, caplog: pytest.LogCaptureFixture, victim: int, *, live: bool
) -> None:
    """C6: one flipped bit costs its own batch, says so, and deletes nothing."""
    store = filled(scratch)
    if not live:
        store.close()
    damage_body(path_of(scratch, "lanes/0"), f"{victim}-one")
    if not live:
        store = open_store(scratch, "os")
    with store, caplog.at_level(logging.WARNING):
        queue = store.queue(QUEUE)

        assert bodies_of(queue) == [f"{n}-one" for n in range(COUNT) if n != victim]
        queue.push("new")
        assert bodies_of(queue) == ["new"]
        assert queue.count().total == 0
        assert queue.stats().damaged == 1
    assert any("damage" in record.getMessage() for record in caplog.records)
    assert names_in_quarantine(scratch)


@pytest.mark.parametrize("victim", [0, 1], ids=["first", "middle"])
@pytest.mark.parametrize("live", [False, True], ids=["reopened", "open"])
@pytest.mark.parametrize("gone", [False, True], ids=["no-header", "deleted"])
def test_a_lane_segment_that_is_gone_costs_its_messages_and_nothing_else(
    scratch: Path, victim: int, *, live: bool, gone: bool
) -> None:
    """Whether its header is unreadable or its file deleted: nothing hangs, others flow."""
    store = filled(scratch)
    queue = store.queue(QUEUE)
    if not live:
        store.close()
    segment = sorted(path_of(scratch, "lanes/0").glob("*.q"))[victim]
    if gone:
        segment.unlink()
    else:
        overwrite(segment, bytes(PAGE_BYTES), position=0)
    if not live:
        store = open_store(scratch, "os")
        queue = store.queue(QUEUE)
    with store:
        bodies = bodies_of(queue)
        lost = range(victim * 4, victim * 4 + 4)

        # Who has the file open may still read it.
        rest = [f"{n}-one" for n in range(COUNT) if n not in lost]
        assert [body for body in bodies if body in rest] == rest
        queue.push("new")
        assert bodies_of(queue) == ["new"]
        assert queue.count().total == 0
    with open_store(scratch, "os") as store:
        assert store.queue(QUEUE).count().total == 0


def test_a_damaged_message_that_was_leased_is_given_up_when_it_comes_back(scratch: Path) -> None:
    """It cannot be delivered again, and does not stand in the way of those behind it."""
    with filled(scratch) as store:
        queue = store.queue(QUEUE)
        job = queue.lease(ttl=60)
        damage_body(path_of(scratch, "lanes/0"), "0-one")
        job.release()

        assert bodies_of(queue) == [f"{number}-one" for number in range(1, COUNT)]
        assert queue.count().total == 0


def test_a_dead_letter_that_cannot_be_read_is_not_counted_for_ever(scratch: Path) -> None:
    """It can be neither redriven nor shown, so dropping all letters must drop it, too."""
    with filled(scratch) as store:
        queue = store.queue(QUEUE)
        for job in queue.lease_many(3):
            job.bury()
        damage_body(path_of(scratch, "dead"), "1-one")

        assert [letter.message.text for letter in queue.dead_letters()] == ["0-one", "2-one"]
        queue.discard()
        assert queue.count().dead == 0


# The ledger --------------------------------------------------------------------------------------


def test_what_was_leased_in_one_call_survives_the_loss_of_the_event_that_said_so(
    scratch: Path,
) -> None:
    """A later ack of one of them must not take the others for delivered and settled."""
    with filled(scratch) as store:
        queue = store.queue(QUEUE)
        jobs = queue.lease_many(6, ttl=60)
        jobs[5].ack()
    damage_event(scratch, lambda event: isinstance(event, Leased))
    with open_store(scratch, "os") as store:
        bodies = bodies_of(store.queue(QUEUE))

        assert set(bodies) >= {f"{number}-one" for number in range(COUNT) if number != 5}


def test_an_earlier_lease_that_is_forgotten_is_not_overtaken_by_a_later_burial(
    scratch: Path,
) -> None:
    """The same, where the later event is another one that settles a message."""
    with filled(scratch) as store:
        queue = store.queue(QUEUE)
        jobs = queue.lease_many(6, ttl=60)
        jobs[5].bury()
    damage_event(scratch, lambda event: isinstance(event, Leased))
    with open_store(scratch, "os") as store:
        bodies = bodies_of(store.queue(QUEUE))

        assert set(bodies) >= {f"{number}-one" for number in range(COUNT) if number != 5}


def test_delayed_messages_survive_the_loss_of_the_event_that_noted_them(scratch: Path) -> None:
    """They lie in the log aside, whatever the ledger has forgotten."""
    with filled(scratch, count=1) as store:
        queue = store.queue(QUEUE)
        queue.push("late", delay=10)
        queue.count()
        queue.push("later", delay=20)
        queue.count()
    damage_event(scratch, lambda event: isinstance(event, Deferred) and bool(event.items))
    clock = ManualClock(START_US)
    with open_store(scratch, "os", clock=clock) as store:
        queue = store.queue(QUEUE)
        clock.advance(seconds=60)

        assert sorted(bodies_of(queue)) == ["0-one", "late", "later"]


def test_a_carried_message_survives_the_loss_of_the_event_that_carried_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy says where it comes from; the segment it was in is deleted by then."""
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", TIDY_EVERY_ITEMS)
    with filled(scratch, count=60) as store:
        queue = store.queue(QUEUE)
        queue.lease(ttl=60)
        assert len(bodies_of(queue)) == 59
    damage_event(scratch, lambda event: isinstance(event, Carried))
    clock = ManualClock(START_US)
    with open_store(scratch, "os", clock=clock) as store:
        queue = store.queue(QUEUE)
        clock.advance(seconds=61)

        assert bodies_of(queue) == ["0-one"]


def play_up_to(root: Path, done: int) -> None:
    """Play the first steps of the story."""

    class Enough(Exception):
        pass

    def tell(place: int, _: Held) -> None:
        if place == done:
            raise Enough

    with open_store(root, "os") as store, pytest.raises(Enough):
        play(store.queue(QUEUE), tell)


def test_whichever_event_rots_nothing_is_lost_but_what_was_settled(scratch: Path) -> None:
    """C6: each event in turn; what waits, is leased or dead is found, and the queue goes on."""
    seed = new_seed()
    chance = random.Random(seed)
    template = scratch / "template"
    done = len(STORY) - 5
    play_up_to(template, done)
    events = ledger_events(template)
    certain = allowed(done, under_way=False, forgetful=False)
    wanted = {body for body, found in certain.items() if found != {None}}
    places = chance.sample(range(len(events)), min(FLIPS, len(events)))
    wrong: dict[str, list[str]] = {}
    for place in places:
        offset, event = events[place]
        root = scratch / "store"
        shutil.copytree(template, root, ignore=shutil.ignore_patterns("wake"))
        with naming_seed(seed), naming(f"event {place}: {event}"):
            damage_record(path_of(root, "ledger"), offset)
            clock = ManualClock(START_US)
            with open_store(root, "os", clock=clock) as store:
                queue = store.queue(QUEUE)
                clock.advance(seconds=DAY_SECONDS)
                queue.resume()
                found = set(bodies_of(queue))
                found |= {letter.message.text for letter in queue.dead_letters()}
                if lost := wanted - found:
                    wrong.setdefault(type(event).__name__, []).append(f"{place}: {sorted(lost)}")
                queue.push("new")
                assert bodies_of(queue) == ["new"]
        shutil.rmtree(root)

    assert wrong == {}


@pytest.mark.parametrize("which", [-1, -2], ids=["last", "before"])
def test_a_damaged_checkpoint_costs_nothing(
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    which: int,
) -> None:
    """The one before it, and the events since, say the same."""
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", CHECKPOINT_EVENTS)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", LEDGER_KEPT_BYTES)
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", TIDY_EVERY_ITEMS)
    play_up_to(scratch, len(STORY) - 5)
    with open_store(scratch, "os") as store:
        before = snapshot_of(store.queue(QUEUE))
    with Log(path_of(scratch, "ledger"), read_only=True) as log:
        segments = log.segments()
    assert len(segments) >= 2
    damage_record(path_of(scratch, "ledger"), segments[which].first_offset or 0)
    with caplog.at_level(logging.WARNING), open_store(scratch, "os") as store:
        assert snapshot_of(store.queue(QUEUE)) == before
    assert any("damage" in record.getMessage() for record in caplog.records)
    assert names_in_quarantine(scratch)


# Whole directories -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ledger", "aside", "dead", "lanes/0", "lanes"])
def test_a_directory_that_is_gone_stops_nobody(scratch: Path, name: str) -> None:
    """What it held is forgotten; everything else is there, and new messages are delivered."""
    clock = ManualClock(START_US)
    with open_store(scratch, "os", clock=clock) as store:
        queue = store.queue(QUEUE, SMALL)
        for number in range(10):
            queue.push(f"{number}-one", priority=number % 2)
        queue.push("late", delay=10)
        queue.count()
        queue.lease().bury()
        queue.lease(ttl=60)
    shutil.rmtree(path_of(scratch, name))
    clock.advance(seconds=120)
    with open_store(scratch, "os", clock=clock) as store:
        queue = store.queue(QUEUE)
        bodies = bodies_of(queue)
        if name in {"aside", "dead"}:
            assert set(bodies) >= {f"{number}-one" for number in range(1, 10)}
        if name == "ledger":
            assert set(bodies) >= {f"{number}-one" for number in range(10)} | {"late"}
        queue.discard()
        queue.push("new")
        queue.push("new and late", delay=10)
        assert bodies_of(queue) == ["new"]
        clock.advance(seconds=11)
        assert bodies_of(queue) == ["new and late"]
        assert queue.count().total == 0


@pytest.mark.parametrize("is_held", [False, True])
def test_a_group_goes_on_without_a_message_that_is_damaged(scratch: Path, is_held: bool) -> None:
    """Its first, that was to be tried again, or one that waits behind it."""
    clock = ManualClock(START_US)
    with open_store(scratch, "os", clock=clock) as store:
        queue = store.queue(QUEUE, QueueRules(segment_items=1))
        for body in ("first", "second", "third"):
            queue.push(body, group="g")
        queue.lease().fail(delay=1)
        assert not queue.wait(0)
    damage_body(path_of(scratch, "lanes/0"), "second" if is_held else "first")
    clock.advance(seconds=1)

    with open_store(scratch, "os", clock=clock) as store:
        bodies = [job.text for job in drain(store.queue(QUEUE))]
        assert bodies == (["first", "third"] if is_held else ["second", "third"])
        assert store.queue(QUEUE).count().total == 0
