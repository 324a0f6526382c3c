"""`segue serve` as others meet it: real processes, real sockets, clients of any kind."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.errors import AccessDenied, StoreUnavailable
from segue.server import health, protocol, serving, waiting
from segue.server.building import build_app
from segue.server.serving import ServerThread, config_of
from segue.server.tokens import RoleName, add_token, make_token, tokens_path
from segue.stores.opening import open_directory, open_http
from tests.integration.cli_support import ask as ask_cli
from tests.integration.cli_support import fast_command
from tests.redis_server import RedisServer
from tests.unit.http.support import long_polls_seen
from tests.waiting import LIMIT_SECONDS, wait_until

CERTIFICATE: Final = Path(__file__).parents[1] / "certificates" / "loopback.crt"
KEY: Final = CERTIFICATE.with_suffix(".key")
PATIENT: Final = f"""
import sys
import segue.server.serving, segue.server.waiting
from segue.cli import main

segue.server.serving.GRACE_SECONDS = segue.server.waiting.WAIT_SECONDS_MAX = {3 * LIMIT_SECONDS}
until = segue.server.waiting.Waiting.until

def waits(*words):
    print("a request waits", flush=True)
    return until(*words)

segue.server.waiting.Waiting.until = waits
sys.exit(main())
"""
"""`segue`, with a server that at its end would wait for clients for longer than any test does."""


class Served:
    """A server in a process of its own."""

    def __init__(
        self, store: Path | str, *words: str, errors: Path | None = None, is_patient: bool = False
    ) -> None:
        self.store = Path(store)
        command = [sys.executable, "-c", PATIENT] if is_patient else [fast_command()]
        self.errors = errors or self.store.parent / "stderr"
        with self.errors.open("wb") as written:
            self.process = subprocess.Popen(
                [*command, "serve", str(store), "--port", "0", "--json", *words],
                stdout=subprocess.PIPE,
                stderr=written,
            )
        line = self.line()
        assert line, self.errors.read_text()
        self.url: str = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def line(self) -> bytes:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_SECONDS)


@contextmanager
def served(
    store: Path | str, *words: str, errors: Path | None = None, is_patient: bool = False
) -> Iterator[Served]:
    """Serve a store for a while."""
    server = Served(store, *words, errors=errors, is_patient=is_patient)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


@contextmanager
def in_thread(
    store_path: Path, *, connections_max: int = 100, **asked: str
) -> Iterator[ServerThread]:
    """Serve a store from this process, where limits can be changed."""
    with open_directory(store_path, sync="os") as store:
        app = build_app(store, **asked)  # type: ignore[arg-type]
        with ServerThread(app, config=config_of(app, connections_max=connections_max)) as server:
            yield server


def new_token(store: Path, *roles: RoleName, names: tuple[str, ...] = ("*",)) -> str:
    """Return a token for a store."""
    token, text = make_token(name="tester", roles=roles, names=names, now_us=0, expires_us=None)
    add_token(tokens_path(store), token)
    return text


def ask(
    port: int, method: str, path: str, body: str = "", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        response = connection.getresponse()
        said = {name.lower(): value for name, value in response.getheaders()}
        return response.status, said, response.read()
    finally:
        connection.close()


def raw(port: int) -> socket.socket:
    """Return a connection, of which nothing is known."""
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS)


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the connection ends, in whichever way."""
    found = bytearray()
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return bytes(found)


def head_of(answer: bytes) -> int:
    """Return the status of the first answer."""
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


# Beginning and ending --------------------------------------------------------------------------


def test_a_served_store_is_one_for_any_client(tmp_path: Path) -> None:
    """What is printed is a URL that segue.open takes."""
    with served(tmp_path / "data") as server:
        with segue.open(server.url) as store:
            store.queue("mail").push(b"hello")
            assert [message.body for message in store.queue("mail").pop_many(1)] == [b"hello"]

        assert server.end(signal.SIGINT) == 0


