"""Who sends tasks: `python -m benchmarks.task_producer MODULE`, a process of its own for each peer.

    hold GATES             close the gate, send as many tasks that wait at it, see them arrive
    open                   open it
    run COUNT each|batch   send no-ops while the gate is closed, open it, wait until all are done
    stamps COUNT           send one task at a time, with pauses; say how soon each was picked up

Commands are lines on stdin, answers lines of JSON on stdout. `task_peers.py` is the other end and
minds the time: nothing here gives up by itself.
"""

import importlib
import json
import os
import random
import sys
import time
from contextlib import ExitStack
from typing import Final, Protocol, TextIO, cast

from benchmarks.task_apps import marks

LOOK_SECONDS: Final = 0.005
"""How often it is asked whether all is done: a thousandth of a run of five seconds."""
IDLE_SECONDS: Final = 1.0
"""How long everything rests before pickups are timed."""
PAUSE_SECONDS: Final = (0.02, 0.05)
PAUSE_SEED: Final = 20


class TaskApp(Protocol):
    """What each module in `task_apps` has."""

    def send_gate(self) -> None: ...
    def send_stamp(self, sent_ns: int, /) -> None: ...
    def send_each(self, count: int, /) -> None: ...
    def send_batch(self, count: int, /) -> None:
        """Send by the peer's own way for many. Raises NotImplementedError if it has none."""
        ...

    def left(self) -> int:
        """Return how many tasks are not done, as the peer itself counts."""
        ...


class Producer:
    """Sends tasks of one peer and times them."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self._gate = ExitStack()

    def hold(self, gates: int) -> dict[str, object]:
        """Occupy all slots of the worker."""
        self._gate.enter_context(marks.closed_gate())
        for _ in range(gates):
            self._app.send_gate()
        while marks.arrivals() < gates:
            time.sleep(LOOK_SECONDS)
        return {}

    def open(self) -> dict[str, object]:
        """Let the worker go on."""
        self._gate.close()
        return {}

    def run(self, count: int, way: str) -> dict[str, object]:
        """Time sending, and then all that the worker does."""
        send = self._app.send_each if way == "each" else self._app.send_batch
        marks.forget_last()
        begin = time.perf_counter()
        try:
            send(count)
        except NotImplementedError as reason:
            self._gate.close()
            return {"not_run": str(reason)}
        sent = time.perf_counter()
        self._gate.close()
        while self._app.left():
            time.sleep(LOOK_SECONDS)
        done = time.perf_counter()
        return {"enqueue_seconds": sent - begin, "consume_seconds": done - sent}

    def stamps(self, count: int) -> dict[str, object]:
        """Time pickups by a worker with nothing else to do."""
        draw = random.Random(PAUSE_SEED)
        time.sleep(IDLE_SECONDS)
        before = len(marks.pickups_ns())
        for _ in range(count):
            self._app.send_stamp(time.time_ns())
            time.sleep(draw.uniform(*PAUSE_SECONDS))
        while len(found := marks.pickups_ns()[before:]) < count:
            time.sleep(LOOK_SECONDS)
        return {"pickups_ns": found}


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Whatever else prints goes to the log.
    module = importlib.import_module(f"benchmarks.task_apps.{sys.argv[1]}")
    producer = Producer(cast("TaskApp", module))
    _say(answers, {})
    for line in sys.stdin:
        match line.split():
            case ["hold", gates]:
                answer = producer.hold(int(gates))
            case ["open"]:
                answer = producer.open()
            case ["run", count, way]:
                answer = producer.run(int(count), way)
            case ["stamps", count]:
                answer = producer.stamps(int(count))
            case _:
                sys.exit(f"unknown command {line}")
        _say(answers, answer)


def _say(answers: TextIO, facts: dict[str, object]) -> None:
    answers.write(json.dumps(facts) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
