"""Programs that start Spark: how long tests wait for them, and how all of their processes end."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.waiting import LIMIT_SECONDS

SPARK_LIMIT_SECONDS: Final = 5 * int(LIMIT_SECONDS)
"""Limit for anything that starts Spark: 15 s of CPU, which a busy machine takes minutes to give."""


def session_pids(session: int) -> list[int]:
    """Return the running processes of a session, in ascending order."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.name))
    return sorted(found)


def kill_session(session: int) -> None:
    """Kill every process of a session. The caller dies last if it belongs to it."""
    here = os.getpid()
    for pid in sorted(session_pids(session), key=lambda each: (each == here, each)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextmanager
def started(
    log: Path, command: Sequence[str], environment: Mapping[str, str] = os.environ
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program in a session of its own. All of its processes end with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        while session_pids(process.pid):
            kill_session(process.pid)
        process.wait()


def run(
    log: Path, command: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[int, str]:
    """Run a program to its end, or to its death. Returns the exit code and the output."""
    with started(log, command, environment) as process:
        code = process.wait(SPARK_LIMIT_SECONDS)
    return code, log.read_text(errors="replace")
