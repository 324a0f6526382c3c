"""`segue task retry` and `cancel`: bringing dead tasks back, and having others not run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.store_arguments import (
    StoreArgument,
    YesOption,
    ask_first,
    require_yes,
    words_from,
)
from segue.cli.task.arguments import (
    ErrorOption,
    IdsArgument,
    QueueOption,
    TaskOption,
    opened_desk,
)
from segue.errors import TaskNotFound

if TYPE_CHECKING:
    from segue.tasks.desk import Desk

LIMIT_MAX: Final = 10_000
"""How many tasks one command acts on."""

LimitOption = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=LIMIT_MAX, help="At most so many of those that fit."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only list those that are meant.")]


class _Report:
    """What was done, and what could not be."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.left: list[tuple[str, str]] = []
        """What is not as it would have to be, and how it stands."""
        self.unknown: list[TaskNotFound] = []

    def show(self, verb: str, *, dry_run: bool, as_json: bool) -> None:
        """Print it. Raises typer.Exit with code 3 if nothing was known of some."""
        show(
            Facts(items=[(Column(verb, Kind.COUNT), 0 if dry_run else len(self.done))]),
            Rows(
                name="matched" if dry_run else "tasks",
                mark="matched" if dry_run else "task",
                columns=[Column("id")],
                rows=[(task_id,) for task_id in self.done],
            ),
            Rows(
                name="left",
                mark="left",
                columns=[Column("id"), Column("state")],
                rows=self.left,
            ),
            as_json=as_json,
        )
        for error in self.unknown:
            stderr.report_error(error, as_json=as_json)
        if self.unknown:
            raise typer.Exit(ExitCode.NOT_FOUND)


def retry(
    url: StoreArgument,
    ids: IdsArgument = None,
    *,
    task: TaskOption = None,
    queue: QueueOption = None,
    error: ErrorOption = None,
    limit: LimitOption = LIMIT_MAX,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring dead tasks back, with all their tries anew.

    By their ids, or all dead letters that fit. Those that are no dead letters are left as they are
    and listed. Exit code 3 says that of some nothing is known; the others are brought back all the
    same.

    \b
    Examples:
      segue task retry data default/2-17
      segue task retry data --task resize --error 'disk full' --dry-run
    """
    from_filter = _is_filter(ids, task=task, queue=queue, error=error)
    report = _Report()
    with opened_desk(url) as desk:
        from segue.tasks.states import State

        if from_filter:
            found = desk.find(
                states=[State.DEAD_LETTER], task=task, queue=queue, error=error, limit=limit
            )
            wanted = [record.id for record in found]
        else:
            wanted = _looked_up(desk, ids or [], report, only=(State.DEAD_LETTER,))
        report.done = wanted if dry_run else _redrive(desk, wanted)
    report.show("retried", dry_run=dry_run, as_json=as_json)


def cancel(
    url: StoreArgument,
    ids: IdsArgument = None,
    *,
    task: TaskOption = None,
    queue: QueueOption = None,
    limit: LimitOption = LIMIT_MAX,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Have tasks not run, or stop if they run.

    By their ids, or all that fit and are not finished; of those it asks first. One that runs stops
    if it can: a process is killed, a coroutine cancelled, a thread told. Those that are finished,
    dead letters among them, are left and listed. Exit code 3 says that of some nothing is known;
    the others are cancelled all the same.

    \b
    Examples:
      segue task cancel data default/2-17
      segue task cancel data --task resize --yes
    """
    from_filter = _is_filter(ids, task=task, queue=queue)
    if from_filter and not dry_run:
        require_yes(yes, as_json=as_json)
    report = _Report()
    with opened_desk(url) as desk:
        from segue.tasks.states import TERMINAL, State

        unfinished = tuple(state for state in State if state not in TERMINAL)
        if from_filter:
            found = desk.find(states=unfinished, task=task, queue=queue, limit=limit)
            wanted = [record.id for record in found]
            if wanted and not dry_run:
                ask_first(f"Cancel {len(wanted):,} tasks?", yes=yes)
        else:
            wanted = _looked_up(desk, ids or [], report, only=unfinished)
        report.done = wanted if dry_run else [each for each in wanted if desk.cancel(each)]
    report.show("cancelled", dry_run=dry_run, as_json=as_json)


def _is_filter(ids: list[str] | None, **filters: str | None) -> bool:
    """Tell whether tasks are given by what fits. Raises BadParameter unless either or."""
    is_filter = any(value is not None for value in filters.values())
    if is_filter == bool(ids):
        names = ", ".join(f"--{name}" for name in filters)
        raise typer.BadParameter(f"give either ids, or -, or some of {names}", param_hint="ID")
    return is_filter


def _looked_up(
    desk: "Desk", words: list[str], report: _Report, *, only: Sequence[object]
) -> list[str]:
    """Return the tasks that are in one of the states `only`; note the others."""
    wanted: list[str] = []
    for task_id in dict.fromkeys(words_from(words)):
        try:
            state = desk.record(task_id).state
        except TaskNotFound as error:
            report.unknown.append(error)
            continue
        if state in only:
            wanted.append(task_id)
        else:
            report.left.append((task_id, state.value))
    return wanted


def _redrive(desk: "Desk", task_ids: list[str]) -> list[str]:
    """Bring dead letters back, in one pass over those of each queue; return which came."""
    from segue.delivery.message import DeadLetter
    from segue.tasks.records import split_id

    by_queue: dict[str, set[str]] = {}
    for task_id in task_ids:
        queue, message_id = split_id(task_id)
        by_queue.setdefault(queue, set()).add(message_id)
    came: set[str] = set()
    for queue, wanted in by_queue.items():

        def is_wanted(letter: DeadLetter, queue: str = queue, ids: set[str] = wanted) -> bool:
            if letter.message.id not in ids:
                return False
            came.add(f"{queue}/{letter.message.id}")
            return True

        desk.store.queue(queue).redrive(where=is_wanted)
    return [task_id for task_id in task_ids if task_id in came]
