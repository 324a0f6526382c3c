"""One run of a log on a disk that fails: what it tries, what it was told, and what went wrong."""

import contextlib
import errno
import gc
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Final

from segue import Log, Reader
from segue.errors import CorruptRecord, RecordRemoved, SegueError, StorageFailed, StorageFull
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.testing import FaultyDisk, ManualClock, Operation

SEGMENT_ITEMS: Final = 4
SEGMENT_BYTES: Final = 12_288


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    sync: SyncName
    mapped: bool = False
    exclusive: bool = False

    def __str__(self) -> str:
        words = [self.sync, *["mapped"] * self.mapped, *["exclusive"] * self.exclusive]
        return "-".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    operation: Operation
    error: int
    lasting: bool = False
    after_bytes: int = 0

    def set_up(self, disk: FaultyDisk, call: int) -> None:
        disk.fail(
            call=call,
            operation=self.operation,
            error=self.error,
            lasting=self.lasting,
            after_bytes=self.after_bytes,
        )

    def __str__(self) -> str:
        words = [self.operation, errno.errorcode[self.error]]
        return "-".join(words + ["lasting"] * self.lasting + ["short"] * bool(self.after_bytes))


class QuickDisk(Disk):
    """Does not wait for the device: here nothing but the process fails."""

    def sync_data(self, fd: int) -> None:
        os.fstat(fd)

    def sync_directory(self, path: Path) -> None:
        path.stat()


class BrokenDisk(FaultyDisk, QuickDisk):
    """Fails when told to, stores mapped or not."""

    def __init__(self, *, mapped: bool) -> None:
        super().__init__()
        self.stores_mapped = mapped


Place = tuple[tuple[str, int], ...]
"""The innermost functions that were under way, each with the line it was at."""
PLACE_FUNCTIONS: Final = 6


class CallListingDisk(BrokenDisk):
    """Fails nothing, and lists from which place each call of an operation was made."""

    def __init__(self, *, mapped: bool) -> None:
        super().__init__(mapped=mapped)
        self.places: defaultdict[Operation, list[Place]] = defaultdict(list)

    def _error(self, operation: Operation) -> tuple[OSError, int] | None:
        steps = traceback.walk_stack(sys._getframe(1))
        place = ((frame.f_code.co_filename, line) for frame, line in steps)
        self.places[operation].append(tuple(islice(place, PLACE_FUNCTIONS)))
        return super()._error(operation)

    def one_of_each(self, operation: Operation) -> list[int]:
        """Return the numbers of the calls that were the first to come from their place."""
        seen: dict[Place, int] = {}
        for number, place in enumerate(self.places[operation], 1):
            seen.setdefault(place, number)
        return list(seen.values())


