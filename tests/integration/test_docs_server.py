"""Routes, codes and limits are what docs/server.md and docs/http-api.md say."""

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import msgspec

import segue.server
from segue.server import (
    app,
    bodies,
    open_queues,
    protocol,
    requests,
    serving,
    sessions,
    threads,
    tokens,
    waiting,
)
from segue.server.routes import ALL, letters, readers
from segue.server.routes import queues as queue_routes
from segue.server.routing import Route
from segue.stores.http.address import Options
from segue.stores.http.problems import KINDS
from segue.stores.http.wire import queues
from tests.integration.test_docs import ROOT

SERVER: Final = (ROOT / "docs" / "server.md").read_text()
API: Final = (ROOT / "docs" / "http-api.md").read_text()
SOURCE: Final = Path(segue.server.__file__).parent
LIMITS: Final = {
    bodies: ("BODY_BYTES_MAX", "BODIES_BYTES_MAX"),
    app: ("STREAMS_MAX",),
    open_queues: ("PHANTOMS_MAX",),
    threads: ("PENDING_MAX", "THREADS_MAX"),
    letters: ("LETTERS_MAX",),
    queue_routes: ("STATE_MESSAGES_MAX", "STATE_BYTES_MAX"),
    protocol: (
        "PIPELINED_MAX",
        *("CONNECTIONS_MAX", "HEAD_BYTES_MAX", "HEAD_SECONDS_MAX"),
        *("BODY_SECONDS_MAX", "UNREAD_SECONDS_MAX"),
    ),
    queues: ("MESSAGE_BYTES_MAX",),
    readers: ("POLL_BYTES_MAX",),
    requests: ("REMEMBERED_SECONDS", "REMEMBERED_BYTES_MAX", "REMEMBERED_MAX"),
    serving: ("KEEP_ALIVE_SECONDS", "GRACE_SECONDS"),
    sessions: ("SESSIONS_MAX",),
    tokens: ("TOKENS_MAX",),
    waiting: ("WAIT_SECONDS_MAX",),
}
REFUSALS: Final = frozenset({"Refused", "LockGone", "_refuse"})
"""What is called with a status and a code."""


SENT_MAX: Final = 12
ANSWERED_MAX: Final = 8
"""How many fields the page names; /openapi.json has all."""


class Code(NamedTuple):
    """A code, and the status it comes with."""

    status: int
    code: str


# Routes ----------------------------------------------------------------------------------------


def rows_of(routes: tuple[Route, ...]) -> list[str]:
    """Return a row of a table for each path and what can be done with it."""
    together: dict[tuple[str, str], list[Route]] = {}
    for route in routes:
        together.setdefault((route.full_path, route.summary), []).append(route)
    return [_row(found) for found in together.values()]


def _row(routes: list[Route]) -> str:
    route = routes[0]
    methods = ", ".join(each.method for each in routes)
    cells = (
        f"`{methods} {route.full_path}`",
        route.role.value,
        _sent(route),
        _answered(route),
        route.summary if "`" in route.summary else re.sub(r"(\S*<\S+)", r"`\1`", route.summary),
    )
    return f"| {' | '.join(cells)} |"


def _sent(route: Route) -> str:
    query = [] if route.query is None else [f"`?{'&'.join(_names(route.query))}`"]
    body = [] if route.body is None else [_listed(_names(route.body), SENT_MAX)]
    if route.has_raw_body and route.body is None:
        body = [f"{route.takes}"]
    return " ".join(query + body)


def _answered(route: Route) -> str:
    names = [] if route.answer is None else msgspec.structs.fields(route.answer)
    fields = [_listed((each.encode_name for each in names), ANSWERED_MAX)] if names else []
    return " or ".join([*fields, *route.gives])


def _listed(names: Iterable[str], most: int) -> str:
    words = list(names)
    return f"`{', '.join(words[:most])}{', …' if len(words) > most else ''}`"


def _names(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the fields of a struct. Those that must be sent are marked by a star."""
    for each in msgspec.structs.fields(kind):
        yield f"{each.encode_name}{'*' * each.required}"


def test_every_route_is_told_of() -> None:
    """Its role, what is sent and what is answered; and none that is not there any more."""
    told = [line for line in API.splitlines() if re.match(r"\| `[A-Z, ]+ /", line)]

    assert [row for row in rows_of(ALL) if row not in told] == []
    assert [row for row in told if row not in rows_of(ALL)] == []


# Codes -----------------------------------------------------------------------------------------


def codes_of_the_server() -> set[Code]:
    """Return what is refused before a store is asked, as the source says."""
    found = {Code(500, "internal")}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node) in REFUSALS:
                match node.args:
                    case [ast.Constant(int(status)), ast.Constant(str(code)), *_]:
                        found.add(Code(status, code.lower()))
    return found


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


def test_every_code_is_told_of() -> None:
    """With its status; those of stores with their fields and the class that is raised."""
    told = re.findall(r"^\| (\d{3}) \| `(\w+)` \| (.*?) \| (.*?) \|", API, re.MULTILINE)
    stores = {
        (
            str(kind.status),
            kind.code,
            ", ".join(f"`{name}`" for name in kind.fields),
            f"`{kind.error.__name__}`",
        )
        for kind in KINDS
        if kind.error.__name__ != "LogClosed"  # A second class of the same code.
    }
    others = {
        each
        for each in codes_of_the_server()
        if each not in {Code(kind.status, kind.code) for kind in KINDS}
    }

    assert stores - set(told) == set()
    assert others == {Code(int(row[0]), row[1]) for row in set(told) - stores}


# Limits ----------------------------------------------------------------------------------------


def _said(module: ModuleType, name: str) -> str:
    value: float = getattr(module, name)
    if "SECONDS" in name:
        return f"{value:g} s"
    if "BYTES" in name:
        units = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
        shift, unit = next(each for each in units if value >= 1 << each[0])
        return f"{int(value) >> shift} {unit}"
    return f"{value:,}"


def test_limits_are_what_the_page_says() -> None:
    """Whatever is said twice drifts, unless it is looked at."""
    rows = {
        f"| `{name}` | {_said(module, name)} |"
        for module, names in LIMITS.items()
        for name in names
    }
    told = set(re.findall(r"^\| `[A-Z_]+` \| [^|]+ \|", SERVER, re.MULTILINE))

    assert told == rows


def test_options_of_a_url_are_what_the_page_says() -> None:
    """Each with its default."""
    for option in dataclasses.fields(Options):
        value = option.default
        unit = " s" if isinstance(value, float) else ""
        said = f" {value:g}{unit}" if isinstance(value, int | float) else ""
        assert f"| `{option.name}` |{said} |" in SERVER
