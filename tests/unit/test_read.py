"""Reading by offset, from any start, up to any stop, and following the end."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from pathlib import Path

import pytest

from segue import Log
from segue.errors import InvalidArgument, OffsetNotWritten, OffsetOutOfRange, OffsetTrimmed
from segue.log import Start
from tests.unit.support import (
    ManualClock,
    failing_cases,
    fill,
    moment,
    offsets,
    payloads,
    small_log,
)
from tests.waiting import LIMIT_SECONDS, wait_until


def test_a_record_is_read_by_its_offset(directory: Path, clock: ManualClock) -> None:
    """Offset, time, attr and payload come back as they were appended."""
    with small_log(directory, clock=clock) as log:
        written = []
        for number in range(10):
            clock.advance(us=7)
            written.append((number, clock.now_us, number * 3, b"%d" % number))
            log.append(b"%d" % number, attr=number * 3)

        assert [tuple(log.read(offset)) for offset in range(10)] == written
        assert [tuple(log.read(offset)) for offset in reversed(range(10))] == written[::-1]


def test_the_time_of_a_record_is_a_datetime_in_utc(directory: Path, clock: ManualClock) -> None:
    """`time` is `time_us` for people."""
    clock.now_us = 1_500_000_000_123_456
    with small_log(directory, clock=clock) as log:
        log.append(b"x")

        assert log.read(0).time == datetime(2017, 7, 14, 2, 40, 0, 123_456, tzinfo=UTC)


@pytest.mark.parametrize("offset", [10, 11, 1 << 70, -1])
def test_an_offset_nobody_wrote_is_not_written(directory: Path, offset: int) -> None:
    """The error names what was asked for and what there is, and is a LookupError."""
    with small_log(directory) as log:
        fill(log, 10)
        with pytest.raises(OffsetNotWritten) as raised:
            log.read(offset)

        assert (raised.value.offset, raised.value.earliest, raised.value.latest) == (offset, 0, 10)
        assert isinstance(raised.value, OffsetOutOfRange | LookupError)


@pytest.mark.parametrize("offset", [0, 3, 7])
def test_a_trimmed_offset_says_so(directory: Path, offset: int) -> None:
    """What retention removed is told apart from what never was."""
    with small_log(directory) as log:
        fill(log, 10)
        log.trim(8)
        with pytest.raises(OffsetTrimmed) as raised:
            log.read(offset)
        with pytest.raises(OffsetTrimmed):
            log.records(offset).__next__()
        with pytest.raises(OffsetTrimmed):
            log.resolve(offset)

        assert (raised.value.offset, raised.value.earliest, raised.value.latest) == (offset, 8, 10)
        assert log.read(8).payload == b"record 8"


def test_an_empty_log_has_nothing_to_read(directory: Path) -> None:
    """Both ends are 0, iterating ends at once, and no offset is written."""
    with small_log(directory) as log:
        assert (log.first_offset, log.next_offset, len(log)) == (0, 0, 0)
        assert list(log.records()) == []
        assert list(log.records("latest")) == []
        assert (log.resolve("earliest"), log.resolve("latest"), log.resolve(0)) == (0, 0, 0)
        with pytest.raises(OffsetNotWritten) as raised:
            log.read(0)

        assert (raised.value.earliest, raised.value.latest) == (0, 0)


@pytest.mark.parametrize("start", range(11))
def test_iteration_begins_at_any_offset(directory: Path, start: int) -> None:
    """Also at the first of a segment, inside a batch, and at the end."""
    with small_log(directory) as log:
        log.append(b"0")
        log.append_many([b"1", b"2", b"3"])
        log.append_many([b"4", b"5"])
        log.append(b"6")
        log.append_many([b"7", b"8", b"9"])

        assert payloads(log.records(start)) == [b"%d" % number for number in range(start, 10)]


def test_iteration_stops_before_any_offset(directory: Path) -> None:
    """As with a slice, a stop beyond the end is the end and one before the start is nothing."""
    with small_log(directory) as log:
        fill(log, 10)

        def check(stop: int, start: int) -> None:
            assert offsets(log.records(start, stop=stop)) == list(range(10))[start:stop]

        assert failing_cases(check, product([0, 1, 3, 4, 5, 8, 10, 11, 99], [0, 2, 4, 10])) == []


def test_iteration_begins_at_either_end(directory: Path) -> None:
    """Earliest is the oldest record there is, latest is after the newest."""
    with small_log(directory) as log:
        fill(log, 10)
        log.trim(5)

        assert offsets(log.records("earliest")) == list(range(4, 10))
        assert list(log.records("latest")) == []


@pytest.mark.parametrize("start", [-1, 11, 1 << 70])
def test_iteration_from_beyond_the_log_is_refused(directory: Path, start: int) -> None:
    """Only offsets the log holds, or will hold next, are places to begin."""
    with small_log(directory) as log:
        fill(log, 10)
        with pytest.raises(OffsetNotWritten) as raised:
            list(log.records(start))

        assert (raised.value.offset, raised.value.earliest, raised.value.latest) == (start, 0, 10)


@pytest.mark.parametrize("start", ["resume", "begin", "", None, 1.0, True, b"earliest"])
def test_a_start_that_means_nothing_is_refused(directory: Path, start: object) -> None:
    """A saved place belongs to readers; the rest is a slip of the caller."""
    with small_log(directory) as log, pytest.raises(InvalidArgument):
        list(log.records(start))  # type: ignore[arg-type]


def test_iteration_goes_on_to_the_end_as_it_is_then(directory: Path) -> None:
    """What is appended while somebody iterates is seen, also across a roll."""
    with small_log(directory) as log:
        fill(log, 3)
        records = log.records()
        first = next(records)
        fill(log, 7, first=3)

        assert offsets([first, *records]) == list(range(10))


def test_a_slip_in_what_to_do_about_damage_is_refused(directory: Path) -> None:
    """A misspelt `on_damage` must not be taken for permission to skip records."""
    with small_log(directory) as log:
        fill(log, 1)
        with pytest.raises(InvalidArgument):
            list(log.records(on_damage="rasie"))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            log.reader("someone", on_damage="rasie")  # type: ignore[arg-type]


# Time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_us", "expected"),
    [(0, 0), (1_000, 0), (1_001, 1), (1_500, 5), (1_501, 6), (1_900, 9), (1_901, 10)],
)
def test_iteration_begins_at_any_time(directory: Path, time_us: int, expected: int) -> None:
    """A datetime stands for the first record that is not older."""
    clock = ManualClock(1_000)
    with small_log(directory, clock=clock) as log:
        for number in range(10):
            log.append(b"%d" % number)
            clock.advance(us=100)

        assert log.offset_at(moment(time_us)) == expected
        assert offsets(log.records(moment(time_us))) == list(range(expected, 10))


def test_the_first_of_several_records_of_one_time_is_found(
    directory: Path, clock: ManualClock
) -> None:
    """Also when records of the same microsecond fill several segments."""
    with small_log(directory, clock=clock) as log:
        fill(log, 3)
        clock.advance(us=1)
        fill(log, 10)

        assert log.offset_at(moment(clock.now_us)) == 3
        assert log.offset_at(moment(clock.now_us - 1)) == 0


def test_a_datetime_may_be_of_any_zone(directory: Path, clock: ManualClock) -> None:
    """Times are compared, not what a clock on some wall shows."""
    with small_log(directory, clock=clock) as log:
        fill(log, 1)
        clock.advance(us=10)
        fill(log, 1)
        when = moment(clock.now_us).astimezone(timezone(timedelta(hours=-7)))

        assert log.offset_at(when) == 1
        assert log.offset_at(when.astimezone().replace(tzinfo=None)) == 1


def test_a_time_is_found_past_a_segment_that_was_filled_in(
    scratch: Path, clock: ManualClock
) -> None:
    """A repaired gap has no times of its own and must not lead the search astray."""
    directory = scratch / "log"
    with small_log(directory, clock=clock) as log:
        begin_us = clock.now_us
        for number in range(16):
            log.append(b"%d" % number)
            clock.advance(us=100)
        (directory / "000000001.q").unlink()
        log.repair()
    with small_log(directory, clock=clock) as log:
        found = [log.offset_at(moment(begin_us + 100 * number)) for number in range(16)]

        assert found[:4] == [0, 1, 2, 3]
        assert found[8:] == list(range(8, 16))


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_time_never_runs_backwards(directory: Path, exclusive: bool) -> None:
    """A clock that steps back does not reorder the log: single, batch, roll and reopen."""
    clock = ManualClock(1_000)
    with small_log(directory, clock=clock, exclusive=exclusive) as log:
        for step_us in (0, 500, -900, 100, -50, 700, -2_000, 1, 1, 1):
            clock.now_us = max(0, clock.now_us + step_us)
            log.append(b"single")
            log.append_many([b"of", b"many"])
    clock.now_us = 5
    with small_log(directory, clock=clock, exclusive=exclusive) as log:
        log.append(b"after reopening")
        log.roll()
        log.append(b"after rolling")
        times = [record.time_us for record in log.records()]

    assert times == sorted(times)
    assert max(times) == 1_500


# Following the end -----------------------------------------------------------------------------


def test_following_ends_when_nothing_comes(directory: Path) -> None:
    """It yields what is there and gives up after its timeout."""
    with small_log(directory) as log:
        fill(log, 6)

        assert offsets(log.follow("earliest", timeout=0.01)) == list(range(6))
        assert list(log.follow(timeout=0.01)) == []
        assert offsets(log.follow(4, timeout=timedelta(milliseconds=10))) == [4, 5]


@pytest.mark.parametrize("read_only", [False, True])
def test_following_yields_what_comes(directory: Path, read_only: bool) -> None:
    """A follower waits for records another handle appends, across segments."""
    seen: list[int] = []
    with small_log(directory) as log, Log(directory, read_only=read_only, sync="os") as other:

        def follow() -> None:
            for record in other.follow(0, timeout=LIMIT_SECONDS):
                seen.append(record.offset)
                if len(seen) == 9:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        fill(log, 9)
        thread.join(timeout=LIMIT_SECONDS)

        assert seen == list(range(9))


def test_waiting_tells_whether_the_record_is_there(directory: Path) -> None:
    """True at once for what is there, False after the timeout for what is not."""
    with small_log(directory) as log:
        fill(log, 1)

        assert log.wait(0, timeout=0)
        assert log.wait(0)
        assert not log.wait(1, timeout=0)
        assert not log.wait(1, timeout=0.01)


@pytest.mark.parametrize(
    "wait",
    [
        lambda log: log.wait(0, timeout=LIMIT_SECONDS),
        lambda log: list(log.follow(0, timeout=LIMIT_SECONDS)) != [],
        lambda log: log.reader("r").read(timeout=LIMIT_SECONDS) != [],
    ],
    ids=["wait", "follow", "reader"],
)
def test_closing_ends_every_wait(directory: Path, wait: Callable[[Log], bool]) -> None:
    """Whoever waits is told that nothing came, or that the log was closed; nothing else."""
    log = small_log(directory)
    outcome: list[object] = []
    waiting = threading.Event()

    def waiter() -> None:
        waiting.set()
        try:
            outcome.append(wait(log))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
            outcome.append(type(error).__name__)

    thread = threading.Thread(target=waiter)
    thread.start()
    waiting.wait()
    # Only once it sleeps: the live words say that somebody waits.
    wait_until(lambda: not thread.is_alive() or any((directory / "wake").glob("[0-9]*")))
    log.close()
    thread.join(timeout=LIMIT_SECONDS)

    assert outcome in ([False], ["LogClosed"])


def test_starts_are_what_they_say(directory: Path, clock: ManualClock) -> None:
    """`resolve` turns each kind of start into an offset."""
    with small_log(directory, clock=clock) as log:
        fill(log, 10)
        log.trim(4)
        starts: list[tuple[Start, int]] = [
            ("earliest", 4),
            ("latest", 10),
            (4, 4),
            (10, 10),
            (moment(0), 4),
            (moment(clock.now_us + 1), 10),
        ]

        assert [log.resolve(start) for start, _ in starts] == [offset for _, offset in starts]
