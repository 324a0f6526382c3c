"""Real processes for tests: start one, hear what it reports, kill it, join it."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self

from tests.crash.channel import REPORT_TIMEOUT_SECONDS, Channel, Lines, Report, write_line
from tests.crash.fork_server import MESSAGE_BYTES_MAX

JOIN_TIMEOUT_SECONDS: Final = 60.0
KILLED: Final = -signal.SIGKILL
"""What `Child.join` returns for a process that was killed."""

_ROOT: Final = Path(__file__).parents[2]
_P = ParamSpec("_P")


class Child:
    """One process that runs one function. Made by `ForkServer.start`."""

    def __init__(self, server: "ForkServer", pid: int, *, reports_fd: int, orders_fd: int) -> None:
        self._server = server
        self._reports_fd = reports_fd
        self._orders_fd = orders_fd
        self._reports = Lines(reports_fd)
        self.pid = pid
        self.exit_code: int | None = None

    def read(self, timeout_seconds: float = REPORT_TIMEOUT_SECONDS) -> Report:
        """Return the next report. Raises EOFError when there will be none, ChildIsStuck."""
        return self._reports.read(timeout_seconds)

    def read_number(self) -> int:
        """Return the next report, which is a number."""
        report = self.read()
        assert isinstance(report, int), report
        return report

    def read_rest(self) -> list[Report]:
        """Return every report up to the end of the process."""
        reports = []
        with contextlib.suppress(EOFError):
            while True:
                reports.append(self.read())
        return reports

    def has_report(self) -> bool:
        """Tell whether there is something to read, the end included."""
        return self._reports.has_more()

    def tell(self, order: Report) -> None:
        """Say something to the process."""
        write_line(self._orders_fd, order)

    def kill(self) -> None:
        """Send SIGKILL. What it reported before can still be read."""
        os.kill(self.pid, signal.SIGKILL)

    def join(self) -> int:
        """Wait for the end of the process and return its exit code."""
        if self.exit_code is None:
            self.exit_code = self._server.reap(self)
        return self.exit_code

    def close(self) -> None:
        """End the process if it still runs, and let go of the pipes."""
        if self.exit_code is None:
            self.kill()
            self.join()
        os.close(self._reports_fd)
        os.close(self._orders_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ForkServer:
    """Starts processes by forking one that is warm. One test at a time."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._connection.settimeout(JOIN_TIMEOUT_SECONDS)

    def start(
        self, target: Callable[Concatenate[Channel, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> Child:
        """Run `target` in a process of its own. It and its arguments must be importable."""
        reports_fd, their_reports_fd = os.pipe()
        their_orders_fd, orders_fd = os.pipe()
        try:
            message = pickle.dumps((target, args, kwargs))
            assert len(message) <= MESSAGE_BYTES_MAX
            socket.send_fds(self._connection, [message], [their_reports_fd, their_orders_fd])
        finally:
            os.close(their_reports_fd)
            os.close(their_orders_fd)
        return Child(self, self._answer(), reports_fd=reports_fd, orders_fd=orders_fd)

    def reap(self, child: Child) -> int:
        """Wait for the end of `child` and return its exit code."""
        self._connection.send(pickle.dumps(child.pid))
        return self._answer()

    def _answer(self) -> int:
        answer = pickle.loads(self._connection.recv(MESSAGE_BYTES_MAX))
        assert isinstance(answer, int)
        return answer

    def close(self) -> None:
        """End the server. Its children see their pipes close."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
