"""A store in which something of everything goes on, to have something to look at."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import segue
from segue import Event, Item, QueueRules
from segue.stores.contract import Queue, Store
from segue.stores.topic_contract import Member, Topic
from segue.tasks import Task, Worker, current

PAUSE_SECONDS: Final = 0.1
READY_BY_PRIORITY: Final = {0: 40, 1: 900, 2: 4_200}
CUSTOMERS: Final = 17
HOOKS: Final = 160
HOOKS_TRIED: Final = 130
IMAGES: Final = 200
STEPS: Final = 120


@contextmanager
def lively_store(root: Path) -> Iterator[None]:
    """Fill a directory, and have producers, consumers and a worker use it for a while."""
    chance = random.Random(7)
    app = segue.App(str(root))
    resize, crawl = _tasks(app, chance)
    store = app.store
    _fill_queues(store)
    topic = _filled_topic(store)
    for number in range(IMAGES):
        resize.enqueue(_image(number))
    crawl.enqueue("https://example.com/")
    crawl.enqueue("https://example.org/")
    is_over = threading.Event()
    worker = Worker(app, max_size=6, drain=1, name="worker-1")
    with topic.group("billing").join(owner="billing-1") as member:
        flow = threading.Thread(
            target=_flow, args=(store, topic, member, resize, chance, is_over), daemon=True
        )
        work = threading.Thread(target=worker.run, daemon=True)
        flow.start()
        work.start()
        try:
            yield
        finally:
            is_over.set()
            worker.stop()
            flow.join()
            work.join()
    app.close()


def _tasks(app: segue.App, chance: random.Random) -> "tuple[Task[[str], str], Task[[str], int]]":
    @app.task(retries=2, backoff=0.2)
    def resize(path: str) -> str:
        time.sleep(chance.uniform(0.005, 0.05))
        if "broken" in path:
            raise ValueError(f"cannot read image {path!r}: truncated after 4096 bytes")
        return f"{path} at 100"

    @app.task(retries=0, timeout=120)
    def crawl(url: str) -> int:
        for step in range(STEPS):
            current().progress({"done": step, "of": STEPS, "url": url})
            time.sleep(5 * PAUSE_SECONDS)
        return STEPS

    @app.task(schedule="*/5 * * * *")
    def report() -> str:
        return "done"

    return resize, crawl


def _fill_queues(store: Store) -> None:
    orders = store.queue("orders")
    for priority, count in READY_BY_PRIORITY.items():
        orders.push_many([_order(number, priority) for number in range(count)])
    emails = store.queue("emails")
    emails.push_many(
        [
            Item(body=f"to: user{number}@example.com", delay=None if number % 3 else 600 + number)
            for number in range(300)
        ]
    )
    emails.lease_many(12, ttl=300, owner="mailer-1")
    _fill_hooks(store.queue("webhooks"))
    thumbnails = store.queue("thumbnails")
    thumbnails.push_many([f"image-{number}.png" for number in range(48)])
    thumbnails.pause()


def _fill_hooks(hooks: Queue) -> None:
    hooks.configure(QueueRules(max_deliveries=1))
    hooks.push_many([json.dumps({"hook": number, "try": 1}) for number in range(HOOKS)])
    reasons = (
        "HTTP 503 from https://example.com/h/{0} after {0} ms",
        "HTTP 503 from https://example.com/h/{0} after {0} ms",
        "ConnectTimeout: no answer within {0} s",
        "KeyError: 'customer_{0}'",
    )
    for number, job in enumerate(hooks.lease_many(HOOKS_TRIED, ttl=60, owner="hooks-3")):
        hooks.nack(job, reason=reasons[number % len(reasons)].format(number))


def _filled_topic(store: Store) -> Topic:
    topic = store.topic("orders.events", partitions=4)
    topic.append_many(
        [
            Event(
                value=json.dumps({"order": number, "kind": "paid"}), key=f"customer-{number % 50}"
            )
            for number in range(5_000)
        ]
    )
    with topic.reader("audit", "earliest") as reader:
        reader.poll(500)
        reader.commit()
    return topic


def _flow(
    store: Store,
    topic: Topic,
    member: Member,
    resize: "Task[[str], str]",
    chance: random.Random,
    is_over: threading.Event,
) -> None:
    orders = store.queue("orders")
    number = 0
    while not is_over.wait(PAUSE_SECONDS):
        number += 1
        some = range(chance.randint(5, 30))
        orders.push_many([_order(STEPS * number + each, 1) for each in some])
        orders.ack_many(orders.lease_many(chance.randint(5, 32), ttl=30, owner="packer-2"))
        resize.enqueue(_image(number))
        topic.append(json.dumps({"order": number, "kind": "sent"}), key=f"customer-{number % 9}")
        member.poll(100)
        member.commit()


def _order(number: int, priority: int) -> Item:
    body = json.dumps({"order": number, "customer": f"c-{number % CUSTOMERS}", "total": number / 2})
    return Item(body=body, priority=priority, group=f"customer-{min(number % 401, number % 97)}")


def _image(number: int) -> str:
    return f"images/{number}.png" if number % 9 else f"images/broken-{number}.png"
