"""The command line on a server: every verb on stores says of it what it says of a directory."""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from segue.cli import places
from segue.cli.exits import ExitCode
from tests.integration.cli_support import Answer, ask, fast_command, fill
from tests.integration.server_support import Failures
from tests.ports import free_port
from tests.redis_cluster import LASTING, RedisCluster
from tests.redis_sentinel import LASTING_MS, RedisSentinels
from tests.redis_server import LOOPBACK, RedisServer, shared_server
from tests.waiting import LIMIT_SECONDS

PASSWORD: Final = "open-sesame"
Words = tuple[str, ...]

_RECEIPT: Final = re.compile(r"(\d+-\d+)/\d+")
# What is never the same twice, or is the store's own business: times, what is left of them, sizes.
_VOLATILE: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r'("\w*seconds\w*": )[\d.]+'), r"\1SECONDS"),
    (re.compile(r'("\w*bytes": )\d+'), r"\1BYTES"),
    (re.compile(r'("(?:owner|worker)": )"[^"]*"'), r"\1WHO"),
    (re.compile(r'("segments": )\d+'), r"\1SEGMENTS"),
    (_RECEIPT, r"\1/TOKEN"),
    (re.compile(r'("token": )\d+'), r"\1TOKEN"),
)

_numbers = count()


@pytest.fixture
def url() -> Iterator[str]:
    """A namespace of its own, empty again when the test is over."""
    namespace = f"cli-{secrets.token_hex(8)}"
    yield f"{shared_server().url}?namespace={namespace}"
    with shared_server().client() as client:
        for key in client.scan_iter(f"{namespace}:*", count=10_000):
            client.unlink(key)


@pytest.fixture
def directory(scratch: Path) -> str:
    """Where a store is, or will be, that is a directory."""
    return str(scratch / "data")


def done(*words: str | Path, stdin: bytes = b"") -> Answer:
    """Run a command that must succeed."""
    answer = ask(*words, stdin=stdin)
    assert (answer.code, answer.err) == (0, ""), words
    return answer


def lasting(text: str, store: str) -> str:
    """Return what a command says, without what is another thing each time."""
    text = text.replace(store, "STORE").replace(store.partition("?")[0], "STORE")
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return text


def told(store: str, script: list[Words], stdin: bytes = b"") -> list[tuple[Words, int, str, str]]:
    """Run commands and return all that they say.

    STORE is the store, and @0-1 the receipt of message 0-1 as it was printed last.
    """
    known = {"STORE": store}
    said = []
    for words in script:
        answer = ask(*(known.get(word, word) for word in words), stdin=stdin)
        assert not re.search("no such option|unexpected", answer.err, re.IGNORECASE), answer.err
        known |= {f"@{found[1]}": found[0] for found in _RECEIPT.finditer(answer.out.decode())}
        out = lasting(answer.out.decode(), store)
        said.append((words, int(answer.code), out, lasting(answer.err, store)))
    return said


# The same as of a directory ----------------------------------------------------------------