def test_sigterm_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Who was answered was served: after an ordered end the store has every such message.

    The end does not wait for a request that waits for a message.
    """
    done: list[list[bytes]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        with segue.open(f"{server.url}/?retry=0&timeout={LIMIT_SECONDS}") as store:
            queue = store.queue("mail")
            try:
                for count in range(1_000_000):
                    body = f"{number}-{count}".encode()
                    queue.push(body)
                    done[number].append(body)
            except StoreUnavailable:
                return

    with served(tmp_path / "data", "--sync", "os", is_patient=True) as server:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        polls = threading.Thread(target=_poll, args=(server.port,))
        for thread in (*threads, polls):
            thread.start()
        assert server.line() == b"a request waits\n"
        wait_until(lambda: min(map(len, done)) >= 20)
        code = server.end()
        for thread in (*threads, polls):
            thread.join()

        assert code == 0
        assert server.errors.read_text() == ""
    with segue.open(tmp_path / "data", sync="os") as store:
        kept: set[bytes] = set()
        while found := store.queue("mail").pop_many(10_000):
            kept.update(message.body for message in found)
        assert kept >= {body for bodies in done for body in bodies}


def _poll(port: int) -> None:
    with suppress(OSError, http.client.HTTPException):
        ask(port, "POST", "/api/v1/queues/nothing/pop", json.dumps({"wait": 3 * LIMIT_SECONDS}))


def test_a_store_on_redis_is_served_too(tmp_path: Path) -> None:
    """With its tokens in a file that is named."""
    tokens = tmp_path / "tokens.json"
    token, text = make_token(
        name="tester", roles=("admin",), names=("*",), now_us=0, expires_us=None
    )
    add_token(tokens, token)
    with (
        RedisServer(tmp_path / "redis") as redis,
        served(redis.url, "--tokens", str(tokens), errors=tmp_path / "stderr") as server,
    ):
        assert ask(server.port, "GET", "/api/v1/queues")[0] == 401
        with open_http(server.url, token=text) as store:
            store.queue("mail").push(b"hello")
            assert store.queues() == ["mail"]
        assert ask(server.port, "GET", "/health")[0] == 200

        assert server.end() == 0


def test_what_does_not_end_in_time_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has its grace, and then it ends; whoever is left hears why."""
    with open_directory(tmp_path / "data", sync="os") as store:
        app = build_app(store)
        config = config_of(app)
        config.timeout_graceful_shutdown = 1
        with ServerThread(app, config=config) as server, raw(server.port) as slow:
            slow.sendall(
                b"POST /api/v1/queues/a/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Length: 9\r\n\r\n"
            )
            wait_until(lambda: server.app.operations.connections() == 1)
            server.stop()
            answer = all_of(slow)

    assert head_of(answer) == 503
    assert b"retry-after: 1" in answer
    assert "Traceback" not in caplog.text


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    """Nothing is opened, and nobody has to read a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = ask_cli("serve", tmp_path / "data", "--port", str(port))

    assert found.code == 5
    assert found.err.startswith(f"segue: port {port} of 127.0.0.1 is in use")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [(), ("--tls-cert", CERTIFICATE, "--tls-key", KEY)])
def test_a_public_server_without_guard_does_not_start(
    tmp_path: Path, words: tuple[str | Path, ...]
) -> None:
    """Tokens and TLS both, or nothing is opened at all."""
    found = ask_cli("serve", tmp_path / "data", "--host", "0.0.0.0", "--port", "0", *words)

    assert found.code == 2
    assert "it lacks tokens" in found.err
    assert not (tmp_path / "data").exists()


def test_tls_is_spoken_with_those_who_trust_the_certificate(tmp_path: Path) -> None:
    """Others are not answered, and whoever speaks plainly is not either.

    The end does not wait for clients that send nothing.
    """
    text = new_token(tmp_path / "data", "admin")
    words = ("--tls-cert", str(CERTIFICATE), "--tls-key", str(KEY))
    with served(tmp_path / "data", *words, is_patient=True) as server:
        assert server.url.startswith("https://")
        with pytest.raises(StoreUnavailable):
            open_http(f"{server.url}/?retry=0", token=text)
        with raw(server.port) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200" not in all_of(plain)
        with open_http(f"{server.url}/?ca={CERTIFICATE}", token=text) as store:
            store.queue("mail").push(b"hello")

        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with context.wrap_socket(raw(server.port), server_hostname="127.0.0.1") as line:
            assert line.version() == "TLSv1.2"
        with open_http(f"{server.url}/?ca={CERTIFICATE}", token=text) as idle, raw(server.port):
            idle.queue("mail").count()
            assert server.end() == 0
        assert server.errors.read_text() == ""


# Who gets in -----------------------------------------------------------------------------------


def test_a_token_opens_what_its_roles_and_names_say(tmp_path: Path) -> None:
    """The client raises AccessDenied for the rest, and lists show only what is meant."""
    admin = new_token(tmp_path / "data", "admin")
    text = new_token(tmp_path / "data", "produce", "read", names=("mail.*",))
    with served(tmp_path / "data") as server:
        with open_http(server.url, token=admin) as store:
            store.queue("other").push(b"x")
        with open_http(server.url, token=text) as store:
            queue = store.queue("mail.eu")
            queue.push(b"hello")

            assert store.queues() == ["mail.eu"]
            with pytest.raises(AccessDenied, match="consume"):
                queue.pop_many(1)
            with pytest.raises(AccessDenied, match="other"):
                store.queue("other").push(b"x")
            with pytest.raises(AccessDenied, match="admin"):
                queue.purge()
        with pytest.raises(AccessDenied):
            open_http(server.url)
        with pytest.raises(AccessDenied):
            open_http(server.url, token=text[:-2])


def test_no_secret_is_in_any_log(tmp_path: Path) -> None:
    """Neither tokens, good or bad, nor bodies nor queries are written anywhere."""
    text = new_token(tmp_path / "data", "admin")
    bad = text[:-4] + "XXXX"
    log = tmp_path / "access.log"
    with served(tmp_path / "data", "--access-log", str(log)) as server:
        for token in (text, bad):
            bearer = f"Bearer {token}"
            for method, path, body in (
                ("POST", "/api/v1/queues/a/messages", '{"messages": [{"body": "confidential"}]}'),
                ("POST", "/api/v1/queues/a/purge", ""),
                ("GET", f"/api/v1/queues?token={token}", ""),
                ("POST", f"/api/v1/queues/a/messages?token={token}", "{nonsense confidential"),
                ("GET", f"/nowhere?token={token}", ""),
            ):
                ask(server.port, method, path, body, Authorization=bearer)
        _, _, audit = ask(server.port, "GET", "/api/v1/audit", Authorization=f"Bearer {text}")
        assert server.end() == 0
        errors = server.errors.read_text()

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines].count(401) == 4
    assert {line["token"] for line in lines} == {"tester", ""}
    assert {entry["path"] for entry in json.loads(audit)["entries"]} <= {"/api/v1/queues/a/purge"}
    for written in (log.read_text(), errors, audit.decode()):
        for secret in (text, bad, text.split("_", 2)[2], "confidential", "token="):
            assert secret not in written


def test_a_token_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """`segue token` and the server agree within a second or so."""
    with served(tmp_path / "data") as server:
        assert ask(server.port, "GET", "/api/v1/queues")[0] == 200
        made = _token("add", server.store, "--name", "first", "--role", "read")
        bearer = f"Bearer {made['token']}"
        wait_until(lambda: ask(server.port, "GET", "/api/v1/queues")[0] == 401)
        assert ask(server.port, "GET", "/api/v1/queues", Authorization=bearer)[0] == 200
        again = _token("add", server.store, "--name", "second", "--role", "read")
        _token("rm", server.store, str(made["id"]))
        wait_until(
            lambda: ask(server.port, "GET", "/api/v1/queues", Authorization=bearer)[0] == 401
        )

        bearer = f"Bearer {again['token']}"
        assert ask(server.port, "GET", "/api/v1/queues", Authorization=bearer)[0] == 200


def _token(verb: str, store: Path, *words: str) -> dict[str, object]:
    said = ask_cli("token", verb, store, *words, "--json")
    assert said.code == 0
    return {**said.json}


def test_a_page_from_elsewhere_is_refused(tmp_path: Path) -> None:
    """By the name it came by, or by what the browser says of it; and no answer is shown to it."""
    with in_thread(tmp_path / "data") as server:
        rebound = ask(server.port, "GET", "/api/v1/queues", Host="evil.example:80")
        foreign = ask(server.port, "POST", "/api/v1/queues/a/purge", Origin="http://evil.example")
        preflight = ask(server.port, "OPTIONS", "/api/v1/queues", Origin="http://evil.example")

    assert rebound[0] == 421
    assert foreign[0] == 403
    assert preflight[0] == 405
    for _, headers, _ in (rebound, foreign, preflight):
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_pages_that_are_let_in_can_ask_and_read(tmp_path: Path) -> None:
    """--cors-origin is a list of those, and of nobody else."""
    origin = "https://good.example"
    with in_thread(tmp_path / "data", cors_origins=[origin]) as server:  # type: ignore[arg-type]
        allowed = ask(server.port, "GET", "/api/v1/queues", Origin=origin)
        preflight = ask(server.port, "OPTIONS", "/api/v1/queues", Origin=origin)
        other = ask(server.port, "OPTIONS", "/api/v1/queues", Origin="https://evil.example")

    assert allowed[0] == 200
    assert allowed[1]["access-control-allow-origin"] == origin
    assert preflight[0] == 204
    assert "authorization" in preflight[1]["access-control-allow-headers"]
    assert "access-control-allow-origin" not in other[1]


def test_a_page_of_ours_runs_nothing_from_elsewhere(tmp_path: Path) -> None:
    """The policy is on every page, and allows no inline script."""
    with in_thread(tmp_path / "data") as server:
        _, headers, _ = ask(server.port, "GET", "/docs")

    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


# Clients that mean no good ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        lambda: b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        lambda: b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        lambda: b"GET /health HTTP/1.1\r\nX: " + b"x" * 400_000,
        lambda: b"\r\n" * 200_000,
    ],
    ids=["one header", "many headers", "a long path", "without end", "empty lines"],
)
def test_headers_beyond_the_limit_end_the_connection(tmp_path: Path, request_of: object) -> None:
    """In one piece or many, the answer is 431 and the end."""
    assert callable(request_of)
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(request_of())
        answer = all_of(line)
        assert not answer or head_of(answer) == 431
        assert ask(server.port, "GET", "/health")[0] == 200


def test_headers_up_to_the_limit_are_taken(tmp_path: Path) -> None:
    """Also on a connection that has carried a large body before, and behind one in a pipeline."""
    body = b"x" * 60_000
    big = (
        b"POST /api/v1/queues/a/purge HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    small = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 30_000 + b"\r\n"
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        line.sendall(big + small)
        answers = line.recv(65536)
        line.sendall(b"Connection: close\r\n\r\n")
        answers += all_of(line)

    assert answers.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200" in answers


def test_a_head_behind_another_request_has_the_same_limit(tmp_path: Path) -> None:
    """A pipeline is no way around it; what was asked before is answered."""
    first = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    second = b"GET /health HTTP/1.1\r\nX: " + b"x" * 60_000 + b"\r\n\r\n"
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        line.sendall(first + second)
        answer = all_of(line)

    assert answer.count(b"HTTP/1.1 200") == 1


def test_a_head_that_trickles_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a byte comes: the head has its time, and silence has the same.

    A line arrives after each sweep, so between two sweeps less than HEAD_SECONDS_MAX passes.
    """
    monkeypatch.setattr(serving, "SWEEP_SECONDS", 0.1)
    sweep = protocol.sweep
    with in_thread(tmp_path / "data") as server, raw(server.port) as silent:
        with raw(server.port) as known, raw(server.port) as slow:
            known.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert known.recv(10_000)
            known.sendall(b"GET /health")
            slow.sendall(b"GET /health HTTP/1.1\r\n")

            async def sweeping(connections: Iterable[object], now: float) -> None:
                await sweep(connections, now)
                with suppress(OSError):
                    slow.sendall(b"X: y\r\n")

            monkeypatch.setattr(serving, "sweep", sweeping)
            monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.5)
            assert head_of(all_of(slow)) == 408
            # One that was answered before is held to the same.
            assert head_of(all_of(known)) == 408
        assert head_of(all_of(silent)) == 408


