"""The conditions under which a figure was measured. No figure is printed without them."""

import os
import platform
import sqlite3
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import segue
from benchmarks import servers
from benchmarks.stores import RawFile
from segue.log.disk import Disk
from segue.log.hot import COMPILED

PEER_PACKAGES: Final = (
    *("lmdb", "persist-queue", "litequeue", "huey", "diskcache"),
    *("redis", "hiredis", "nats-py"),
)
COLUMN_PACKAGES: Final = ("numpy", "pyarrow")
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
SYNC_WRITE_BYTES: Final = 100
SYNC_FILE_BYTES: Final = 1024 * 1024
SYNC_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What changes from minute to minute."""

    load_average: float
    fdatasync_per_s: float
    """How often a second the device takes a small write and a sync."""

    def __str__(self) -> str:
        return f"load {self.load_average:.2f}, raw fdatasync {self.fdatasync_per_s:,.0f}/s"


def conditions(directory: Path) -> dict[str, str]:
    """Return what holds for the whole run."""
    return {
        "segue": f"{segue.__version__} ({'compiled' if COMPILED else 'pure Python'} hot path)",
        "commit": _commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cpu": f"{_cpu_model()}, {os.cpu_count()} cores",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": f"{file_system(directory)} at {directory}",
        "peers": ", ".join(
            [
                *(f"{name} {_version(name)}" for name in PEER_PACKAGES),
                f"SQLite {sqlite3.sqlite_version}",
            ]
        ),
        "servers": servers.description(),
        "columns": ", ".join(f"{name} {_version(name)}" for name in COLUMN_PACKAGES),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory`."""
    return Disk().file_system(directory) or "unknown"


def this_minute(directory: Path) -> Minute:
    """Return how busy the machine and how fast its device is just now."""
    path = directory / "sync-rate"
    file = RawFile(path, size_bytes=SYNC_FILE_BYTES)
    try:
        data = os.urandom(SYNC_WRITE_BYTES)
        syncs = 0
        begin = time.perf_counter()
        while (took_seconds := time.perf_counter() - begin) < SYNC_SECONDS:
            file.writes(data, 1)()
            syncs += 1
    finally:
        file.close()
        path.unlink()
    return Minute(load_average=os.getloadavg()[0], fdatasync_per_s=syncs / took_seconds)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _commit() -> str:
    """Return the commit the measured sources are at, and whether they differ from it."""
    command = ["git", "-C", str(Path(segue.__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
