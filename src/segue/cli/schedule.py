"""`segue schedule`: which schedules there are, firing one by hand, and forgetting one."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.output import Column, Facts, Kind, Rows, Value, show, show_json, show_line
from segue.cli.store_arguments import StoreArgument, opened_store
from segue.cli.task.arguments import require_tasks
from segue.errors import InvalidArgument

if TYPE_CHECKING:
    from segue.stores.contract import Store
    from segue.tasks.scheduling import ScheduleState

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the schedule.", show_default=False)
]

_COLUMNS: Final = (
    Column("schedule"),
    Column("when"),
    Column("task"),
    Column("queue"),
    Column("last", Kind.TIME),
    Column("next", Kind.TIME),
    Column("fired", Kind.COUNT),
    Column("last_id"),
)


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in (ls, run, rm):
        group.command()(verb)


def ls(url: StoreArgument, as_json: JsonOption = False) -> None:
    """List the schedules that workers have met, and when they fire.

    A schedule is there from the first worker on whose App has it, and stays until 'rm'. The next
    firing comes only if a worker is there whose App still has it.

    \b
    Example:
      segue schedule ls data
    """
    require_tasks()
    from segue.clock import system_clock
    from segue.tasks.scheduling import ScheduleBook

    with opened_store(url) as store:
        states = ScheduleBook(store).states()
        rows = [_row(states[name], system_clock()) for name in sorted(states)]
    show(Rows(name="schedules", columns=_COLUMNS, rows=rows), as_json=as_json)


def run(url: StoreArgument, name: NameArgument, as_json: JsonOption = False) -> None:
    """Queue the task of a schedule now, once, and print its id.

    When it fires by itself, and how often it has, stays as it was.

    \b
    Example:
      segue schedule run data nightly
    """
    require_tasks()
    from segue.tasks.scheduling import fire

    with opened_store(url) as store:
        state = _existing(store, name)
        task_id = fire(store.queue(state.queue), state)
    if as_json:
        show_json({"schedule": name, "task": state.task, "id": task_id})
    else:
        show_line(task_id)


def rm(url: StoreArgument, name: NameArgument, as_json: JsonOption = False) -> None:
    """Forget a schedule that no code has any more.

    A worker whose App still has it notes it anew, as one that begins now.

    \b
    Example:
      segue schedule rm data nightly
    """
    require_tasks()
    from segue.tasks.scheduling import ScheduleBook

    with opened_store(url) as store:
        _existing(store, name)
        ScheduleBook(store).remove(name)
    show(Facts(items=[(Column("removed"), name)]), as_json=as_json)


def _existing(store: "Store", name: str) -> "ScheduleState":
    from segue.tasks.scheduling import ScheduleBook

    states = ScheduleBook(store).states().values()
    found = [state for state in states if state.name == name]
    if not found:
        known = ", ".join(sorted({state.name for state in states})) or "none"
        raise NotFound(f"there is no schedule {name} in {store.url}; there are: {known}")
    return max(found, key=lambda state: state.last_us)


def _row(state: "ScheduleState", now_us: int) -> tuple[Value, ...]:
    from segue.tasks.scheduling import next_firing_us

    try:
        next_us = next_firing_us(state, now_us)
    except InvalidArgument:  # Noted by a version that knows other schedules than this one.
        next_us = None
    return (
        state.name,
        state.when,
        state.task,
        state.queue,
        state.fired_us or None,
        next_us,
        state.fired,
        state.last_id or None,
    )