QUEUES: Final[list[Words]] = [
    ("queue", "ls", "STORE", "--json"),
    ("queue", "pop", "STORE", "jobs"),
    ("queue", "push", "STORE", "jobs", "one", "two", "three", "--json"),
    ("queue", "push", "STORE", "jobs", "now", "--priority", "2", "--header", "kind=a"),
    ("queue", "push", "STORE", "jobs", "later", "--delay", "1h"),
    ("queue", "push", "STORE", "jobs", "once", "--key", "k"),
    ("queue", "push", "STORE", "jobs", "once", "--key", "k"),
    ("queue", "push", "STORE", "jobs", "--lines"),
    ("queue", "history", "STORE", "jobs", "--ids"),
    ("queue", "ls", "STORE", "--json"),
    ("queue", "stats", "STORE", "jobs", "--json"),
    ("queue", "peek", "STORE", "jobs", "-n", "9", "--ids"),
    ("queue", "peek", "STORE", "jobs", "-n", "2", "--json"),
    ("queue", "pop", "STORE", "jobs", "--json"),
    ("queue", "lease", "STORE", "jobs", "-n", "2", "--ttl", "1h", "--owner", "ada"),
    ("queue", "lease", "STORE", "jobs", "--ttl", "1h", "--owner", "bob", "--json"),
    ("queue", "extend", "STORE", "jobs", "@0-1", "--ttl", "2h", "--json"),
    ("queue", "ack", "STORE", "jobs", "@0-1"),
    ("queue", "ack", "STORE", "jobs", "@0-1", "--json"),
    ("queue", "nack", "STORE", "jobs", "@0-2", "--outcome", "dead", "--reason", "no good"),
    ("queue", "show", "STORE", "jobs", "0-2", "--json"),
    ("queue", "show", "STORE", "jobs", "0-3", "--json"),
    ("queue", "show", "STORE", "jobs", "9-9"),
    ("queue", "browse", "STORE", "jobs", "--json"),
    ("queue", "browse", "STORE", "jobs", "--state", "dead"),
    ("queue", "dead", "STORE", "jobs", "--json"),
    ("queue", "redrive", "STORE", "jobs", "--json"),
    ("queue", "lease", "STORE", "jobs", "--ttl", "1h"),
    ("queue", "nack", "STORE", "jobs", "@0-2", "--outcome", "dead", "--json"),
    ("queue", "lease", "STORE", "jobs", "--ttl", "1h"),
    ("queue", "nack", "STORE", "jobs", "@0-4", "--outcome", "fail", "--delay", "1h", "--json"),
    ("queue", "browse", "STORE", "jobs", "--json"),
    ("queue", "show", "STORE", "jobs", "0-4", "--json"),
    ("queue", "discard", "STORE", "jobs", "--yes", "--json"),
    ("queue", "dead", "STORE", "jobs"),
    ("queue", "rules", "STORE", "jobs", "--capacity", "100", "--json"),
    ("queue", "rules", "STORE", "jobs"),
    ("queue", "pause", "STORE", "jobs"),
    ("queue", "pop", "STORE", "jobs"),
    ("queue", "resume", "STORE", "jobs", "--json"),
    ("queue", "state", "STORE", "jobs"),
    ("queue", "replay", "STORE", "jobs", "--priority", "2"),
    ("export", "STORE", "jobs"),
    ("queue", "purge", "STORE", "jobs"),
    ("queue", "purge", "STORE", "jobs", "--yes", "--json"),
    ("queue", "stats", "STORE", "jobs", "--json"),
    ("queue", "rm", "STORE", "jobs", "--yes"),
    ("queue", "ls", "STORE", "--json"),
    ("queue", "stats", "STORE", "jobs"),
]
RINGS: Final[list[Words]] = [
    (
        "ring",
        "create",
        "STORE",
        "events",
        "--capacity",
        "4",
        "--entries-per-segment",
        "4",
        "--json",
    ),
    ("ring", "enqueue", "STORE", "events", "one", "two", "three"),
    ("ring", "ls", "STORE", "--json"),
    ("ring", "groups", "STORE", "events", "--add", "audit", "--json"),
    ("ring", "enqueue", "STORE", "events", "four", "--json"),
    ("ring", "enqueue", "STORE", "events", "five"),
    ("ring", "enqueue", "STORE", "events", "five", "--overwrite-if-full", "--txn", "t1"),
    ("ring", "outcome", "STORE", "events", "t1", "--json"),
    ("ring", "outcome", "STORE", "events", "t2"),
    ("ring", "dequeue", "STORE", "events", "-n", "2"),
    ("ring", "dequeue", "STORE", "events", "--group", "audit", "--json"),
    ("ring", "get", "STORE", "events", "2"),
    ("ring", "get", "STORE", "events", "77"),
    ("ring", "info", "STORE", "events", "--json"),
    ("ring", "groups", "STORE", "events"),
    ("ring", "groups", "STORE", "events", "--remove", "audit"),
    ("ring", "create", "STORE", "events", "--capacity", "8"),
    ("ring", "info", "STORE", "nowhere"),
]
LOCKS: Final[list[Words]] = [
    ("lock", "run", "STORE", "nightly", "--", "true"),
    ("lock", "run", "STORE", "nightly", "--", "false"),
    ("lock", "ls", "STORE"),
    ("lock", "show", "STORE", "nightly", "--json"),
    ("lock", "show", "STORE", "never"),
]
TOPICS: Final[list[Words]] = [
    ("topic", "create", "STORE", "orders", "--partitions", "2", "--keep", "7d", "--json"),
    ("topic", "append", "STORE", "orders", "--partition", "1", "--json"),
    ("topic", "append", "STORE", "orders", "--partition", "1"),
    ("topic", "ls", "STORE", "--json"),
    ("topic", "info", "STORE", "orders", "--json"),
    ("topic", "cat", "STORE", "orders"),
    ("topic", "cat", "STORE", "orders", "--json", "--limit", "2"),
    ("topic", "tail", "STORE", "orders", "-n", "2", "--no-follow"),
    ("topic", "tail", "STORE", "orders", "--reader", "audit", "--no-follow", "--limit", "3"),
    ("topic", "readers", "STORE", "orders", "--json"),
    ("topic", "lag", "STORE", "orders", "--json"),
    ("topic", "seek", "STORE", "orders", "--reader", "audit", "--to", "earliest"),
    ("topic", "lag", "STORE", "orders", "--json"),
    ("topic", "seek", "STORE", "orders", "--group", "mail", "--to", "1:2", "--create", "--json"),
    ("topic", "groups", "STORE", "orders", "--json"),
    ("topic", "compact", "STORE", "orders", "--json"),
    ("topic", "clean", "STORE", "orders", "--yes", "--json"),
    ("topic", "create", "STORE", "orders", "--partitions", "3", "--grow"),
    ("topic", "cat", "STORE", "nowhere"),
]


