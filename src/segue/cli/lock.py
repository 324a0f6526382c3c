"""`segue lock`: who holds what, and commands that run while they hold a lock."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode, NotFound
from segue.cli.holdings import Holdings
from segue.cli.output import Column, Facts, Kind, show
from segue.cli.store_arguments import StoreArgument, opened_store
from segue.errors import LockLost, SegueError

if TYPE_CHECKING:
    from segue.stores.contract import HeldLock

TTL_SECONDS_DEFAULT: Final = 30.0
GRACE_SECONDS_DEFAULT: Final = 10.0
RENEWALS_PER_TTL: Final = 3
"""How often a lock is renewed before it would end: two may be late."""

LockArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)
]


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in (ls, show_, run):
        group.command(verb.__name__.rstrip("_"))(verb)


def ls(url: StoreArgument, as_json: JsonOption = False) -> None:
    """List the locks that were ever taken and who holds them now.

    \b
    Example:
      segue lock ls data
    """
    with opened_store(url) as store:
        holdings = Holdings(store)
        show(holdings.locks(), as_json=as_json)
    raise typer.Exit(holdings.code)


def show_(url: StoreArgument, name: LockArgument, as_json: JsonOption = False) -> None:
    """Show who holds a lock, with which token and for how long.

    \b
    Example:
      segue lock show data nightly
    """
    with opened_store(url) as store:
        if name not in store.locks():
            raise NotFound(f"nobody has ever taken lock {name} in {store.url}")
        owner, token, seconds_left = store.lock(name).holder() or (None, None, None)
    show(
        Facts(
            items=(
                (Column("lock"), name),
                (Column("held"), owner is not None),
                (Column("owner"), owner),
                (Column("token", Kind.COUNT), token),
                (Column("seconds_left", Kind.SECONDS), seconds_left),
            )
        ),
        as_json=as_json,
    )


def run(
    url: StoreArgument,
    name: LockArgument,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What to run.", show_default=False),
    ],
    *,
    ttl: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="How long the lock outlives us if we are killed.",
        ),
    ] = TTL_SECONDS_DEFAULT,
    wait: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=parsing.waiting_time,
            help="How long to wait for the lock; 0 does not.",
            show_default=parsing.FOREVER,
        ),
    ] = float("inf"),
    grace: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="How long the command has to end after SIGTERM if the lock is lost.",
        ),
    ] = GRACE_SECONDS_DEFAULT,
    owner: Annotated[
        str | None,
        typer.Option(help="Who holds it, as 'lock show' says.", show_default="host:pid"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a command while holding a lock.

    It ends with the command's exit code. The lock is kept alive meanwhile. The command finds its
    name in SEGUE_LOCK_NAME and its token in SEGUE_LOCK_TOKEN: a number that grows with every
    holder, to be handed to whatever the lock guards. Signals are passed on to the command; ended by
    signal N, it counts as exit code 128 + N.

    If the lock cannot be had in time the command is not run and the exit code is 75. If it is lost,
    because we were stopped for too long, say, the command gets SIGTERM, then SIGKILL, and the exit
    code is 76. Makes the store if there is none.

    \b
    Example:
      segue lock run data nightly --wait 10s -- ./backup.sh --full
    """
    from segue.cli.supervision import keep_while_running

    with opened_store(url, create=True) as store:
        held = store.lock(name, ttl=ttl).acquire(wait=parsing.wait_from(wait), owner=owner)
        try:
            code = keep_while_running(
                command,
                {"SEGUE_LOCK_NAME": name, "SEGUE_LOCK_TOKEN": str(held.token)},
                renew=lambda: _renew(held, as_json=as_json),
                every_seconds=ttl / RENEWALS_PER_TTL,
                grace_seconds=grace,
            )
        except LockLost:
            raise
        except OSError as error:
            held.release()
            stderr.report_error(error, as_json=as_json)
            missing = isinstance(error, FileNotFoundError)
            code = ExitCode.NO_COMMAND if missing else ExitCode.NOT_EXECUTABLE
        else:
            # Raises LockLost: whatever the command did, it did not do all of it alone.
            held.release()
    raise typer.Exit(code)


def _renew(held: "HeldLock", *, as_json: bool) -> None:
    """Renew the lock. What is no loss yet is tried again. Raises LockLost."""
    try:
        held.renew()
    except LockLost:
        raise
    except SegueError as error:
        if not held.is_held:
            raise LockLost(name=held.name, token=held.token, reason=str(error)) from error
        stderr.warn(f"lock {held.name} was not renewed: {error}", as_json=as_json)
