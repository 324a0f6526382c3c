"""`segue top`: queues, workers and tasks of a store as they stand, again and again."""

import time
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.output import Facts, is_terminal, show
from segue.cli.store_arguments import StoreArgument, allow_many_files, opened_store
from segue.errors import SegueError
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.contract import QueueStats, Store
    from segue.tasks.worker.reports import WorkerReport

EVERY_SECONDS_DEFAULT: Final = 1.0
EVERY_SECONDS_MIN: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was to be seen at one moment."""

    clock_us: int
    ticks_us: int
    queues: dict[str, "QueueStats"] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Of the queues that could not be opened."""
    workers: Sequence["WorkerReport"] = ()


def top(
    url: StoreArgument,
    *,
    every: Annotated[
        float,
        typer.Option(metavar="DURATION", parser=parsing.duration, help="How often to look."),
    ] = EVERY_SECONDS_DEFAULT,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show queues, workers and tasks as they stand, until Ctrl-C.

    That is the usual end and gives exit code 130. Without a terminal, with --once and with --json
    it is shown once: rates are then those between two looks, --every apart.

    Safe to stop is a worker that has no task and whose queues have none that waits; safe_to_stop
    as a whole says it of all workers, and that no lease is out, whoever has it.

    \b
    Examples:
      segue top data --every 5s
      segue top data --json | jq .safe_to_stop
    """
    if every < EVERY_SECONDS_MIN:
        raise typer.BadParameter(f"at least {EVERY_SECONDS_MIN:g} s", param_hint="--every")
    # Imported here, with all that tasks need: every command loads this module.
    from segue.cli.task.arguments import require_tasks
    from segue.cli.top_frame import brief, sections

    require_tasks()
    allow_many_files()
    with opened_store(url) as store:
        before = look(store)
        if is_terminal() and not once and not as_json:
            _live(url, store, before, every)
        time.sleep(every)
        found = sections(url, before, look(store))
        show(*(brief(found) if is_terminal() and not as_json else found), as_json=as_json)


def _live(url: str, store: "Store", before: Look, every_seconds: float) -> None:
    """Show frame after frame; ends by KeyboardInterrupt."""
    # Imported here, as wherever tables are shown: loading rich takes longer than most commands.
    from rich.console import Console, Group
    from rich.live import Live

    from segue.cli.tables import facts_table, rows_table
    from segue.cli.top_frame import brief, sections

    def frame(now: Look) -> Group:
        found = brief(sections(url, before, now))
        return Group(
            *(
                facts_table(each) if isinstance(each, Facts) else rows_table(each)
                for each in found
                if isinstance(each, Facts) or each.rows
            )
        )

    with Live(
        frame(before), console=Console(highlight=False), screen=True, auto_refresh=False
    ) as view:
        while True:
            view.refresh()
            time.sleep(every_seconds)
            now = look(store)
            view.update(frame(now))
            before = now


def look(store: "Store") -> Look:
    """Return how a store stands now. What cannot be opened is noted with its problem."""
    from segue.clock import system_clock, system_ticks
    from segue.tasks.worker.reports import read_reports

    clock_us = system_clock()
    workers = read_reports(store, clock_us)
    queues: dict[str, QueueStats] = {}
    problems: dict[str, str] = {}
    # Queues after workers: what a worker has taken since it reported is seen to be leased.
    for name in store.queues():
        try:
            queues[name] = store.queue(name).stats()
        except SegueError as error:
            problems[name] = str(error)
    return Look(
        clock_us=clock_us,
        ticks_us=system_ticks(),
        queues=queues,
        problems=problems,
        workers=workers,
    )
