"""`segue token`: who may use a store that is served."""

from enum import Enum
from typing import Annotated

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.serving import TokensOption, require_server, tokens_file
from segue.cli.store_arguments import StoreArgument
from segue.clock import system_clock


class RoleChoice(Enum):
    """What a token is for."""

    PRODUCE = "produce"
    CONSUME = "consume"
    READ = "read"
    ADMIN = "admin"


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in (add, ls, rm):
        group.command(verb.__name__)(verb)


def add(
    url: StoreArgument,
    *,
    name: Annotated[
        str, typer.Option(help="Whose it is: logs and the audit say so.", show_default=False)
    ],
    roles: Annotated[
        list[RoleChoice],
        typer.Option("--role", help="What for; can be repeated.", show_default=False),
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Which queues, topics, rings and locks, such as mail.*; can be repeated.",
            show_default="*",
        ),
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="After how long it is over, such as 90d.",
            show_default="never",
        ),
    ] = None,
    tokens: TokensOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it, this once: nobody can tell it again.

    A server that runs knows it within a second. The first token of a store closes it to everybody
    who has none. Clients give it as segue.open(url, token=…), or in SEGUE_TOKEN.

    \b
    Roles:
      produce  push to queues and rings, append to topics
      consume  take, settle, read on as a reader or group; locks
      read     look, without changing anything
      admin    everything, also rules, removing, redriving, and the audit

    \b
    Example:
      segue token add data --name billing --role produce --role read --names 'billing.*'
    """
    require_server()
    from segue.server.tokens import add_token, make_token

    path = tokens_file(url, tokens)
    assert path is not None
    now_us = system_clock()
    token, text = make_token(
        name=name,
        roles=[role.value for role in roles],
        names=names or ["*"],
        now_us=now_us,
        expires_us=None if expires is None else now_us + round(expires * 1_000_000),
    )
    add_token(path, token)
    show(
        Facts(
            items=(
                (Column("id"), token.id),
                (Column("name"), token.name),
                (Column("roles"), ",".join(token.roles)),
                (Column("names"), ",".join(token.names)),
                (Column("expires", Kind.TIME), token.expires_us),
                (Column("token"), text),
            )
        ),
        as_json=as_json,
    )


def ls(url: StoreArgument, *, tokens: TokensOption = None, as_json: JsonOption = False) -> None:
    """List the tokens of a store: whose they are and what for, not the tokens themselves.

    \b
    Example:
      segue token ls data
    """
    require_server()
    from segue.server.tokens import read_tokens

    path = tokens_file(url, tokens)
    assert path is not None
    try:
        found = read_tokens(path)
    except FileNotFoundError:
        found = []
    show(
        Rows(
            name="tokens",
            columns=(
                Column("id"),
                Column("name"),
                Column("roles"),
                Column("names"),
                Column("created", Kind.TIME),
                Column("expires", Kind.TIME),
            ),
            rows=[
                (
                    token.id,
                    token.name,
                    ",".join(token.roles),
                    ",".join(token.names),
                    token.created_us,
                    token.expires_us,
                )
                for token in found
            ],
        ),
        as_json=as_json,
    )


def rm(
    url: StoreArgument,
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="Of the token, as ls shows it.", show_default=False)
    ],
    *,
    tokens: TokensOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a token back: within a second it lets nobody in any more.

    Without any token left nobody gets in at all; remove the file and start the server anew to open
    it to everybody on this machine.

    \b
    Example:
      segue token rm data 3f9c01d2ab
    """
    require_server()
    from segue.server.tokens import remove_token

    path = tokens_file(url, tokens)
    assert path is not None
    found = remove_token(path, id_)
    if found is None:
        raise NotFound(f"there is no token {id_} in {path}")
    show(
        Facts(items=((Column("removed"), found.id), (Column("name"), found.name))), as_json=as_json
    )
