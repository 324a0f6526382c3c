"""The command line: `python -m benchmarks [NAME …] [--quick] [--json FILE] [--dir DIRECTORY]`."""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks import (
    append,
    batch,
    dashboard,
    durable,
    idle,
    queue,
    read,
    redis_parts,
    reopen,
    segment_size,
    server,
    spark,
    task_limits,
    task_peers,
    tasks,
    topic,
)
from benchmarks.machine import MEMORY_FILE_SYSTEMS, conditions, file_system
from benchmarks.report import Report
from benchmarks.session import FULL, QUICK, Session

BENCHMARKS: Final[dict[str, Callable[[Session], None]]] = {
    "append": append.run,
    "batch": batch.run,
    "durable": durable.run,
    "queue": queue.run,
    "topic": topic.run,
    "spark": spark.run,
    "tasks": tasks.run,
    "task_limits": task_limits.run,
    redis_parts.ALL: redis_parts.run,
    "server": server.run,
    "dashboard": dashboard.run,
    "read": read.run,
    "reopen": reopen.run,
    "segment_size": segment_size.run,
    "idle": idle.run,
}
NAMES: Final = (*BENCHMARKS, *redis_parts.PARTS)
"""What can be asked for; without being asked, parts run with the whole they belong to."""
DIRECTORY_DEFAULT: Final = Path(".bench")


def main() -> None:
    """Run the benchmarks that were asked for, all of them by default."""
    arguments = _arguments()
    base: Path = arguments.dir
    base.mkdir(parents=True, exist_ok=True)
    if file_system(base) in MEMORY_FILE_SYSTEMS:
        sys.exit(f"{base} is in memory; --dir must name a directory on a disk")
    effort = QUICK if arguments.quick else FULL
    begin = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as directory:
            report = Report(conditions=conditions(Path(directory)) | {"effort": effort.name})
            report.begin()
            session = Session(directory=Path(directory), effort=effort, report=report)
            for name in arguments.names or BENCHMARKS:
                _run(name, session, only=arguments.only, count=arguments.count)
            report.finish()
    finally:
        with contextlib.suppress(OSError):
            base.rmdir()  # Unless something else is in it.
    if arguments.json is not None:
        report.write_json(arguments.json)
    print(f"\ntook {time.perf_counter() - begin:.0f} s")


def _run(name: str, session: Session, *, only: Sequence[str], count: int | None) -> None:
    if name == "tasks":
        tasks.run(session, only=only, count=count)
    elif name == redis_parts.ALL:
        redis_parts.run(session, only=only, count=count)
    elif name in redis_parts.PARTS:
        redis_parts.run(session, parts=[name], only=only, count=count)
    else:
        BENCHMARKS[name](session)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="some five minutes; proves nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every sample")
    parser.add_argument(
        "--dir",
        type=Path,
        default=DIRECTORY_DEFAULT,
        metavar="DIRECTORY",
        help="where to write, on a real disk (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        type=lambda names: names.split(","),
        default=[],
        metavar="PEER,…",
        help="of tasks and redis_tasks: those peers alone",
    )
    parser.add_argument(
        "--count", type=int, metavar="TASKS", help="of tasks and redis_tasks: how many to send"
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name}; there are {', '.join(NAMES)}")
    try:
        task_peers.chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    return arguments


if __name__ == "__main__":
    main()
