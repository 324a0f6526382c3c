"""What the settings of a Redis or Valkey server mean for a store on it. Pure: no client needed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn, worst

REDIS: Final = "redis"
VERSION: Final = "redis version"
PERSISTENCE: Final = "redis persistence"
EVICTION: Final = "redis eviction"
FUNCTIONS: Final = "redis functions"
CLUSTER: Final = "redis cluster"
CLOCK: Final = "redis clock"
STORE: Final = "redis store"
SKEW_MS_MAX: Final = 1_000.0
"""How far our clock may be from the server's: times that people see are ours."""
SLOW_MS: Final = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What one server has told."""

    endpoint: str
    about: Mapping[str, str] = field(default_factory=dict)
    """What INFO says."""
    settings: Mapping[str, str] | None = None
    """What CONFIG GET says, None if we may not ask."""
    functions_problem: str = ""
    """Why it has no functions for us."""
    skew_ms: float | None = None
    """How far its clock is ahead of ours."""
    took_ms: tuple[float, ...] = ()
    cluster_state: str = ""
    """What a node of a cluster says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """What the servers of a store have told."""

    url: str
    kind: str
    """What the URL says: "single", "unix", "cluster" or "sentinel"."""
    is_synced: bool = False
    """Whether the URL asks for `fsync=yes`."""
    problem: str = ""
    """Why they have told nothing."""
    nodes: tuple[NodeFacts, ...] = ()
    format_found: str | None = None
    """What the store says of itself, None if there is none."""
    format_problem: str = ""
    """Why that cannot be told."""


def redis_checks(facts: RedisFacts, *, major_min: int, format_known: int) -> Iterator[Check]:
    """Yield how the servers stand; of several the one that is worst off speaks for all."""
    if facts.problem or not facts.nodes:
        yield fail(
            REDIS,
            f"{facts.url}: {facts.problem or 'no server is known'}",
            "see that it runs, and that address, password and permissions are right",
        )
        return
    by_name: dict[str, list[Check]] = {}
    for node in facts.nodes:
        for check in _node_checks(node, facts, major_min):
            if len(facts.nodes) > 1:
                check = _named(check, node.endpoint)  # noqa: PLW2901 - the same, with its name
            by_name.setdefault(check.name, []).append(check)
    yield from map(worst, by_name.values())
    yield _store(facts, format_known)


def _named(check: Check, endpoint: str) -> Check:
    return Check(
        name=check.name,
        verdict=check.verdict,
        found=f"{endpoint}: {check.found}",
        remedy=check.remedy,
    )


def _node_checks(node: NodeFacts, facts: RedisFacts, major_min: int) -> Iterator[Check]:
    yield _reached(node, facts.url)
    yield _version(node.about, major_min)
    yield _persistence(node, is_synced=facts.is_synced)
    yield _eviction(node)
    if node.functions_problem:
        yield fail(FUNCTIONS, node.functions_problem, "allow FUNCTION and FCALL (ACL +@scripting)")
    else:
        yield ok(FUNCTIONS, "the server has them, and lets us use them")
    yield _cluster(node, facts.kind, len(facts.nodes))
    if node.skew_ms is not None:
        yield _clock(node.skew_ms)


def _reached(node: NodeFacts, url: str) -> Check:
    middle_ms = median(node.took_ms) if node.took_ms else 0.0
    found = f"{url} answers within {middle_ms:.1f} ms"
    if node.about.get("loading", "0") != "0":
        return fail(REDIS, f"{found}, and still loads its data", "wait until it has")
    if node.about.get("role", "master") != "master":
        return fail(REDIS, f"{found}, and is a replica, which takes no writes", "name its master")
    if middle_ms > SLOW_MS:
        return warn(REDIS, found, "look at the network, and at what keeps the server busy")
    return ok(REDIS, found)


def _version(about: Mapping[str, str], major_min: int) -> Check:
    compatible = about.get("redis_version", "unknown")
    name = about.get("server_name", "redis")
    own = about.get("valkey_version")
    found = f"{name} {own}, as Redis {compatible}" if own else f"{name} {compatible}"
    major = compatible.partition(".")[0]
    if not major.isdecimal() or int(major) < major_min:
        return fail(VERSION, found, f"Redis {major_min} or newer, or Valkey")
    return ok(VERSION, found)


