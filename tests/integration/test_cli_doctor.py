"""`segue doctor` on real directories and servers: good ones, bad ones, and none at all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.server.tokens import add_token, make_token
from segue.stores.opening import TOKEN_VARIABLE, open_directory
from tests.integration.cli_support import (
    COMMAND,
    Answer,
    ask,
    on_a_terminal,
    snapshot,
)
from tests.ports import free_port
from tests.redis_server import LOOPBACK, RedisServer
from tests.waiting import LIMIT_SECONDS

OF_A_DIRECTORY: Final = [
    "store",
    "damage",
    "permissions",
    "processes",
    "file system",
    "sync",
    "space",
    "inodes",
    "open files",
    "mappings",
    "file size",
    "names",
    "clock",
    "clock sync",
]
ALWAYS: Final = {"segue", "python", "hot path", "checksum", "java", "extra redis", "extra spark"}
NOBODY: Final = 65534


def verdicts(answer: Answer) -> dict[str, str]:
    """Return what was said of each check."""
    return {name: verdict for name, verdict, _, _ in answer.fields}


def lines_of(answer: Answer) -> dict[str, list[str]]:
    """Return the rest of each line."""
    return {fields[0]: fields[1:] for fields in answer.fields}


@pytest.fixture(autouse=True)
def _quick_java(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that says at once what a Java takes half a second to say."""
    home = tmp_path_factory.mktemp("java")
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a message, on a disk where the machine's temporary files are on one."""
    with segue.open(tmp_path / "data") as opened:
        opened.queue("jobs").push(b"one")
    return tmp_path / "data"


# Directories -------------------------------------------------------------------------------


def test_a_good_store_is_told_in_full(store: Path) -> None:
    """A line of four fields for each check, and nothing of the store is changed."""
    before = snapshot(store / "queues")
    answer = ask("doctor", store)
    found = verdicts(answer)

    assert list(found)[: len(OF_A_DIRECTORY)] == OF_A_DIRECTORY
    assert set(found) >= ALWAYS
    assert {found[name] for name in ("store", "damage", "permissions", "clock")} == {"ok"}
    assert answer.err == ""
    assert snapshot(store / "queues") == before
    assert sorted(path.name for path in store.iterdir()) == ["queues", "segue.toml"]


def test_the_exit_code_says_whether_anything_fails(store: Path) -> None:
    """1 if one line does, 0 if none does, whatever is warned of."""
    answer = ask("doctor", store)
    has_failed = "fail" in verdicts(answer).values()

    assert answer.code == (ExitCode.CHECK_FAILED if has_failed else ExitCode.OK)