class Script:
    """One run. Keeps what was acknowledged, what may have been written, and what went wrong."""

    def __init__(self, path: Path, disk: BrokenDisk, setting: Setting) -> None:
        self._path = path
        self._disk = disk
        self._setting = setting
        self._clock = ManualClock()
        self._log: Log | None = None
        self._reader: Reader | None = None
        self._numbers = count(1)
        self.acknowledged: dict[int, bytes] = {}
        self.uncertain: list[list[bytes]] = []
        self.trimmed_below = 0
        self.wrong: list[str] = []

    def open(self, *, disk: Disk | None = None) -> Log:
        return Log(
            self._path,
            sync=self._setting.sync,
            sync_interval_ms=60_000,
            exclusive=self._setting.exclusive,
            segment_items=SEGMENT_ITEMS,
            segment_bytes=SEGMENT_BYTES,
            lock_timeout=0.0,
            clock=self._clock,
            disk=disk or self._disk,
        )

    def adopt(self, log: Log) -> None:
        """Go on with a log that was opened by somebody else."""
        self._log = log

    def play(self) -> None:
        """Take every step, whatever became of the one before."""
        steps: list[Callable[[Log], object]] = [
            self._append,
            self._append_many,
            self._read,
            self._roll,
            self._append_many,
            self._append,
            lambda log: log.flush(),
            self._share,
            self._commit,
            self._inspect,
            self._repair,
            self._cleanup,
            self._append_many,
            self._wait,
            self._trim,
            self._append,
            lambda log: log.remove_reader("ann"),
        ]
        for step in steps:
            log = self._opened()
            if log is not None:
                self._attempt(step, log)
        self.close()
        self._opened()
        self.close()

    def _opened(self) -> Log | None:
        """Return the log; open it if it is not, at most twice since one call fails."""
        for _ in range(2):
            if self._log is None:
                before = open_files(self._path)
                try:
                    self._log = self.open()
                except SegueError:
                    self._check_files(before, "opening failed")
                except Exception as error:  # noqa: BLE001 - that is what is looked for
                    self._blame("opening", error)
                    self._check_files(before, "opening failed")
        return self._log

    def _attempt(self, step: Callable[[Log], object], log: Log) -> None:
        failed = len(self._disk.failed)
        try:
            step(log)
        except StorageFailed:
            self._check_refusal(log)
            self.close()
        except SegueError:
            if len(self._disk.failed) == failed:
                self.wrong.append(f"{name_of(step)} was refused although nothing failed")
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self._blame(name_of(step), error)
        if not self._setting.exclusive and not self._lock_is_free():
            self.wrong.append(f"{name_of(step)} failed and kept the lock")

    def _lock_is_free(self) -> bool:
        with (self._path / "lock").open("r+b") as file:
            return Disk().try_lock(file.fileno())

    def _check_refusal(self, log: Log) -> None:
        """A log that has stopped takes nothing until it is reopened."""
        acts: tuple[Callable[[], object], ...] = (
            lambda: log.append(b"refused"),
            lambda: log.append_many([b"refused"]),
            log.flush,
            log.roll,
        )
        for act in acts:
            try:
                act()
            except StorageFailed:
                continue
            self.wrong.append("a write went through after StorageFailed")

    def close(self) -> None:
        """Close the log, which must leave nothing open, even when it fails."""
        log, self._log = self._log, None
        if self._reader is not None:
            self._try_to_close(self._reader.close)
            self._reader = None
        if log is not None:
            self._try_to_close(log.close)
            del log
            self._check_files(set(), "closing")

    def _try_to_close(self, close: Callable[[], None]) -> None:
        try:
            close()
        except SegueError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self._blame("closing", error)

    def _blame(self, doing: str, error: Exception) -> None:
        trace = error.__traceback__
        frames = []
        while trace is not None:
            code = trace.tb_frame.f_code
            frames.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        places = [frame for frame in frames if not frame.startswith(("test_", "faulty"))]
        self.wrong.append(f"{doing} raised {error!r} by {' < '.join(reversed(places[-4:]))}")
        error.__traceback__ = None

    def _check_files(self, before: set[str], when: str) -> None:
        left = open_files(self._path) - before
        if left:
            gc.collect()  # An error's traceback may have kept a mapping alive.
            left = open_files(self._path) - before
        if left:
            names = sorted(Path(each.split()[1]).name for each in left)
            self.wrong.append(f"{when} left open: {', '.join(names)}")
            for each in left:
                os.close(int(each.split()[0]))

    def append_many_times(self, log: Log, name: bytes) -> None:
        """Append as one of several threads."""
        for number in range(6):
            payload = b"%s.%d " % (name, number) * 9
            try:
                self._appending([payload], partial(log.append, payload))
            except SegueError:
                continue
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                self._blame("appending", error)

    # Steps -----------------------------------------------------------------------------------

    def _payload(self) -> bytes:
        return b"%d " % next(self._numbers) * 50

    def _append(self, log: Log) -> None:
        payload = self._payload()
        self._appending([payload], lambda: log.append(payload))

    def _append_many(self, log: Log) -> None:
        payloads = [self._payload() for _ in range(3)]
        self._appending(payloads, lambda: log.append_many(payloads))

    def _appending(self, payloads: list[bytes], act: Callable[[], int]) -> None:
        try:
            first = act()
        except StorageFull:
            raise  # It promises that nothing was written.
        except Exception:
            self.uncertain.append(payloads)
            raise
        if first < 0:
            self.wrong.append(f"success without an offset: {first}")
        self.acknowledged.update(enumerate(payloads, first))

    def _roll(self, log: Log) -> None:
        log.roll()

    def _share(self, log: Log) -> None:
        """Append through a second handle, so that the first has to catch up."""
        if self._setting.exclusive:
            return
        before = open_files(self._path)
        try:
            with self.open() as other:
                self._append(other)
                self._roll(other)
                self._append_many(other)
        finally:
            self._check_files(before, "a second handle")
        self._append_many(log)

    def _read(self, log: Log) -> None:
        for name in ("ann", "bob"):
            with log.reader(name) as reader:
                reader.read(3)
                reader.commit()

    def _commit(self, log: Log) -> None:
        with log.reader("ann", log.next_offset) as reader:
            reader.commit()
        with log.reader("bob", "latest") as reader:
            reader.commit()

    def _inspect(self, log: Log) -> None:
        list(log.verify())
        log.segments()
        log.readers()
        assert log.size_bytes > 0
        for _ in log.records(on_damage="skip"):
            pass
        for offset in range(log.first_offset, log.next_offset):
            try:
                log.read(offset)
            except (CorruptRecord, RecordRemoved):
                continue

    def _repair(self, log: Log) -> None:
        log.repair()

    def _cleanup(self, log: Log) -> None:
        self._trimming(log, log.cleanup)

    def _wait(self, log: Log) -> None:
        log.wait(log.next_offset, timeout=0.001)

    def _trim(self, log: Log) -> None:
        self._trimming(log, lambda: log.trim(log.next_offset))

    def _trimming(self, log: Log, act: Callable[[], Iterable[int]]) -> None:
        self.trimmed_below = log.next_offset
        act()


