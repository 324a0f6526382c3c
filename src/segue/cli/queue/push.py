"""`segue queue push`: arguments, standard input or its lines as messages."""

import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.lines import batches
from segue.cli.output import Json, is_terminal, progress, show_json, show_line
from segue.cli.parsing import wait_from
from segue.cli.payloads import NEWLINE, NUL
from segue.cli.places import without_passwords
from segue.cli.store_arguments import (
    QueueArgument,
    StoreArgument,
    SyncOption,
    body_from,
    opened_queue,
)
from segue.log.options import Sync

if TYPE_CHECKING:
    from segue.delivery.message import MessageId
    from segue.stores.contract import Item, Queue

BATCH_LINES_MAX: Final = 1000
"""How many lines are pushed at once, where the queue takes as many."""
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is read of a line before it counts as one that never ends."""


class _Pushed:
    """Says what was pushed, whatever the end is."""

    def __init__(self, url: str, queue: str, *, as_json: bool) -> None:
        self._url = url
        self._queue = queue
        self._as_json = as_json
        self._all: list[Json] = []
        self._first = self._last = ""
        self._count = 0

    def add(self, ids: list["MessageId"]) -> None:
        self._first = self._first or ids[0]
        self._last = ids[-1]
        self._count += len(ids)
        if self._as_json:
            self._all += ids
        elif not is_terminal():
            # At once: whoever reads the ids may be waiting for them.
            sys.stdout.write("".join(f"{message_id}\n" for message_id in ids))
            sys.stdout.flush()

    def show(self) -> None:
        if self._as_json:
            show_json(
                {
                    "store": without_passwords(self._url),
                    "queue": self._queue,
                    "pushed": self._count,
                    "ids": self._all,
                }
            )
        elif not is_terminal():
            return
        elif self._count > 1:
            show_line(f"pushed {self._count:,}: {self._first} to {self._last}")
        else:
            show_line(f"pushed {self._first or 'nothing'}")


def push(
    url: StoreArgument,
    name: QueueArgument,
    bodies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BODY...",
            help="The messages, or a single - for all of standard input as one.",
            show_default=False,
        ),
    ] = None,
    *,
    lines: Annotated[
        bool, typer.Option("--lines", help="Push each line of standard input as a message.")
    ] = False,
    null: Annotated[bool, typer.Option("--null", "-0", help="Lines end with NUL.")] = False,
    priority: Annotated[
        int,
        typer.Option(
            "--priority",
            "-p",
            metavar="P",
            parser=parsing.priority,
            help="A number, 0 first, or critical, high, normal, low.",
        ),
    ] = 0,
    delay: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Deliver it not before so long.",
            show_default=False,
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Deliver it not after so long.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Push nothing if a message of this key was pushed a short while ago.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Deliver messages of this group in order, few at a time.", show_default=False
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="May be repeated.", show_default=False),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=parsing.waiting_time,
            help="How long to wait for room where the queue's rules say to wait.",
            show_default=parsing.FOREVER,
        ),
    ] = math.inf,
    sync: SyncOption = Sync.ALWAYS,
    as_json: JsonOption = False,
) -> None:
    """Push messages and print their ids. Makes the store and the queue if there is none.

    Messages given as arguments are pushed all or none. With --lines, lines that are there together
    are pushed as one batch, all or nothing; a line never waits for others that may come later.

    A queue that is full refuses (exit code 8), drops its oldest message or waits, as its rules say.

    \b
    Examples:
      segue queue push data mail 'to: ada' --priority high --header kind=welcome
      segue queue push data mail - < letter.txt
      find . -name '*.png' -print0 | segue queue push data resize --lines --null
    """
    if lines == bool(bodies):
        raise typer.BadParameter("give either messages, or -, or --lines", param_hint="BODY")
    if key is not None and (lines or len(bodies or ()) > 1):
        raise typer.BadParameter("a key is that of one message", param_hint="--key")
    common = _Common(priority, delay, ttl, key, group, parsing.headers(header))
    with opened_queue(url, name, create=True, sync=sync) as queue:
        pushed = _Pushed(url, name, as_json=as_json)
        try:
            if lines:
                for batch in _lines(queue, NUL if null else NEWLINE):
                    pushed.add(queue.push_many(common.items(batch), wait=wait_from(wait)))
            else:
                items = common.items(_bodies(bodies or []))
                pushed.add(queue.push_many(items, wait=wait_from(wait)))
        finally:
            pushed.show()


class _Common:
    """What all messages of one command have in common."""

    def __init__(
        self,
        priority: int,
        delay: float | None,
        ttl: float | None,
        key: str | None,
        group: str | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self._priority = priority
        self._delay = delay
        self._ttl = ttl
        self._key = key
        self._group = group
        self._headers = headers

    def items(self, bodies: list[bytes]) -> list["Item"]:
        from segue.stores.contract import Item

        return [
            Item(
                body=body,
                priority=self._priority,
                delay=self._delay,
                ttl=self._ttl,
                key=self._key,
                headers=self._headers,
                group=self._group,
            )
            for body in bodies
        ]


def batch_items_max(queue: "Queue") -> int:
    """Return how many messages of one priority the queue takes at once, all or none."""
    rules = queue.rules
    limits = (BATCH_LINES_MAX, rules.capacity, rules.segment_items)
    return min(limit for limit in limits if limit is not None)


def _bodies(words: list[str]) -> list[bytes]:
    if words != ["-"]:
        return [body_from(word) for word in words]
    # No more than could ever fit: standard input may never end.
    return [sys.stdin.buffer.read(LINE_BYTES_MAX)]


def _lines(queue: "Queue", separator: bytes) -> Iterator[list[bytes]]:
    """Yield the lines of standard input in batches, with a bar if it is known how many bytes."""
    fd = sys.stdin.fileno()
    found = os.fstat(fd)
    total = found.st_size if stat.S_ISREG(found.st_mode) else 0
    with progress("pushing", total) as advance:
        for batch in batches(
            fd, separator, lines_max=batch_items_max(queue), batch_bytes_max=LINE_BYTES_MAX
        ):
            yield batch
            advance(sum(map(len, batch)) + len(batch))
