"""One run of the benchmarks: where it writes, how much it does, and where results go."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import Minute, this_minute
from benchmarks.race import Pace
from benchmarks.report import Report

PAYLOAD_SIZES_BYTES: Final = (100, 1024)
SLICE_BYTES_MAX: Final = 32 * 1024 * 1024
"""What one slice writes at most: the device should not become the bottleneck of sync "os"."""
BACKLOG_FACTOR: Final = 16
"""How much more than one backlog's payloads all contestants together may take up."""
DISK_RESERVE_BYTES: Final = 2 * 1024**3
"""What a run leaves free on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done."""

    name: str
    pace: Pace
    batch_pace: Pace
    backlog_records: int
    read_records: int
    random_reads: int
    reopen_small_bytes: int
    reopen_bytes: int
    reopen_kills: int
    roll_records: int
    roll_rounds: int
    topic_records: int
    rebalance_rounds: int
    upkeep_rounds: int
    clean_segments: int
    compact_records: int
    spark_records: int
    spark_rounds: int


FULL: Final = Effort(
    name="full",
    pace=Pace(rounds=10, slice_seconds=0.1, turns_min=20, turns_max=200, round_seconds=0.4),
    batch_pace=Pace(rounds=10, slice_seconds=0.05, turns_min=16, turns_max=64, round_seconds=0.4),
    backlog_records=1_000_000,
    read_records=2_000_000,
    random_reads=100_000,
    reopen_small_bytes=10**9,
    reopen_bytes=10**10,
    reopen_kills=5,
    roll_records=1_000_000,
    roll_rounds=5,
    topic_records=200_000,
    rebalance_rounds=10,
    upkeep_rounds=5,
    clean_segments=2_000,
    compact_records=1_000_000,
    spark_records=20_000_000,
    spark_rounds=3,
)
QUICK: Final = Effort(
    name="quick, too short for conclusions",
    pace=Pace(rounds=3, slice_seconds=0.01, turns_min=5, turns_max=20, round_seconds=0.05),
    batch_pace=Pace(rounds=3, slice_seconds=0.01, turns_min=4, turns_max=16, round_seconds=0.05),
    backlog_records=10_000,
    read_records=50_000,
    random_reads=2_000,
    reopen_small_bytes=10**8,
    reopen_bytes=10**9,
    reopen_kills=2,
    roll_records=50_000,
    roll_rounds=2,
    topic_records=1_000,
    rebalance_rounds=1,
    upkeep_rounds=2,
    clean_segments=4,
    compact_records=10_000,
    spark_records=200_000,
    spark_rounds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every benchmark gets."""

    directory: Path
    effort: Effort
    report: Report

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Lend a new directory and remove it afterwards."""
        with tempfile.TemporaryDirectory(dir=self.directory) as path:
            yield Path(path)

    def minute(self) -> Minute:
        """Return how the machine is doing now."""
        return this_minute(self.directory)

    def backlogs(self, payload_bytes: int) -> tuple[int, ...]:
        """Return the backlogs to measure with; a large one only if the disk has room for it."""
        records = self.effort.backlog_records
        shortage = self.shortage(int(records * payload_bytes * BACKLOG_FACTOR))
        if shortage is None:
            return (0, records)
        print(f"\n== backlog of {records:,} x {payload_bytes} bytes: not run: {shortage}")
        return (0,)

    def shortage(self, wanted_bytes: int) -> str | None:
        """Return why `wanted_bytes` should not be written, or None if they may."""
        free_bytes = shutil.disk_usage(self.directory).free
        if free_bytes >= wanted_bytes + DISK_RESERVE_BYTES:
            return None
        return f"{free_bytes / 1e9:.0f} GB free, {wanted_bytes / 1e9:.0f} GB needed"
