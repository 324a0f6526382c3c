"""What is installed, what servers tell, and looks that fail or hang: facts to verdicts."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from segue.cli.doctor.check import Check, Verdict, fail, ok, warn, worst
from segue.cli.doctor.installed import (
    InstalledFacts,
    Part,
    extra_check,
    extras_from,
    installed_checks,
    look_at_installed,
)
from segue.cli.doctor.java import JavaFacts, java_check
from segue.cli.doctor.redis_verdicts import NodeFacts, RedisFacts, redis_checks
from segue.cli.doctor.running import NoAnswer, checks_of, within
from segue.cli.doctor.segue_server import ServerFacts, server_checks

OK, INFO, WARN, FAIL = Verdict.OK, Verdict.INFO, Verdict.WARN, Verdict.FAIL


def verdicts_of(checks: Iterable[Check]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in checks}


# Looks -------------------------------------------------------------------------------------


def test_a_look_that_fails_is_a_line() -> None:
    """Whatever went wrong, the rest is still told."""

    def look() -> Iterator[Check]:
        yield ok("first", "fine")
        raise ZeroDivisionError("in two\nlines")

    [check] = checks_of("name", look)

    assert (check.name, check.verdict) == ("name", FAIL)
    assert "in two lines" in check.found


def test_a_look_that_hangs_ends_in_time() -> None:
    """A file system or server that does not answer is what there is to tell."""
    never = threading.Event()
    [check] = checks_of("name", lambda: [ok("name", str(never.wait()))], seconds=0.01)
    with pytest.raises(NoAnswer, match="no answer within"):
        within(never.wait, seconds=0.01)
    never.set()

    assert check.verdict is FAIL
    assert "no answer within 0.01 s" in check.found


def test_the_worst_speaks_for_all() -> None:
    """Of equals the first."""
    checks = [ok("a", ""), warn("b", "", "x"), fail("c", "", "x"), fail("d", "", "x")]

    assert worst(checks).name == "c"


# What is installed -------------------------------------------------------------------------


def test_extras_are_what_the_package_says() -> None:
    """With the oldest version that will do; what everybody needs is no extra."""
    assert extras_from(
        [
            "isal>=1.7",
            'redis[hiredis]>=8.0; extra == "redis"',
            "pyspark==4.3.*; extra == 'spark'",
            'numpy; python_version > "3" and extra == "spark"',
            "???",
        ]
    ) == {"redis": [("redis", "8.0")], "spark": [("pyspark", "4.3"), ("numpy", "")]}


def part(name: str, least: str, found: str | None) -> Part:
    return Part(name=name, least=least, found=found)


@pytest.mark.parametrize(
    ("parts", "verdict", "word"),
    [
        ([part("redis", "8.0", "8.1.0")], OK, "redis 8.1.0"),
        ([part("redis", "8.0", "8")], OK, "redis 8"),
        ([part("redis", "8.0", "7.9")], WARN, "it takes redis 8.0"),
        ([part("redis", "8.0", "10.0rc1")], OK, "10.0rc1"),
        ([part("redis", "", "0.1")], OK, "0.1"),
        ([part("redis", "8.0", None)], INFO, "not installed"),
        ([part("a", "1", "2"), part("b", "1", None)], INFO, "a 2; without b"),
    ],
)
def test_extras(parts: list[Part], verdict: Verdict, word: str) -> None:
    """What is not installed is no fault, and how to install it is told."""
    check = extra_check("x", parts)

    assert check.verdict is verdict
    assert word in check.found
    assert (check.remedy is None) is (verdict is OK)


INSTALLED = InstalledFacts(
    segue="1.0",
    packaged="1.0",
    python="CPython 3.13.0",
    is_compiled=True,
    is_pure_wanted=False,
    has_isal=True,
    extras={},
)


@pytest.mark.parametrize(
    ("facts", "name", "verdict"),
    [
        (INSTALLED, "segue", OK),
        (INSTALLED, "python", OK),
        (INSTALLED, "hot path", OK),
        (INSTALLED, "checksum", OK),
        (replace(INSTALLED, packaged="0.9"), "segue", WARN),
        (replace(INSTALLED, packaged=None), "segue", WARN),
        (replace(INSTALLED, is_compiled=False), "hot path", WARN),
        (replace(INSTALLED, is_compiled=False, is_pure_wanted=True), "hot path", INFO),
        (replace(INSTALLED, has_isal=False), "checksum", WARN),
    ],
)
def test_installations(facts: InstalledFacts, name: str, verdict: Verdict) -> None:
    """What only makes it slower works, and is warned of."""
    assert verdicts_of(installed_checks(facts))[name] is verdict


def test_every_extra_of_this_installation_is_told() -> None:
    """By what the package itself says, not by a list that is forgotten."""
    assert {"columns", "http", "java", "metrics", "redis", "server", "spark", "tasks"} <= set(
        look_at_installed().extras
    )


# Java --------------------------------------------------------------------------------------

JAVA = JavaFacts(program="/j/bin/java", origin="PATH", said='openjdk version "17.0.15"', spark="4")


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (JAVA, OK),
        (replace(JAVA, said='openjdk version "25" 2025-09-16'), OK),
        (replace(JAVA, said='java version "1.8.0_402"'), WARN),
        (replace(JAVA, said='java version "1.8.0_402"', spark=None), INFO),
        (replace(JAVA, said='openjdk version "11.0.2"'), WARN),
        (replace(JAVA, said="no such thing"), WARN),
        (replace(JAVA, home="/wrong"), WARN),
        (replace(JAVA, home="/j", origin="JAVA_HOME"), OK),
        (JavaFacts(program=None, spark="4.3.0"), WARN),
        (JavaFacts(program=None), INFO),
    ],
)
def test_javas(facts: JavaFacts, verdict: Verdict) -> None:
    """Spark takes 17 or newer; who has no Spark needs none. Nothing of it fails."""
    assert java_check(facts).verdict is verdict


# Redis -------------------------------------------------------------------------------------

ABOUT = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "9.1.0",
    "role": "master",
    "loading": "0",
    "aof_enabled": "1",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "cluster_enabled": "0",
}
SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
NODE = NodeFacts(endpoint="a:1", about=ABOUT, settings=SETTINGS, skew_ms=1.0, took_ms=(0.2,))


def said(**changes: str) -> NodeFacts:
    return replace(NODE, about={**ABOUT, **changes})


def told(*nodes: NodeFacts, kind: str = "single", **changes: object) -> dict[str, Check]:
    facts = RedisFacts(url="redis://h", kind=kind, nodes=nodes, format_found="1")
    changed = replace(facts, **changes)  # type: ignore[arg-type]
    return {check.name: check for check in redis_checks(changed, major_min=7, format_known=1)}


def test_a_server_as_it_should_be_is_in_order() -> None:
    """Every line of it."""
    assert {check.verdict for check in told(NODE).values()} == {OK}


@pytest.mark.parametrize(
    ("node", "name", "verdict"),
    [
        (said(redis_version="6.2.14"), "redis version", FAIL),
        (said(redis_version="?"), "redis version", FAIL),
        (said(role="slave"), "redis", FAIL),
        (said(loading="1"), "redis", FAIL),
        (replace(NODE, took_ms=(70.0, 90.0)), "redis", WARN),
        (said(maxmemory="100", maxmemory_policy="allkeys-lru"), "redis eviction", FAIL),
        (said(maxmemory_policy="allkeys-lru"), "redis eviction", WARN),
        (said(maxmemory="100"), "redis eviction", OK),
        (said(aof_enabled="0"), "redis persistence", FAIL),
        (
            replace(said(aof_enabled="0"), settings={"save": "3600 1"}),
            "redis persistence",
            WARN,
        ),
        (
            replace(
                said(aof_enabled="0", rdb_last_bgsave_status="err"), settings={"save": "3600 1"}
            ),
            "redis persistence",
            FAIL,
        ),
        (replace(said(aof_enabled="0"), settings=None), "redis persistence", WARN),
        (said(aof_last_write_status="err"), "redis persistence", FAIL),
        (replace(NODE, settings={"appendfsync": "no"}), "redis persistence", WARN),
        (replace(NODE, settings={"appendfsync": "always"}), "redis persistence", OK),
        (replace(NODE, settings=None), "redis persistence", INFO),
        (replace(NODE, functions_problem="NOPERM"), "redis functions", FAIL),
        (said(cluster_enabled="1"), "redis cluster", FAIL),
        (replace(NODE, skew_ms=-1_500.0), "redis clock", WARN),
    ],
)
def test_settings_of_a_server(node: NodeFacts, name: str, verdict: Verdict) -> None:
    """What loses messages fails; what may lose the newest, or is not known, does not."""
    checks = told(node)

    assert checks[name].verdict is verdict
    assert bool(checks[name].remedy) is (verdict in (WARN, FAIL))


def test_what_a_url_asks_for_must_be_there() -> None:
    """A store that waits for syncs is refused by a server that does none."""
    node = replace(said(aof_enabled="0"), settings={"save": "3600 1"})

    assert told(node, is_synced=True)["redis persistence"].verdict is FAIL


@pytest.mark.parametrize(
    ("state", "enabled", "verdict"),
    [("ok", "1", OK), ("fail", "1", FAIL), ("", "1", FAIL), ("", "0", FAIL)],
)
def test_a_cluster_is_what_its_nodes_say(state: str, enabled: str, verdict: Verdict) -> None:
    """A URL of a cluster needs one, in order."""
    node = replace(said(cluster_enabled=enabled), cluster_state=state)

    assert told(node, kind="cluster")["redis cluster"].verdict is verdict


def test_of_several_nodes_the_worst_is_told() -> None:
    """By its name: the others are in order."""
    bad = replace(said(aof_enabled="0"), endpoint="b:2")
    check = told(NODE, bad, NODE)["redis persistence"]

    assert check.verdict is FAIL
    assert check.found.startswith("b:2: ")


@pytest.mark.parametrize(("found", "verdict"), [("1", OK), ("2", FAIL), (None, INFO)])
def test_a_store_on_a_server_has_a_format(found: str | None, verdict: Verdict) -> None:
    """One that is not there yet is no fault."""
    assert told(NODE, format_found=found)["redis store"].verdict is verdict


def test_a_store_that_cannot_be_read_hides_nothing_of_its_server() -> None:
    """As on a node of a cluster that is asked for the key of another."""
    checks = told(NODE, format_problem="MOVED")

    assert checks["redis store"].verdict is FAIL
    assert checks["redis version"].verdict is OK


def test_a_server_that_does_not_answer_is_one_line() -> None:
    """There is nothing else to say of it."""
    assert verdicts_of(told(problem="refused").values()) == {"redis": FAIL}


# A Segue server ----------------------------------------------------------------------------

SERVER = ServerFacts(
    url="http://h:1",
    about={"server": "segue", "version": "1.0", "api": 3, "store": "file", "durable": "always"},
    health={"status": "ok"},
    took_ms=(1.0, 2.0, 30.0),
)


def server_said(**changes: object) -> ServerFacts:
    return replace(SERVER, about={**(SERVER.about or {}), **changes})


@pytest.mark.parametrize(
    ("facts", "name", "verdict"),
    [
        (SERVER, "server", OK),
        (SERVER, "server version", OK),
        (SERVER, "server latency", OK),
        (SERVER, "server durability", OK),
        (replace(SERVER, problem="refused"), "server", FAIL),
        (replace(SERVER, health=None), "server", FAIL),
        (replace(SERVER, health={"status": "stuck", "reason": "x"}), "server", FAIL),
        (replace(SERVER, took_ms=(400.0, 500.0)), "server latency", WARN),
        (replace(SERVER, took_ms=()), "server latency", INFO),
        (server_said(version="0.9"), "server version", WARN),
        (server_said(api=2), "server version", FAIL),
        (server_said(api=4), "server version", OK),
        (server_said(server="nginx"), "server version", FAIL),
        (replace(SERVER, about=None), "server version", FAIL),
        (replace(SERVER, about=None, status=401), "server version", FAIL),
        (server_said(durable="os"), "server durability", WARN),
        (server_said(durable="interval"), "server durability", INFO),
        (server_said(durable="redis"), "server durability", INFO),
    ],
)
def test_servers(facts: ServerFacts, name: str, verdict: Verdict) -> None:
    """One that is too old, or somebody else, fails; one of another version works."""
    checks = server_checks(facts, version="1.0", api=3)

    assert verdicts_of(checks)[name] is verdict