@pytest.mark.parametrize(
    "script", [QUEUES, RINGS, LOCKS, TOPICS], ids=["queue", "ring", "lock", "topic"]
)
def test_a_server_and_a_directory_are_told_of_in_the_same_words(
    url: str, directory: str, script: list[Words]
) -> None:
    """Output, JSON, errors and exit codes: who reads them need not know what the store is."""
    done("queue", "push", directory, "other", "x")
    done("queue", "push", url, "other", "x")

    found = told(url, script, stdin=b"a\nb\n")
    for expected, answer in zip(told(directory, script, stdin=b"a\nb\n"), found, strict=True):
        assert answer == expected


def test_the_state_of_a_queue_is_the_same_byte_for_byte(url: str, directory: str) -> None:
    """After the same pushes and pops, whatever holds the messages."""
    states = []
    for store in (directory, url):
        done("queue", "rules", store, "mail", "--segment-items", "5")
        for priority in ("0", "2", "1"):
            lines = "\n".join(f'{{"number": {number}}}' for number in range(13)).encode()
            done("queue", "push", store, "mail", "--lines", "--priority", priority, stdin=lines)
        done("queue", "pop", store, "mail", "-n", "17")
        receipt = done("queue", "lease", store, "mail", "--ttl", "1h").fields[0][0]
        done("queue", "push", store, "mail", "\u2603", "--priority", "0")
        done("queue", "ack", store, "mail", receipt)
        states.append(done("queue", "state", store, "mail").out)

    assert states[0] == states[1]
    assert json.loads(states[0])["metadata"]


def test_a_queue_moves_from_a_directory_to_a_server(url: str, directory: str) -> None:
    """By export and import, priorities and order kept."""
    done("queue", "push", directory, "mail", "one", "two")
    done("queue", "push", directory, "mail", "now", "--priority", "0")
    state = done("export", directory, "mail").out
    report = ask("import", url, "mail", "-", "--json", stdin=state).json

    assert report["pushed"] == 3
    assert done("queue", "pop", url, "mail", "-n", "9").out == (
        done("queue", "pop", directory, "mail", "-n", "9").out
    )


# The store as a whole ----------------------------------------------------------------------


