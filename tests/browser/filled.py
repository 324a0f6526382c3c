"""A store with something of everything in it, and the screens that show it.

Nothing in it changes by itself, so tests know what is shown. Tests that only read share one store.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from playwright.sync_api import Locator, Page, expect

from segue.delivery.rules import QueueRules
from segue.delivery.topic_record import Event
from segue.stores.contract import Item, Queue, Store
from segue.stores.topic_contract import Topic
from segue.tasks.envelope import Envelope, write_envelope
from segue.tasks.events import EventLog, Happening, TaskEvent
from segue.tasks.scheduling import ScheduleBook, ScheduleState
from segue.tasks.worker.reports import (
    WORKERS_TOPIC,
    DecisionReport,
    SlotReport,
    WorkerReport,
    prepare_reports,
)
from tests.browser.browser_support import Dashboard, go, ready

HAPPENED: Final[tuple[Happening, ...]] = ("dead_letter", "completed", "processing")
"""To the first tasks of each queue of them."""
LEASE_SECONDS: Final = 3_600.0
"""Longer than any module of tests takes that shares one store."""
READY: Final = 30
"""In the queue `mail`: more than a page."""


@dataclass(frozen=True, slots=True)
class Screen:
    """A part of the dashboard, and the heading by which it is known to be there."""

    route: str
    heading: str


SCREENS: Final = {
    "overview": Screen("/", "Overview"),
    "queue": Screen("/queues/mail", "mail"),
    "message": Screen("/queues/mail/messages/1-0", "1-0 ready"),
    "all letters": Screen("/letters", "Dead letters"),
    "letters": Screen("/letters/mail", "Dead letters of mail"),
    "letter": Screen("/queues/mail/messages/0-1", "0-1 dead"),
    "tasks": Screen("/tasks", "Tasks"),
    "task": Screen("/tasks/mail.tasks/0-0", "plain words dead letter"),
    "schedules": Screen("/schedules", "Schedules"),
    "workers": Screen("/workers", "Workers"),
    "topics": Screen("/topics", "Topics"),
    "topic": Screen("/topics/mail.events", "mail.events"),
    "segments": Screen("/segments?kind=queue&name=mail", "Segments"),
    "limits": Screen("/limits", "Limits and switches"),
    "audit": Screen("/audit", "Audit log"),
}
"""Where there is something of a store that `fill` filled, by what it is."""


def show(dashboard: Dashboard, name: str) -> Page:
    """Navigate to a screen within the page. Returns the page once the screen is drawn and live."""
    page, screen = dashboard.page, SCREENS[name]
    go(page, screen.route)
    expect_shown(page, screen.heading)
    return page


def expect_shown(page: Page, heading: str) -> None:
    """Wait until the screen of the address is drawn and live, and check its heading."""
    expect(status_of(page)).to_have_text("Live")
    ready(page)  # Now, as the page loads its screen again as soon as it is connected.
    expect(page.get_by_role("heading", level=1, name=heading, exact=True)).to_be_visible()


def status_of(page: Page) -> Locator:
    """Return what tells whether what is shown is of now."""
    return page.get_by_role("banner").get_by_role("status")


def asked_by(page: Page) -> list[str]:
    """Return a list to which every request of a page is added from now on, as it is asked."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    return asked


def fill(store: Store, text: str = "plain words") -> None:
    """Have something of everything, with `text` in all places that take any."""
    fill_queue(store.queue("mail"), text)
    fill_queue(store.queue("orders"), text)
    paused = store.queue("mail.paused", QueueRules(capacity=10, rate=5, max_leases=3))
    paused.push_many([text] * 4)
    paused.pause()
    for name in ("mail.events", "orders.events"):
        fill_topic(store.topic(name, partitions=2), text)
    for name in ("mail.ring", "orders.ring"):
        store.ring(name, capacity=8).enqueue(text.encode(errors="replace"))
    for name in ("mail.tasks", "orders.tasks"):
        fill_tasks(store, store.queue(name), text)
    report_worker(store, text)


def fill_queue(queue: Queue, text: str) -> None:
    """Have messages in every state."""
    queue.configure(QueueRules(max_deliveries=2, backoff_base=3_600, backoff_cap=3_600))
    part = text[:1_000]
    queue.push(text, priority=1, key=part, group=part, headers={part[:60]: part})
    queue.push_many([Item(body=f"dead {number} {text}") for number in range(3)])
    queue.push_many([Item(body=f"back {number} {text}") for number in range(2)])
    queue.push_many([Item(body=f"out {number} {text}") for number in range(2)])
    owner = owner_of(text)
    for job in queue.lease_many(3, owner=owner, ttl=LEASE_SECONDS):
        queue.nack(job, outcome="dead", reason=shortened(text, size_bytes=1_000))
    for job in queue.lease_many(2, owner=owner, ttl=LEASE_SECONDS):
        queue.nack(job, outcome="fail", reason=shortened(text, size_bytes=1_000))
    queue.lease_many(2, owner=owner, ttl=LEASE_SECONDS)
    queue.push_many([Item(body=f"later {text}", delay=3_600), Item(body=b"\xff\xfe\x00\x80")])
    queue.push_many([Item(body=f'{{"number": {number}}}', priority=2) for number in range(READY)])


