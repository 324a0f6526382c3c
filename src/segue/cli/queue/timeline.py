"""`segue queue timeline`: what happened to one message."""

from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.messages import message_json, preview
from segue.cli.output import Column, Facts, Json, Kind, Rows, Value, show, show_json
from segue.cli.store_arguments import QueueArgument, StoreArgument, opened_queue
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from segue.delivery.message import MessageId
    from segue.stores.contract import Timeline, TimelineEvent

_COLUMNS: Final = (
    Column("time", Kind.TIME),
    Column("what"),
    Column("attempt", Kind.COUNT),
    Column("owner"),
    Column("reason"),
    Column("due", Kind.TIME),
    Column("ends", Kind.TIME),
)


def timeline(
    url: StoreArgument,
    name: QueueArgument,
    message_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="The id of the message.", show_default=False),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to one message, settled or not.

    When it was pushed, who held it and until when, why it came back or died, and how it stands.
    Unless it is whole, only what happened since is known. Exit code 3 says that there never was
    such a message.

    \b
    Example:
      segue queue timeline data mail 0-17
    """
    with opened_queue(url, name) as queue:
        told = queue.timeline(cast("MessageId", message_id))
    if told.state == "unknown":
        raise NotFound(f"queue {name} knows of no message {message_id}")
    if as_json:
        show_json(_timeline_json(told))
        return
    body = None if told.message is None else preview(told.message.body)
    show(
        Facts(
            items=(
                (Column("id"), told.id),
                (Column("state"), told.state),
                (Column("tries", Kind.COUNT), told.tries),
                (Column("due", Kind.TIME), told.due_us),
                (Column("owner"), told.owner),
                (Column("seconds_left", Kind.SECONDS), told.seconds_left),
                (Column("reason"), told.reason or None),
                (Column("whole"), told.is_whole),
                (Column("since", Kind.TIME), told.since_us),
                (Column("body"), body),
            )
        ),
        Rows(
            name="events",
            mark="event",
            columns=_COLUMNS,
            rows=[_row(event) for event in told.events],
        ),
        as_json=False,
    )


def _row(event: "TimelineEvent") -> tuple[Value, ...]:
    return (
        event.at_us,
        event.what,
        event.attempt,
        event.owner,
        event.reason or None,
        event.due_us,
        event.ends_us,
    )


def _timeline_json(told: "Timeline") -> dict[str, Json]:
    return {
        "id": told.id,
        "state": told.state,
        "message": None if told.message is None else message_json(told.message),
        "tries": told.tries,
        "due": _time(told.due_us),
        "owner": told.owner,
        "seconds_left": told.seconds_left,
        "reason": told.reason,
        "whole": told.is_whole,
        "since": _time(told.since_us),
        "events": [
            {
                "time": _time(event.at_us),
                "what": event.what,
                "attempt": event.attempt,
                "owner": event.owner,
                "reason": event.reason,
                "due": _time(event.due_us),
                "ends": _time(event.ends_us),
            }
            for event in told.events
        ],
    }


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else iso_time(time_us)
