"""Payments booked exactly once, by a consumer that is killed at the two worst moments.

A queue delivers at least once: who dies between the work and its ack gets the message again. So the
database that has the effect also keeps the message's id, in the same transaction. In a task the id
is `current().id`, of a topic's records it is partition and offset.

    python examples/exactly_once.py

A consumer, a process of its own, kills itself (SIGKILL) in the middle of a transaction, the next
one right after the commit, and a third finishes. It prints how each has ended, and fails unless all
balances are right to the cent.
"""

import multiprocessing
import os
import signal
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import segue

PAYMENTS = [(name, 100 + number) for number in range(40) for name in ("ada", "grace", "edsger")]
DIES_AT = 25
"""Which of its messages a consumer does not survive."""
RESTARTS_MAX = 5
TABLES = """
    CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
    CREATE TABLE done (message TEXT PRIMARY KEY);
"""


def book(database: sqlite3.Connection, job: segue.Job) -> bool:
    """Book a payment, unless that is done; tell whether it was not. The caller commits."""
    name, cents = job.text.split()
    if not database.execute("INSERT OR IGNORE INTO done VALUES (?)", (job.id,)).rowcount:
        return False
    database.execute(
        "INSERT INTO account VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET cents = cents + excluded.cents",
        (name, int(cents)),
    )
    return True


def consume(place: Path, dies: str) -> None:
    """Book what is queued, until nothing comes for two seconds. A process of its own."""
    with (
        closing(sqlite3.connect(place / "accounts.sqlite3")) as database,
        segue.open(place / "store") as store,
    ):
        for number, job in enumerate(store.queue("payments").consume(ttl=1, wait=2)):
            with database:  # one transaction: the effect and the id, or neither
                is_new = book(database, job)
                if number == DIES_AT and dies == "before the commit":
                    os.kill(os.getpid(), signal.SIGKILL)
            if job.attempt > 1:
                booked = "now" if is_new else "before"
                print(f"  message {job.id} came again: booked {booked}", flush=True)
            if number == DIES_AT and dies == "after the commit":
                os.kill(os.getpid(), signal.SIGKILL)


def main(place: Path) -> None:
    """Push payments, start consumers until all is done, and add up."""
    with closing(sqlite3.connect(place / "accounts.sqlite3")) as database:
        database.executescript(TABLES)
    with segue.open(place / "store") as store:
        payments = store.queue("payments")
        payments.push_many([f"{name} {cents}" for name, cents in PAYMENTS])
        for dies in ("before the commit", "after the commit", *[""] * RESTARTS_MAX):
            consumer = multiprocessing.get_context("spawn").Process(
                target=consume, args=(place, dies)
            )
            consumer.start()
            consumer.join()
            fate = f"was killed {dies}" if consumer.exitcode == -signal.SIGKILL else "ended"
            print(f"a consumer {fate}, {payments.count().total} payments are left", flush=True)
            if not payments.count().total:
                break

    expected: Counter[str] = Counter()
    for name, cents in PAYMENTS:
        expected[name] += cents
    with closing(sqlite3.connect(place / "accounts.sqlite3")) as database:
        booked = dict(database.execute("SELECT name, cents FROM account ORDER BY name"))
        (ids,) = database.execute("SELECT count(*) FROM done").fetchone()
    print(f"{ids} of {len(PAYMENTS)} payments booked: {booked}")
    if booked != expected or ids != len(PAYMENTS):
        raise SystemExit(f"wrong: it should be {dict(expected)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory:
        main(Path(directory))