def test_a_body_that_trickles_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if none of it ever comes."""
    monkeypatch.setattr(protocol, "BODY_SECONDS_MAX", 0.3)
    head = (
        b"POST /api/v1/queues/a/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\n"
    )
    with in_thread(tmp_path / "data") as server, raw(server.port) as slow:
        slow.sendall(head)
        assert head_of(all_of(slow)) == 408
        assert ask(server.port, "GET", "/health")[0] == 200


def test_an_answer_that_nobody_takes_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would cost to keep it is the server's memory."""
    monkeypatch.setattr(protocol, "UNREAD_SECONDS_MAX", 0.5)
    with open_directory(tmp_path / "data", sync="os") as store:
        queue = store.queue("a")
        for _ in range(40):
            queue.push(b"x" * 1_000_000)
    with in_thread(tmp_path / "data") as server, raw(server.port) as deaf:
        wait_until(lambda: server.app.operations.connections() == 1)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /api/v1/queues/a/history HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_until(lambda: server.app.operations.connections() == 0)


def test_a_stream_is_whole_or_seen_to_be_cut(tmp_path: Path) -> None:
    """Also for a client that has closed its half; one that is gone has it ended."""
    with open_directory(tmp_path / "data", sync="os") as store:
        for _ in range(30):
            store.queue("a").push(b"x" * 100_000)
    request = b"GET /api/v1/queues/a/history HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with in_thread(tmp_path / "data") as server:
        with raw(server.port) as line:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            answer = all_of(line)
        assert answer.count(b"x" * 100_000) == 30
        assert answer.endswith(b"\r\n0\r\n\r\n")
        with raw(server.port) as line:
            line.sendall(request)
        wait_until(lambda: server.app.operations.connections() == 0)


