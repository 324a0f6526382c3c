"""A Spark driver that copies a topic to a topic or queue, and ends, unless it is killed before.

`test_exactly_once.py` and `test_kills.py` run it as a process of its own.
"""

import ctypes
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Final

from segue.spark.session import session
from tests.spark.deadly_redis import DeadlyRedisSource
from tests.spark.deadly_source import DeadlySource, copy, reach

_IN_CREATE: Final = 0x100
_IN_MOVED_TO: Final = 0x80
_EVENT: Final = struct.Struct("iIII")
_EVENTS_BYTES_MAX: Final = 64 << 10


def run(root: Path, url: str, kind: str, rows_per_task: int) -> None:
    """Copy what is new from the source to the sink."""
    spark = session(
        "exactly-once",
        "local[2,4]",
        config={
            "spark.local.dir": str(root / "local"),
            "spark.log.level": "OFF",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    checkpoint = root / "checkpoint"
    for name in ("offsets", "commits"):
        _watch(checkpoint / name, name)
    source = DeadlyRedisSource if url.startswith("redis:") else DeadlySource
    query = copy(
        spark, source, url=url, kind=kind, checkpoint=checkpoint, rows_per_task=rows_per_task
    )
    query.awaitTermination()
    spark.stop()


def _watch(directory: Path, name: str) -> None:
    """Die when a file of the checkpoint begins, or when it is complete, if that is planned.

    inotify reports every file, also one that exists for less than a millisecond.
    """
    directory.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init()
    if fd < 0 or libc.inotify_add_watch(fd, bytes(directory), _IN_CREATE | _IN_MOVED_TO) < 0:
        raise OSError(ctypes.get_errno(), "inotify")

    def follow() -> None:
        while True:
            events = os.read(fd, _EVENTS_BYTES_MAX)
            while events:
                _, _, _, size = _EVENT.unpack_from(events)
                end = _EVENT.size + size
                file = events[_EVENT.size : end].rstrip(b"\0").decode()
                events = events[end:]
                if file.isdecimal():
                    reach(f"after a file of {name}")
                elif file.endswith(".tmp") and ".crc" not in file:
                    reach(f"within a file of {name}")

    threading.Thread(target=follow, daemon=True).start()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
