"""Timelines of a queue in a directory: found in its ledger, however much else happened."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from segue import Job, Queue, QueueRules, Timeline
from segue.delivery import events
from segue.delivery.events import ASIDE, Event, decode
from segue.delivery.message import Key, MessageId
from segue.errors import StoreClosed
from segue.log.layout import Offset
from segue.log.record import Record
from segue.log.segment import SegmentView
from segue.stores.file import chronicle, journal, traces, upkeep
from segue.stores.file.core import QueueCore
from segue.stores.file.store import FileStore
from segue.stores.file.trace_columns import ColumnSieve
from segue.stores.file.traces import Traces, traces_of
from segue.stores.message_ids import key_of
from segue.stores.opening import open_directory
from segue.testing import ManualClock

STEPS: Final = 400
Opener = Callable[[], FileStore]
Limits = Callable[..., None]


@pytest.fixture
def steps() -> ManualClock:
    """A clock that stands still until it is told otherwise."""
    return ManualClock()


@pytest.fixture
def opener(scratch: Path, steps: ManualClock) -> Iterator[Opener]:
    """Opens further handles on one store."""
    stores: list[FileStore] = []

    def opened() -> FileStore:
        store = open_directory(scratch, sync="os", clock=steps, ticks=steps.ticks)
        stores.append(store)
        return store

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Sets how often the state is written down, and how much is kept."""

    def set_limits(*, checkpoint_events: int = 50, kept_bytes: int = 0) -> None:
        monkeypatch.setattr(journal, "CHECKPOINT_EVENTS", checkpoint_events)
        monkeypatch.setattr(journal, "LEDGER_KEPT_BYTES", kept_bytes)

    return set_limits


