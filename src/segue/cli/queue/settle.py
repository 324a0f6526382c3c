"""`segue queue ack`, `nack` and `extend`: what becomes of a lease, by its receipt."""

from collections.abc import Callable
from enum import Enum
from typing import Annotated

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.store_arguments import (
    QueueArgument,
    StoreArgument,
    TtlOption,
    opened_queue,
    words_from,
)
from segue.errors import LeaseLost

ReceiptsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RECEIPT...",
        help="What 'lease' printed, or a single - for the lines of standard input.",
        show_default=False,
    ),
]


class Outcome(Enum):
    """How a lease ends without success."""

    RELEASE = "release"
    FAIL = "fail"
    DEAD = "dead"


def ack(
    url: StoreArgument,
    name: QueueArgument,
    receipts: ReceiptsArgument,
    as_json: JsonOption = False,
) -> None:
    """Say that the work is done: the messages are settled for good.

    Exit code 9 says that a lease was lost, because it ended or was settled before; the others are
    settled all the same.

    \b
    Example:
      segue queue ack data mail 0-17/42
    """
    wanted = _distinct(receipts)
    with opened_queue(url, name) as queue:
        lost: list[LeaseLost] = []
        try:
            queue.ack_many(wanted)
        except LeaseLost as error:
            lost = [
                error if receipt == error.receipt else LeaseLost(receipt=receipt, reason="")
                for receipt in error.lost
            ]
    _show("acked", len(wanted) - len(lost), lost, as_json=as_json)


def nack(
    url: StoreArgument,
    name: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    outcome: Annotated[
        Outcome,
        typer.Option(
            help="As if never taken; tried and failed, to be tried again; never to be tried again."
        ),
    ] = Outcome.FAIL,
    delay: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Deliver it again not before so long.",
            show_default="by the queue's backoff",
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, as 'dead' will show it.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Give messages back.

    'fail' counts as a delivery: after the last one the queue's rules allow, a message goes to the
    dead letters. 'dead' puts it there at once. 'release' counts for nothing. Exit code 9 says that
    a lease was lost; the others are given back all the same.

    \b
    Examples:
      segue queue nack data mail 0-17/42 --delay 5m --reason 'mail server is down'
      segue queue nack data mail 0-17/42 --outcome dead --reason 'no such address'
    """
    wanted = _distinct(receipts)
    with opened_queue(url, name) as queue:
        lost = _each(
            wanted,
            lambda receipt: queue.nack(receipt, outcome=outcome.value, delay=delay, reason=reason),
        )
    _show("nacked", len(wanted) - len(lost), lost, as_json=as_json)


def extend(
    url: StoreArgument,
    name: QueueArgument,
    receipts: ReceiptsArgument,
    *,
    ttl: TtlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let leases end later: --ttl from now.

    Exit code 9 says that a lease was lost; the others are extended all the same.

    \b
    Example:
      segue queue extend data mail 0-17/42 --ttl 10m
    """
    wanted = _distinct(receipts)
    with opened_queue(url, name) as queue:
        lost = _each(wanted, lambda receipt: queue.extend(receipt, ttl=ttl))
    _show("extended", len(wanted) - len(lost), lost, as_json=as_json)


def _distinct(receipts: list[str]) -> list[str]:
    """Return each receipt once: a lease that was settled a moment ago must not count as lost."""
    return list(dict.fromkeys(words_from(receipts)))


def _each(receipts: list[str], step: Callable[[str], None]) -> list[LeaseLost]:
    """Make a step for each receipt and return what was lost."""
    lost: list[LeaseLost] = []
    for receipt in receipts:
        try:
            step(receipt)
        except LeaseLost as error:
            lost.append(error)
    return lost


def _show(done: str, count: int, lost: list[LeaseLost], *, as_json: bool) -> None:
    show(
        Facts(items=[(Column(done, Kind.COUNT), count)]),
        Rows(
            name="lost",
            mark="lost",
            columns=[Column("receipt"), Column("reason")],
            rows=[(error.receipt, error.reason or None) for error in lost],
        ),
        as_json=as_json,
    )
    if lost:
        stderr.report_error(lost[0], as_json=as_json)
        raise typer.Exit(ExitCode.LEASE_LOST)
