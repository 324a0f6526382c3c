"""Schedules that fire once, however many workers there are: no crontab, and no leader to name.

Every worker of the app looks after its schedules. Two run here, and the first is stopped half-way,
as when a new version is brought out: each second is still one run, and none is left out.

    python examples/cron.py

It takes some six seconds, prints how often the schedule fired and ran, and fails unless both are
the seconds that passed. For real a worker is one line, on as many machines as there are:

    segue worker cron:app
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import chdir, closing
from datetime import UTC, datetime
from pathlib import Path

import segue
from segue.tasks import Cron

SECOND_US = 1_000_000
RUNS_WANTED = 4
PATIENCE_SECONDS = 60

app = segue.App("data")


@app.task(schedule="every 1s", missed="all")  # what nobody was there for is made up for
def measure() -> None:
    with closing(sqlite3.connect("runs.sqlite3")) as database, database:
        database.execute("INSERT INTO run VALUES (?)", (time.time(),))


@app.task(schedule="0 3 * * * Europe/Berlin")  # once a night, also when the clocks are changed
def clean_up() -> None: ...


def count_runs() -> int:
    """Return how often `measure` ran so far."""
    with closing(sqlite3.connect("runs.sqlite3")) as database:
        return int(database.execute("SELECT count(*) FROM run").fetchone()[0])


def wait_for_runs(count: int) -> None:
    """Return once there were so many."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while count_runs() < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"no {count} runs within {PATIENCE_SECONDS} s")
        time.sleep(0.05)


def start_worker() -> "subprocess.Popen[bytes]":
    """Start a process that does what `segue worker cron:app` does."""
    return subprocess.Popen(
        [sys.executable, "-m", "segue", "worker", "cron:app"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)},
        stdout=subprocess.DEVNULL,
    )


def work() -> None:
    """Have two workers, then one, until there were enough runs."""
    workers = [start_worker(), start_worker()]
    try:
        wait_for_runs(RUNS_WANTED // 2)
        workers[0].terminate()  # it finishes what it runs, and ends
        workers[0].wait()
        wait_for_runs(RUNS_WANTED)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def check() -> None:
    """Compare the seconds that passed with what was fired for them, and that with the runs."""
    with segue.open("data") as store:
        notes = [
            json.loads(record.value or b"") for record in store.topic("segue.schedules").records()
        ]
        waiting = store.queue("default").count().total  # fired, when all workers had gone
    first, *_, last = (note for note in notes if note["name"] == "measure")
    passed = last["last_us"] // SECOND_US - first["last_us"] // SECOND_US
    ran = count_runs()
    print(f"{passed} seconds passed, {last['fired']} fired, {ran} ran and {waiting} wait")
    if not passed == last["fired"] == ran + waiting:
        raise SystemExit("a second was missed, or counted twice")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory, chdir(directory):
        with closing(sqlite3.connect("runs.sqlite3")) as database:
            database.execute("CREATE TABLE run (at REAL NOT NULL)")
        work()
        check()
    next_us = Cron("0 3 * * *", "Europe/Berlin").after(time.time_ns() // 1_000) or 0
    print(f"clean_up comes next at {datetime.fromtimestamp(next_us / SECOND_US, UTC):%H:%M} UTC")
