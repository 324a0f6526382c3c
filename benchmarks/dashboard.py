"""Every request of the dashboard's screens, before a store that holds a lot.

Millions of messages in one queue, and records of a million tasks. A screen is as fast as the
slowest of its requests: what counts is the 95th percentile of the worst.
"""

import http.client
import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import segue
from benchmarks.race import Figure
from benchmarks.report import Section, Target
from benchmarks.server import LOOPBACK, Running, serving
from benchmarks.session import FULL, Session
from segue.stores.contract import Queue, Store
from segue.tasks.events import KEEP_SECONDS_DEFAULT, EventLog, TaskEvent

SECONDS_MAX: Final = 0.2
"""What was promised, for 95 of 100 requests."""
BODY: Final = b"x" * 100
BATCH: Final = 10_000
DEAD_BATCH: Final = 1_000
DISK_BYTES_PER_MESSAGE: Final = 200
"""What a message takes up, with a share of all that lies beside the queue it is in."""
CATCHING_UP_SECONDS_MAX: Final = 900.0
_PREFIX: Final = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is, and how often it is asked for."""

    messages: int
    tasks: int
    letters: int
    queues: int
    rounds: int


FULL_SCALE: Final = Scale(
    messages=10_000_000, tasks=1_000_000, letters=100_000, queues=100, rounds=100
)
QUICK_SCALE: Final = Scale(messages=50_000, tasks=5_000, letters=1_000, queues=5, rounds=5)


def run(session: Session, scale: Scale | None = None) -> None:
    """Measure how soon each request of the screens is answered."""
    scale = scale or (FULL_SCALE if session.effort is FULL else QUICK_SCALE)
    shortage = session.shortage(scale.messages * DISK_BYTES_PER_MESSAGE)
    if shortage is not None:
        print(f"\n== dashboard: not run: {shortage}")
        return
    with session.place() as place:
        marks = _filled(place / "store", scale)
        requests = _requests(scale, marks)
        samples: dict[str, list[float]] = {name: [] for name in requests}
        with (
            serving("segue serve", place / "store", "os") as server,
            closing(_Asking(server)) as asking,
        ):
            _catch_up(asking)
            for _ in range(scale.rounds):
                for name, path in requests.items():
                    samples[name].append(asking.seconds(path))
            memory_bytes = server.memory_bytes
    session.report.add(_section(session, scale, samples, memory_bytes))


# The store ---------------------------------------------------------------------------------------


def _filled(root: Path, scale: Scale) -> Mapping[str, str]:
    """Fill a directory; return the ids of some of what is in it."""
    with segue.open(root, sync="os") as store:
        big = store.queue("big")
        for start in range(0, scale.messages, BATCH):
            size = min(BATCH, scale.messages - start)
            ids = big.push_many([BODY] * size)
        for job in big.lease_many(50, ttl=3600, owner="worker"):
            big.nack(job, delay=0, reason="tried once")
        _bury(store.queue("letters"), scale.letters)
        for number in range(scale.queues):
            store.queue(f"small-{number:03}").push_many([BODY] * 10)
        _note_tasks(store, scale.tasks)
        topic = store.topic("events", partitions=8)
        topic.append_many([BODY] * BATCH)
        for number in range(5):
            topic.reader(f"reader-{number}", "earliest").close()
        last = ids[-1]
    return {"last": last, "middle": f"0-{scale.messages // 2}", "task": "jobs/2-7"}


def _bury(queue: Queue, count: int) -> None:
    for start in range(0, count, DEAD_BATCH):
        queue.push_many([BODY] * min(DEAD_BATCH, count - start))
        for number, job in enumerate(queue.lease_many(DEAD_BATCH, ttl=60)):
            queue.nack(job, outcome="dead", reason=f"error {number % 5}: code {number}")


def _note_tasks(store: Store, count: int) -> None:
    log = EventLog(store)
    log.prepare(KEEP_SECONDS_DEFAULT)
    now_us = time.time_ns() // 1_000
    expires_us = now_us + round(KEEP_SECONDS_DEFAULT * 1_000_000)
    for start in range(0, count, BATCH):
        log.append(
            TaskEvent(
                id=f"jobs/2-{number}",
                happened="completed" if number % 50 else "cancelled",
                at_us=now_us - count + number,
                task=f"task_{number % 20}",
                attempt=1,
                pushed_us=now_us - 2 * count + number,
                started_us=now_us - count + number - 10,
                worker="worker",
                expires_us=expires_us,
            )
            for number in range(start, min(start + BATCH, count))
        )


# Asking ------------------------------------------------------------------------------------------


def _requests(scale: Scale, marks: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the screens ask for, by what it is."""
    middle = scale.letters // 2
    return {
        "overview": "/overview",
        "history": "/overview/history?seconds=86400",
        "queue": "/queues/big",
        "queue: breakdown": "/queues/big/breakdown",
        "queue: messages": "/queues/big/messages?limit=25",
        "queue: messages, middle": f"/queues/big/messages?limit=25&after={marks['middle']}",
        "queue: history": "/overview/history?seconds=3600&queue=big",
        "message: first": "/queues/big/messages/0-0/timeline",
        "message: last": f"/queues/big/messages/{marks['last']}/timeline",
        "letters: groups": "/queues/letters/dead-letters/groups",
        "letters: page, middle": f"/queues/letters/dead-letters?limit=25&after={middle}",
        "letters: one cause": "/queues/letters/dead-letters?limit=25&cause=dead",
        "tasks: counts": "/task-counts",
        "tasks: all": "/tasks?limit=25",
        "tasks: completed": "/tasks?limit=25&state=completed",
        "tasks: by name": "/tasks?limit=25&state=completed&task=task_7",
        "tasks: by error": "/tasks?limit=25&error=nowhere",
        "tasks: pending": "/tasks?limit=25&state=pending",
        "task: events": f"/tasks/{marks['task']}/events",
        "workers": "/workers",
        "schedules": "/schedules",
        "topics": "/overview/topics?limit=50",
        "topic: consumers": "/topics/events/consumers",
        "topic: retention": "/topics/events/retention",
        "segments": "/queues/big/segments",
        "limits": "/overview/limits?limit=100",
        "audit": "/audit?limit=50",
    }


