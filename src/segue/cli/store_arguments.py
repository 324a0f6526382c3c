"""Arguments that the verbs on stores share, and how those verbs get at what they work on."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing, places
from segue.cli.exits import NotFound
from segue.errors import AccessDenied
from segue.log.options import Sync

if TYPE_CHECKING:
    from segue.stores.contract import Queue, Store

FILES_MAX: Final = 32_768
"""Enough descriptors for all partitions a topic can have."""

StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        parser=places.store_url,
        help="The store: a directory, or the URL of a server.",
        show_default=False,
    ),
]
StoreDirectoryArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        parser=places.directory,
        help="The directory of the store.",
        show_default=False,
    ),
]
"""For what reads the files themselves."""
QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The name of the queue.", show_default=False)
]
CountOption = Annotated[
    int, typer.Option("--count", "-n", metavar="N", min=1, help="At most so many.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        parser=parsing.waiting_time,
        help="Wait so long for something to come, or 'forever'.",
    ),
]
TtlOption = Annotated[
    float | None,
    typer.Option(
        metavar="DURATION",
        parser=parsing.duration,
        help="How long the lease lasts; as the queue's rules say unless given.",
        show_default=False,
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        metavar="P",
        parser=parsing.priority,
        help="Only this priority: a number, or critical, high, normal, low.",
        show_default=False,
    ),
]
IdsOption = Annotated[bool, typer.Option("--ids", help="Put the id and a tab before each message.")]
NullOption = Annotated[bool, typer.Option("--null", "-0", help="End each body with NUL.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SyncOption = Annotated[
    Sync,
    typer.Option(
        help="When it reaches the device: at once, soon, or some time. Of no matter to a server."
    ),
]


def allow_many_files(least: int = 0) -> int:
    """Use as many descriptors as we may; return how many. Partitions and connections take some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(FILES_MAX, least)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return max(least, wanted) if soft == resource.RLIM_INFINITY else soft


@contextmanager
def opened_store(url: str, *, create: bool = False, sync: Sync = Sync.ALWAYS) -> Iterator["Store"]:
    """Yield the store at `url`. Raises LogNotFound unless it is there or may be made."""
    # Imported here, as everything that only verbs on stores need: --help does without it.
    from segue.stores.opening import open

    with open(url, create=create, sync=sync.value) as store:
        yield store


@contextmanager
def opened_queue(
    url: str, name: str, *, create: bool = False, sync: Sync = Sync.ALWAYS
) -> Iterator["Queue"]:
    """Yield a queue of the store at `url`. Only `create` makes either: a typo makes nothing."""
    with opened_store(url, create=create, sync=sync) as store:
        yield store.queue(name) if create else existing_queue(store, name)


def existing_queue(store: "Store", name: str) -> "Queue":
    """Return a queue that is there. Raises NotFound."""
    if not _may_be_there(store, name):
        raise NotFound(f"there is no queue {name} in {store.url}")
    return store.queue(name)


def _may_be_there(store: "Store", name: str) -> bool:
    try:
        return name in store.queues()
    except AccessDenied:
        return True  # Who may take messages need not be one who may look at lists.


def require_yes(yes: bool, *, as_json: bool) -> None:
    """Raise BadParameter if there is neither a --yes nor anybody to ask."""
    if not yes and (as_json or not sys.stdin.isatty()):
        raise typer.BadParameter("without a terminal to ask on it takes --yes", param_hint="--yes")


def ask_first(question: str, *, yes: bool) -> None:
    """Return if the answer is yes. Raises typer.Abort if it is no."""
    if not yes:
        typer.confirm(question, err=True, abort=True)


def words_from(words: list[str]) -> list[str]:
    """Return arguments as they are; a single "-" stands for the lines of standard input."""
    if words != ["-"]:
        return words
    return [line for line in (raw.strip() for raw in sys.stdin) if line]


def body_from(word: str) -> bytes:
    """Return a body given as an argument, byte for byte."""
    # Arguments that are no valid text come with surrogates in the place of their bytes.
    return word.encode(errors="surrogateescape")
