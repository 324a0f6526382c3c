"""Whether a Segue server answers, how soon, and whether it is one that this client can use."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from segue import __version__
from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.doctor.running import in_words
from segue.errors import SegueError
from segue.stores.http.address import API_PATH, Address, address_from
from segue.stores.opening import TOKEN_VARIABLE

SERVER: Final = "server"
VERSION: Final = "server version"
LATENCY: Final = "server latency"
CLIENT: Final = "server client"
DURABLE: Final = "server durability"
ANSWER_SECONDS_MAX: Final = 3.0
"""How long a server may take to answer one question."""
ROUND_TRIPS: Final = 5
SLOW_MS: Final = 250.0
ANSWER_BYTES_MAX: Final = 1 << 20
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403

Told = dict[str, object]
"""A JSON object that a server has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server has told."""

    url: str
    problem: str = ""
    """Why it has told nothing."""
    status: int = _OK
    """Of the answer to who it is."""
    about: Told | None = None
    health: Told | None = None
    took_ms: tuple[float, ...] = ()


def server_checks(facts: ServerFacts, *, version: str, api: int) -> Iterator[Check]:
    """Yield how a server stands, for a client of that version."""
    if facts.problem:
        yield fail(
            SERVER,
            f"{facts.url}: {facts.problem}",
            "see that it runs ('segue serve') and that the address is right",
        )
        return
    if facts.health is None:
        yield fail(SERVER, f"{facts.url} is no Segue server", "see that the address is right")
        return
    status = facts.health.get("status")
    if status != "ok":
        reason = facts.health.get("reason")
        yield fail(SERVER, f"{facts.url} is {status}: {reason}", "see its log; start it anew")
    else:
        yield ok(SERVER, f"{facts.url} gets on: its store answers")
    yield _latency(facts.took_ms)
    if facts.status in (_UNAUTHORIZED, _FORBIDDEN):
        yield fail(VERSION, "it does not let us in", f"{TOKEN_VARIABLE} with a token it knows")
    elif facts.about is None or facts.about.get("server") != "segue":
        yield fail(VERSION, f"{facts.url} is no Segue server", "see that the address is right")
    else:
        yield _version(facts.about, version=version, api=api)
        yield _durability(facts.about)


def _version(about: Told, *, version: str, api: int) -> Check:
    theirs, spoken = about.get("version"), about.get("api")
    found = f"{theirs}, speaks version {spoken}"
    if not isinstance(spoken, int) or spoken < api:
        return fail(VERSION, f"{found}; this Segue needs {api}", "a newer Segue on the server")
    if theirs != version:
        return warn(VERSION, f"{found}; this is Segue {version}", "the same version on both sides")
    return ok(VERSION, found)


def _durability(about: Told) -> Check:
    durable = about.get("durable")
    found = f"a {about.get('store')} store, synced {durable!r}"
    if durable == "os":
        return warn(DURABLE, f"{found}: a power cut costs what was pushed of late", "--sync always")
    return (ok if durable == "always" else info)(DURABLE, found)


def _latency(took_ms: tuple[float, ...]) -> Check:
    if not took_ms:
        return info(LATENCY, "not measured")
    middle_ms = median(took_ms)
    found = f"{middle_ms:.1f} ms for a round trip, at most {max(took_ms):.1f} ms"
    if middle_ms > SLOW_MS:
        return warn(LATENCY, found, "look at the network, and at the load of the server")
    return ok(LATENCY, found)


def look_at_server(url: str) -> ServerFacts:
    """Return what the server at `url` tells. Raises InvalidArgument."""
    address = address_from(url, os.environ.get(TOKEN_VARIABLE) or None)
    try:
        return _told_by(address)
    except (SegueError, OSError, ValueError) as error:
        return ServerFacts(url=address.url, problem=in_words(error))


def _told_by(address: Address) -> ServerFacts:
    # Without the rest of the client: that tries again for long, and needs an extra.
    from segue.stores.http.line import Line, context_of

    said = {"Accept-Encoding": "identity"}
    if address.token is not None:
        said["Authorization"] = f"Bearer {address.token}"

    def ask(target: str) -> tuple[int, Told | None]:
        line = Line(address, context_of(address))
        try:
            line.connect_within(ANSWER_SECONDS_MAX)
            answer = line.ask("GET", target, None, said, wait=0, timeout=ANSWER_SECONDS_MAX)
            return answer.status, _object_in(answer.whole(ANSWER_BYTES_MAX))
        finally:
            line.disconnect()

    took_ms = []
    status, about = ask(f"{address.path}{API_PATH}")
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        _, health = ask(f"{address.path}/health")
        took_ms.append((time.perf_counter() - begun) * 1000)
    return ServerFacts(
        url=address.url, status=status, about=about, health=health, took_ms=tuple(took_ms)
    )


def _object_in(data: bytes) -> Told | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def segue_server_checks(url: str) -> Iterator[Check]:
    """Yield how the server at `url` stands. Raises InvalidArgument."""
    from importlib.util import find_spec

    if find_spec("msgspec") is None:
        yield fail(CLIENT, "the extra `http` is not installed", "pip install 'segue[http]'")
        api = 1
    else:
        from segue.stores.http.wire.about import API

        api = API
    yield from server_checks(look_at_server(url), version=__version__, api=api)
