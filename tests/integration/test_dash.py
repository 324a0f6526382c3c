"""`segue dash` as people use it: real processes, on a store that others work on."""

import http.client
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import segue
from segue.cli import dash
from segue.errors import LogReadOnly
from segue.server.serving import PortInUse, listen
from segue.server.tokens import add_token, make_token, tokens_path
from segue.stores.opening import open_http
from tests.integration.cli_support import COMMAND, ask, pipe, snapshot, started
from tests.redis_server import RedisServer
from tests.unit.server_support import until
from tests.waiting import LIMIT_SECONDS


@contextmanager
def shown(store: Path | str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield the process that shows a store, and the URL of its server."""
    with started("dash", store, "--port", "0", "--json", *words) as process:
        line = pipe(process.stdout).readline()
        assert line, pipe(process.stderr).read()
        said = json.loads(line)
        assert said == {
            "url": said["url"],
            "store": str(store),
            "dashboard": f"{said['url']}/dash/",
            "read_only": "--allow-acts" not in words,
        }
        yield process, said["url"]


def got(url: str, path: str, method: str = "GET", token: str = "") -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_SECONDS)
    try:
        line.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def filled(path: Path) -> Path:
    """Return a store with one message."""
    with segue.open(path, sync="os") as store:
        store.queue("mail").push(b"hello")
    return path


def sizes(path: Path) -> dict[str, int]:
    """Return all files of a store. When they changed does not matter: a lock may be touched."""
    return {name: size for name, (size, _, _) in snapshot(path).items()}


# What it shows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_store_is_shown_until_a_signal_comes(tmp_path: Path, number: signal.Signals) -> None:
    """The page, the API behind it, and an end that is no failure."""
    with shown(filled(tmp_path / "data")) as (process, url):
        status, page = got(url, "/dash/")
        assert (status, page[:15]) == (200, b"<!doctype html>")
        assert json.loads(got(url, "/api/v1/queues")[1]) == {"queues": ["mail"]}
        process.send_signal(number)

        assert process.wait(LIMIT_SECONDS) == 0
        assert pipe(process.stderr).read() == b""


def test_looking_changes_nothing_and_nothing_can_be_changed(tmp_path: Path) -> None:
    """Neither by the page nor by a program that asks its server."""
    data = filled(tmp_path / "data")
    before = sizes(data)
    with shown(data) as (_, url):
        with open_http(url) as store:
            assert store.queue("mail").count().ready == 1
            with pytest.raises(LogReadOnly, match="--allow-acts"):
                store.queue("mail").push(b"more")
            with pytest.raises(LogReadOnly, match="--allow-acts"):
                store.queue("mail").purge()
        got(url, "/api/v1/queues/nothing/count")
        got(url, "/api/v1/topics/nothing")

    assert sizes(data) == before


def test_others_work_on_the_store_meanwhile(tmp_path: Path) -> None:
    """What they do is seen, and they are not held up."""
    data = filled(tmp_path / "data")
    with shown(data) as (_, url), segue.open(data, sync="os") as store:
        assert json.loads(got(url, "/api/v1/queues/mail/count")[1])["ready"] == 1
        store.queue("mail").push(b"more")
        store.queue("other").push(b"new")

        assert json.loads(got(url, "/api/v1/queues/mail/count")[1])["ready"] == 2
        assert json.loads(got(url, "/api/v1/queues")[1]) == {"queues": ["mail", "other"]}


def test_acts_that_are_allowed_are_done_and_audited(tmp_path: Path) -> None:
    """With --allow-acts it is as served by `segue serve`."""
    with shown(filled(tmp_path / "data"), "--allow-acts") as (_, url):
        with open_http(url) as store:
            assert store.queue("mail").purge() == 1

        def paths() -> list[str]:
            entries = json.loads(got(url, "/api/v1/audit")[1])["entries"]
            return [entry["path"] for entry in entries]

        until(lambda: paths() == ["/api/v1/queues/mail/purge"])


def test_a_file_of_tokens_guards_the_dashboard_too(tmp_path: Path) -> None:
    """Others of this machine reach it as well: who needs a token for the one needs it here."""
    data = filled(tmp_path / "data")
    token, text = make_token(name="x", roles=("read",), names=("*",), now_us=0, expires_us=None)
    add_token(tokens_path(data), token)
    with shown(data) as (_, url):
        assert got(url, "/dash/")[0] == 200
        assert got(url, "/api/v1/queues")[0] == 401
        assert got(url, "/api/v1/queues", token=text)[0] == 200


def test_a_store_on_redis_is_shown_too(tmp_path: Path) -> None:
    """Read-only as well."""
    with RedisServer(tmp_path / "redis") as redis:
        with segue.open(redis.url) as store:
            store.queue("mail").push(b"hello")
        with shown(redis.url) as (_, url):
            assert json.loads(got(url, "/api/v1/queues/mail/count")[1])["ready"] == 1
            assert got(url, "/api/v1/queues/mail", "DELETE")[0] == 403


# Where it is shown -------------------------------------------------------------------------------


def test_the_usual_port_is_taken_or_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There may be a dashboard for each store; one that was asked for by number is refused."""
    with listen("127.0.0.1", 0) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(dash, "PORT_DEFAULT", number)
        with dash._listening("127.0.0.1", None, as_json=False) as listener:
            found = listener.getsockname()[1]
        monkeypatch.setattr(dash, "PORTS_TRIED", 1)

        assert found > number
        assert f"port {number} is in use; this is {found}" in capsys.readouterr().err
        with pytest.raises(PortInUse):
            dash._listening("127.0.0.1", number, as_json=False)
        with pytest.raises(PortInUse):
            dash._listening("127.0.0.1", None, as_json=False)


@pytest.mark.parametrize("words", [(), ("--no-open",)])
def test_a_browser_is_opened_where_there_is_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    """On a terminal, unless --no-open says not to; the address is printed either way."""
    opened = tmp_path / "opened"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new; mv {opened}.new {opened}\n')
    program.chmod(0o755)
    terminal, process_side = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "dash", str(filled(tmp_path / "data")), "--port", "0", *words],
        stdin=process_side,
        stdout=process_side,
        stderr=process_side,
        env={**os.environ, "BROWSER": f"{program} %s"},
    )
    os.close(process_side)
    try:
        said = b""
        while b"\n" not in said:
            said += os.read(terminal, 65536)
        page = said.decode().split()[-1]
        if not words:
            until(opened.exists)
        process.terminate()

        assert process.wait(LIMIT_SECONDS) == 0
        assert said.decode().startswith(f"showing {tmp_path / 'data'} at http://127.0.0.1:")
        assert page.endswith("/dash/")
        assert (opened.read_text() if opened.exists() else "") == ("" if words else page)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_no_browser_is_opened_where_nobody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, or without a display: one for text would take the terminal."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(dash, "is_terminal", lambda: True)
    assert not dash._can_open()
    monkeypatch.setenv("DISPLAY", ":0")
    assert dash._can_open()
    monkeypatch.setattr(dash, "is_terminal", lambda: False)
    assert not dash._can_open()


