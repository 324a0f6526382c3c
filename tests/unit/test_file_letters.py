"""Dead letters of a directory: read by the stretch, whoever has left and whatever is damaged."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from segue.delivery.message import Key, MessageId
from segue.delivery.ranges import OffsetRanges
from segue.log import Log
from segue.log.record import Record
from segue.log.segment import SegmentView
from segue.stores.contract import Queue
from segue.stores.file import letter_search, neighbours
from segue.stores.file import letters as module
from segue.stores.file.queue import FileQueue
from segue.stores.letters import DeadLetters
from segue.stores.opening import open_directory
from segue.stores.queue_base import QueueBase
from tests.unit.support import flip_bit


@pytest.fixture
def queue(scratch: Path) -> Iterator[Queue]:
    """A queue with fifty dead letters, each written on its own."""
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs")
        queue.push_many([b"%d" % number for number in range(50)])
        for job in queue.lease_many(50):
            job.bury(f"reason {job.text}.")
        yield queue


def letters_of(queue: Queue) -> DeadLetters:
    return cast("QueueBase", queue).letters


def test_a_letter_is_searched_for_only_where_letters_are(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nowhere if there are none; not in segments that all have left, which may be many."""
    core = cast("FileQueue", queue)._core
    looked: list[int] = []
    real = letter_search._found_in

    def note(view: SegmentView, stop: int, key: Key) -> Iterator[int]:
        looked.append(view.first_offset)
        return real(view, stop, key)

    monkeypatch.setattr(letter_search, "_found_in", note)
    log = core.lanes.dead.log
    for number in (50, 51, 52):
        log.roll()
        queue.push(b"%d" % number)
        queue.lease().bury("late")
    assert [view.first_offset for view in log.segments()] == [0, 50, 51, 52]
    queue.discard(where=lambda letter: letter.number in {50, 51})
    settled, dead = queue.push(b"settled"), MessageId("0-3")
    queue.pop()
    found = [queue.look_up(each) for each in (settled, dead)]
    looked_with_some, looked[:] = list(looked), []
    queue.discard()
    with_none = queue.look_up(settled)

    assert [each and each.state for each in found] == [None, "dead"]
    assert looked_with_some == [52, 0] * 2
    assert (with_none, looked) == (None, [])


@pytest.mark.parametrize("gap", [0, 1, 64])
@pytest.mark.parametrize("most", [1, 3, 1_024])
def test_letters_are_read_as_they_are_there(
    queue: Queue, gap: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are read at once, and however many lie between them that left."""
    monkeypatch.setattr(module, "GAP_MAX", gap)
    monkeypatch.setattr(module, "READ_MAX", most)
    monkeypatch.setattr(module, "READ_FIRST", min(most, 2))
    monkeypatch.setattr(module, "RUNS_MAX", max(1, min(gap, 5)))
    letters = letters_of(queue)
    left = set(random.Random(gap + most).sample(range(50), 30))
    queue.discard(where=lambda letter: letter.number in left)
    there = [number for number in range(50) if number not in left]
    for after in range(-1, 51):
        expected = [number for number in there if number > after]

        assert [letter.number for letter in letters.behind(after)] == expected
        assert [note.number for note in letters.notes(after)] == expected
    assert [letter.number for letter in letters.at(range(60))] == there
    assert [letter.message.body for letter in letters.at(there[3:5])] == [
        b"%d" % number for number in there[3:5]
    ]


def test_who_dies_while_letters_are_read_is_not_among_them(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is brought back and dies again would come for ever."""
    monkeypatch.setattr(module, "READ_MAX", 1)
    monkeypatch.setattr(module, "READ_FIRST", 1)
    seen = []
    for letter in letters_of(queue):
        seen.append(letter.number)
        letters_of(queue).revive([letter])
        queue.lease().bury("again")

    assert seen == list(range(50))
    assert queue.count().dead == 50


def test_damaged_letters_are_passed_over_and_their_neighbours_are_not(
    queue: Queue, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silently: whoever looks every second would fill the log."""
    monkeypatch.setattr("segue.log.segment.SETTLE_SECONDS", 0)
    (path,) = (scratch / "queues" / "jobs" / "dead").glob("*.q")
    flip_bit(path, path.read_bytes().index(b"reason 17."))
    found = [letter.number for letter in letters_of(queue)]

    assert found == [number for number in range(50) if number != 17]
    assert list(letters_of(queue).at([17])) == []


def test_large_letters_are_read_one_by_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a few megabytes at once."""
    monkeypatch.setattr(module, "READ_BYTES_MAX", 1)
    counts: list[int] = []
    stretch = module._stretch

    def counted(log: Log, start: int, stop: int) -> tuple[list[Record], int]:
        counts.append(stop - start)
        return stretch(log, start, stop)

    monkeypatch.setattr(module, "_stretch", counted)

    assert len(list(letters_of(queue))) == 50
    assert counts == [module.READ_FIRST, *[1] * (50 - module.READ_FIRST)]


def test_large_letters_behind_small_ones_are_not_read_all_at_once(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known before how large they are; a segment of them is enough."""
    monkeypatch.setattr(neighbours, "NEIGHBOURS_BYTES_MAX", 1)
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs")
        queue.push_many([b"x"] * 100)
        queue.push_many([b"x" * (4 << 20)] * 6)
        while jobs := queue.lease_many(100):
            for job in jobs:
                job.bury("no")
        log = queue._core.lanes.dead.log  # type: ignore[attr-defined]
        records, end = neighbours.read_neighbours(log, 90, 106)

        assert 90 + len(records) == end < 106
        assert [letter.number for letter in letters_of(queue)] == list(range(106))


def test_runs_from_an_offset_on_are_told() -> None:
    """Those that reach beyond it, whole."""
    ranges = OffsetRanges()
    ranges.add(2, 5)
    ranges.add(7, 9)

    assert ranges.runs(0) == ranges.runs(4) == [(2, 5), (7, 9)]
    assert ranges.runs(5) == ranges.runs(8) == [(7, 9)]
    assert ranges.runs(9) == []
    assert ranges.runs(0, 1) == [(2, 5)]
    assert ranges.last == 8
    assert OffsetRanges().last is None


def test_a_copy_stays_as_it_is() -> None:
    ranges = OffsetRanges()
    ranges.add(2, 5)
    copy = ranges.copy()
    ranges.remove(0, 9)

    assert (copy.runs(), len(copy)) == ([(2, 5)], 3)