def test_ls_lists_everything_on_a_server(url: str) -> None:
    """Queues, topics, rings and locks, each line beginning with what it is."""
    done("queue", "push", url, "jobs", "x")
    done("topic", "append", url, "orders", stdin=b"x\n")
    done("ring", "create", url, "events", "--capacity", "4")
    done("lock", "run", url, "nightly", "--", "true")

    assert [row[:2] for row in done("ls", url).fields] == [
        ["queue", "jobs"],
        ["topic", "orders"],
        ["ring", "events"],
        ["lock", "nightly"],
    ]
    assert list(done("ls", url, "--json").json) == ["queues", "topics", "rings", "locks"]


def test_info_says_what_the_server_is_and_how_much_is_on_it(url: str) -> None:
    """Which server, which version, how it is reached, and which part of it is ours."""
    done("queue", "push", url, "jobs", "x")
    done("ring", "create", url, "events", "--capacity", "4")
    found = done("info", url, "--json").json
    version = shared_server().facts("server")

    assert found == {
        "url": url,
        "kind": "single",
        "server": version.get("server_name", "redis"),
        "version": str(version.get("valkey_version", version["redis_version"])),
        "nodes": 1,
        "namespace": url.partition("=")[2],
        "queues": 1,
        "topics": 0,
        "rings": 1,
        "locks": 0,
    }
    assert ["namespace", url.partition("=")[2]] in done("info", url).fields


def test_verify_checks_the_queues_of_a_server(url: str, tmp_path: Path) -> None:
    """Beside logs in directories, in one go."""
    done("queue", "push", url, "jobs", "x", "y")
    done("queue", "pop", url, "jobs")
    log = fill(tmp_path / "log", b"x")

    assert done("verify", url).fields == [["queue", url, "jobs", "intact", "0"]]
    assert list(done("verify", log, url, "--json").json) == ["logs", "queues", "damage"]
    assert list(done("verify", log, "--json").json) == ["logs", "damage"]


def test_verify_ends_with_damage_where_a_queue_contradicts_itself(url: str) -> None:
    """With exit code 1 and a line for each thing found, as of logs."""
    done("queue", "push", url, "jobs", "x", "y")
    done("queue", "push", url, "other", "x")
    namespace = url.partition("=")[2]
    with shared_server().client() as client:
        assert client.delete(f"{namespace}:{{queue:jobs}}:lanes")
    answer = ask("verify", url)
    first, second, *damage = answer.fields

    assert (answer.code, answer.err) == (ExitCode.DAMAGE_FOUND, "")
    assert first == ["queue", url, "jobs", "damaged", str(len(damage))]
    assert second == ["queue", url, "other", "intact", "0"]
    assert [row[:5] for row in damage] == [["damage", f"{url} jobs", "-", "-", "-"]] * len(damage)
    assert all(row[5] for row in damage)


# Tasks -------------------------------------------------------------------------------------

APP: Final = """
from segue.tasks import App, current

app = App({url!r}, retries=0)

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def fail(why: str) -> None:
    raise ValueError(f"no good: {{why}}")

@app.task(schedule="0 3 * * * Europe/Berlin")
def nightly() -> str:
    return "done"
"""

MakeShop = Callable[[str], str]


@pytest.fixture
def make_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShop]:
    """Make an App on a store, and say where it is."""
    modules: list[str] = []

    def make(url: str) -> str:
        module = f"redis_shop_of_test_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(APP.format(url=url))
        modules.append(module)
        return f"{module}:app"

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield make
    for module in modules:
        sys.modules.pop(module, None)


def test_tasks_run_on_a_server(url: str, make_shop: MakeShop) -> None:
    """Queued by an App or by the store alone, run by workers, looked at, and brought back."""
    shop = make_shop(url)
    by_app = done("task", "enqueue", shop, "add", "[1, 2]").lines[0]
    by_store = done("task", "enqueue", url, "fail", '{"why": "rain"}').lines[0]
    first = ask("worker", shop, "--burst", "--max", "2", "--json")
    listed = done("task", "ls", url).fields
    shown = done("task", "show", url, by_app, "--json").json
    dead = done("task", "show", url, by_store, "--json").json
    again = done("task", "retry", url, by_store, "--json")
    second = ask("worker", shop, "--burst", "--kind", "process")

    assert (first.code, first.json["completed"], first.json["dead"]) == (0, 1, 1)
    assert f"store {url}" in first.err
    assert {row[0] for row in listed} == {by_app, by_store}
    assert (shown["state"], shown["result"]) == ("completed", 3)
    assert (dead["state"], dead["error"]) == ("dead_letter", "ValueError: no good: rain")
    assert again.code == second.code == 0


