"""What a test and its child process say to each other: one JSON value per line, over two pipes.

Pipes and no sockets: what was reported before a SIGKILL is still there to read after it, and a
child is not held up while nobody reads.
"""

import json
import os
import select
import time
from typing import Final

from tests.waiting import LIMIT_SECONDS

_READ_BYTES: Final = 64 * 1024

Report = int | str | list[int] | list[str] | dict[str, str]


class ChildIsStuck(Exception):
    """A child process neither reported anything nor ended within LIMIT_SECONDS."""


class Lines:
    """The reading end of a pipe, by lines."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def read(self) -> Report:
        """Return the next value. Raises EOFError if the other end is closed, ChildIsStuck."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while b"\n" not in self._buffer:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise ChildIsStuck(f"nothing was reported within {LIMIT_SECONDS:g} s")
            piece = os.read(self._fd, _READ_BYTES)
            if not piece:
                raise EOFError("the other process is gone")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        value: Report = json.loads(line)
        return value

    def wait(self) -> None:
        """Block until `read` would return or raise at once."""
        if b"\n" not in self._buffer:
            self._poll.poll()

    def has_more(self) -> bool:
        """Tell whether `read` would return or raise at once."""
        return b"\n" in self._buffer or bool(self._poll.poll(0))


def write_line(fd: int, value: Report) -> None:
    """Write one value; whole or not at all, as long as it is shorter than PIPE_BUF."""
    os.write(fd, json.dumps(value).encode() + b"\n")


class Channel:
    """The child's side."""

    def __init__(self, *, reports_fd: int, orders_fd: int) -> None:
        self._reports_fd = reports_fd
        self._orders = Lines(orders_fd)

    def report(self, value: Report) -> None:
        """Tell the test something."""
        write_line(self._reports_fd, value)

    def redirect_output(self) -> None:
        """Send standard output to the test. Each line must be a JSON value."""
        os.dup2(self._reports_fd, 1)

    def wait_for_order(self) -> Report:
        """Return what the test says next. Raises EOFError, ChildIsStuck."""
        return self._orders.read()

    def wait_until_told(self) -> None:
        """Block until there is an order to read, or the test has ended. There is no limit."""
        self._orders.wait()

    def has_order(self) -> bool:
        """Tell whether the test has said something."""
        return self._orders.has_more()
