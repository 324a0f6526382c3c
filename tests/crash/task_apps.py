"""The App whose workers these tests kill, and the facts its tasks leave behind.

Every run of a task says so in one line of a file that all processes append to: a line is written
in one step, so whatever is killed leaves whole lines. Where the store is, and which worker a
process belongs to, is in the environment: processes of a worker have it from their worker.
"""

import json
import os
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from segue.clock import system_clock, system_ticks
from segue.tasks import App, AsyncTask, Every, Task, current
from tests.crash.shared_clock import SharedClock
from tests.waiting import LIMIT_SECONDS, random_pause, random_pause_async, wait_until

ROOT_VARIABLE: Final = "SEGUE_CRASH_ROOT"
WORKER_VARIABLE: Final = "SEGUE_CRASH_WORKER"
STORE_VARIABLE: Final = "SEGUE_CRASH_STORE"
"""The URL of the store, where it is not under the root with everything else."""
STORE: Final = "store"
FACTS: Final = "facts"
ACCOUNTS: Final = "accounts.sqlite3"
GATE: Final = "gate"
BEGAN: Final = "began"
ENDED: Final = "ended"
CLOCK: Final = "clock"
RETRIES: Final = 1_000
"""More than any task needs, also on a machine so busy that living workers lose their leases."""
LONG_SECONDS: Final = 3_600.0
"""Time to live of a lease. It is over only if a test calls `expire_leases`."""
EVERY_SECONDS: Final = 1.0
"""As often as a schedule may fire."""
POISON_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class Fact:
    """Something a run of a task says of itself: that it begins, or that it is about to end."""

    id: str
    attempt: int
    worker: str
    pid: int
    at_us: int
    happened: str
    about: str


class Facts:
    """What runs there were, as told by whoever ran them."""

    def __init__(self, root: Path) -> None:
        self._path = root / FACTS

    def note(self, happened: str = BEGAN, about: str = "") -> None:
        """Say how far the task is that runs here."""
        task = current()
        worker = os.environ.get(WORKER_VARIABLE, "")
        fact = [task.id, task.attempt, worker, os.getpid(), system_clock(), happened, about]
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(fact).encode() + b"\n")
        finally:
            os.close(descriptor)

    def count(self) -> int:
        """Return how much was said so far."""
        return self._path.read_bytes().count(b"\n") if self._path.exists() else 0

    def read(self) -> list[Fact]:
        """Return which runs began so far, in their order."""
        return [fact for fact in self.read_all() if fact.happened == BEGAN]

    def read_all(self) -> list[Fact]:
        """Return all that was said so far, in its order."""
        if not self._path.exists():
            return []
        return [Fact(*json.loads(line)) for line in self._path.read_text().splitlines()]


class Accounts:
    """A ledger of somebody else: the effect of a task and its id go there in one transaction."""

    def __init__(self, root: Path) -> None:
        self._path = root / ACCOUNTS

    def prepare(self) -> None:
        """Have the tables."""
        with closing(sqlite3.connect(self._path, timeout=LIMIT_SECONDS)) as database, database:
            database.execute("CREATE TABLE done (id TEXT PRIMARY KEY)")
            database.execute("CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER)")

    def credit(self, task_id: str, name: str, cents: int) -> None:
        """Add to an account, unless this task has done so before."""
        with closing(sqlite3.connect(self._path, timeout=LIMIT_SECONDS)) as database:
            database.execute("PRAGMA synchronous = OFF")  # Only processes die here.
            with database:
                first = database.execute("INSERT OR IGNORE INTO done VALUES (?)", (task_id,))
                if first.rowcount:
                    database.execute(
                        "INSERT INTO account VALUES (?, ?) "
                        "ON CONFLICT DO UPDATE SET cents = cents + excluded.cents",
                        (name, cents),
                    )

    def read(self) -> dict[str, int]:
        """Return how much is in each account."""
        with closing(sqlite3.connect(self._path, timeout=LIMIT_SECONDS)) as database:
            return dict(database.execute("SELECT name, cents FROM account"))


class Tasks:
    """The App on the store under a directory, and its tasks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.facts = facts = Facts(root)
        self.accounts = accounts = Accounts(root)
        url = os.environ.get(STORE_VARIABLE) or root / STORE
        clock, ticks = system_clock, system_ticks
        # A server has the clock for all of its clients.
        if root.exists() and STORE_VARIABLE not in os.environ:
            shared = SharedClock(root / CLOCK)
            clock, ticks = shared, shared.ticks
        self.app = app = App(url, sync="os", retries=RETRIES, clock=clock, ticks=ticks)
        gate = root / GATE

        @app.task
        def double(number: int) -> int:
            facts.note()
            random_pause(random.Random(number), work_seconds_max(number))
            return 2 * number

        @app.task
        async def negate(number: int) -> int:
            facts.note()
            await random_pause_async(random.Random(number), work_seconds_max(number))
            return -number

        @app.task
        def credit(name: str, cents: int) -> int:
            facts.note()
            accounts.credit(current().id, name, cents)
            return cents

        @app.task
        def wait_once(number: int) -> str:
            """Wait for the gate in the first attempt."""
            facts.note()
            attempt = current().attempt
            if attempt == 1:
                wait_until(gate.exists, "the gate is open")
            return f"try {attempt} of {number}"

        @app.task(key="key")
        def in_turn(key: str, number: int) -> int:
            facts.note(about=f"{key} {number}")
            random_pause(random.Random(number), work_seconds_max(number))
            facts.note(ENDED, f"{key} {number}")
            return number

        @app.task(retries=POISON_RETRIES)
        def poison() -> None:
            facts.note()
            os.kill(os.getpid(), signal.SIGKILL)

        @app.task(retries=0)
        def fail() -> None:
            facts.note()
            raise ValueError("there is no such account")

        @app.task(retries=0)
        def once(number: int) -> int:
            facts.note()
            return 2 * number

        self.double: Task[[int], int] = double
        self.negate: AsyncTask[[int], int] = negate
        self.credit: Task[[str, int], int] = credit
        self.wait_once: Task[[int], str] = wait_once
        self.in_turn: Task[[str, int], int] = in_turn
        self.poison: Task[[], None] = poison
        self.fail: Task[[], None] = fail
        self.once: Task[[int], int] = once

    def unsettled(self) -> int:
        """Return how many messages are left; dead letters do not count."""
        return self.app.queue_for("default").count().total

    def is_settled(self) -> bool:
        """Return true if no message is left; dead letters do not count."""
        return self.unsettled() == 0

    def open_gate(self) -> None:
        """Let the tasks continue that wait for the gate."""
        (self.root / GATE).touch()


class Beats(Tasks):
    """With a schedule, too: a task every moment, none left out."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        facts = self.facts

        @self.app.task(queue="beats", schedule=Every(EVERY_SECONDS), missed="all")
        def beat() -> None:
            facts.note()

        self.beat: Task[[], None] = beat


def work_seconds_max(number: int) -> float:
    """Return how long a task may take: up to 40 ms, and for one in a hundred ten times as long."""
    return 0.4 if number % 100 == 0 else 0.04


def expire_leases(root: Path) -> None:
    """Let every lease of LONG_SECONDS end now, for all processes with a store under `root`."""
    SharedClock(root / CLOCK).advance(seconds=LONG_SECONDS + 1)


app: Final = Tasks(Path(os.environ.get(ROOT_VARIABLE, "nowhere"))).app
"""What workers of their own program, and their processes, find."""