def test_without_a_store_it_is_about_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there is no store is no fault."""
    monkeypatch.chdir(tmp_path)
    answer = ask("doctor")

    assert lines_of(answer)["store"][:2] == ["info", "no store at .; the first push makes one"]
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """The directory above is looked at instead, and left as it was."""
    answer = ask("doctor", tmp_path / "a" / "b")
    found = lines_of(answer)

    assert found["store"][0] == "warn"
    assert str(tmp_path) in found["store"][1]
    assert list(found)[: len(OF_A_DIRECTORY)] == OF_A_DIRECTORY
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_store_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    """Who mistypes a path has no probe where it led."""
    (tmp_path / "file").write_text("x")
    before = snapshot(tmp_path)
    found = verdicts(ask("doctor", tmp_path / "file"))

    assert (found["store"], found["sync"]) == ("fail", "warn")
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory to keep files in")
def test_memory_is_no_place_for_a_store(scratch: Path) -> None:
    """It works there, and is gone with the power: both lines say so."""
    answer = ask("doctor", scratch)
    found = lines_of(answer)

    assert answer.code == ExitCode.CHECK_FAILED
    assert (found["file system"][0], found["sync"][0]) == ("fail", "fail")
    assert "memory" in found["file system"][1]


def test_damage_that_headers_show_is_told(store: Path) -> None:
    """With the file, and what to do; the other lines are there all the same."""
    segment = store / "queues" / "jobs" / "ledger" / "000000000.q"
    segment.write_bytes(bytes(segment.stat().st_size))
    answer = ask("doctor", store)
    verdict, found, remedy = lines_of(answer)["damage"]

    assert answer.code == ExitCode.CHECK_FAILED
    assert verdict == "fail"
    assert str(segment) in found
    assert f"segue verify {store}" in remedy
    assert list(verdicts(answer))[: len(OF_A_DIRECTORY)] == OF_A_DIRECTORY


@pytest.mark.parametrize("text", [b"format = 99\n", b"", b"\xff"])
def test_a_store_that_cannot_be_opened_is_told(store: Path, text: bytes) -> None:
    """That is what a doctor is called for."""
    (store / "segue.toml").write_bytes(text)
    answer = ask("doctor", store)

    assert answer.code == ExitCode.CHECK_FAILED
    assert verdicts(answer)["store"] == "fail"


@pytest.fixture
def _as_nobody() -> Iterator[None]:
    """Somebody who is not root, so that permissions mean something."""
    if os.geteuid() != 0:
        yield
        return
    ask("doctor")  # What is imported later may lie where nobody may look.
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def closed(scratch: Path) -> Path:
    """A directory in which nobody may write."""
    scratch.chmod(0o755)
    (scratch / "closed").mkdir(mode=0o555)
    return scratch / "closed"


@pytest.mark.usefixtures("_as_nobody")
def test_a_directory_that_is_read_only_is_told(closed: Path) -> None:
    """Nothing is measured there, and all else is."""
    answer = ask("doctor", closed)
    found = lines_of(answer)

    assert answer.code == ExitCode.CHECK_FAILED
    assert (found["permissions"][0], found["sync"][0]) == ("fail", "warn")
    assert "Permission denied" in found["sync"][1]
    assert found["space"][0] == "ok"


@pytest.fixture
def hidden(scratch: Path) -> Path:
    """A directory that nobody may look into."""
    scratch.chmod(0o755)
    (scratch / "hidden").mkdir(mode=0o000)
    return scratch / "hidden" / "data"


@pytest.mark.usefixtures("_as_nobody")
def test_a_directory_that_nobody_may_look_into_is_lines_and_no_traceback(hidden: Path) -> None:
    """Each check says for itself that it cannot be told."""
    answer = ask("doctor", hidden)
    found = lines_of(answer)

    assert answer.code == ExitCode.CHECK_FAILED
    assert "Permission denied" in found["store"][1]
    assert set(found) >= {"store", "damage", "permissions", "file system", "sync", "clock"} | ALWAYS


def test_a_limit_of_files_too_small_for_a_segment_is_told(store: Path) -> None:
    """As a full disk would be: by a write that is refused, after which nothing is left."""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 16; exec "$@"', "-", *COMMAND, "doctor", store],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    found = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}

    assert done.returncode == ExitCode.CHECK_FAILED
    assert found["file size"][0] == "fail"
    assert found["sync"][:2] == ["fail", "not measured: File too large"]
    assert sorted(path.name for path in store.iterdir()) == ["queues", "segue.toml"]


def test_who_has_the_store_open_is_told(store: Path) -> None:
    """By the number of the process, and how many logs it has."""
    with segue.open(store) as opened:
        opened.queue("jobs").push(b"two")
        found = lines_of(ask("doctor", store))["processes"]
    after = lines_of(ask("doctor", store))["processes"]

    assert found[0] == "info"
    assert f"{os.getpid()} " in found[1]
    assert after[1] == "nobody has it open to write"


# Interrupted -------------------------------------------------------------------------------

SLOW_DISK: Final = """
import sys, threading
from segue.cli import main
from segue.log.disk import Disk

def slowly(disk, fd):
    print("syncing", flush=True)
    threading.Event().wait()

