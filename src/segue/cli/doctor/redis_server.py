"""Asking Redis and Valkey servers. Only reads: INFO, CONFIG GET, FUNCTION STATS, TIME and GET."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from segue.cli.doctor.check import Check, fail
from segue.cli.doctor.redis_verdicts import REDIS, NodeFacts, RedisFacts, redis_checks
from segue.cli.doctor.running import in_words
from segue.errors import SegueError
from segue.stores.redis.address import Address, address_from

if TYPE_CHECKING:
    from segue.stores.redis.servers import Connection, Node

ANSWER_SECONDS_MAX: Final = 2.0
"""How long a server may take to answer one question."""
NODES_MAX: Final = 64
ROUND_TRIPS: Final = 5
_SETTINGS: Final = ("appendfsync", "appendonly", "save")


def redis_server_checks(url: str) -> Iterator[Check]:
    """Yield how the servers at `url` stand. Raises InvalidArgument."""
    address = address_from(url)
    try:
        from segue.stores.redis.keys import FORMAT
        from segue.stores.redis.store import MAJOR_VERSION_MIN
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        yield fail(REDIS, "the extra `redis` is not installed", "pip install 'segue[redis]'")
        return
    yield from redis_checks(
        look_at_redis(address), major_min=MAJOR_VERSION_MIN, format_known=FORMAT
    )


def look_at_redis(address: Address) -> RedisFacts:
    """Return what the servers of a store tell; the extra `redis` must be there."""
    import redis

    from segue.stores.redis.servers import servers_of

    options = address.options
    hasty = replace(
        address,
        options=replace(
            options, timeout=min(options.timeout, ANSWER_SECONDS_MAX), retry=0, connections=1
        ),
    )
    facts = RedisFacts(url=address.url, kind=address.kind, is_synced=options.fsync)
    with closing(servers_of(hasty)) as servers:
        try:
            nodes = tuple(_told_by(node) for node in servers.nodes()[:NODES_MAX])
        except (redis.RedisError, SegueError, OSError) as error:
            return replace(facts, problem=in_words(error))
        facts = replace(facts, nodes=nodes)
        try:
            return replace(facts, format_found=_format_of(servers.node_of, hasty))
        except (redis.RedisError, SegueError, OSError) as error:
            return replace(facts, format_problem=in_words(error))


def _format_of(node_of: "Callable[[str], Node]", address: Address) -> str | None:
    from segue.stores.redis.keys import format_key
    from segue.stores.redis.servers import ask

    key = format_key(address.options.namespace)
    with node_of(key).pool.connection() as connection:
        found = cast("bytes | None", ask(connection, "GET", key))
    return None if found is None else found.decode(errors="replace")


def _told_by(node: "Node") -> NodeFacts:
    from segue.stores.redis.servers import ask

    with node.pool.connection() as connection:
        about = _lines_in(cast("bytes", ask(connection, "INFO", "everything")))
        took_ms = []
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            ask(connection, "PING")
            took_ms.append((time.perf_counter() - begun) * 1000)
        seconds, micros = map(int, cast("list[bytes]", ask(connection, "TIME")))
        skew_ms = seconds * 1e3 + micros / 1e3 - time.time() * 1e3
        host, port = node.endpoint
        return NodeFacts(
            endpoint=f"{host}:{port}" if host else "socket",
            about=about,
            settings=_settings(connection),
            functions_problem=_functions_problem(connection),
            skew_ms=skew_ms,
            took_ms=tuple(took_ms),
            cluster_state=_cluster_state(connection, about),
        )


def _settings(connection: "Connection") -> dict[str, str] | None:
    """Return the settings, None where only its operator may see them."""
    import redis

    from segue.stores.redis.servers import ask

    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            answer = ask(connection, "CONFIG", "GET", name)
            pairs = answer if isinstance(answer, dict) else _pairs(cast("list[bytes]", answer))
            found |= {key.decode(): value.decode(errors="replace") for key, value in pairs.items()}
    except redis.ResponseError:
        return None
    return found


def _pairs(words: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(words[::2], words[1::2], strict=False))


def _functions_problem(connection: "Connection") -> str:
    import redis

    from segue.stores.redis.servers import ask

    try:
        ask(connection, "FUNCTION", "STATS")
    except redis.ResponseError as error:
        return in_words(error)
    return ""


def _cluster_state(connection: "Connection", about: dict[str, str]) -> str:
    from segue.stores.redis.servers import ask

    if about.get("cluster_enabled") != "1":
        return ""
    return _lines_in(cast("bytes", ask(connection, "CLUSTER", "INFO"))).get("cluster_state", "")


def _lines_in(text: bytes) -> dict[str, str]:
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
