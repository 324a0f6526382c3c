"""Measuring one thing at a time on the machine at hand: what `segue bench` runs."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from segue.log import Log
from segue.values import dataclass

BATCH_RECORDS_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Fits in a segment of the usual size; larger payloads make smaller batches."""
WRITTEN_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much one measurement writes at most, however fast it goes."""
_SYNC_BYTES: Final = 4096
_PERCENTILE: Final = 99
_LOOK_RECORDS: Final = 1024
"""How often a pass over the records looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How fast something went."""

    records: int
    seconds: float
    median_us: float | None = None
    """Of one call, where calls were timed one by one."""
    p99_us: float | None = None

    @property
    def records_per_s(self) -> int:
        """How many records went through in a second."""
        return round(self.records / self.seconds)


def time_calls(
    call: Callable[[], object], *, seconds: float, records_per_call: int, calls_max: int
) -> Timing:
    """Call again and again for `seconds`, at least twice and at most `calls_max` times."""
    from statistics import median, quantiles  # Here, as no other verb needs it.

    took_ns: list[int] = []
    begin = last = time.perf_counter_ns()
    end = begin + int(seconds * 1e9)
    while (last < end and len(took_ns) < calls_max) or len(took_ns) < 2:  # noqa: PLR2004 - said above
        call()
        now = time.perf_counter_ns()
        took_ns.append(now - last)
        last = now
    return Timing(
        records=len(took_ns) * records_per_call,
        seconds=(last - begin) / 1e9,
        median_us=median(took_ns) / 1000,
        p99_us=quantiles(took_ns, n=100, method="inclusive")[_PERCENTILE - 1] / 1000,
    )


def time_appends(log: Log, payload: bytes, *, seconds: float) -> Timing:
    """Append one record at a time."""
    return time_calls(
        lambda: log.append(payload),
        seconds=seconds,
        records_per_call=1,
        calls_max=_calls_max(len(payload)),
    )


def time_batches(log: Log, payload: bytes, *, seconds: float) -> Timing:
    """Append `batch_records` at a time."""
    batch = [payload] * batch_records(len(payload))
    return time_calls(
        lambda: log.append_many(batch),
        seconds=seconds,
        records_per_call=len(batch),
        calls_max=_calls_max(len(payload) * len(batch)),
    )


def batch_records(payload_bytes: int) -> int:
    """Return how many records of this size are appended as one batch."""
    return min(BATCH_RECORDS_MAX, BATCH_BYTES_MAX // payload_bytes)


def time_reads(log: Log, *, seconds: float) -> Timing:
    """Read every record of the log, from the beginning again if there is time left."""
    return _time_passes(lambda: (1 for _ in log.records()), seconds=seconds)


def time_columns(log: Log, *, seconds: float) -> Timing:
    """Read the log as columns, from the beginning again if there is time left."""
    next(log.columns())  # The first one loads NumPy and Arrow.
    return _time_passes(lambda: map(len, log.columns()), seconds=seconds)


def has_columns() -> bool:
    """Tell whether the extra `columns` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "pyarrow"))


def syncs_per_s(directory: Path, *, seconds: float) -> int:
    """Return how often this device takes a page and a sync: the bound of sync "always"."""
    fd = os.open(directory / "sync", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    page = os.urandom(_SYNC_BYTES)

    def sync_once() -> None:
        os.pwrite(fd, page, 0)
        os.fdatasync(fd)

    try:
        sync_once()  # The first one allocates.
        timing = time_calls(
            sync_once, seconds=seconds, records_per_call=1, calls_max=_calls_max(_SYNC_BYTES)
        )
    finally:
        os.close(fd)
    return timing.records_per_s


def _time_passes(counts: Callable[[], Iterable[int]], *, seconds: float) -> Timing:
    records = 0
    begin = time.perf_counter()
    while (took_seconds := time.perf_counter() - begin) < seconds or not records:
        for count in counts():
            records += count
            if not records % _LOOK_RECORDS and time.perf_counter() - begin >= seconds:
                break
    return Timing(records=records, seconds=took_seconds)


def _calls_max(call_bytes: int) -> int:
    return max(2, WRITTEN_BYTES_MAX // call_bytes)
