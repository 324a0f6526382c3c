"""A log as its headers tell it: the same as the log says of itself, and nothing is touched."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import Log
from segue.log import outline as outline_module
from segue.log import outlines as outlines_module
from segue.log.disk import Disk
from segue.log.outline import sealed_facts
from segue.log.outlines import Outlines
from segue.log.positions import SavedPosition
from tests.unit.support import (
    ManualClock,
    RestartedMachine,
    destroy_header,
    fill,
    flip_bit,
    no_descriptor_left_open,
    segment_path,
    small_log,
    traces,
)


class CountingDisk(Disk):
    """Counts how often it was asked for names."""

    def __init__(self) -> None:
        self.listings = 0

    def names(self, directory: Path) -> list[str]:
        self.listings += 1
        return super().names(directory)


def settle(*directories: Path) -> None:
    """Have nothing changed in these directories for a while."""
    for directory in directories:
        os.utime(directory, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def outlines() -> Iterator[Outlines]:
    with no_descriptor_left_open():
        found = Outlines(Disk())
        yield found
        found.close()


@pytest.fixture
def filled(directory: Path, clock: ManualClock) -> Path:
    """Ten records in three segments, ten microseconds apart."""
    with small_log(directory, clock=clock) as log:
        for size in (3, 0, 10, 7, 1, 1, 200, 0, 0, 5):
            log.append(b"a" * size)
            clock.advance(us=10)
    return directory


def facts(outlines: Outlines, path: Path) -> list[object]:
    """Return all that is told of a log."""
    with outlines.look(path) as outline:
        assert outline is not None
        return [
            outline.first_offset,
            outline.next_offset,
            outline.size_bytes,
            [outline.bytes_from(offset) for offset in range(16)],
            [outline.time_of(offset) for offset in range(16)],
            outline.newest(),
        ]


def facts_of(log: Log) -> list[object]:
    """Return the same, as the log itself says it."""
    return [
        log.first_offset,
        log.next_offset,
        log.size_bytes,
        [log.bytes_from(offset) for offset in range(16)],
        [log.time_of(offset) for offset in range(16)],
        (log.segments(), 0),
    ]


# The same as the log says --------------------------------------------------------------------


def test_an_outline_tells_what_the_log_tells_and_follows_it(
    filled: Path, outlines: Outlines, clock: ManualClock
) -> None:
    """Whatever happens to the log: appended to, rolled, trimmed, with records removed."""
    with small_log(filled, clock=clock) as log:
        for _ in range(3):
            assert facts(outlines, filled) == facts_of(log)
            log.append(b"more")
            clock.advance(us=10)
            assert facts(outlines, filled) == facts_of(log)
        log.roll()
        assert facts(outlines, filled) == facts_of(log)
        log.remove_records(lambda record: record.offset in {2, 6, 11})
        assert facts(outlines, filled) == facts_of(log)
        log.trim(8)
        assert facts(outlines, filled) == facts_of(log)
        settle(filled)
        assert facts(outlines, filled) == facts_of(log)
        log.append(b"and more")
        assert facts(outlines, filled) == facts_of(log)


def test_an_outline_of_a_log_that_nobody_opened_since_the_machine_started(
    filled: Path, outlines: Outlines
) -> None:
    """The live words of before are not believed, and nobody opens it for that."""
    before = facts(outlines, filled)
    restarted = Outlines(RestartedMachine())

    assert facts(restarted, filled) == before
    restarted.close()


def test_damage_counts_for_nothing(scratch: Path, outlines: Outlines) -> None:
    """A header that cannot be read is told as such, and everything else is told all the same."""
    path = scratch / "log"
    with small_log(path) as log:
        fill(log, 14)
        destroy_header(segment_path(path, 1))
        said = facts_of(log)

    assert facts(outlines, path) == said
    with outlines.look(path) as outline:
        assert outline is not None
        infos, _ = outline.newest()
        assert [info.first_offset for info in infos] == [0, None, 8, 12]
        assert [fact.id for fact in sealed_facts(infos)] == [0]


# Remembering ---------------------------------------------------------------------------------


def test_names_are_remembered_only_once_they_have_settled(filled: Path) -> None:
    """A directory that changed a moment ago may change again without anybody seeing it."""
    disk = CountingDisk()
    outlines = Outlines(disk)
    with Log(filled) as log:
        log.reader("audit").close()
        facts(outlines, filled)
        listings = disk.listings
        facts(outlines, filled)
        assert disk.listings > listings

        settle(filled, filled / "readers")
        facts(outlines, filled)
        listings = disk.listings
        facts(outlines, filled)
        assert disk.listings == listings
    outlines.close()


def test_positions_are_those_of_this_moment(filled: Path, outlines: Outlines) -> None:
    """Also if one was remembered, and the next commit comes at once."""

    def positions() -> dict[str, SavedPosition | None]:
        with outlines.look(filled) as outline:
            assert outline is not None
            return dict(outline.positions())

    with small_log(filled) as log:
        assert positions() == {}
        with log.reader("audit") as reader:
            for _ in range(10):
                settle(filled / "readers")
                assert positions() == log.readers()
                next(iter(reader))
                reader.commit()
                assert positions() == log.readers()
        log.remove_reader("audit")
        assert positions() == {}
        log.reader("broken").close()
        flip_bit(filled / "readers" / "broken.meta", 9)
        assert positions() == {"broken": None}
        log.remove_reader("broken")


def test_a_log_made_anew_is_another_one(scratch: Path, outlines: Outlines) -> None:
    """Nothing that was said of the one before is said of it, though its files have the names."""
    path = scratch / "log"
    with small_log(path) as log:
        fill(log, 10)
    facts(outlines, path)
    shutil.rmtree(path)
    with outlines.look(path) as outline:
        assert outline is None
    with small_log(path) as log:
        log.append(b"the first")
        assert facts(outlines, path) == facts_of(log)
    shutil.rmtree(path)
    with small_log(path) as log:
        fill(log, 6)
        assert facts(outlines, path) == facts_of(log)


def test_no_more_is_remembered_than_there_is_room_for(
    scratch: Path, outlines: Outlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither logs nor segments; and who looks while another is let go of goes on."""
    monkeypatch.setattr(outlines_module, "OUTLINES_KEPT", 2)
    paths = [scratch / str(number) for number in range(4)]
    for path in paths:
        with small_log(path) as log:
            fill(log, 10)
    with outlines.look(paths[0]) as first:
        assert first is not None
        for path in paths[1:]:
            facts(outlines, path)
        assert first.next_offset == 10
        assert first.newest()[0]
        assert set(outlines._by_path) == set(paths[2:])
    monkeypatch.setattr(outlines_module, "SEGMENTS_KEPT", 3)
    facts(outlines, paths[0])
    facts(outlines, paths[1])

    assert list(outlines._by_path) == [paths[1]]
    assert outlines._weight <= 3


