"""What `segue serve` and `segue dash` share: a store behind HTTP, begun, run and ended in time."""

import errno
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from segue.cli import stderr
from segue.cli.output import Value, show_json, show_line
from segue.cli.places import is_server
from segue.cli.store_arguments import allow_many_files
from segue.extras import require
from segue.log.options import Sync
from segue.values import dataclass

if TYPE_CHECKING:
    import socket

    from segue.server.app import App
    from segue.server.building import CountingDisk
    from segue.stores.contract import Store

HOST_DEFAULT: Final = "127.0.0.1"
DASHBOARD: Final = "/dash/"
"""Where the dashboard is, on every server."""
CLOSING_SECONDS: Final = 10.0
"""How long closing may take once nothing is answered any more."""
LAST_WORDS_SECONDS: Final = 1.0
THREAD_PREFIX: Final = "segue-serve"
"""What the threads of the application are called that may be stuck."""
CONNECTIONS_DEFAULT: Final = 20_000
DESCRIPTORS_SPARE: Final = 2_000
"""What the store may have open beside the connections."""

TokensOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The file of tokens; a store on a server needs one.",
        show_default="STORE/server/tokens.json",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPlace:
    """Where to listen, and how safe that is."""

    host: str
    certificate: Path | None = None
    key: Path | None = None

    def url(self, listener: "socket.socket") -> str:
        """Return the URL by which clients reach it."""
        port = listener.getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * (self.certificate is not None)}://{host}:{port}"


# Beginning and ending --------------------------------------------------------------------------


class Ending:
    """Ends the process in time, whatever is stuck: all that was answered is kept."""

    def __init__(self) -> None:
        self._deadline = math.inf
        self._is_over = False
        self._changes: SimpleQueue[None] = SimpleQueue()
        self._watch = threading.Thread(target=self._look, name="segue-ending", daemon=True)

    def begin(self, seconds: float) -> None:
        """Have the end come within that time, or sooner if that was said before.

        Safe in a signal handler: no lock is taken that what it interrupts may hold.
        """
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        self._changes.put(None)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Be content once no thread is left: the interpreter does not end well with one."""
        if self._deadline < math.inf:
            for thread in threading.enumerate():
                if thread.name.startswith(THREAD_PREFIX):
                    thread.join()  # Until the deadline, at which there is no process any more.
        self._is_over = True
        self._changes.put(None)

    def _look(self) -> None:
        while not self._is_over:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._leave()
            with suppress(Empty):
                self._changes.get(timeout=min(left, threading.TIMEOUT_MAX))

    def _leave(self) -> None:
        words = "a thread did not come back from the store or the access log and was left there"
        try:
            # In yet another thread: standard error may be the pipe that nobody reads.
            saying = threading.Thread(target=lambda: stderr.warn(words, as_json=False), daemon=True)
            saying.start()
            saying.join(LAST_WORDS_SECONDS)
        finally:
            os._exit(0)


def run(
    app: "App",
    place: ListeningPlace,
    listener: "socket.socket",
    ending: Ending,
    *,
    connections_max: int,
    on_begin: Callable[[], None],
) -> None:
    """Answer until a signal comes. `on_begin` is called once it listens, in the event loop."""
    import asyncio

    from segue.server.serving import GRACE_SECONDS, Server, config_of

    config = config_of(
        app, certificate=place.certificate, key=place.key, connections_max=connections_max
    )

    def hurry() -> None:
        ending.begin(GRACE_SECONDS + CLOSING_SECONDS)

    server = Server(app, config, on_begin=on_begin, on_signal=hurry)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            runner.run(server.serve([listener]))
        finally:
            # Here, and not behind: the runner waits for its threads, and without a limit.
            ending.begin(CLOSING_SECONDS)


def say(line: str, document: Mapping[str, Value], *, as_json: bool) -> None:
    """Say that it listens, at once: whoever started it waits for that."""
    if as_json:
        show_json({**document})
    else:
        show_line(line)
    sys.stdout.flush()


def connections_for(asked: int | None = None, *, as_json: bool) -> int:
    """Return how many connections there can be, with descriptors left for the store."""
    wanted = asked or CONNECTIONS_DEFAULT
    allowed = allow_many_files(wanted + DESCRIPTORS_SPARE)
    possible = allowed - min(DESCRIPTORS_SPARE, allowed // 2)
    if asked is not None and possible < asked:
        stderr.warn(
            f"the system allows {allowed} descriptors: at most {possible} connections",
            as_json=as_json,
        )
    return min(wanted, possible)


@contextmanager
def opened(
    url: str, sync: Sync, *, create: bool
) -> Iterator[tuple["Store", "CountingDisk | None"]]:
    """Yield the store at `url`, and what counts the syncs of a directory. Raises LogNotFound."""
    from segue.server.building import CountingDisk
    from segue.stores.opening import open

    disk = None if is_server(url) else CountingDisk()
    with open(url, sync=sync.value, disk=disk, create=create) as store:
        yield store, disk


# What is refused -------------------------------------------------------------------------------


def require_server() -> None:
    """Raise MissingExtra unless what a server needs is installed."""
    require("server", needed_by="segue serve")


def tokens_file(url: str, tokens: Path | None, *, is_needed: bool = True) -> Path | None:
    """Return where the tokens of a store are. Raises BadParameter if nobody can tell."""
    from segue.server.tokens import tokens_path
    from segue.stores.http.address import is_http

    if is_http(url):
        raise typer.BadParameter(
            "that is served already; give the store behind it", param_hint="STORE"
        )
    if tokens is not None:
        return tokens
    if not is_server(url):
        return tokens_path(Path(url))
    if is_needed:
        raise typer.BadParameter("a store on a server needs --tokens FILE", param_hint="--tokens")
    return None


def guarding_tokens(url: str, tokens: Path | None) -> Path | None:
    """Return where the tokens are that guard a store, which need not be there unless named.

    Raises FileNotFoundError for a file that was named and is missing: it was meant to guard.
    """
    if tokens is not None and not tokens.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file of tokens", str(tokens))
    return tokens_file(url, tokens, is_needed=False)