@pytest.fixture(params=["one by one", "by columns"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How events are looked at."""
    monkeypatch.setattr(traces, "FEW_EVENTS", -1 if request.param == "by columns" else 1 << 40)
    return str(request.param)


def core_of(store: FileStore) -> QueueCore:
    return store._queues["jobs"]


def whats(timeline: Timeline) -> list[str]:
    return [event.what for event in timeline.events]


def work(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.push(b"%d" % number)
        queue.lease().ack()


class Diary:
    """Does things to a queue at random, and notes what each means for whom."""

    def __init__(self, queue: Queue, steps: ManualClock, seed: int) -> None:
        self.told: dict[MessageId, list[str]] = {}
        self._queue = queue
        self._steps = steps
        self._chance = random.Random(seed)
        self._held: list[Job] = []

    def go_on(self, count: int) -> None:
        """Do so many things."""
        acts = [self._push, self._lease, self._lease, self._end, self._end, self._end]
        acts += [self._pop, self._extend, self._redrive, self._discard, self._purge]
        for _ in range(count):
            self._steps.advance(ms=10)
            self._chance.choice(acts)()

    def _note(self, what: str, ids: list[MessageId]) -> None:
        for id_ in ids:
            self.told[id_].append(what)

    def _push(self) -> None:
        for _ in range(self._chance.randrange(1, 6)):
            delay = self._chance.choice([None, None, 0.05])
            id_ = self._queue.push(b"x", priority=self._chance.randrange(2), delay=delay)
            self.told[id_] = ["pushed"] if delay is None else ["pushed", "delayed"]

    def _lease(self) -> None:
        jobs = self._queue.lease_many(self._chance.randrange(1, 8), ttl=10**5)
        self._note("leased", [job.id for job in jobs])
        self._held += jobs

    def _end(self) -> None:
        if not self._held:
            return
        if self._chance.random() < 0.3:
            jobs = [self._held.pop() for _ in range(min(3, len(self._held)))]
            self._queue.ack_many(jobs)
            self._note("acked", [job.id for job in jobs])
            return
        job = self._held.pop(self._chance.randrange(len(self._held)))
        match self._chance.randrange(3):
            case 0:
                job.fail("no paper", delay=self._chance.choice([0, 0.05]))
                is_last = job.tries == 3
                self._note("failed", [job.id])
                self._note("dead", [job.id] if is_last else [])
            case 1:
                job.release()
                self._note("released", [job.id])
            case _:
                job.bury("no use")
                self._note("dead", [job.id])

    def _pop(self) -> None:
        self._note("popped", [each.id for each in self._queue.pop_many(2)])

    def _extend(self) -> None:
        if self._held:
            job = self._chance.choice(self._held)
            job.extend()
            self._note("extended", [job.id])

    def _redrive(self) -> None:
        ids = [letter.message.id for letter in self._queue.dead_letters()]
        if ids and self._chance.random() < 0.5:
            self._queue.redrive()
            self._note("redriven", ids)

    def _discard(self) -> None:
        ids = [letter.message.id for letter in self._queue.dead_letters()][:2]
        self._queue.discard(limit=2)
        self._note("discarded", ids)

    def _purge(self) -> None:
        if self._chance.random() < 0.2:
            waiting = [
                each.message.id
                for each in self._queue.browse(limit=10_000)
                if each.state in ("ready", "delayed")
            ]
            self._queue.purge()
            self._note("purged", waiting)


# Finding events ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_is_told_of_whom_it_happened_to(
    opener: Opener, steps: ManualClock, small: Limits, way: str, seed: int
) -> None:
    """In its order, and of nobody else; checkpoints in between change nothing."""
    small(checkpoint_events=60, kept_bytes=1 << 30)
    queue = opener().queue("jobs", QueueRules(max_deliveries=3, backoff_base=0))
    steps.advance(ms=1)
    diary = Diary(queue, steps, seed)
    diary.go_on(STEPS)

    assert len(diary.told) > 50
    for id_, told in diary.told.items():
        timeline = queue.timeline(id_)
        assert whats(timeline) == told, (id_, way)
        assert timeline.is_whole


def test_columns_let_the_same_events_pass_as_one_by_one(opener: Opener, steps: ManualClock) -> None:
    """All that are about the message, and few others."""
    store = opener()
    queue = store.queue("jobs", QueueRules(max_deliveries=3, backoff_base=0))
    Diary(queue, steps, 7).go_on(STEPS)
    for body in (b"0", b"1", b"2"):
        queue.push(body, group="g")
    queue.lease()
    queue.wait(0)
    log = core_of(store).journal.log
    keys = [Key(lane, offset) for lane in (0, 1, ASIDE) for offset in range(60)]

    events = [(each.offset, decode(each.payload, each.attr)) for each in log.records()]

    for key in keys:
        plain, columns = (found_by(store, key, few) for few in (1 << 40, -1))
        assert list(plain.found) == list(columns.found)
        about = [offset for offset, event in events if names(event, key)]
        assert set(about) <= {trace.offset for trace in plain.found}
        assert len(plain.found) < 60


def found_by(store: FileStore, key: Key, few: int) -> Traces:
    """Return what is found where up to `few` events are looked at one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "FEW_EVENTS", few)
        log = core_of(store).journal.log
        return traces_of(log, key, log.next_offset, {})


def names(event: Event | None, key: Key) -> bool:
    """Tell whether an event names a message among its runs."""
    match event:
        case events.Leased(_, _, _, runs) | events.Popped(runs):
            pass
        case events.Settled(_, _, runs) | events.Extended(_, _, runs):
            pass
        case events.Returned(_, _, _, _, runs):
            pass
        case events.Buried(lane, offset, _, _) | events.Revived(_, lane, offset, _, _):
            return key == (lane, offset)
        case _:
            return False
    return any(
        run.lane == key.lane and run.first <= key.offset < run.first + run.size for run in runs
    )


def test_the_next_look_passes_over_what_is_about_others(
    opener: Opener, steps: ManualClock, small: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that are full are remembered by what they are about."""
    monkeypatch.setattr(traces, "FEW_EVENTS", -1)
    small(checkpoint_events=50, kept_bytes=1 << 30)
    store = opener()
    queue = store.queue("jobs")
    steps.advance(ms=1)
    work(queue, 500)
    looked: list[int] = []
    records = ColumnSieve.records

    def records_told(
        sieve: ColumnSieve, view: SegmentView, index: int, stop: int
    ) -> Iterator[Record]:
        looked.append(view.first_offset)
        return records(sieve, view, index, stop)

    monkeypatch.setattr(ColumnSieve, "records", records_told)
    first = queue.timeline(MessageId("0-300"))
    everything = len(looked)
    looked.clear()
    again = queue.timeline(MessageId("0-300"))

    assert everything == len(core_of(store).journal.log.segments()) > 10
    assert len(looked) <= 4
    assert whats(again) == whats(first) == ["pushed", "leased", "acked"]


def test_another_who_looks_at_the_same_time_may_add_what_it_learned(opener: Opener) -> None:
    """What is remembered of old stretches is forgotten while others add new ones to it."""
    store = opener()
    id_ = store.queue("jobs").push(b"work")
    log = core_of(store).journal.log
    remembered: dict[int, traces.Sketch] = {}

    class Start(int):
        """Where a stretch begins; to compare it takes as long as another needs to add one."""

        def __lt__(self, other: int) -> bool:
            remembered[100 - self] = {}
            return super().__lt__(other)

    remembered.update({Start(start): {} for start in (-2, -1)})
    found = traces_of(log, key_of(id_), Offset(log.next_offset), remembered)

    assert found.missed == 0
    assert sorted(remembered) == [101, 102]


def test_without_numpy_the_newest_events_are_looked_at(
    opener: Opener, steps: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is told: what came before is not claimed to be known."""
    monkeypatch.setitem(sys.modules, "segue.stores.file.trace_columns", None)
    monkeypatch.setattr(traces, "FEW_EVENTS", 10)
    monkeypatch.setattr(traces, "EVENTS_WITHOUT_NUMPY_MAX", 100)
    queue = opener().queue("jobs", QueueRules(keep_seconds=60))
    steps.advance(ms=1)
    old = queue.push(b"old")
    queue.lease().ack()
    steps.advance(ms=1)
    work(queue, 100)
    steps.advance(ms=1)
    new = queue.push(b"new")
    queue.lease().ack()

    told = queue.timeline(new)
    assert (whats(told), told.is_whole) == (["pushed", "leased", "acked"], True)
    told = queue.timeline(old)
    assert (told.state, whats(told), told.is_whole) == ("settled", ["pushed"], False)
    assert told.since_us == steps() - 1_000


def test_nothing_is_read_in_a_turn_but_how_the_message_stands(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long ledger holds up nobody."""
    store = opener()
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    queue.lease()
    core = core_of(store)
    in_turn: list[bool] = []

    def traces_told(*arguments: object) -> Traces:
        in_turn.append(core.journal.writer.mutex.locked())
        return traces_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(chronicle, "traces_of", traces_told)
    queue.timeline(id_)

    assert in_turn == [False]


def test_what_was_never_touched_needs_no_look_at_the_ledger(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten million that wait each is found at once."""
    queue = opener().queue("jobs")
    id_ = queue.push(b"work")
    monkeypatch.setattr(chronicle, "traces_of", None)

    assert (whats(queue.timeline(id_)), queue.timeline(id_).is_whole) == (["pushed"], True)


# How far back ------------------------------------------------------------------------------------


def test_what_happened_before_the_last_checkpoints_is_told_while_it_is_kept(
    opener: Opener, steps: ManualClock, small: Limits
) -> None:
    """And of what was pushed since, all."""
    small(kept_bytes=1 << 30)
    queue = opener().queue("jobs")
    steps.advance(ms=1)
    id_ = queue.push(b"work")
    queue.lease(owner="ada").fail("no paper", delay=0)
    work(queue, 200)

    told = opener().queue("jobs").timeline(id_)
    assert whats(told)[:3] == ["pushed", "leased", "failed"]
    assert (told.is_whole, told.since_us) == (True, None)


def test_a_ledger_that_was_cut_says_since_when_it_tells(
    opener: Opener, steps: ManualClock, small: Limits
) -> None:
    """Of what happened before nothing is claimed; how the message stood then is known."""
    small(kept_bytes=0)
    queue = opener().queue("jobs", QueueRules(keep_seconds=10**5))
    id_ = queue.push(b"work")
    job = queue.lease(owner="ada", ttl=10**5)
    steps.advance(seconds=1)
    work(queue, 200)
    job.extend(ttl=10**5)

    told = queue.timeline(id_)
    assert whats(told) == ["pushed", "extended"]
    assert (told.events[1].owner, told.events[1].attempt) == ("ada", 1)
    assert (told.is_whole, told.since_us) == (False, steps())
    job.ack()
    told = queue.timeline(id_)
    assert (told.state, whats(told)[-1], told.events[-1].owner) == ("settled", "acked", "ada")


def test_a_purge_after_the_ledger_was_cut_is_told_only_of_what_waited(
    opener: Opener, steps: ManualClock, small: Limits
) -> None:
    """By how messages stood in the oldest checkpoint that is left."""
    small(kept_bytes=0)
    queue = opener().queue("jobs", QueueRules(keep_seconds=10**5))
    done, waits, held = (queue.push(body) for body in (b"done", b"waits", b"held"))
    jobs = queue.lease_many(3, ttl=10**5)
    jobs[0].ack()
    jobs[1].release(delay=100)
    steps.advance(seconds=1)
    work(queue, 200)
    queue.purge()

    assert whats(queue.timeline(done)) == ["pushed"]
    assert whats(queue.timeline(waits)) == ["pushed", "purged"]
    assert whats(queue.timeline(held)) == ["pushed"]
    assert queue.timeline(held).state == "leased"


def test_what_waited_untouched_when_the_ledger_was_cut_is_whole(
    opener: Opener, steps: ManualClock, small: Limits
) -> None:
    """Nothing can have happened to it before: the oldest checkpoint says so."""
    small(kept_bytes=0)
    queue = opener().queue("jobs")
    id_ = queue.push(b"work", priority=5)
    steps.advance(seconds=1)
    work(queue, 200)
    queue.lease(owner="ada").ack()

    told = queue.timeline(id_)
    assert whats(told) == ["pushed", "leased", "acked"]
    assert told.is_whole


def test_a_message_whose_record_is_gone_was_there_all_the_same(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is settled; what the ledger knows is told, and not that it is all."""
    monkeypatch.setattr(upkeep, "TIDY_EVERY_ITEMS", 1)
    queue = opener().queue("jobs", QueueRules(segment_items=4))
    id_ = queue.push(b"work")
    work(queue, 20)
    queue.pop()

    told = queue.timeline(id_)
    assert (told.state, told.message, told.is_whole) == ("settled", None, False)
    assert whats(told) == ["leased", "acked"]


def test_a_letter_is_found_whose_burial_is_forgotten(
    opener: Opener, steps: ManualClock, small: Limits
) -> None:
    """By what it says of itself; also beside letters whose ids begin like its own."""
    small(kept_bytes=0)
    queue = opener().queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(30)]
    for job in queue.lease_many(30):
        job.bury(f"no use for {job.id}")
    queue.redrive(where=lambda letter: letter.message.id == "0-2")
    queue.lease().ack()
    steps.advance(seconds=1)
    work(queue, 200)

    for id_ in ids:
        told = queue.timeline(id_)
        if id_ == "0-2":
            assert told.state == "settled"
            continue
        assert (told.state, told.reason) == ("dead", f"no use for {id_}")
        assert told.message is not None
        assert (told.message.id, told.message.attempt, told.tries) == (id_, 1, 1)
        assert told.is_whole is False
        assert whats(told) == ["pushed", "dead"]
        assert (told.events[1].attempt, told.events[1].reason) == (1, told.reason)
        assert told.events[1].at_us == steps() - 1_000_000


def test_of_too_many_events_the_newest_are_told(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the push; and that there are more."""
    monkeypatch.setattr(chronicle, "TIMELINE_EVENTS_MAX", 5)
    queue = opener().queue("jobs")
    id_ = queue.push(b"work")
    for _ in range(10):
        queue.lease().release()

    told = queue.timeline(id_)
    assert whats(told) == ["pushed", "leased", "released", "leased", "released"]
    assert (told.is_whole, told.since_us) == (False, told.events[1].at_us)


# Places and accidents ----------------------------------------------------------------------------


def test_a_message_that_was_moved_is_found_under_its_own_name_only(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it lies now is nobody's id."""
    monkeypatch.setattr(upkeep, "TIDY_EVERY_ITEMS", 4)
    queue = opener().queue("jobs", QueueRules(segment_items=4))
    id_ = queue.push(b"slow")
    job = queue.lease(ttl=10**5, owner="ada")
    work(queue, 60)

    told = queue.timeline(id_)
    assert whats(told) == ["pushed", "leased", "moved"]
    assert (told.state, told.events[-1].owner, told.is_whole) == ("leased", "ada", True)
    assert queue.timeline(MessageId("later-0")).state == "unknown"
    job.ack()
    told = queue.timeline(id_)
    assert (told.state, whats(told)[-1]) == ("settled", "acked")
    assert told.message is not None
    assert told.message.body == b"slow"


def test_what_a_power_cut_took_back_is_lost_and_its_name_given_again(opener: Opener) -> None:
    """What happened to one message is not told of another that got its place."""
    store = opener()
    queue = store.queue("jobs")
    core = core_of(store)
    id_ = queue.push(b"first")
    queue.lease(owner="ada").ack()
    with core.turn():
        core.journal.write(events.Rewound(0, 0))

    told = queue.timeline(id_)
    assert whats(told) == ["pushed"]
    queue.lease(owner="bob")
    told = queue.timeline(id_)
    assert whats(told) == ["pushed", "leased"]
    assert (told.events[1].owner, told.is_whole) == ("bob", True)


def test_a_message_that_cannot_be_read_is_told_as_lost(opener: Opener, scratch: Path) -> None:
    """Its events are there, whatever became of its bytes."""
    store = opener()
    queue = store.queue("jobs")
    bodies = (b"first message", b"second message", b"third message")
    id_, other, _ = (queue.push(body) for body in bodies)
    (segment,) = (scratch / "queues/jobs/lanes/0").glob("*.q")
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(b"first message"))
        file.write(b"F")
    message = queue.pop()

    assert message is not None
    assert message.id == other
    told = queue.timeline(id_)
    assert (told.state, whats(told), told.message) == ("settled", ["lost"], None)
    assert whats(queue.timeline(other)) == ["pushed", "popped"]


def test_damage_in_the_ledger_is_passed_over_and_not_called_whole(
    opener: Opener, scratch: Path
) -> None:
    """What else is there is told."""
    store = opener()
    queue = store.queue("jobs")
    ids = [queue.push(b"0"), queue.push(b"1")]
    queue.lease(owner="ada").ack()
    queue.lease(owner="somebody else").ack()
    store.close()
    (segment,) = (scratch / "queues/jobs/ledger").glob("*.q")
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(b"somebody else"))
        file.write(b"S")
    core = QueueCore("jobs", scratch / "queues/jobs", store.place)
    try:
        log = core.journal.log
        found = [traces_of(log, key_of(id_), Offset(log.next_offset), {}) for id_ in ids]
    finally:
        core.close()

    assert [len(each.found) for each in found] == [2, 1]


def test_timelines_end_with_the_store(opener: Opener) -> None:
    """As every call does."""
    store = opener()
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    store.close()

    with pytest.raises(StoreClosed):
        queue.timeline(id_)
