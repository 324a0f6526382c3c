"""The process of a slot: takes calls from its worker, runs them one by one, and answers.

python -m segue.tasks.worker.child module:app <descriptor> <memory bytes>

Which store it is, and when that is to sync, comes first over the descriptor.
"""

import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from types import FrameType
from typing import Final, cast

import msgspec

from segue.errors import SegueError, TaskNotFound
from segue.log.options import SyncName
from segue.tasks.loading import load_app
from segue.tasks.worker.processes import Answer
from segue.tasks.worker.runs import Call, Outcome, execute, given_up, said

PROBLEM: Final = 3
"""The exit code of a process that cannot work."""


def main(words: list[str]) -> int:
    """Answer calls until the worker is gone."""
    target, descriptor, memory = words
    # Ctrl-C reaches everybody in the terminal, and systemd's SIGTERM everybody in the unit; when to
    # stop is the worker's business. Handled, not ignored: what a task starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_alone)
    connection = Connection(int(descriptor))
    lock = threading.Lock()

    def say(answer: Answer) -> None:
        with lock:
            connection.send_bytes(msgspec.msgpack.encode(answer))

    try:
        url, sync = msgspec.msgpack.decode(connection.recv_bytes(), type=tuple[str, str])
        app = load_app(target)
        app.use(url, sync=cast("SyncName", sync))
        if int(memory):
            resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    except (SegueError, OSError, EOFError, ValueError) as error:
        say(Answer(problem=said(error)))
        return PROBLEM
    say(Answer())
    calls = Calls(connection)
    while (call := calls.next()) is not None:
        try:
            task = app.find_task(call.task)
        except TaskNotFound as error:
            say(Answer(outcome=given_up(error)))
            continue
        outcome = execute(
            task,
            call,
            report=lambda progress: say(Answer(progress=progress)),
            is_cancelled=lambda: False,  # Whoever cancels us kills us.
        )
        try:
            say(Answer(outcome=outcome))
        except MemoryError as error:
            say(Answer(outcome=Outcome(verdict="failed", error=said(error))))
    return 0


def _leave_alone(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal."""


class Calls:
    """The calls that come. A thread waits for them, so that it is noticed if the worker dies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ready = threading.Semaphore(0)
        self._calls: list[Call] = []
        threading.Thread(target=self._read, name="segue-calls", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                data = self._connection.recv_bytes()
                self._calls.append(msgspec.msgpack.decode(data, type=Call))
                self._ready.release()
        except (OSError, EOFError):
            os._exit(0)  # In the middle of a task, too: somebody else will run it.
        finally:
            os._exit(PROBLEM)

    def next(self) -> Call | None:
        """Return the next call."""
        self._ready.acquire()
        return self._calls.pop(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
