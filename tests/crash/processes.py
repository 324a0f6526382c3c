"""Real processes for tests: start one, read its reports, kill it, join it."""

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self

from tests.crash.channel import Channel, ChildIsStuck, Lines, Report, write_line
from tests.crash.fork_messages import MESSAGE_BYTES_MAX, Answer, Request
from tests.crash.replay import count_tries
from tests.waiting import LIMIT_SECONDS

KILLED: Final = -signal.SIGKILL
"""Return value of `Child.join` for a process that was killed."""

_ROOT: Final = Path(__file__).parents[2]
_P = ParamSpec("_P")


class ForkServerDied(Exception):
    """The fork server ended, or did not answer. The next `ForkServer.start` starts another one."""

    def __init__(self, *, exit_code: int | None, asked: str) -> None:
        how = "did not answer in time" if exit_code is None else f"ended with exit code {exit_code}"
        super().__init__(f"the fork server {how}, asked to {asked}")
        self.exit_code = exit_code
        self.asked = asked


class ForkFailed(Exception):
    """The fork server refused one request and continues to serve."""


class Child:
    """One process that runs one function. Made by `ForkServer.start`."""

    def __init__(
        self, server: "_Server", pid: int, *, pid_fd: int, reports_fd: int, orders_fd: int
    ) -> None:
        self._server = server
        self._pid_fd = pid_fd
        self._reports_fd = reports_fd
        self._orders_fd = orders_fd
        self._reports = Lines(reports_fd)
        self.pid = pid
        self.exit_code: int | None = None

    def read(self) -> Report:
        """Return the next report. Raises EOFError after the last one, ChildIsStuck."""
        return self._reports.read()

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
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process was reaped already."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_fd, number)

    def join(self) -> int:
        """Wait for the end of the process and return its exit code.

        Raises ChildIsStuck, and ForkServerDied if the code went down with the server.
        """
        if self.exit_code is None:
            ending = select.poll()
            ending.register(self._pid_fd, select.POLLIN)
            if not ending.poll(LIMIT_SECONDS * 1000):
                raise ChildIsStuck(f"process {self.pid} did not end within {LIMIT_SECONDS:g} s")
            self.exit_code = self._server.reap(self.pid)
            count_tries(self.exit_code == KILLED)
        return self.exit_code

    def close(self) -> None:
        """End the process if it still runs, and close the pipes.

        Raises ForkServerDied if the server is dead and no other call has reported that yet.
        """
        try:
            if self.exit_code is None:
                self.kill()
                self.join()
        except ForkServerDied:
            if self._server.deaths_reported == 1:
                raise
        finally:
            for fd in (self._pid_fd, self._reports_fd, self._orders_fd):
                os.close(fd)

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
    """Starts processes by forking one that is warm. Not thread-safe.

    A server that dies costs the test that notices it, which sees ForkServerDied. The next `start`
    starts another server.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, which is started if there is none."""
        return self._started().pid

    def start(
        self, target: Callable[Concatenate[Channel, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> Child:
        """Run `target` in a process of its own. It and its arguments must be importable.

        Raises ForkServerDied, and ForkFailed if the server cannot start this child.
        """
        return self._started().start(target.__qualname__, pickle.dumps((target, args, kwargs)))

    def _started(self) -> "_Server":
        if self._server is None or self._server.is_closed:
            self._server = _Server()
        return self._server

    def close(self) -> None:
        """End the server. Its children see their pipes close. Raises ForkServerDied."""
        server, self._server = self._server, None
        if server is not None and not server.is_closed:
            server.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Server:
    """One process to fork from, and the connection to it."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._connection.settimeout(LIMIT_SECONDS)
        self._requests = 0
        self._exit_code: int | None = None
        self.pid = self._process.pid
        self.is_closed = False
        self.deaths_reported = 0
        """How often ForkServerDied was raised for this server."""

    def start(self, name: str, call: bytes) -> Child:
        """Make a pickled call in a new child."""
        reports_fd, their_reports_fd = os.pipe()
        their_orders_fd, orders_fd = os.pipe()
        try:
            asked = f"start {name}"
            theirs = [their_reports_fd, their_orders_fd]
            pid, fds = self._ask(asked, Request(number=self._next(), call=call), theirs)
        except BaseException:
            os.close(reports_fd)
            os.close(orders_fd)
            raise
        finally:
            os.close(their_reports_fd)
            os.close(their_orders_fd)
        return Child(self, pid, pid_fd=fds[0], reports_fd=reports_fd, orders_fd=orders_fd)

    def reap(self, pid: int) -> int:
        """Return the exit code of a child that has ended."""
        code, _ = self._ask(f"reap {pid}", Request(number=self._next(), reap_pid=pid), [])
        return code

    def end(self) -> None:
        """End the process. Raises ForkServerDied if it had ended by itself."""
        code = self._process.poll()
        self._close()
        if code is not None:
            raise ForkServerDied(exit_code=code, asked="end")

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _ask(self, asked: str, request: Request, fds: list[int]) -> tuple[int, list[int]]:
        """Send `request`; return the result and the descriptors that came with it."""
        message = pickle.dumps(request)
        assert len(message) <= MESSAGE_BYTES_MAX, f"{len(message)} bytes to {asked}"
        try:
            if self.is_closed:
                raise ConnectionError
            socket.send_fds(self._connection, [message], fds)
            answer, received = self._answer_to(request.number)
        except OSError as error:
            raise self._died(asked, error) from error
        if answer.error is not None:
            raise ForkFailed(f"asked to {asked}, the fork server failed:\n{answer.error}")
        return answer.result, received

    def _answer_to(self, number: int) -> tuple[Answer, list[int]]:
        """Receive the answer to request `number`. Raises OSError if there will be none."""
        while True:
            message, received, _, _ = socket.recv_fds(self._connection, MESSAGE_BYTES_MAX, 1)
            if not message:
                raise ConnectionError
            answer: Answer = pickle.loads(message)
            if answer.number == number:
                return answer, received
            # The test that sent this request was interrupted before it had the answer.
            for fd in received:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)

    def _died(self, asked: str, cause: OSError) -> ForkServerDied:
        """Make sure that the process has ended; return the error that reports it."""
        if not self.is_closed:
            if not isinstance(cause, TimeoutError):
                # The connection closes a moment before the process is gone.
                self._exit_code = self._process.wait(LIMIT_SECONDS)
            self._close()
        self.deaths_reported += 1
        return ForkServerDied(exit_code=self._exit_code, asked=asked)

    def _close(self) -> None:
        self.is_closed = True
        self._connection.close()
        self._process.kill()
        self._process.wait()
