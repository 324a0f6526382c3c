"""What the tests of the log share: small segments, a clock to turn, and ways to do damage."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from segue import Log, Record
from segue.clock import Clock, system_clock
from segue.log.disk import Disk
from segue.log.options import SyncName
from tests.waiting import wait_until

HEADER_BYTES: Final = 4096
SLOT_BYTES: Final = 40
SECOND_HEADER: Final = 2048
"""Where the second copy of a segment's header lies."""

SMALL_SEGMENT_BYTES: Final = 12_288
"""A page of header, a page of slots, a page of payloads."""
SMALL_PAYLOAD_BYTES: Final = 4096

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ManualClock:
    """Shows the same time until it is told otherwise, in microseconds."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, *, us: int = 0, seconds: int = 0) -> None:
        self.now_us += us + seconds * 1_000_000


class Index:
    """A number that is no int, as NumPy's are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class RestartedMachine(Disk):
    """The same disk after the machine was started anew: what `live` says is not believed."""

    def boot_id(self) -> int:
        return super().boot_id() ^ 0xF0F0


def small_log(
    directory: Path,
    *,
    segment_items: int | None = 4,
    sync: SyncName = "os",
    clock: Clock = system_clock,
    exclusive: bool = False,
    disk: Disk | None = None,
) -> Log:
    """Open a log whose segments take four records or a page of payloads."""
    return Log(
        directory,
        segment_bytes=SMALL_SEGMENT_BYTES,
        segment_items=segment_items,
        sync=sync,
        clock=clock,
        exclusive=exclusive,
        disk=disk,
    )


def fill(log: Log, count: int, *, first: int = 0) -> list[bytes]:
    """Append `count` single records that tell each other apart; return their payloads."""
    payloads = [b"record %d" % number for number in range(first, first + count)]
    for payload in payloads:
        log.append(payload)
    return payloads


def payloads(records: Iterable[Record]) -> list[bytes]:
    return [record.payload for record in records]


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def segment_ids(log: Log) -> list[int]:
    return [segment.id for segment in log.segments()]


def segment_path(directory: Path, id_: int) -> Path:
    return directory / f"{id_:09d}.q"


def moment(time_us: int) -> datetime:
    """Return the datetime of a time as the log counts it."""
    return EPOCH + timedelta(microseconds=time_us)


def contents(directory: Path) -> dict[str, bytes]:
    """Return what every file of a log holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def traces(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return what a look at the directory would show had changed: inode, size, mode and time."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.lstat()
        found[str(path.relative_to(directory))] = (
            status.st_ino,
            status.st_size,
            status.st_mode,
            status.st_mtime_ns,
        )
    return found


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file in place, as a rotting disk does."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def destroy_header(path: Path) -> None:
    """Damage both copies of a segment's header."""
    flip_bit(path, 0)
    flip_bit(path, SECOND_HEADER)


def failing_cases(check: Callable[..., None], cases: Iterable[object]) -> list[str]:
    """Call `check` with each case and return a line for each that fails, to assert that none does.

    A tuple is passed as several arguments. A mapping holds cases by the name shown for them.
    """
    named: Iterable[tuple[object, object]]
    named = cases.items() if isinstance(cases, Mapping) else ((case, case) for case in cases)
    failures = []
    for name, case in named:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all are reported.
            failures.append(f"{_shown(name)}: {type(error).__name__}: {error}")
    return failures


def _shown(case: object) -> str:
    try:
        return repr(case)[:200]
    except ValueError as error:  # Python refuses to write out very large integers.
        return f"a case without a repr ({error})"


def slot_position(index: int) -> int:
    return HEADER_BYTES + index * SLOT_BYTES


@contextlib.contextmanager
def no_descriptor_left_open() -> Iterator[None]:
    """Fail if the block leaves more files open than it found."""
    before = _open_files()
    yield
    # Threads of earlier tests may still open and close files of theirs.
    wait_until(lambda: not _open_files() - before, "no descriptor is left open")


def _open_files() -> Counter[str]:
    opened: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The listing's own.
            opened[str(link.readlink())] += 1
    return opened
