"""`segue queue show` and `browse`: how one message stands, and which are not settled."""

from typing import TYPE_CHECKING, Annotated, Final, cast, get_args

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.messages import message_json, preview
from segue.cli.output import Column, Facts, Json, Kind, Rows, Value, show_json
from segue.cli.output import show as show_answer
from segue.cli.payloads import bytes_output, json_line
from segue.cli.store_arguments import QueueArgument, StoreArgument, opened_queue
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from segue.delivery.message import MessageId
    from segue.stores.contract import MessageState, MessageStatus

LIMIT_MAX: Final = 10_000
"""How many messages are listed at once; --after goes on."""

_COLUMNS: Final = (
    Column("id"),
    Column("state"),
    Column("tries", Kind.COUNT),
    Column("due", Kind.TIME),
    Column("owner"),
    Column("seconds_left", Kind.SECONDS),
    Column("group"),
    Column("reason"),
    Column("body"),
)


def show(
    url: StoreArgument,
    name: QueueArgument,
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="The id of the message.", show_default=False),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show how one message stands.

    Whether it is ready, delayed, leased or dead, since when, who holds it and why it came back
    last. Exit code 3 says that it is settled, or was never pushed.

    \b
    Example:
      segue queue show data mail 0-17
    """
    with opened_queue(url, name) as queue:
        status = queue.look_up(cast("MessageId", message_id))
    if status is None:
        raise NotFound(f"queue {name} has no message {message_id}: it is settled, or never was")
    if as_json:
        show_json(_status_json(status))
        return
    message = status.message
    show_answer(
        Facts(
            items=(
                (Column("id"), message.id),
                (Column("state"), status.state),
                (Column("priority", Kind.COUNT), message.priority),
                (Column("attempt", Kind.COUNT), message.attempt),
                (Column("tries", Kind.COUNT), status.tries),
                (Column("pushed", Kind.TIME), message.pushed_us),
                (Column("expires", Kind.TIME), message.expires_us),
                (Column("due", Kind.TIME), status.due_us),
                (Column("owner"), status.owner),
                (Column("seconds_left", Kind.SECONDS), status.seconds_left),
                (Column("reason"), status.reason or None),
                (Column("key"), message.key),
                (Column("group"), message.group),
                *((Column(f"header {each}"), value) for each, value in message.headers.items()),
                (Column("body"), preview(message.body)),
            )
        ),
        as_json=False,
    )


def browse(
    url: StoreArgument,
    name: QueueArgument,
    *,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only those that are ready, delayed, leased or dead.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=LIMIT_MAX, help="At most so many.")
    ] = 100,
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Go on behind this message.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the messages that are not settled, and how they stand.

    In the order of their ids, the dead letters last. A terminal gets the beginning of each body, a
    pipe and --json all of it; --json prints an object per message.

    \b
    Examples:
      segue queue browse data mail --state leased
      segue queue browse data mail --limit 1000 --after 0-999 --json
    """
    from segue.stores.contract import MessageState

    states = get_args(MessageState)
    if state is not None and state not in states:
        raise typer.BadParameter(f"must be one of {', '.join(states)}", param_hint="--state")
    with opened_queue(url, name) as queue:
        page = queue.browse(
            state=cast("MessageState | None", state),
            limit=limit,
            after=cast("MessageId | None", after),
        )
    if as_json:
        with bytes_output() as out:
            for status in page:
                out.write(json_line(_status_json(status)))
        return
    show_answer(
        Rows(name="messages", columns=_COLUMNS, rows=[_row(status) for status in page]),
        as_json=False,
    )


def _row(status: "MessageStatus") -> tuple[Value, ...]:
    return (
        status.message.id,
        status.state,
        status.tries,
        status.due_us,
        status.owner,
        status.seconds_left,
        status.message.group,
        status.reason or None,
        preview(status.message.body),
    )


def _status_json(status: "MessageStatus") -> dict[str, Json]:
    return {
        **message_json(status.message),
        "state": status.state,
        "due": None if status.due_us is None else iso_time(status.due_us),
        "owner": status.owner,
        "seconds_left": status.seconds_left,
        "reason": status.reason,
        "tries": status.tries,
    }