def test_whoever_waits_for_a_task_on_a_server_is_told_how_it_ends(
    url: str, make_shop: MakeShop
) -> None:
    """The result, a failure, or that there was none in time."""
    shop = make_shop(url)
    waiting = subprocess.Popen(
        [fast_command(), "worker", shop, "--max", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with waiting:
        try:
            result = done("task", "enqueue", shop, "add", "[20, 22]", "--wait", f"{LIMIT_SECONDS}s")
            failed = ask("task", "enqueue", url, "fail", '["snow"]', "--wait", f"{LIMIT_SECONDS}s")
        finally:
            waiting.terminate()
            _, err = waiting.communicate(timeout=LIMIT_SECONDS)
    late = ask("task", "enqueue", url, "add", "[1, 1]", "--wait", "10ms")
    cancelled = done("task", "cancel", url, done("task", "ls", url).fields[0][0], "--json").json

    assert (waiting.returncode, b"Traceback" in err) == (0, False)
    assert (result.lines, failed.code) == (["42"], ExitCode.TASK_FAILED)
    assert late.code == ExitCode.TASK_UNFINISHED
    assert cancelled


def test_schedules_and_workers_on_a_server_are_seen(url: str, make_shop: MakeShop) -> None:
    """When they fire, fired by hand, and forgotten; `top` has its frame of them."""
    shop = make_shop(url)
    assert ask("worker", shop, "--burst").code == 0
    listed = done("schedule", "ls", url, "--json").json
    fired = done("schedule", "run", url, "nightly").lines[0]
    top = done("top", url, "--once", "--every", "100ms", "--json").json
    gone = done("schedule", "rm", url, "nightly")

    (row,) = json.loads(json.dumps(listed["schedules"]))
    assert (row["schedule"], fired.partition("/")[0]) == ("nightly", "default")
    assert (top["store"], top["ready"], top["safe_to_stop"]) == (url, 1, True)
    assert gone.code == 0
    assert ask("schedule", "run", url, "nightly").code == ExitCode.NOT_FOUND


def test_a_worker_may_be_given_the_store_of_a_server(
    url: str, directory: str, make_shop: MakeShop
) -> None:
    """In place of the one that its App has."""
    shop = make_shop(directory)
    done("queue", "push", url, "other", "x")
    task_id = done("task", "enqueue", url, "add", "[2, 2]").lines[0]
    assert ask("worker", shop, "--burst", "--store", url).code == 0

    assert done("task", "show", url, task_id, "--json").json["result"] == 4
    assert not Path(directory).exists()


# Every way to name a server ----------------------------------------------------------------


@contextmanager
def _cluster(place: Path) -> Iterator[str]:
    with RedisCluster(place, LASTING) as cluster:
        yield cluster.url


@contextmanager
def _sentinel(place: Path) -> Iterator[str]:
    with RedisSentinels(place, down_after_ms=LASTING_MS) as sentinels:
        yield sentinels.url


@contextmanager
def _unix(place: Path) -> Iterator[str]:
    with RedisServer(place, {"unixsocket": str(place / "server.sock")}):
        yield f"unix://{place}/server.sock"


SERVERS: Final = {"cluster": (_cluster, 3), "sentinel": (_sentinel, 1), "unix": (_unix, 1)}


@pytest.mark.parametrize("kind", SERVERS)
def test_every_kind_of_server_is_a_store(kind: str, scratch: Path, make_shop: MakeShop) -> None:
    """Queues, topics, locks and tasks; and `info` says which kind it is."""
    opened, nodes = SERVERS[kind]
    with opened(scratch / "server") as url:
        done("queue", "push", url, "jobs", "x", "y")
        done("topic", "append", url, "orders", stdin=b"x\n")
        done("ring", "create", url, "events", "--capacity", "4")
        locked = ask("lock", "run", url, "nightly", "--", "true")
        shop = make_shop(url)
        task_id = done("task", "enqueue", shop, "add", "[1, 2]").lines[0]
        worked = ask("worker", shop, "--burst")
        info = done("info", url, "--json").json

        assert done("queue", "pop", url, "jobs").lines == ["x"]
        assert done("topic", "cat", url, "orders").lines == ["x"]
        assert (locked.code, worked.code) == (0, 0)
        assert done("task", "show", url, task_id, "--json").json["result"] == 3
        assert {row[3] for row in done("verify", url).fields} == {"intact"}
        assert (info["url"], info["kind"], info["nodes"]) == (url, kind, nodes)


# Errors ------------------------------------------------------------------------------------


def refused(*words: str | Path) -> Answer:
    """Run a command that must end with one line on standard error, and nothing else."""
    answer = ask(*words, stdin=b"x\n")
    assert (answer.out, len(answer.err.splitlines())) == (b"", 1), words
    assert "Traceback" not in answer.err
    return answer


UNREACHABLE: Final = [
    ("redis://{login}{host}:{port}/0?retry=0.05", "refused"),
    ("redis+cluster://{login}{host}:{port}?retry=0.05", "refused"),
    ("redis+sentinel://{login}{host}:{port}/main?retry=0.05", "refused"),
    ("unix://{login}/nowhere/redis.sock?retry=0.05", "No such file"),
    ("redis://{login}no-such-host.invalid?retry=0.05", "no-such-host"),
]


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "push", "STORE", "jobs", "x"),
        ("ls", "STORE"),
        ("info", "STORE"),
        ("verify", "STORE"),
        ("task", "ls", "STORE"),
        ("top", "STORE", "--once"),
    ],
    ids=" ".join,
)
def test_a_server_that_cannot_be_reached_is_one_line(words: Words) -> None:
    """With the exit code of storage that refuses, and without the password."""
    failures = Failures()
    for template, said in UNREACHABLE:
        url = template.format(login=f"ada:{PASSWORD}@", host=LOOPBACK, port=free_port())
        with failures.case(template):
            answer = refused(*(url if word == "STORE" else word for word in words))
            assert (answer.code, said in answer.err) == (ExitCode.STORAGE, True), answer.err
            assert PASSWORD not in answer.err

    failures.check()