class _Asking:
    """Asks one server, over one connection."""

    def __init__(self, server: Running) -> None:
        self._line = http.client.HTTPConnection(LOOPBACK, server.port, timeout=60)

    def json(self, path: str) -> Mapping[str, object]:
        self._line.request("GET", _PREFIX + path)
        answer = self._line.getresponse()
        data = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path}: {answer.status} {data[:200]!r}")
        found = json.loads(data)
        assert isinstance(found, dict)
        return found

    def seconds(self, path: str) -> float:
        begun = time.perf_counter()
        self.json(path)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._line.close()


def _catch_up(asking: _Asking) -> None:
    """Return once what is derived from the store is there: that takes long once, and not again."""
    deadline = time.monotonic() + CATCHING_UP_SECONDS_MAX
    while (
        asking.json("/task-counts")["behind"]
        or not (asking.json("/queues/letters/dead-letters/groups")["is_complete"])
    ):
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not catch up")
        time.sleep(0.2)


# What came of it ---------------------------------------------------------------------------------


def _section(
    session: Session, scale: Scale, samples: Mapping[str, list[float]], memory_bytes: int
) -> Section:
    figures = [
        Figure(
            name=name,
            samples=(_percentile(found, 95) * 1_000,),
            note=f"median {_percentile(found, 50) * 1_000:.1f}, most {max(found) * 1_000:.0f} ms",
        )
        for name, found in samples.items()
    ]
    worst = max(_percentile(found, 95) for found in samples.values())
    return Section(
        benchmark="dashboard",
        title=f"requests of the screens, {scale.messages:,} messages, {scale.tasks:,} tasks",
        setting=f"p95 of {scale.rounds} requests each, in turn, on one connection; also "
        f"{scale.letters:,} dead letters, {scale.queues} other queues, a topic of 8 partitions "
        f"with 5 readers; the server took {memory_bytes / 1_000_000:,.0f} MB",
        minute=session.minute(),
        figures=figures,
        unit="ms",
        targets=[
            Target(
                what="p95 of the slowest request of the dashboard",
                measured=worst * 1_000,
                required=SECONDS_MAX * 1_000,
                at_most=True,
                unit="ms",
            )
        ],
    )


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]
