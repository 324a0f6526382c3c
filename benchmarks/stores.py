"""Segue and the bare file as contestants. Each method prepares work and returns what is timed."""

import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.race import Job
from segue import Log
from segue.log.options import SyncName

BATCH_RECORDS: Final = 1000
PAYLOAD_SEED: Final = 1
ZEROS_BYTES: Final = 1024 * 1024


class Payloads:
    """Random payloads of one size: the same for every contestant."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        draw = random.Random(PAYLOAD_SEED)
        self.batch = [draw.randbytes(size_bytes) for _ in range(BATCH_RECORDS)]

    def take(self, count: int) -> list[bytes]:
        """Return `count` payloads, in the same order every time."""
        return list(islice(cycle(self.batch), count))


class SegueLog:
    """A Segue log. `renew` starts it over, empty."""

    def __init__(
        self,
        path: Path,
        *,
        sync: SyncName = "os",
        exclusive: bool = True,
        segment_bytes: int | None = None,
    ) -> None:
        self._open: Callable[[], Log] = lambda: Log(
            path, sync=sync, exclusive=exclusive, segment_bytes=segment_bytes
        )
        self._path = path
        self.log = self._open()

    def renew(self) -> None:
        self.log.close()
        shutil.rmtree(self._path)
        self.log = self._open()

    def singles(self, payloads: Sequence[bytes]) -> Job:
        append = self.log.append

        def job() -> None:
            for payload in payloads:
                append(payload)

        return job

    def batches(self, batch: list[bytes], count: int) -> Job:
        append_many = self.log.append_many

        def job() -> None:
            for _ in range(count):
                append_many(batch)

        return job

    def singles_by_threads(self, payloads: Sequence[bytes], *, threads: int) -> Job:
        """Share the payloads out; the threads stand ready before the time is taken."""
        start = threading.Barrier(threads + 1)

        def work(job: Job) -> None:
            start.wait()
            job()

        pool = ThreadPoolExecutor(threads)
        shares = [self.singles(payloads[first::threads]) for first in range(threads)]
        futures = [pool.submit(work, share) for share in shares]

        def job() -> None:
            start.wait()
            for future in futures:
                future.result()
            pool.shutdown()

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.batches(batch, count // len(batch))()

    def columns(self, count: int) -> Job:
        """Read columns, checked; every byte passes through the checksum."""

        def job() -> None:
            seen = sum(len(columns) for columns in self.log.columns(stop=count))
            require_all(seen, count)

        return job

    def records(self, count: int) -> Job:
        def job() -> None:
            record = None
            for record in self.log.records(stop=count):  # noqa: B007 - looked at afterwards
                pass
            require_all(0 if record is None else record.offset + 1, count)

        return job

    def reads(self, offsets: Sequence[int]) -> Job:
        read = self.log.read

        def job() -> None:
            for offset in offsets:
                read(offset)

        return job

    def note(self) -> str:
        return f"{len(self.log.segments())} segments"

    def close(self) -> None:
        self.log.close()


class RawFile:
    """`pwrite` + `fdatasync` into a file written ahead: the least a durable append can cost."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size_bytes = size_bytes
        self._position = 0
        # Written, not only allocated: a first write into an unwritten extent costs a journal entry.
        zeros = bytes(ZEROS_BYTES)
        for position in range(0, size_bytes, ZEROS_BYTES):
            os.pwrite(self._fd, zeros, position)
        os.fsync(self._fd)

    def writes(self, data: bytes, count: int) -> Job:
        fd, pwrite, fdatasync = self._fd, os.pwrite, os.fdatasync
        positions = [self._advance(len(data)) for _ in range(count)]

        def job() -> None:
            for position in positions:
                pwrite(fd, data, position)
                fdatasync(fd)

        return job

    def _advance(self, size_bytes: int) -> int:
        position = self._position
        if position + size_bytes > self._size_bytes:
            position = 0
        self._position = position + size_bytes
        return position

    def close(self) -> None:
        os.close(self._fd)


def require_all(seen: int, expected: int) -> None:
    """Raise unless every record was read: a contestant that skips work wins nothing."""
    if seen != expected:
        raise RuntimeError(f"read {seen} records instead of {expected}")
