"""How much lies ahead of an offset, in bytes and in time, told without reading it."""

from pathlib import Path

import pytest

from segue import Log, Record
from segue.errors import LogClosed
from segue.log.disk import Disk
from tests.unit.support import (
    ManualClock,
    RestartedMachine,
    destroy_header,
    fill,
    flip_bit,
    segment_path,
    slot_position,
    small_log,
)

PAYLOADS = [b"a" * size for size in (3, 0, 10, 7, 1, 1, 200, 0, 0, 5)]


def bytes_ahead(payloads: list[bytes]) -> list[int]:
    """Return the answer for each offset, and for one behind the end."""
    return [sum(map(len, payloads[offset:])) for offset in range(len(payloads) + 1)]


@pytest.fixture
def filled(directory: Path, clock: ManualClock) -> Path:
    """Ten records in three segments, singles and batches, ten microseconds apart."""
    with small_log(directory, clock=clock) as log:
        for first, count in ((0, 1), (1, 3), (4, 1), (5, 3), (8, 2)):
            log.append_many(PAYLOADS[first : first + count])
            clock.advance(us=10)
    return directory


TIMES = [0, 10, 10, 10, 20, 30, 30, 30, 40, 40]
START_US = ManualClock().now_us


@pytest.mark.parametrize("how", ["open", "read-only", "restarted"])
def test_bytes_and_times_are_those_of_the_records_from_an_offset_on(filled: Path, how: str) -> None:
    """At every offset, in sealed segments and in the active one, whoever asks."""
    disk: Disk | None = RestartedMachine() if how == "restarted" else None
    with Log(filled, read_only=how != "open", disk=disk) as log:
        assert [log.bytes_from(offset) for offset in range(11)] == bytes_ahead(PAYLOADS)
        assert [log.time_of(offset) for offset in range(11)] == [
            *(START_US + time for time in TIMES),
            None,
        ]


def test_offsets_beyond_the_ends_are_taken_for_the_ends(filled: Path) -> None:
    """A reader may stand before the first record there is, or at the end."""
    with small_log(filled) as log:
        log.trim(4)

        assert log.bytes_from(0) == log.bytes_from(-5) == log.bytes_from(4) == 207
        assert log.time_of(0) == log.time_of(4) == START_US + 20
        assert (log.bytes_from(10), log.bytes_from(1 << 60)) == (0, 0)
        assert (log.time_of(10), log.time_of(1 << 60)) == (None, None)


def test_an_empty_log_has_nothing_ahead(directory: Path) -> None:
    """Also one whose active segment is empty."""
    with small_log(directory) as log:
        assert (log.bytes_from(0), log.time_of(0)) == (0, None)
        fill(log, 3)
        log.roll()

        assert (log.bytes_from(0), log.bytes_from(3), log.time_of(3)) == (24, 0, None)


def test_they_follow_what_is_appended(directory: Path, clock: ManualClock) -> None:
    """By this handle or by another one."""
    with small_log(directory, clock=clock) as log, Log(directory, read_only=True) as other:
        for number in range(10):
            log.append(b"x" * number)

            assert other.bytes_from(0) == sum(range(number + 1))
            assert other.bytes_from(number) == number
            assert other.time_of(number) == clock.now_us
            assert other.time_of(number + 1) is None
            clock.advance(us=1)


def test_removed_records_take_no_bytes_and_no_time(filled: Path) -> None:
    """The time is that of the next record which can be read, in whatever segment."""

    def keep(record: Record) -> bool:
        return record.offset in {2, 6}

    with small_log(filled) as log:
        assert log.bytes_from(0) == 227
        log.remove_records(keep)

        kept = [payload if n in {2, 6, 8, 9} else b"" for n, payload in enumerate(PAYLOADS)]
        assert [log.bytes_from(offset) for offset in range(11)] == bytes_ahead(kept)
        readable = [10, 10, 10, 30, 30, 30, 30, 40, 40, 40]
        assert [log.time_of(offset) for offset in range(10)] == [
            START_US + time for time in readable
        ]


def test_damage_raises_nothing(scratch: Path) -> None:
    """They are shown to people: what cannot be read counts for nothing."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 14)
    with small_log(directory) as log:
        destroy_header(segment_path(directory, 1))
        flip_bit(segment_path(directory, 0), slot_position(1) + 19, bit=7)
        with segment_path(directory, 2).open("r+b") as file:
            file.truncate(slot_position(2))

        assert all(0 <= log.bytes_from(offset) <= 3 * 4096 for offset in range(15))
        assert all(isinstance(log.time_of(offset), int) for offset in range(14))
        assert log.time_of(14) is None


def test_a_closed_log_tells_nothing(directory: Path) -> None:
    """As with everything else."""
    log = small_log(directory)
    log.close()
    with pytest.raises(LogClosed):
        log.bytes_from(0)
    with pytest.raises(LogClosed):
        log.time_of(0)
