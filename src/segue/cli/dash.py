"""`segue dash`: the dashboard of a store on this machine, in the browser of whoever asks."""

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import stderr
from segue.cli.arguments import JsonOption
from segue.cli.output import is_terminal
from segue.cli.places import is_segue_server, is_server, without_passwords
from segue.cli.serving import (
    DASHBOARD,
    HOST_DEFAULT,
    Ending,
    ListeningPlace,
    TokensOption,
    connections_for,
    guarding_tokens,
    opened,
    require_server,
    run,
    say,
)
from segue.cli.store_arguments import StoreArgument
from segue.errors import StorageError
from segue.log.options import Sync

if TYPE_CHECKING:
    import socket

PORT_DEFAULT: Final = 8010
PORTS_TRIED: Final = 50
"""How many ports from the usual one on are tried: there may be a dashboard for each store."""
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Where a system says that there is something to show a page on."""


def dash(
    url: StoreArgument,
    *,
    host: Annotated[
        str, typer.Option(help="Where to listen: an address of this machine alone.")
    ] = HOST_DEFAULT,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port; 0 finds a free one.",
            show_default=f"{PORT_DEFAULT}, or the next that is free",
        ),
    ] = None,
    tokens: TokensOption = None,
    allow_acts: Annotated[
        bool,
        typer.Option(
            "--allow-acts", help="Let who looks also act: retry, cancel, purge and all the rest."
        ),
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a store in the browser until told to stop.

    The URL is printed once it listens, and opened if there is a terminal and a display. Nothing
    can be changed there, nor over the API behind it, unless --allow-acts says so; then acts are
    written to the audit. A file of tokens holds here, too.

    Others may use the store meanwhile. To look takes locks, which are files, and keeps the index of
    tasks up to date (index/tasks.sqlite3, made from events, which may be deleted): whoever looks at
    a directory must be allowed to write there. Where other machines are to see it, or programs are
    to use it, 'segue serve' has the same dashboard.

    SIGTERM and Ctrl-C end it in order. The exit code is 0.

    \b
    Examples:
      segue dash data
      segue dash data --allow-acts --port 9000
      segue dash redis://localhost --no-open
    """
    require_server()
    if is_segue_server(url):
        raise typer.BadParameter(
            f"that is served already; its dashboard is at {_dashboard_of(url)}", param_hint="STORE"
        )
    _check_host(host)
    tokens = guarding_tokens(url, tokens)
    if not is_server(url):
        _check_directory(Path(url))
    connections_max = connections_for(as_json=as_json)
    place = ListeningPlace(host=host)
    with (
        Ending() as ending,
        opened(url, Sync.ALWAYS, create=False) as (store, disk),
        _listening(host, port, as_json=as_json) as listener,
    ):
        from segue.server.building import build_app

        app = build_app(store, tokens=tokens, hosts=[host], disk=disk, is_read_only=not allow_acts)
        at, shown = place.url(listener), without_passwords(store.url)

        def begun() -> None:
            page = at + DASHBOARD
            say(
                f"showing {shown} at {page}",
                {"url": at, "store": shown, "dashboard": page, "read_only": not allow_acts},
                as_json=as_json,
            )
            if not no_open and not as_json and _can_open():
                # In a thread: some browsers come back only when they are closed.
                threading.Thread(target=_open, args=(page,), daemon=True).start()

        try:
            run(app, place, listener, ending, connections_max=connections_max, on_begin=begun)
        finally:
            app.close()


def _listening(host: str, port: int | None, *, as_json: bool) -> "socket.socket":
    """Return what listens at a port, or at the first from the usual one on that is free."""
    from segue.server.serving import PortInUse, listen

    if port is not None:
        return listen(host, port)
    for number in range(PORT_DEFAULT, PORT_DEFAULT + PORTS_TRIED - 1):
        with suppress(PortInUse):
            listener = listen(host, number)
            if number != PORT_DEFAULT:
                stderr.warn(f"port {PORT_DEFAULT} is in use; this is {number}", as_json=as_json)
            return listener
    return listen(host, PORT_DEFAULT + PORTS_TRIED - 1)


def _can_open() -> bool:
    """Tell whether there is somebody to see a page, and something to see it on."""
    return is_terminal() and (sys.platform == "darwin" or any(map(os.environ.get, _DISPLAYS)))


def _open(page: str) -> None:
    import webbrowser  # Here: every command loads this module.

    with suppress(webbrowser.Error, OSError):  # Its address is printed, whatever comes of this.
        webbrowser.open(page)


# What is refused -------------------------------------------------------------------------------


def _check_host(host: str) -> None:
    from segue.server.serving import is_loopback

    if not is_loopback(host):
        raise typer.BadParameter(
            f"others than this machine reach {host}; 'segue serve' can guard it",
            param_hint="--host",
        )


def _check_directory(path: Path) -> None:
    """Raise StorageError for a directory we may not work in: every queue there would be refused."""
    if path.is_dir() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(
            f"{path} cannot be written by this user, or at all: to look takes locks, which are "
            "files; look as its owner, or at a copy"
        )


def _dashboard_of(url: str) -> str:
    return without_passwords(url.partition("?")[0].rstrip("/") + DASHBOARD)
