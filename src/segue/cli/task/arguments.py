"""What the verbs on tasks share: their arguments, and how they get at the tasks of a store."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.store_arguments import allow_many_files, opened_store

if TYPE_CHECKING:
    from segue.tasks.desk import Desk

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        help="Ids of tasks, or - for the lines of standard input.",
        show_default=False,
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="Only calls of this task.", show_default=False),
]
QueueOption = Annotated[
    str | None,
    typer.Option("--queue", metavar="NAME", help="Only those of this queue.", show_default=False),
]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TEXT",
        help="Only those whose error has this in it.",
        show_default=False,
    ),
]


def require_tasks() -> None:
    """Raise MissingExtra unless what tasks need is installed."""
    import segue.tasks  # noqa: F401 - only whether it can be


@contextmanager
def opened_desk(url: str) -> Iterator["Desk"]:
    """Yield what answers for the tasks of the store at `url`. Raises LogNotFound."""
    require_tasks()
    allow_many_files()  # A list of tasks goes through all queues.
    from segue.clock import system_clock
    from segue.tasks.desk import Desk

    with opened_store(url) as store:
        desk = Desk(store, system_clock)
        try:
            yield desk
        finally:
            desk.close()
