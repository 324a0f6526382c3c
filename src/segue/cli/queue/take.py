"""`segue queue pop`, `lease`, `peek` and `history`: messages to standard output."""

from datetime import datetime
from itertools import islice
from typing import Annotated

import typer

from segue.cli.arguments import JsonOption, LimitOption, start_from
from segue.cli.messages import message_writer
from segue.cli.parsing import wait_from
from segue.cli.store_arguments import (
    CountOption,
    IdsOption,
    NullOption,
    PriorityOption,
    QueueArgument,
    StoreArgument,
    TtlOption,
    WaitOption,
    opened_queue,
)
from segue.errors import QueueEmpty

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Where to begin: an offset or an ISO 8601 time.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="Where to end: the first offset or time left out.",
        show_default=False,
    ),
]


def pop(
    url: StoreArgument,
    name: QueueArgument,
    *,
    count: CountOption = 1,
    wait: WaitOption = 0.0,
    ids: IdsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take messages for good and print their bodies, one per line.

    At most once: a message that was taken and could not be printed is gone. 'segue queue lease'
    is for work that must not be lost. Exit code 7 says that there is nothing to take now: the
    queue is empty, or paused, or all its messages are delayed or leased.

    \b
    Example:
      while body=$(segue queue pop data mail --wait 10s); do echo "$body"; done
    """
    with (
        opened_queue(url, name) as queue,
        message_writer(as_json=as_json, ids=ids, null=null) as writer,
    ):
        messages = queue.pop_many(count, wait=wait_from(wait))
        if not messages:
            raise QueueEmpty(queue=name)
        for message in messages:
            writer.write(message)


def lease(
    url: StoreArgument,
    name: QueueArgument,
    *,
    count: CountOption = 1,
    ttl: TtlOption = None,
    wait: WaitOption = 0.0,
    owner: Annotated[
        str | None,
        typer.Option(help="Who works on it, as 'stats' shows it.", show_default="host:pid"),
    ] = None,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take messages on lease and print their receipts and bodies.

    One per line, with a tab between receipt and body. Settle each by its receipt before the lease
    ends: 'segue queue ack' says that the work is done, 'nack' gives it back, 'extend' holds it
    longer. A lease that ends by itself returns the message to the front of its priority. Exit code
    7 says that there is nothing to take now, 4 that as many leases are out as the queue's rules
    allow.

    \b
    Example:
      segue queue lease data mail --ttl 5m | while IFS=$'\\t' read -r receipt body; do
        send "$body" && segue queue ack data mail "$receipt"
      done
    """
    with (
        opened_queue(url, name) as queue,
        message_writer(as_json=as_json, null=null) as writer,
    ):
        jobs = queue.lease_many(count, ttl=ttl, wait=wait_from(wait), owner=owner)
        if not jobs:
            raise QueueEmpty(queue=name)
        for job in jobs:
            writer.write(job.message, receipt=job.receipt)


def peek(
    url: StoreArgument,
    name: QueueArgument,
    *,
    count: CountOption = 1,
    ids: IdsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the messages that would be delivered next.

    They are not taken. Nothing is printed if there are none; that is no error.

    \b
    Example:
      segue queue peek data mail -n 10 --ids
    """
    with (
        opened_queue(url, name) as queue,
        message_writer(as_json=as_json, ids=ids, null=null) as writer,
    ):
        for message in queue.peek(count):
            writer.write(message)


def history(
    url: StoreArgument,
    name: QueueArgument,
    *,
    priority: PriorityOption = None,
    start: FromOption = None,
    stop: ToOption = None,
    limit: LimitOption = None,
    ids: IdsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what was pushed and is still kept, settled or not.

    How much is kept after it is settled, the rules keep_seconds and keep_bytes say. Offsets are
    the second half of ids and need a --priority.

    \b
    Example:
      segue queue history data mail --from 2026-01-31T08:00:00Z --json
    """
    begin, end = bound_from(start, "--from"), bound_from(stop, "--to")
    with (
        opened_queue(url, name) as queue,
        message_writer(as_json=as_json, ids=ids, null=null) as writer,
    ):
        messages = queue.history(priority=priority, start=begin, stop=end)
        for message in islice(messages, limit):
            writer.write(message)


def bound_from(text: str | None, hint: str) -> int | datetime | None:
    """Return the offset or time that `text` stands for."""
    place = None if text is None else start_from(text, hint)
    if isinstance(place, str):
        raise typer.BadParameter("must be an offset or an ISO 8601 time", param_hint=hint)
    return place
