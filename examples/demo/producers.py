"""Who sends orders: `library` with Segue in its own process, `http` as any language would.

    python -m examples.demo.producers library STORE NOTES COUNT PAUSE_MS
    python -m examples.demo.producers http URL NOTES COUNT PAUSE_MS

Every order is a record of the topic and a task of the queue. It is noted as sent once both are
acknowledged, and not before.
"""

import http.client
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import segue
from examples.demo.evidence import append_lines
from examples.demo.orders import GARBLED, Order, has_garbled_line, order_of, placed_at

TOPIC: Final = "orders"
BATCH: Final = 25
LIBRARY: Final = "library"
HTTP: Final = "http"
ANSWER_SECONDS_MAX: Final = 30

Numbered = tuple[int, Order]
Send = Callable[[Sequence[Numbered], int], None]


def by_library(batch: Sequence[Numbered], count: int) -> None:
    """Append a batch to the topic and queue its tasks, each in one step."""
    from examples.demo.shop import app, fulfil

    events = []
    for number, order in batch:
        moment = placed_at(number, count)
        value = json.dumps(order.as_values())
        events.append(segue.Event(value=value, key=order.customer, timestamp=moment))
        if has_garbled_line(number):
            events.append(segue.Event(value=GARBLED, timestamp=moment))
    app.store.topic(TOPIC).append_many(events)
    fulfil.starmap(
        (order.order, order.customer, order.item, order.cents, order.payment) for _, order in batch
    )


def by_http(url: str) -> Send:
    """Return what sends a batch to a server, with nothing but HTTP and JSON."""
    line = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)

    def post(path: str, what: object) -> None:
        # Whoever repeats a request with its key finds it done, however the first try ended.
        key = {"Idempotency-Key": secrets.token_hex()}
        line.request("POST", f"/api/v1/{path}", json.dumps(what), key)
        answer = line.getresponse()
        body = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"the server answered {answer.status}: {body.decode()}")

    def send(batch: Sequence[Numbered], count: int) -> None:
        records: list[dict[str, object]] = []
        for number, order in batch:
            moment_us = int(placed_at(number, count).timestamp() * 1_000_000)
            value = order.as_values()
            records.append({"key": order.customer, "json": value, "timestamp_us": moment_us})
            if has_garbled_line(number):
                records.append({"value": GARBLED, "timestamp_us": moment_us})
        post(f"topics/{TOPIC}/records", {"records": records})
        tasks = [{"task": "fulfil", "args": order.as_values()} for _, order in batch]
        post("queues/default/messages", {"messages": [{"json": task} for task in tasks]})

    return send


def main(how: str, where: str, notes: str, count: int, pause_ms: int) -> None:
    """Send so many orders, some at a time, with a pause in between."""
    send = by_http(where) if how == HTTP else by_library
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        send([(number, order_of(how, number)) for number in numbers], count)
        append_lines(Path(notes), (order_of(how, number).order for number in numbers))
        time.sleep(pause_ms / 1_000)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
