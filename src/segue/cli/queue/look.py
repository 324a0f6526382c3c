"""`segue queue ls`, `stats` and `state`: which queues there are and how they stand."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.holdings import Holdings
from segue.cli.output import Column, Facts, Json, Kind, Rows, Section, show, show_value
from segue.cli.store_arguments import QueueArgument, StoreArgument, opened_queue, opened_store

if TYPE_CHECKING:
    from segue.stores.contract import QueueStats


def ls(url: StoreArgument, as_json: JsonOption = False) -> None:
    """List the queues of a store and how many messages they hold.

    A queue that cannot be opened is listed with its problem, and the exit code is that of the
    first such problem.

    \b
    Example:
      segue queue ls data
    """
    with opened_store(url) as store:
        holdings = Holdings(store)
        show(holdings.queues(), as_json=as_json)
    raise typer.Exit(holdings.code)


def stats(url: StoreArgument, name: QueueArgument, as_json: JsonOption = False) -> None:
    """Show how a queue stands and who works on it.

    The oldest is how long the message that comes next has been waiting; pinned is what the queue
    takes up on the device only for messages delivered long ago and not settled; damaged are
    messages that could not be read. Of the leases those that end first are shown.

    \b
    Example:
      segue queue stats data mail
    """
    with opened_queue(url, name) as queue:
        show(*_sections(queue.stats()), as_json=as_json)


def _sections(stats: "QueueStats") -> list[Section]:
    counts = stats.counts
    return [
        Facts(
            items=(
                (Column("queue"), stats.name),
                (Column("ready", Kind.COUNT), counts.ready),
                (Column("delayed", Kind.COUNT), counts.delayed),
                (Column("leased", Kind.COUNT), counts.leased),
                (Column("dead", Kind.COUNT), counts.dead),
                (Column("paused"), stats.paused),
                (Column("oldest_ready_seconds", Kind.SECONDS), stats.oldest_ready_seconds),
                (Column("size_bytes", Kind.SIZE), stats.size_bytes),
                (Column("pinned_bytes", Kind.SIZE), stats.pinned_bytes),
                (Column("damaged", Kind.COUNT), stats.damaged),
            )
        ),
        Rows(
            name="priorities",
            mark="priority",
            columns=(Column("priority", Kind.COUNT), Column("ready", Kind.COUNT)),
            rows=list(stats.ready_by_priority.items()),
        ),
        Rows(
            name="leases",
            mark="lease",
            columns=(
                Column("receipt"),
                Column("owner"),
                Column("attempt", Kind.COUNT),
                Column("seconds_left", Kind.SECONDS),
            ),
            rows=[
                (lease.receipt, lease.owner, lease.attempt, lease.seconds_left)
                for lease in stats.leases
            ],
        ),
        Rows(
            name="totals",
            mark="total",
            columns=(Column("happened"), Column("count", Kind.COUNT)),
            rows=list(stats.totals.items()),
        ),
    ]


def state(
    url: StoreArgument,
    name: QueueArgument,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="Only this key: metadata, or a segment such as queue_0_seg_0.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print what waits as JSON, in metadata and segments.

    The keys are metadata, and queue_<priority>_seg_<number> with their items. Always JSON, spread
    over lines on a terminal. What is leased, delayed or dead is not in it. A body that is no JSON
    is shown as text, one that is no text as {"base64": ...}.

    \b
    Example:
      segue queue state data mail queue_0_seg_0
    """
    with opened_queue(url, name) as queue:
        found = cast("dict[str, Json]", queue.state(key))
    if key is not None and key not in found:
        raise NotFound(f"queue {name} has no {key}")
    show_value(found if key is None else found[key], indent=not as_json)