def _persistence(node: NodeFacts, *, is_synced: bool) -> Check:
    about, settings = node.about, node.settings or {}
    if about.get("aof_enabled") == "1":
        return _append_only(about, settings)
    remedy = "appendonly yes, appendfsync everysec; see docs/redis.md for what survives what"
    if is_synced:
        return fail(PERSISTENCE, "fsync=yes needs an append-only file, and there is none", remedy)
    if node.settings is None:
        return warn(PERSISTENCE, "no append-only file; its snapshots cannot be told", remedy)
    if not settings.get("save"):
        return fail(PERSISTENCE, "none: a restart of the server loses everything", remedy)
    if about.get("rdb_last_bgsave_status", "ok") != "ok":
        return fail(PERSISTENCE, "snapshots alone, and the last one failed", remedy)
    return warn(
        PERSISTENCE,
        f"snapshots alone (save {settings['save']}): a restart loses what came since",
        remedy,
    )


def _append_only(about: Mapping[str, str], settings: Mapping[str, str]) -> Check:
    policy = settings.get("appendfsync")
    if about.get("aof_last_write_status", "ok") != "ok":
        return fail(PERSISTENCE, "the last write to the append-only file failed", "see its disk")
    if policy == "no":
        return warn(
            PERSISTENCE,
            "an append-only file, synced when the system sees fit",
            "appendfsync everysec, or ?fsync=yes in the URL",
        )
    if policy == "everysec":
        return ok(PERSISTENCE, "an append-only file, synced every second; ?fsync=yes waits for it")
    if policy == "always":
        return ok(PERSISTENCE, "an append-only file, synced always")
    return info(PERSISTENCE, "an append-only file; when it is synced cannot be told")


def _eviction(node: NodeFacts) -> Check:
    policy = node.about.get("maxmemory_policy", "noeviction")
    limit = node.about.get("maxmemory", "0")
    bound = f"maxmemory {limit}" if limit != "0" else "no maxmemory"
    found = f"maxmemory-policy {policy}, {bound}"
    remedy = "maxmemory-policy noeviction, which refuses pushes instead"
    if policy == "noeviction":
        return ok(EVICTION, found)
    if limit != "0":
        return fail(EVICTION, f"{found}: messages are dropped; Segue refuses it", remedy)
    return warn(EVICTION, f"{found}: messages would be dropped once there is one", remedy)


def _cluster(node: NodeFacts, kind: str, masters: int) -> Check:
    is_enabled = node.about.get("cluster_enabled") == "1"
    if is_enabled and kind != "cluster":
        return fail(CLUSTER, "a node of a cluster, and the URL does not say so", "redis+cluster://")
    if not is_enabled:
        if kind == "cluster":
            return fail(CLUSTER, "no node of a cluster, and the URL says so", "redis://")
        return ok(CLUSTER, "none")
    if node.cluster_state != "ok":
        return fail(CLUSTER, f"its state is {node.cluster_state or 'unknown'}", "see CLUSTER INFO")
    return ok(CLUSTER, f"its state is ok, with {masters} masters")


def _clock(skew_ms: float) -> Check:
    found = (
        f"{round(skew_ms / 1000, 1) + 0.0:+.1f} s from ours; leases and delays go by the server's"
    )
    if abs(skew_ms) > SKEW_MS_MAX:
        return warn(CLOCK, found, "have both kept right: chrony, systemd-timesyncd")
    return ok(CLOCK, found)


def _store(facts: RedisFacts, known: int) -> Check:
    found = facts.format_found
    if facts.format_problem:
        return fail(STORE, f"it cannot be told: {facts.format_problem}", "see the lines above")
    if found is None:
        return info(STORE, "none in that namespace yet; the first push makes one")
    if found != str(known):
        return fail(STORE, f"format {found!r}, and this Segue knows {known}", "a newer Segue")
    return ok(STORE, f"a store of format {known}; 'segue verify' looks at its queues")