def name_of(step: Callable[[Log], object]) -> str:
    return step.__name__.strip("_")


def open_files(path: Path) -> set[str]:
    """Return descriptor and name of every file this process has open below `path`."""
    found = set()
    below = str(path)
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - asked ten times per run: no Path for each.
        with contextlib.suppress(FileNotFoundError):  # The listing's own is gone by now.
            name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - as above
            if name.startswith(below):
                found.add(f"{fd} {name}")
    return found


def check_with_a_healthy_disk(path: Path, script: Script) -> None:
    """Open the log again: all that was acknowledged is there, and nothing that never was tried."""
    with script.open(disk=QuickDisk()) as log:
        first, end = log.first_offset, log.next_offset
        found: dict[int, bytes] = {
            record.offset: record.payload for record in log.records(on_damage="skip")
        }
        lost = [
            offset
            for offset, payload in script.acknowledged.items()
            if found.get(offset) != payload
            and not (offset < first and offset < script.trimmed_below)
        ]
        if lost:
            script.wrong.append(f"lost acknowledged offsets {lost} of {first} to {end}")
        unknown = [
            payload
            for offset, payload in sorted(found.items())
            if offset not in script.acknowledged and not payload.startswith(b"before")
        ]
        batches = {batch[0]: batch for batch in script.uncertain}
        while unknown and unknown[: len(batches.get(unknown[0], []))] == batches.get(unknown[0]):
            del unknown[: len(batches.pop(unknown[0]))]
        if unknown:
            script.wrong.append(f"phantom records {[payload[:4] for payload in unknown]}")
        following = log.append(b"after")
        if (following, log.read(following).payload) != (end, b"after"):
            script.wrong.append("does not go on")
        log.repair()
        if not all(audit.is_intact for audit in log.verify()):
            script.wrong.append("is damaged even after a repair")