def fill_topic(topic: Topic, text: str) -> None:
    """Have records, a reader, and a group with a member."""
    events = [
        Event(
            value=text,
            key=shortened(text, size_bytes=1 << 20),
            headers={text[:60]: text[:1_000]},
            partition=0,
        ),
        Event(value=b"\xff\x00binary", key=b"\xff\xfe"),
        Event(value=None, key="gone"),
        *(Event(value=f'{{"number": {number}}}', key=f"c{number % 5}") for number in range(12)),
    ]
    topic.append_many(events)
    with topic.reader("audit", "earliest") as reader:
        reader.poll(10)
        reader.commit()
    topic.group("billing").join(owner=owner_of(text)).poll(5)


def fill_tasks(store: Store, queue: Queue, text: str) -> None:
    """Have tasks in some states, with what workers said of them, and a schedule."""
    arguments = msgspec.Raw(msgspec.json.encode({"path": _text_of_json(text)}))
    task = _text_of_json(text)[:200] or "task"
    for _ in range(4):
        queue.push(write_envelope(Envelope(task=task, args=arguments)))
    queue.push(write_envelope(Envelope(task="wait", args=arguments)), delay=3_600)
    jobs = queue.lease_many(3, owner="worker", ttl=LEASE_SECONDS)
    now_us = time.time_ns() // 1_000
    log = EventLog(store)
    log.prepare(86_400)
    log.append(
        TaskEvent(
            id=f"{queue.name}/{job.id}",
            happened=happened,
            at_us=now_us,
            task=task,
            attempt=1,
            pushed_us=job.message.pushed_us,
            started_us=job.message.pushed_us,
            worker=_text_of_json(text)[:200],
            error=_text_of_json(text)[:1_000] if happened == "dead_letter" else "",
            traceback=_text_of_json(text)[:8_000] if happened == "dead_letter" else "",
            result=arguments,
            progress=arguments,
            args=arguments,
            schedule=_text_of_json(text)[:100],
        )
        for job, happened in zip(jobs, HAPPENED, strict=True)
    )
    queue.nack(jobs[0], outcome="dead", reason=shortened(text, size_bytes=1_000))
    queue.ack(jobs[1])
    ScheduleBook(store).note(
        ScheduleState(
            name=f"{queue.name} {_text_of_json(text)}"[:200],
            when="every 1h",
            task=task,
            queue=queue.name,
            priority=0,
            args=arguments,
            missed="latest",
            last_us=now_us,
            fired=1,
            fired_us=now_us,
            last_id=f"{queue.name}/{jobs[1].id}",
        )
    )


def report_worker(store: Store, text: str, *, later: timedelta = timedelta(hours=1)) -> None:
    """Have a worker say how it is. It says so of later, so that it is there for an hour."""
    now_us = time.time_ns() // 1_000
    at = datetime.now(UTC) + later
    said = _text_of_json(text)[:500]
    report = WorkerReport(
        worker=f"worker-1 {said}",
        host=said,
        pid=1,
        kind="threads",
        state="running",
        at_us=round(at.timestamp() * 1_000_000),
        started_us=now_us - 60_000_000,
        queues=["mail.tasks"],
        size=2,
        busy=1,
        min=1,
        max=2,
        slots=[
            SlotReport(1, "busy", 2.5, task=said, id="mail.tasks/0-2", pid=7),
            SlotReport(2, "idle", 1.5),
        ],
        decisions=[DecisionReport(now_us, 1, 2, f"one more: {said}")],
        standing=said,
    )
    prepare_reports(store)
    topic = store.topic(WORKERS_TOPIC)
    topic.append(msgspec.json.encode(report), key=report.worker, timestamp=at)


def owner_of(text: str) -> str:
    """Return as much of a text as the owner of a lease may be called."""
    return shortened("".join(filter(str.isprintable, text)), size_bytes=250)


def shortened(text: str, *, size_bytes: int) -> str:
    """Return as much of a text as fits, as UTF-8."""
    return text.encode(errors="replace")[:size_bytes].decode(errors="ignore")


def _text_of_json(text: str) -> str:
    """Return a text that can be written as JSON: halves of characters cannot."""
    return text.encode(errors="replace").decode()