Disk.sync_data = slowly
sys.exit(main(["doctor", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_who_is_interrupted_leaves_no_file_behind(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """In the middle of a sync on a disk that is slow."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_DISK, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"syncing\n"
        during = [path.name for path in tmp_path.iterdir()]
        process.send_signal(number)
        process.stdout.read()

    assert process.returncode == code
    assert [name.startswith(".segue-doctor-") for name in during] == [True]
    assert list(tmp_path.iterdir()) == []


# Who reads it ------------------------------------------------------------------------------


def test_programs_get_one_object(store: Path) -> None:
    """With the same checks, each by name."""
    answer = ask("doctor", store, "--json")
    rows = answer.json_rows["checks"]

    assert len(answer.lines) == 1
    assert [set(row) for row in rows] == [{"check", "verdict", "found", "remedy"}] * len(rows)
    assert [row["check"] for row in rows][: len(OF_A_DIRECTORY)] == OF_A_DIRECTORY


def test_people_get_a_table(store: Path) -> None:
    """With a head, in colours, and no tabs."""
    shown = on_a_terminal("doctor", store)

    assert "verdict" in shown
    assert "\x1b[32m" in shown
    assert "\t" not in shown


# Redis -------------------------------------------------------------------------------------


def test_a_redis_server_with_bad_settings_is_told(tmp_path: Path) -> None:
    """Each of them, before a store is made on it; and that one is not made by asking."""
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(tmp_path / "server", settings) as server:
        answer = ask("doctor", server.url)
        keys = server.ask("DBSIZE")
        functions = server.ask("FUNCTION", "LIST")
    found = verdicts(answer)

    assert answer.code == ExitCode.CHECK_FAILED
    assert found["redis persistence"] == "fail"
    assert found["redis eviction"] == "fail"
    for name in ("redis", "redis version", "redis functions", "redis cluster", "redis clock"):
        assert found[name] == "ok", name
    assert found["redis store"] == "info"
    assert "file system" not in found
    assert set(found) >= ALWAYS
    assert (keys, functions) == (0, [])


def test_a_redis_server_with_good_settings_is_looked_at_beside_a_directory(store: Path) -> None:
    """With a password, which is not shown."""
    settings = {"appendonly": "yes", "requirepass": "secret"}
    with RedisServer(store.parent / "server", settings) as server:
        url = server.url.replace("://", "://:secret@")
        segue.open(url).close()
        answer = ask("doctor", store, "--redis", url)
    found = verdicts(answer)

    assert list(found)[: len(OF_A_DIRECTORY)] == OF_A_DIRECTORY
    assert {found[name] for name in found if name.startswith("redis")} == {"ok"}
    assert b"secret" not in answer.out


def test_a_wrong_password_is_a_line(tmp_path: Path) -> None:
    """What the server says of it is told, and the password is not."""
    with RedisServer(tmp_path / "server", {"requirepass": "secret"}) as server:
        answer = ask("doctor", server.url.replace("://", "://:wrong-one@"))

    assert verdicts(answer)["redis"] == "fail"
    assert b"wrong-one" not in answer.out


def test_a_redis_server_that_is_not_there_is_a_line() -> None:
    """And soon."""
    answer = ask("doctor", f"redis://{LOOPBACK}:{free_port()}")
    found = verdicts(answer)

    assert answer.code == ExitCode.CHECK_FAILED
    assert found["redis"] == "fail"
    assert set(found) >= ALWAYS


def test_a_redis_server_that_hangs_is_a_line(tmp_path: Path) -> None:
    """It takes connections and answers nothing."""
    with RedisServer(tmp_path / "server") as server:
        server.freeze()
        answer = ask("doctor", f"{server.url}?timeout=0.1")

    assert verdicts(answer)["redis"] == "fail"


WITHOUT_REDIS: Final = """
import sys
sys.modules["redis"] = None
from segue.cli import main
sys.exit(main(["doctor", "redis://127.0.0.1:1", "--json"]))
"""


def test_without_the_extra_it_says_how_to_install_it() -> None:
    """No import fails on the way."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_REDIS],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    [check] = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "redis"]

    assert done.stderr == ""
    assert (check["verdict"], check["remedy"]) == ("fail", "pip install 'segue[redis]'")


# Segue servers -----------------------------------------------------------------------------


def test_a_server_in_order_is_told(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How it is, how soon it answers, which version, and when it syncs."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with (
        open_directory(scratch / "behind") as behind,
        ServerThread(build_app(behind, has_audit=False)) as server,
    ):
        answer = ask("doctor", server.url)
    found = verdicts(answer)

    assert {found[name] for name in found if name.startswith("server")} == {"ok"}
    assert [name for name in found if name.startswith("server")] == [
        "server",
        "server latency",
        "server version",
        "server durability",
    ]
    assert answer.code == ExitCode.OK


def test_a_server_that_does_not_let_us_in_is_told(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its health everybody may ask for; the rest takes a token."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    token, secret = make_token(name="ada", roles=["read"], names=["*"], now_us=0, expires_us=None)
    add_token(scratch / "tokens", token)
    with (
        open_directory(scratch / "behind") as behind,
        ServerThread(build_app(behind, tokens=scratch / "tokens", has_audit=False)) as server,
    ):
        without = verdicts(ask("doctor", server.url))
        monkeypatch.setenv(TOKEN_VARIABLE, secret)
        with_one = verdicts(ask("doctor", server.url))

    assert (without["server"], without["server version"]) == ("ok", "fail")
    assert with_one["server version"] == "ok"


def test_a_server_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    """Also where something else listens."""
    nobody = ask("doctor", f"http://{LOOPBACK}:{free_port()}")
    with RedisServer(tmp_path / "server") as other:
        stranger = ask("doctor", f"http://{LOOPBACK}:{other.port}")

    assert (nobody.code, stranger.code) == (ExitCode.CHECK_FAILED,) * 2
    assert verdicts(nobody)["server"] == verdicts(stranger)["server"] == "fail"
    assert set(verdicts(nobody)) >= ALWAYS


# What cannot be meant ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["ftp://host"],
        ["redis://:secret@host:none"],
        ["http://host:0"],
        [".", "--redis", "host:6379"],
        [".", "--redis", "redis+sentinel://host"],
    ],
)
def test_a_url_that_names_nothing_is_a_wrong_argument(words: list[str]) -> None:
    """As for every other verb, in one line."""
    answer = ask("doctor", *words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.count("\n") == 1
    assert "secret" not in answer.err