def test_a_large_body_is_taken_in_no_time_and_one_too_large_is_refused(tmp_path: Path) -> None:
    """It comes in many pieces, said to be as large or not."""
    text = "x" * 5_000_000
    body = json.dumps({"messages": [{"body": text}]})
    with in_thread(tmp_path / "data", body_bytes_max=6_000_000) as server:  # type: ignore[arg-type]
        path = "/api/v1/queues/a/messages"
        assert ask(server.port, "POST", path, body)[0] == 200
        assert ask(server.port, "POST", path, body + " " * 1_000_000)[0] == 413
        with raw(server.port) as line:
            line.sendall(
                b"POST /api/v1/queues/a/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            line.sendall(piece * 100)
            assert head_of(line.recv(1000)) == 413
        with open_http(server.url) as store:
            assert store.queue("a").count().ready == 1


def test_connections_are_limited(tmp_path: Path) -> None:
    """One too many is told so; when another ends there is room again."""
    with in_thread(tmp_path / "data", connections_max=2) as server:
        with raw(server.port), raw(server.port):
            wait_until(lambda: server.app.operations.connections() == 2)
            with raw(server.port) as third:
                assert head_of(all_of(third)) == 503
        wait_until(lambda: server.app.operations.connections() == 0)

        assert ask(server.port, "GET", "/health")[0] == 200


def test_a_client_that_closes_its_half_is_answered(tmp_path: Path) -> None:
    """All that it asked before, and then the connection ends."""
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with in_thread(tmp_path / "data") as server:
        with raw(server.port) as line:
            line.sendall(request * 2)
            line.shutdown(socket.SHUT_WR)
            assert all_of(line).count(b"HTTP/1.1 200") == 2
        with raw(server.port) as line:
            line.sendall(request[:20])
            line.shutdown(socket.SHUT_WR)
            assert all_of(line) == b""
        wait_until(lambda: server.app.operations.connections() == 0)


def test_nothing_is_taken_for_a_client_that_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll whose client closed the connection ends, and leaves the messages to others."""
    monkeypatch.setattr(waiting, "WAIT_SECONDS_MAX", 3 * LIMIT_SECONDS)
    body = b'{"wait": %d}' % (3 * LIMIT_SECONDS)
    request = (
        b"POST /api/v1/queues/a/pop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with in_thread(tmp_path / "data") as server, long_polls_seen("until") as polls:
        with raw(server.port) as line:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            assert all_of(line).endswith(b'{"messages":[]}')
        polls.clear()
        with raw(server.port) as line:
            line.sendall(request)
            wait_until(lambda: polls == ["begun"])
        wait_until(lambda: polls == ["begun", "ended"])
        with open_http(server.url) as store:
            store.queue("a").push(b"hello")
            assert store.queue("a").count().ready == 1
        wait_until(lambda: server.app.operations.connections() == 0)


def test_garbage_behind_a_request_does_not_spoil_its_answer(tmp_path: Path) -> None:
    """The one is answered, whole, and the connection ends."""
    body = b'{"wait": 0.3}'
    request = (
        b"POST /api/v1/queues/a/pop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        line.sendall(request + b"\x00\x01garbage\r\n\r\n")
        answer = all_of(line)

    assert head_of(answer) == 200
    assert answer.endswith(b'{"messages":[]}')


def test_what_comes_behind_a_body_is_limited_and_ignored(tmp_path: Path) -> None:
    """Headers there are no way past the limit, and none to say who one is."""
    head = (
        b"POST /api/v1/queues/a/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    piece = b'{"messages":[{"body":"x"}]}'
    body = b"%x\r\n%b\r\n0\r\n" % (len(piece), piece)
    with in_thread(tmp_path / "data") as server:
        with raw(server.port) as line:
            line.sendall(head + body + b"Origin: http://evil.example\r\n\r\n")
            assert head_of(line.recv(1000)) == 200
        with raw(server.port) as line:
            with suppress(BrokenPipeError, ConnectionResetError):
                line.sendall(head + body + b"X: ")
                for _ in range(100):
                    line.sendall(b"x" * 10_000)
            assert all_of(line)[:12] in (b"", b"HTTP/1.1 431")
        with open_http(server.url) as store:
            assert store.queue("a").count().ready == 1
        wait_until(lambda: server.app.operations.connections() == 0)


def test_another_protocol_is_not_spoken(tmp_path: Path) -> None:
    """Who asks for one is answered in this one, and the connection ends."""
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        line.sendall(
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
            b"Upgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        )
        answer = all_of(line)

    assert head_of(answer) == 200
    assert answer.count(b"HTTP/1.1 ") == 1


def test_garbage_is_a_bad_request(tmp_path: Path) -> None:
    """It is said in the same form as every other problem."""
    with in_thread(tmp_path / "data") as server, raw(server.port) as line:
        line.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n")
        answer = all_of(line)

    assert head_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "invalid_request"


# What is told ----------------------------------------------------------------------------------


def test_health_is_503_while_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so; once it answers all is well again."""
    monkeypatch.setattr(health, "LATE_SECONDS", LIMIT_SECONDS)
    answers = threading.Event()
    with open_directory(tmp_path / "data", sync="os") as store:
        monkeypatch.setattr(store, "queues", lambda: answers.wait(LIMIT_SECONDS))
        app = build_app(store)
        with ServerThread(app) as server:
            assert ask(server.port, "GET", "/health")[0] == 200
            monkeypatch.setattr(health, "LATE_SECONDS", 1.5)
            wait_until(lambda: ask(server.port, "GET", "/health")[0] == 503)
            assert json.loads(ask(server.port, "GET", "/health")[2])["status"] == "stuck"
            wait_until(lambda: ask(server.port, "GET", "/live")[0] == 503)
            assert ask(server.port, "GET", "/ready")[0] == 503
            answers.set()
            monkeypatch.setattr(health, "LATE_SECONDS", LIMIT_SECONDS)
            wait_until(lambda: ask(server.port, "GET", "/health")[0] == 200)
            app.operations.is_ending = True
            assert ask(server.port, "GET", "/ready")[0] == 503
            assert ask(server.port, "GET", "/live")[0] == 200


def test_metrics_count_what_was_asked(tmp_path: Path) -> None:
    """Requests, depths, connections; for those who may read."""
    text = new_token(tmp_path / "data", "read", "produce", names=("mail",))
    with served(tmp_path / "data") as server:
        with open_http(server.url, token=text) as store:
            store.queue("mail").push(b"hello")
        assert ask(server.port, "GET", "/metrics")[0] == 401

        def metrics() -> tuple[int, dict[str, str], bytes]:
            return ask(server.port, "GET", "/metrics", Authorization=f"Bearer {text}")

        # A look at the queues counts for a second.
        wait_until(lambda: b'segue_queue_messages{queue="mail",state="ready"} 1.0' in metrics()[2])
        _, headers, body = metrics()

    assert headers["content-type"].startswith("text/plain")
    found = body.decode()
    assert 'route="/api/v1/queues/{queue}/messages",status="200"} 1.0' in found
    assert "segue_server_syncs_total" in found


def test_what_an_admin_does_is_audited(tmp_path: Path) -> None:
    """Acts, not looks; those that failed, too; and admins alone see them."""
    admin = new_token(tmp_path / "data", "admin")
    reader = new_token(tmp_path / "data", "read")
    with served(tmp_path / "data") as server:
        with open_http(server.url, token=admin) as store:
            store.queue("mail").push(b"hello")
            store.queue("mail").purge()
            store.queue("mail").count()
            store.remove_queue("mail")
        bearer = f"Bearer {admin}"

        def entries() -> list[dict[str, object]]:
            _, _, body = ask(server.port, "GET", "/api/v1/audit", Authorization=bearer)
            found: list[dict[str, object]] = json.loads(body)["entries"]
            return found

        wait_until(lambda: len(entries()) == 2)
        assert [(entry["method"], entry["path"]) for entry in entries()] == [
            ("POST", "/api/v1/queues/mail/purge"),
            ("DELETE", "/api/v1/queues/mail"),
        ]
        assert {entry["token"] for entry in entries()} == {"tester"}
        denied = ask(server.port, "GET", "/api/v1/audit", Authorization=f"Bearer {reader}")
        assert denied[0] == 403


def test_a_problem_has_an_id_that_the_log_has_too(tmp_path: Path) -> None:
    """The client's own if it sent one that makes sense."""
    log = tmp_path / "access.log"
    with in_thread(tmp_path / "data", access_log=str(log)) as server:
        _, ours, _ = ask(server.port, "GET", "/nowhere")
        _, theirs, _ = ask(server.port, "GET", "/nowhere", X_Request_Id="abc-1")
        _, strange, _ = ask(server.port, "GET", "/nowhere", X_Request_Id='"><script>')

    ids = [json.loads(line)["request_id"] for line in log.read_text().splitlines()]
    assert ids == [each["x-request-id"] for each in (ours, theirs, strange)]
    assert theirs["x-request-id"] == "abc-1"
    assert "script" not in strange["x-request-id"]


def test_a_server_needs_no_more_than_its_extra(tmp_path: Path) -> None:
    """What is missing is said by name, and how to get it."""
    code = (
        "import sys; sys.modules['uvloop'] = None\n"
        "from segue.cli import main\n"
        f"sys.exit(main(['serve', {str(tmp_path / 'data')!r}]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=LIMIT_SECONDS
    )

    assert found.returncode == 5
    assert b"segue[server]" in found.stderr