def test_what_is_far_back_is_only_measured(
    filled: Path, outlines: Outlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a log of a million segments must not read them all; the next one knows more."""
    monkeypatch.setattr(outline_module, "HEADERS_FOR_BYTES_MAX", 1)
    with Log(filled, read_only=True) as log:
        sizes = [info.size_bytes for info in log.segments()]
        exact = [log.bytes_from(offset) for offset in (0, 4, 8)]
    with outlines.look(filled) as outline:
        assert outline is not None
        told = [outline.bytes_from(0) for _ in range(2)]
        # The one it stands in and the last are read, the one in between is not.
        assert told[0] == exact[0] - exact[1] + exact[2] + sizes[1]
        outline.newest()
        assert outline.bytes_from(0) == exact[0]
        assert [len(outline.oldest(2)), len(outline.newest(2)[0])] == [2, 2]
        assert (outline.newest(2)[1], outline.newest(0)) == (1, ([], 3))


# Touching nothing ----------------------------------------------------------------------------


def test_looking_changes_nothing(filled: Path, scratch: Path, outlines: Outlines) -> None:
    """Neither a log that is there, nor that there is none."""
    before = traces(scratch)
    facts(outlines, filled)
    with outlines.look(filled) as outline, outlines.look(scratch / "nothing") as nothing:
        assert outline is not None
        assert outline.quarantined() == []
        assert nothing is None

    assert traces(scratch) == before


def test_what_was_set_aside_is_told(scratch: Path, outlines: Outlines) -> None:
    """A damaged segment that was repaired is kept, and so is one without a header."""
    path = scratch / "log"
    with small_log(path) as log:
        fill(log, 14)
        flip_bit(segment_path(path, 0), 8192 + 3)
        destroy_header(segment_path(path, 2))
        log.repair()
        with outlines.look(path) as outline:
            assert outline is not None
            found = outline.quarantined()

    assert [(info.id, info.first_offset, info.count) for info in found] == [
        (0, 0, 4),
        (2, None, 0),
    ]
    assert all(info.size_bytes for info in found)


def test_a_number_stands_for_the_names_of_a_directory_once_they_have_settled(
    scratch: Path,
) -> None:
    """Zero is never trusted: it changed just now, or is not there."""
    disk = Disk()
    assert disk.names_as_of(scratch / "nothing") == 0
    (scratch / "a").touch()
    assert disk.names_as_of(scratch) == 0
    settle(scratch)
    settled = disk.names_as_of(scratch)
    assert settled == disk.names_as_of(scratch) != 0
    (scratch / "b").touch()
    assert disk.names_as_of(scratch) == 0
