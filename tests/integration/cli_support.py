"""Ways to run the command line in tests: in this process, which is fast, or in one of its own."""

import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from unittest.mock import patch

from segue import Log
from segue.cli import main
from segue.cli.output import Json
from tests.integration.docs_processes import fast_environment
from tests.waiting import LIMIT_SECONDS

COMMAND: Final = (sys.executable, "-m", "segue")
"""A new Python process, for tests about the interpreter, process groups or resource limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on standard output."""
        return self.out.decode().splitlines()

    @property
    def fields(self) -> list[list[str]]:
        """The lines on standard output, each cut at its tabs."""
        return [line.split("\t") for line in self.lines]

    @property
    def json(self) -> dict[str, Json]:
        """The JSON object on standard output."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    @property
    def json_rows(self) -> dict[str, list[dict[str, Json]]]:
        """The tables of that object."""
        return {
            name: [row for row in rows if isinstance(row, dict)]
            for name, rows in self.json.items()
            if isinstance(rows, list)
        }


def ask(*words: str | Path, stdin: bytes = b"") -> Answer:
    """Run a command in this process, with files in place of its pipes."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as given,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        given.buffer.write(stdin)
        given.seek(0)
        with patch("sys.stdin", given), redirect_stdout(out), redirect_stderr(err):
            code = main([str(word) for word in words])
        out.seek(0)
        err.seek(0)
        return Answer(code=code, out=bytes(out.buffer.read()), err=err.read())


def fast_command() -> str:
    """Return the path of a `segue` that is forked from a warm process: 40 ms instead of 250."""
    found = shutil.which("segue", path=fast_environment()["PATH"])
    assert found is not None
    return found


@contextmanager
def started(*words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs meanwhile, with pipes to and from it."""
    process = subprocess.Popen(
        [fast_command(), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a pipe of `started`, which is there."""
    assert stream is not None
    return stream


def on_a_terminal(*words: str | Path, typed: str = "") -> str:
    """Run a command on a terminal of 80 columns and return all that it shows."""
    terminal, process_side = pty.openpty()
    os.write(terminal, typed.encode())
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [fast_command(), *map(str, words)],
        stdin=process_side,
        stdout=process_side,
        stderr=process_side,
        env=environment,
    )
    os.close(process_side)
    shown = bytearray()
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # How a terminal says that nobody is at its other side any longer.
    finally:
        os.close(terminal)
        process.wait(LIMIT_SECONDS)
    return shown.decode()


def fill(path: Path, *payloads: bytes) -> Path:
    """Append `payloads` one by one, make the log if need be and return its path."""
    with Log(path, sync="os") as log:
        for payload in payloads:
            log.append(payload)
    return path


def payloads_of(path: Path) -> list[bytes]:
    """Return what the records of a log hold."""
    with Log(path, read_only=True) as log:
        return [record.payload for record in log.records()]


def flip_byte(path: Path, found_by: bytes) -> None:
    """Change one byte of a file, the first of what `found_by` finds."""
    data = bytearray(path.read_bytes())
    data[data.index(found_by)] ^= 0xFF
    # In place: a file that is open or mapped elsewhere must show the change.
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def snapshot(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return everything in `directory` with its size, mode and time of change."""
    stats = {str(path): path.stat() for path in [directory, *sorted(directory.rglob("*"))]}
    return {name: (stat.st_size, stat.st_mode, stat.st_mtime_ns) for name, stat in stats.items()}
