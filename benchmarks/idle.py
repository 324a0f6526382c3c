"""What a hundred logs cost that nobody uses: space, descriptors, threads, memory."""

import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.race import Figure
from benchmarks.report import Section
from benchmarks.session import Session
from segue import Log

LOGS: Final = 100
BLOCK_BYTES: Final = 512
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def run(session: Session) -> None:
    """Open empty logs, look, close them, look again."""
    minute = session.minute()
    with session.place() as place:
        with ExitStack() as stack:
            before = _usage()
            for number in range(LOGS):
                stack.enter_context(Log(place / str(number)))
            while_open = [
                (name, after - was)
                for (name, after), (_, was) in zip(_usage(), before, strict=True)
            ]
            open_bytes = _device_bytes(place)
        closed_bytes = _device_bytes(place)
        with Log(place / "0") as log:
            log.append(b"x")
            one_record_bytes = _device_bytes(place / "0")
    facts = [
        ("bytes on the device, open", open_bytes / LOGS),
        ("bytes on the device, closed", closed_bytes / LOGS),
        ("bytes on the device, one record", one_record_bytes),
        *((name, count / LOGS) for name, count in while_open),
    ]
    session.report.add(
        Section(
            benchmark="idle",
            title=f"{LOGS} empty logs",
            setting="default options; directories included",
            minute=minute,
            figures=[Figure(name=name, samples=(value,)) for name, value in facts],
            unit="per log",
        )
    )


def _usage() -> list[tuple[str, int]]:
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return [
        ("file descriptors", len(list(Path("/proc/self/fd").iterdir()))),
        ("threads", threading.active_count()),
        ("bytes of memory", resident_pages * PAGE_BYTES),
    ]


def _device_bytes(directory: Path) -> int:
    """Return what everything in `directory` takes up on the device."""
    paths = [directory, *directory.rglob("*")]
    return sum(path.stat().st_blocks * BLOCK_BYTES for path in paths)
