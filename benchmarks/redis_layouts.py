"""Messages as they lie in a server: `python -m benchmarks.redis_layouts LAYOUT URL COUNT`.

Puts that many messages with different bodies of 100 characters there and ends, so that the
process that measures loads no peer's library and the server has no client left to serve. RQ,
Celery, dramatiq and Segue do it themselves; the layout of BullMQ, which is no Python, is made of
the commands its scripts use, without the stream of events it writes besides.
"""

import json
import random
import string
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import redis

import segue
from benchmarks.redis_bench import PAYLOAD_BYTES

BATCH_MESSAGES: Final = 1000
BODY_SEED: Final = 1
_ALPHABET: Final = string.ascii_letters + string.digits

Batches = Iterator[list[str]]


def noop(body: str) -> None:
    """Do nothing: what all tasks here do."""


def segue_queue(url: str, batches: Batches) -> None:
    """Push to a queue of Segue."""
    with segue.open(url) as store:
        queue = store.queue("bench")
        for batch in batches:
            queue.push_many([body.encode() for body in batch])


def segue_tasks(url: str, batches: Batches) -> None:
    """Queue tasks of Segue."""
    app = segue.App(url)
    task = app.task(name="noop")(noop)
    with app:
        for batch in batches:
            task.map(batch)


def bare_list(url: str, batches: Batches) -> None:
    """Push to a list."""
    with redis.Redis.from_url(url) as client:
        for batch in batches:
            client.rpush("bench", *batch)


def bare_stream(url: str, batches: Batches) -> None:
    """Add to a stream."""
    with redis.Redis.from_url(url) as client:
        for batch in batches:
            with client.pipeline(transaction=False) as pipeline:
                for body in batch:
                    pipeline.execute_command("XADD", "bench", "*", "body", body)
                pipeline.execute()


def bullmq(url: str, batches: Batches) -> None:
    """Put a hash for each job and its id into a list, as BullMQ does."""
    number = 0
    with redis.Redis.from_url(url) as client:
        for batch in batches:
            with client.pipeline(transaction=False) as pipeline:
                for body in batch:
                    number += 1
                    job = {
                        "name": "noop",
                        "data": json.dumps({"body": body}),
                        "opts": json.dumps({"attempts": 0}),
                        "timestamp": time.time_ns() // 1_000_000,
                        "delay": 0,
                        "priority": 0,
                    }
                    words = [word for pair in job.items() for word in pair]
                    pipeline.execute_command("HSET", f"bull:q:{number}", *words)
                    pipeline.execute_command("LPUSH", "bull:q:wait", number)
                pipeline.execute()


def rq(url: str, batches: Batches) -> None:
    """Enqueue with RQ."""
    from rq import Queue

    with redis.Redis.from_url(url) as client:
        queue = Queue("bench", connection=client)
        for batch in batches:
            prepare, task = Queue.prepare_data, "benchmarks.redis_layouts.noop"
            queue.enqueue_many([prepare(task, (body,)) for body in batch])


def celery(url: str, batches: Batches) -> None:
    """Enqueue with Celery."""
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True)
    task = app.task(name="noop")(noop)
    for batch in batches:
        for body in batch:
            task.delay(body)


def dramatiq(url: str, batches: Batches) -> None:
    """Enqueue with dramatiq."""
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
    library.set_broker(broker)
    task = library.actor(noop)
    for batch in batches:
        for body in batch:
            task.send(body)


LAYOUTS: Final[dict[str, Callable[[str, Batches], None]]] = {
    "segue_queue": segue_queue,
    "segue_tasks": segue_tasks,
    "bare_list": bare_list,
    "bare_stream": bare_stream,
    "bullmq": bullmq,
    "rq": rq,
    "celery": celery,
    "dramatiq": dramatiq,
}


def _batches(count: int) -> Batches:
    bodies = _bodies(count)
    while batch := list(islice(bodies, BATCH_MESSAGES)):
        yield batch


def _bodies(count: int) -> Iterator[str]:
    draw = random.Random(BODY_SEED)
    for _ in range(count):
        yield "".join(draw.choices(_ALPHABET, k=PAYLOAD_BYTES))


def _main() -> None:
    layout, url, count = sys.argv[1:]
    LAYOUTS[layout](url, _batches(int(count)))


if __name__ == "__main__":
    _main()
