"""`segue serve`: a store behind HTTP, until it is told to stop."""

from pathlib import Path
from typing import Annotated, Final

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.places import without_passwords
from segue.cli.serving import (
    CONNECTIONS_DEFAULT,
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
from segue.cli.store_arguments import StoreArgument, SyncOption
from segue.log.options import Sync

PORT_DEFAULT: Final = 8000
BODY_BYTES_DEFAULT: Final = 64 << 20


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
    segue.open(). In a browser it shows the dashboard; all it can do is described at /docs.

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
    place = ListeningPlace(host=host, certificate=tls_cert, key=tls_key)
    tokens = guarding_tokens(url, tokens)
    _check_origins(cors_origin or [])
    _check_safety(place, tokens, insecure_public=insecure_public, as_json=as_json)
    if tls_cert is not None and tls_key is not None:
        check_certificate(tls_cert, tls_key)
    connections_max = connections_for(max_connections, as_json=as_json)
    with (
        Ending() as ending,
        listen(host, port) as listener,
        opened(url, sync, create=True) as (store, disk),
    ):
        from segue.server.building import build_app

        app = build_app(
            store,
            tokens=tokens,
            hosts=[host, *(allow_host or ())],
            cors_origins=cors_origin or (),
            access_log=access_log,
            body_bytes_max=max_body,
            records_history=True,
            disk=disk,
        )
        at, served = place.url(listener), without_passwords(store.url)

        def begun() -> None:
            said = {"url": at, "store": served, "dashboard": at + DASHBOARD}
            say(f"serving {served} at {at}", said, as_json=as_json)

        try:
            run(app, place, listener, ending, connections_max=connections_max, on_begin=begun)
        finally:
            app.close()


# What is refused -------------------------------------------------------------------------------


def _check_safety(
    place: ListeningPlace, tokens: Path | None, *, insecure_public: bool, as_json: bool
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
