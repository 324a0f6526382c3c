"""`segue task ls` and `show`: which tasks there are, and all that is known of one."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Json, Kind, Rows, show_json
from segue.cli.output import show as show_answer
from segue.cli.payloads import bytes_output, json_line
from segue.cli.store_arguments import StoreArgument
from segue.cli.task.arguments import ErrorOption, QueueOption, TaskOption, opened_desk
from segue.cli.task.records import COLUMNS, json_value, record_facts, record_json, record_row
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from segue.tasks.events import TaskEvent
    from segue.tasks.states import State

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 100_000


def ls(
    url: StoreArgument,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only those that are pending, scheduled, processing, retrying, completed, "
            "dead_letter or cancelled. May be repeated.",
            show_default=False,
        ),
    ] = None,
    task: TaskOption = None,
    queue: QueueOption = None,
    error: ErrorOption = None,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Only those that something happened to within so long.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=LIMIT_MAX, help="At most so many.")
    ] = LIMIT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List tasks: those that are not finished first, then the finished, the latest first.

    A terminal gets the beginning of each error, a pipe all of it; --json prints an object per task,
    as 'show' does but without its timeline.

    \b
    Examples:
      segue task ls data --state dead_letter --since 1h
      segue task ls data --task resize --error Timeout --json
    """
    with opened_desk(url) as desk:
        from segue.clock import system_clock

        found = desk.find(
            states=states_from(state),
            task=task,
            queue=queue,
            error=error,
            since_us=None if since is None else system_clock() - round(since * 1_000_000),
            limit=limit,
        )
    if as_json:
        with bytes_output() as out:
            for record in found:
                out.write(json_line(record_json(record)))
        return
    rows = [record_row(record) for record in found]
    show_answer(Rows(name="tasks", columns=COLUMNS, rows=rows), as_json=False)


def show(
    url: StoreArgument,
    task_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the task.", show_default=False)
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of a task, and what happened to it.

    Of many events the first and the last are shown, of its progress the last. Exit code 3 says that
    nothing is known of it: there never was one, or its record has outlived its time.

    \b
    Example:
      segue task show data default/2-17
    """
    with opened_desk(url) as desk:
        record = desk.record(task_id)
        events, _ = desk.events(task_id)
    if as_json:
        timeline: list[Json] = [_event_json(event) for event in events]
        show_json({**record_json(record), "timeline": timeline})
        return
    show_answer(
        record_facts(record),
        Rows(
            name="timeline",
            mark="event",
            columns=(
                Column("at", Kind.TIME),
                Column("happened"),
                Column("attempt", Kind.COUNT),
                Column("worker"),
                Column("detail"),
            ),
            rows=[
                (record.pushed_us or None, "pushed", None, None, None),
                *(
                    (each.at_us, each.happened, each.attempt, each.worker or None, _detail(each))
                    for each in events
                ),
            ],
        ),
        Rows(
            name="traceback",
            mark="traceback",
            columns=[Column("line")],
            rows=[(line,) for line in record.traceback.splitlines()],
        ),
        as_json=False,
    )


def states_from(words: list[str] | None) -> list["State"]:
    """Return the states that are meant. Raises BadParameter."""
    from segue.tasks.states import State

    known = {state.value: state for state in State}
    for word in words or ():
        if word not in known:
            raise typer.BadParameter(
                f"{word!r} is none of {', '.join(known)}", param_hint="--state"
            )
    return [known[word] for word in words or ()]


def _event_json(event: "TaskEvent") -> dict[str, Json]:
    return {
        "at": iso_time(event.at_us),
        "happened": event.happened,
        "attempt": event.attempt,
        "worker": event.worker or None,
        "error": event.error or None,
        "progress": json_value(bytes(event.progress) or None),
    }


def _detail(event: "TaskEvent") -> str | None:
    if event.error:
        return event.error
    return bytes(event.progress).decode(errors="backslashreplace") or None
