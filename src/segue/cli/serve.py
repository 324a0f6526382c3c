"""`segue serve`: a store behind HTTP, until it is told to stop."""

import errno
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.output import show_json, show_line
from segue.cli.places import is_server, without_passwords
from segue.cli.store_arguments import StoreArgument, SyncOption, allow_many_files
from segue.errors import InvalidArgument
from segue.log.options import Sync

if TYPE_CHECKING:
    import socket

    from segue.server.app import App
    from segue.server.building import CountingDisk
    from segue.stores.contract import Store

HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8000
BODY_BYTES_DEFAULT: Final = 64 << 20
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
class _Place:
    """Where to listen, and how safe that is."""

    host: str
    port: int
    certificate: Path | None
    key: Path | None

    def url(self, listener: "socket.socket") -> str:
        port = listener.getsockname()[1]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * (self.certificate is not None)}://{host}:{port}"


def serve(
    url: StoreArgument,
    *,
    host: Annotated[str, typer.Option(help="Where to listen.")] = HOST_DEFAULT,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 finds a free one.")
    ] = PORT_DEFAULT,
    sync: SyncOption = Sync.ALWAYS,
    tokens: TokensOption = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The certificate, for https.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key.", show_default=False)
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a line of JSON for each request; - is standard output.",
            show_default=False,
        ),
    ] = None,
    max_body: Annotated[
        int,
        typer.Option(metavar="SIZE", parser=parsing.size, help="What a request may send."),
    ] = BODY_BYTES_DEFAULT,
    max_connections: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many clients may be connected.",
            show_default=f"{CONNECTIONS_DEFAULT}, or what the system allows",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name of this server, if no tokens are needed; can be repeated.",
            show_default=False,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let the pages of https://host ask and read; can be repeated.",
            show_default=False,
        ),
    ] = None,
    insecure_public: Annotated[
        bool,
        typer.Option(
            "--insecure-public", help="Let others than this machine in without tokens or TLS."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a store over HTTP until told to stop.

    Its URL is printed once it listens: any other command takes it as STORE, and so does
    segue.open(). The description of all it can do is at /docs.

    On this machine alone, and without a file of tokens, everybody gets in. 'segue token add' makes
    the first token; from then on everybody needs one. Where others than this machine can reach it,
    it takes both tokens and a certificate.

    SIGTERM and Ctrl-C end it in order: nobody new gets in, who waits is sent home, and what is
    under way is finished, within 10 seconds. The exit code is 0.

    \b
    Examples:
      segue serve data
      segue serve data --port 0 --sync interval --access-log -
      segue serve data --host 0.0.0.0 --tls-cert server.crt --tls-key server.key
    """
    require_server()
    from segue.server.serving import check_certificate, listen

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("a certificate and its key come together", param_hint="--tls-cert")
    place = _Place(host=host, port=port, certificate=tls_cert, key=tls_key)
    if tokens is not None and not tokens.is_file():
        # Not as with the usual file, which need not be there: this one was meant to guard.
        raise FileNotFoundError(errno.ENOENT, "there is no such file of tokens", str(tokens))
    tokens = tokens_file(url, tokens, is_needed=False)
    _check_origins(cors_origin or [])
    _check_safety(place, tokens, insecure_public=insecure_public, as_json=as_json)
    if tls_cert is not None and tls_key is not None:
        check_certificate(tls_cert, tls_key)
    connections_max = _connections_for(max_connections, as_json=as_json)
    with (
        _Ending() as ending,
        listen(host, port) as listener,
        _opened(url, sync) as (store, disk),
    ):
        from segue.server.building import build_app

        app = build_app(
            store,
            tokens=tokens,
            hosts=[host, *(allow_host or ())],
            cors_origins=cors_origin or (),
            access_log=access_log,
            body_bytes_max=max_body,
            disk=disk,
        )
        try:
            _run(app, place, listener, connections_max, ending, as_json=as_json)
        finally:
            app.close()


class _Ending:
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


def _run(
    app: "App",
    place: _Place,
    listener: "socket.socket",
    connections_max: int,
    ending: _Ending,
    *,
    as_json: bool,
) -> None:
    import asyncio

    from segue.server.serving import GRACE_SECONDS, Server, config_of

    config = config_of(
        app, certificate=place.certificate, key=place.key, connections_max=connections_max
    )
    url = place.url(listener)

    def say() -> None:
        if as_json:
            show_json({"url": url, "store": without_passwords(app.store.url)})
        else:
            show_line(f"serving {without_passwords(app.store.url)} at {url}")
        sys.stdout.flush()

    def hurry() -> None:
        ending.begin(GRACE_SECONDS + CLOSING_SECONDS)

    server = Server(app, config, on_begin=say, on_signal=hurry)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            runner.run(server.serve([listener]))
        finally:
            # Here, and not behind: the runner waits for its threads, and without a limit.
            ending.begin(CLOSING_SECONDS)


def _connections_for(asked: int | None, *, as_json: bool) -> int:
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
def _opened(url: str, sync: Sync) -> Iterator[tuple["Store", "CountingDisk | None"]]:
    from segue.server.building import CountingDisk
    from segue.stores.opening import open

    disk = None if is_server(url) else CountingDisk()
    with open(url, sync=sync.value, disk=disk) as store:
        yield store, disk


# What is refused -------------------------------------------------------------------------------


def require_server() -> None:
    """Raise InvalidArgument unless what a server needs is installed."""
    try:
        import httptools  # noqa: F401
        import msgspec  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"{error.name} is missing; this needs the extra `server`: pip install 'segue[server]'"
        ) from error


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


def _check_safety(
    place: _Place, tokens: Path | None, *, insecure_public: bool, as_json: bool
) -> None:
    """Raise BadParameter if others than this machine could reach what nobody guards."""
    from segue.server.serving import is_loopback

    if is_loopback(place.host):
        return
    missing = []
    if not _has_tokens(tokens):
        missing.append("tokens (segue token add)")
    if place.certificate is None:
        missing.append("a certificate (--tls-cert, --tls-key)")
    if not missing:
        return
    if not insecure_public:
        raise typer.BadParameter(
            f"others than this machine reach {place.host}, and it lacks {' and '.join(missing)}; "
            "--insecure-public serves it all the same",
            param_hint="--host",
        )
    stderr.warn(
        f"INSECURE: everybody who reaches {place.host} can use or overhear this store; "
        f"it lacks {' and '.join(missing)}",
        as_json=as_json,
    )


def _has_tokens(path: Path | None) -> bool:
    from segue.server.tokens import read_tokens

    try:
        return path is not None and bool(read_tokens(path))
    except FileNotFoundError:
        return False


def _check_origins(origins: list[str]) -> None:
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if scheme not in {"http", "https"} or not host or "/" in host or "*" in host:
            raise typer.BadParameter(
                f"{origin!r} is no origin such as https://example.com", param_hint="--cors-origin"
            )