def test_workers_and_apps_say_that_their_server_cannot_be_reached(make_shop: MakeShop) -> None:
    """A worker that cannot even begin ends; one that is at work waits for it."""
    url = f"redis://:{PASSWORD}@{LOOPBACK}:{free_port()}?retry=0.05"
    shop = make_shop(url)
    answers = [ask("worker", shop), ask("task", "enqueue", shop, "add", "[1, 2]")]

    for answer in answers:
        assert answer.code == ExitCode.STORAGE
        assert "refused" in answer.err.splitlines()[-1]
        assert PASSWORD not in answer.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://ada:open-sesame@host", "no store speaks ftp://"),
        ("redis://:open-sesame@host?colour=blue", "colour"),
        ("redis://:open-sesame@host?retry=soon", "retry"),
        ("redis://:open-sesame@host/zero", "database"),
        ("redis://:open-sesame@host:port", "port"),
        ("redis+sentinel://:open-sesame@host", "service"),
        ("redis+cluster://:open-sesame@host/3", "cluster"),
        ("unix://:open-sesame@", "socket"),
        ("redis://:open-sesame@host?namespace=a/b", "a/b"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_wrong_argument(url: str, said: str) -> None:
    """Whatever is wrong with it is said, and the password is not."""
    answer = refused("queue", "push", url, "jobs", "x")

    assert (answer.code, said in answer.err) == (ExitCode.USAGE, True), answer.err
    assert PASSWORD not in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("append", "STORE"),
        ("cat", "STORE"),
        ("tail", "STORE", "--no-follow"),
        ("repair", "STORE", "--yes"),
        ("bench", "STORE"),
        ("topic", "files", "STORE", "orders"),
        ("spark", "audit", "STORE"),
    ],
    ids=" ".join,
)
def test_what_works_on_files_refuses_a_server(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, without asking it, and without making a directory of that name."""
    monkeypatch.chdir(tmp_path)
    url = f"redis://:{PASSWORD}@{LOOPBACK}:1/0"
    answer = refused(*(url if word == "STORE" else word for word in words))

    assert answer.code == ExitCode.USAGE
    assert f"redis://{LOOPBACK}:1/0 is a server; this works on directories only" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_not_made_by_looking(url: str) -> None:
    """As with directories: a typo makes nothing."""
    for words in (("queue", "ls"), ("info",), ("ls",), ("verify",), ("task", "ls")):
        assert refused(*words, url).code == ExitCode.NOT_FOUND
    done("queue", "push", url, "jobs", "x")
    assert refused("queue", "pop", url, "jbos").code == ExitCode.NOT_FOUND

    assert done("queue", "ls", url).fields[0][0] == "jobs"


def test_passwords_let_us_in_and_are_never_shown(
    tmp_path: Path, make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in answers, nor in errors, nor where a URL is in the wrong place."""
    monkeypatch.chdir(tmp_path)
    with RedisServer(tmp_path / "server", {"requirepass": PASSWORD}) as server:
        url = f"redis://:{PASSWORD}@{LOOPBACK}:{server.port}/0?retry=0.05"
        wrong = url.replace(f":{PASSWORD}@", f":{PASSWORD}-not@")
        answers = [
            ask("queue", "push", url, "jobs", "x", "--json"),
            ask("info", url),
            ask("ls", url, "--json"),
            ask("top", url, "--once", "--every", "100ms", "--json"),
            ask("worker", make_shop(url), "--burst"),
            ask("queue", "pop", wrong, "jobs"),
            ask("queue", "pop", url, "jbos"),
            ask("queue", "pop", "data", "jobs", url),
            ask("task", "enqueue", url, "add", url),
        ]

    assert [answer.code for answer in answers] == [0, 0, 0, 0, 0, 5, 3, 2, 2]
    assert all(PASSWORD.encode() not in answer.out for answer in answers)
    assert all(PASSWORD not in answer.err for answer in answers)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://host", "redis://host"),
        ("redis://:pw@host/0", "redis://host/0"),
        ("redis://ada:pw@host", "redis://ada@host"),
        ("redis://ada:p@w@host", "redis://ada@host"),
        ("redis://ada:p/w@host", "redis://ada@host"),
        ("from redis://:a@b to rediss://c:d@e.", "from redis://b to rediss://c@e."),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis+cluster://:pw@a:1,b:2", "redis+cluster://a:1,b:2"),
        ("no URL: a:b@c", "no URL: a:b@c"),
    ],
)
def test_a_text_is_shown_without_its_passwords(text: str, shown: str) -> None:
    """Whatever else is in it stays."""
    assert places.without_passwords(text) == shown


def test_a_directory_may_be_given_as_a_url(tmp_path: Path) -> None:
    """As `segue.open` takes it; also where it is a log."""
    done("queue", "push", f"file://{tmp_path}/data", "jobs", "x")
    log = fill(tmp_path / "log", b"record")

    assert done("queue", "pop", tmp_path / "data", "jobs").lines == ["x"]
    assert done("cat", f"file://{log}").lines == ["record"]


def test_help_and_directories_do_without_the_client_of_the_server(tmp_path: Path) -> None:
    """Importing it takes longer than most commands."""
    code = (
        "import sys; from segue.cli import main; "
        "main(['queue', 'push', '--help']); main(['queue', 'push', sys.argv[1], 'jobs', 'x']); "
        "assert 'redis' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        check=True,
        timeout=LIMIT_SECONDS,
        stdout=subprocess.DEVNULL,
    )
