"""Slots that have their tasks run by a process each: it can be killed, and is, and is replaced.

The process gets one call at a time over a socket, and answers with what came of it. It ends when
the socket closes, so that none is left behind by a worker that was killed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from segue.errors import AppNotFound
from segue.tasks.worker.runs import Outcome, Run
from segue.tasks.worker.slots import Slot, SlotCrew
from segue.values import dataclass

START_SECONDS: Final = 60.0
"""How long a process may take to import the App."""
START_TRIES: Final = 3
POLL_SECONDS: Final = 0.5


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process says: that it is ready, how far it is, or what came of a call."""

    outcome: Outcome | None = None
    progress: bytes | None = None
    problem: str = ""
    """Why it cannot work at all."""


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str
    is_passing: bool
    """Whether it may go well another time: it was killed, perhaps, for want of memory."""


class ProcessSlot(Slot):
    """Runs tasks in a process of its own."""

    def __init__(
        self,
        crew: SlotCrew,
        number: int,
        *,
        target: str,
        store: tuple[str, str],
        memory_bytes: int | None,
    ) -> None:
        super().__init__(crew, number)
        self._target = target
        self._store = store
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def prepare(self, run: Run) -> None:
        tries = 0
        while self._connection is None or not self._is_alive():
            tries += 1
            problem = self._start()
            if run.is_over:
                return  # It was cancelled, and its process killed while it started.
            if problem is not None and (tries == START_TRIES or not problem.is_passing):
                raise AppNotFound(f"a worker process did not start: {problem.text}")

    def perform(self, run: Run) -> Outcome:
        connection = self._connection
        try:
            if connection is None:
                raise EOFError
            connection.send_bytes(msgspec.msgpack.encode(run.call))
            while True:
                if not connection.poll(POLL_SECONDS):
                    # What its task has started may have the socket, too: then its end is not ours.
                    if self._is_alive() or connection.poll():
                        continue
                    raise EOFError
                answer = msgspec.msgpack.decode(connection.recv_bytes(), type=Answer)
                if answer.progress is not None:
                    run.report(answer.progress)
                if answer.outcome is not None:
                    return answer.outcome
        except (OSError, EOFError):
            return Outcome(verdict="failed", error=f"WorkerDied: {self._death()}")

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self) -> "_Problem | None":
        """Start a process; return what keeps it from working."""
        self.close()
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        words = [sys.executable, "-m", "segue.tasks.worker.child", self._target]
        words += [str(theirs.fileno()), str(self._memory_bytes or 0)]
        connection = self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                words, pass_fds=(theirs.fileno(),), env=environment, process_group=0
            )
        problem = _Problem("it ended without a word", is_passing=True)
        with contextlib.suppress(OSError, EOFError):
            # Not among the words: everybody on the machine sees those, and a URL has a password.
            connection.send_bytes(msgspec.msgpack.encode(self._store))
            if connection.poll(START_SECONDS):
                answer = msgspec.msgpack.decode(connection.recv_bytes(), type=Answer)
                if not answer.problem:
                    return None
                problem = _Problem(answer.problem, is_passing=False)
            else:
                problem = _Problem(f"it was not ready after {START_SECONDS:g} s", is_passing=False)
        self.close()
        return problem

    def _death(self) -> str:
        process = self._process
        if process is None:
            return "its process is gone"
        try:
            code = process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process does not answer"
        if code >= 0:
            return f"its process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"its process was ended by {name}"

    def stop_run(self, run: Run) -> None:
        with self.changing:
            process = self._process
            if process is None or self.run is not run:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def leave_behind(self) -> None:
        self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
