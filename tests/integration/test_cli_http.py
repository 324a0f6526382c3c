"""The command line on a Segue server: it says of it what it says of a directory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from segue import __version__
from segue.cli.exits import ExitCode
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.server.tokens import add_token, make_token
from segue.stores.opening import TOKEN_VARIABLE, open_directory
from tests.integration.cli_support import ask, fast_command, fill
from tests.integration.test_cli_redis import (
    APP,
    LOCKS,
    QUEUES,
    RINGS,
    TOPICS,
    Words,
    done,
    refused,
    told,
)
from tests.ports import free_port
from tests.redis_server import LOOPBACK
from tests.waiting import LIMIT_SECONDS

UNREACHABLE: Final = "http://{host}:{port}?retry=0.05"


@pytest.fixture(autouse=True)
def _without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture
def url(scratch: Path) -> Iterator[str]:
    """A server in front of a directory of its own."""
    with (
        open_directory(scratch / "behind", sync="os") as store,
        ServerThread(build_app(store, has_audit=False)) as server,
    ):
        yield server.url


@pytest.fixture
def directory(scratch: Path) -> str:
    """Where a store is, or will be, that is a directory."""
    return str(scratch / "data")


# The same as of a directory ----------------------------------------------------------------


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


def test_ls_lists_everything_behind_a_server(url: str) -> None:
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


def test_info_says_what_the_server_is_and_what_is_behind_it(url: str) -> None:
    """Which version, which kind of store, how durable it is, and how much there is."""
    done("queue", "push", url, "jobs", "x")
    done("ring", "create", url, "events", "--capacity", "4")

    assert done("info", url, "--json").json == {
        "url": url,
        "server": "segue",
        "version": __version__,
        "api": 1,
        "store": "directory",
        "durable": "os",
        "queues": 1,
        "topics": 0,
        "rings": 1,
        "locks": 0,
    }


def test_verify_refuses_a_server_before_it_checks_anything(url: str, tmp_path: Path) -> None:
    """What can be checked is the store behind it, where it lies; that is what it says."""
    log = fill(tmp_path / "log", b"x")
    answer = refused("verify", log, url)

    assert answer.code == ExitCode.USAGE
    assert "check the store behind it where it lies" in answer.err


# Tasks -------------------------------------------------------------------------------------


@pytest.fixture
def shop(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An App whose store is behind the server."""
    module = "http_shop_of_test"
    (tmp_path / f"{module}.py").write_text(APP.format(url=url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{module}:app"
    sys.modules.pop(module, None)


def test_tasks_run_through_a_server(url: str, shop: str) -> None:
    """Queued by an App or by the store alone, run by workers, looked at, and brought back."""
    by_app = done("task", "enqueue", shop, "add", "[1, 2]").lines[0]
    by_store = done("task", "enqueue", url, "fail", '{"why": "rain"}').lines[0]
    first = ask("worker", shop, "--burst", "--max", "2", "--json")
    listed = done("task", "ls", url).fields
    shown = done("task", "show", url, by_app, "--json").json
    dead = done("task", "show", url, by_store, "--json").json
    again = done("task", "retry", url, by_store, "--json")

    assert (first.code, first.json["completed"], first.json["dead"]) == (0, 1, 1)
    assert {row[0] for row in listed} == {by_app, by_store}
    assert (shown["state"], shown["result"]) == ("completed", 3)
    assert (dead["state"], dead["error"]) == ("dead_letter", "ValueError: no good: rain")
    assert again.code == 0


def test_a_worker_in_a_process_of_its_own_works_through_a_server(url: str, shop: str) -> None:
    """Whoever waits for the result is told it; the worker ends when it is told to."""
    worker = subprocess.Popen(
        [fast_command(), "worker", shop, "--max", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with worker:
        try:
            result = done("task", "enqueue", shop, "add", "[20, 22]", "--wait", f"{LIMIT_SECONDS}s")
        finally:
            worker.terminate()
            _, err = worker.communicate(timeout=LIMIT_SECONDS)
    late = ask("task", "enqueue", url, "add", "[1, 1]", "--wait", "10ms")

    assert (worker.returncode, b"Traceback" in err) == (0, False)
    assert (result.lines, late.code) == (["42"], ExitCode.TASK_UNFINISHED)


def test_schedules_and_workers_behind_a_server_are_seen(url: str, shop: str) -> None:
    """When they fire, fired by hand, and forgotten; `top` has its frame of them."""
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


# Tokens and errors -------------------------------------------------------------------------


def test_a_token_lets_us_in_and_is_never_shown(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from the environment; without it, or with a wrong one, the server refuses."""
    tokens = scratch / "tokens.toml"
    token, secret = make_token(
        name="ada", roles=["produce", "consume", "read"], names=["*"], now_us=0, expires_us=None
    )
    add_token(tokens, token)
    with (
        open_directory(scratch / "behind", sync="os") as store,
        ServerThread(build_app(store, tokens=tokens, has_audit=False)) as server,
    ):
        without = refused("queue", "push", server.url, "jobs", "x")
        monkeypatch.setenv(TOKEN_VARIABLE, f"{secret[:-1]}{'a' if secret[-1] != 'a' else 'b'}")
        wrong = refused("queue", "push", server.url, "jobs", "x")
        monkeypatch.setenv(TOKEN_VARIABLE, secret)
        pushed = done("queue", "push", server.url, "jobs", "x")
        purged = refused("queue", "purge", server.url, "jobs", "--yes")

    answers = (without, wrong, pushed, purged)
    assert [answer.code for answer in answers] == [5, 5, 0, 5]
    assert "admin" in purged.err
    assert all(secret not in answer.err for answer in answers)


def test_who_may_only_take_or_only_give_can_do_so(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb asks for no more than the role of what it does: not for lists of what there is."""
    tokens = scratch / "tokens.toml"
    secrets = {}
    for role in ("produce", "consume"):
        token, secrets[role] = make_token(
            name=role, roles=[role], names=["*"], now_us=0, expires_us=None
        )
        add_token(tokens, token)
    with (
        open_directory(scratch / "behind", sync="os") as store,
        ServerThread(build_app(store, tokens=tokens, has_audit=False)) as server,
    ):
        store.topic("orders", partitions=1)
        monkeypatch.setenv(TOKEN_VARIABLE, secrets["produce"])
        done("queue", "push", server.url, "jobs", "a", "b")
        done("topic", "append", server.url, "orders", stdin=b"2 apples\n")
        monkeypatch.setenv(TOKEN_VARIABLE, secrets["consume"])
        popped = done("queue", "pop", server.url, "jobs")
        leased = done("queue", "lease", server.url, "jobs", "--json").json
        done("queue", "ack", server.url, "jobs", str(leased["receipt"]))

        assert popped.lines == ["a"]
        assert store.queue("jobs").count().total == 0


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "push", "STORE", "jobs", "x"),
        ("ls", "STORE"),
        ("info", "STORE"),
        ("task", "ls", "STORE"),
        ("top", "STORE", "--once"),
    ],
    ids=" ".join,
)
def test_a_server_that_cannot_be_reached_is_one_line(words: Words) -> None:
    """With the exit code of storage that refuses."""
    url = UNREACHABLE.format(host=LOOPBACK, port=free_port())
    answer = refused(*(url if word == "STORE" else word for word in words))

    assert (answer.code, "refused" in answer.err) == (ExitCode.STORAGE, True), answer.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://ada:open-sesame@host", "token"),
        ("http://host?colour=blue", "colour"),
        ("http://host?retry=soon", "retry"),
        ("http://:8000", "host"),
        ("http://host:port", "cannot be read"),
    ],
)
def test_a_url_that_makes_no_sense_is_a_wrong_argument(url: str, said: str) -> None:
    """Whatever is wrong with it is said, and what may be a secret is not."""
    answer = refused("queue", "push", url, "jobs", "x")

    assert (answer.code, said in answer.err) == (ExitCode.USAGE, True), answer.err
    assert "open-sesame" not in answer.err


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
    url = f"http://{LOOPBACK}:1"
    answer = refused(*(url if word == "STORE" else word for word in words))

    assert answer.code == ExitCode.USAGE
    assert f"{url} is a server; this works on directories only" in answer.err
    assert list(tmp_path.iterdir()) == []