# What is refused ---------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A typo makes nothing; and an empty directory is no store."""
    (tmp_path / "empty").mkdir()
    for name in ("data", "empty"):
        answer = ask("dash", tmp_path / name, "--port", "0", "--no-open")
        assert (answer.code, answer.err.count("\n")) == (3, 1)
        assert answer.err == f"segue: there is no store at {tmp_path / name}\n"

    assert not (tmp_path / "data").exists()
    assert not list((tmp_path / "empty").iterdir())


def test_a_directory_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look takes locks: all that could be shown is that every queue is refused."""
    data = filled(tmp_path / "data")
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))
    answer = ask("dash", data, "--port", "0", "--no-open")

    assert answer.code == 5
    assert "cannot be written" in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--host", "0.0.0.0"), 2, "others than this machine"),
        (("--host", "no.such.host.invalid"), 2, "there is no address"),
        (("--port", "70000"), 2, "70000"),
        (("--tokens", "/nowhere/tokens.json"), 3, "no such file of tokens"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """With the exit codes of `segue serve`."""
    answer = ask("dash", filled(tmp_path / "data"), "--no-open", *words)

    assert answer.code == code
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_who_asks_for_a_server_is_told_where_its_dashboard_is() -> None:
    """It has one already."""
    answer = ask("dash", "http://127.0.0.1:1/?retry=0")

    assert answer.code == 2
    assert "its dashboard is at http://127.0.0.1:1/dash/" in answer.err


def test_the_dashboard_needs_no_more_than_the_extra_of_the_server(tmp_path: Path) -> None:
    """What is missing is said by name, and how to get it."""
    code = (
        "import sys; sys.modules['uvloop'] = None\n"
        "from segue.cli import main\n"
        f"sys.exit(main(['dash', {str(tmp_path / 'data')!r}]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=LIMIT_SECONDS
    )

    assert found.returncode == 5
    assert b"segue[server]" in found.stderr
