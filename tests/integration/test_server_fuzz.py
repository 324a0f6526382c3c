"""Requests nobody should send: each gets a clean refusal, and the server goes on."""

import http.client
import itertools
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import meta
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from segue.delivery.topic_rules import PARTITIONS_MAX
from segue.server.openapi import JSON, description_of
from segue.server.routes import ALL
from segue.server.routing import Route
from segue.server.serving import ServerThread
from segue.stores.http.problems import MEDIA_TYPE
from tests.conftest import TORTURE
from tests.integration.server_support import Failures, served
from tests.waiting import LIMIT_SECONDS

EXAMPLES: Final = 30 if TORTURE else 1
"""Random cases for each operation of the description."""
COVERAGE_SHARE: Final = 1 if TORTURE else 8
"""One in so many of the cases that Schemathesis derives from an operation's schema is sent."""
RAW_EXAMPLES: Final = 2_000 if TORTURE else 60
PARTS: Final = 8 if TORTURE else 4
"""The operations are tested in this many tests, which can run side by side."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A real server, at which nobody waits long."""
    with served(tmp_path_factory.mktemp("fuzz") / "data") as server:
        server.app.waiting.close()
        yield server


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[ServerThread]:
    """Such a server for one test: what many cases create would be too many open files."""
    with served(tmp_path / "data") as server:
        server.app.waiting.close()
        yield server


def is_clean(status: int) -> bool:
    """Tell whether a server that is well may answer like that."""
    return 200 <= status < 500


class Line:
    """A connection that is made anew when the server has had enough of it."""

    def __init__(self, server: ServerThread) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None) -> int:
        """Return the status of the answer, which must be whole."""
        self._line.putrequest(method, path, skip_accept_encoding=True)
        if body is not None:
            self._line.putheader("Content-Length", str(len(body)))
        self._line.endheaders(body)
        answer = self._line.getresponse()
        text = answer.read()
        if answer.headers.get("content-type") in {JSON, MEDIA_TYPE} and method != "HEAD":
            json.loads(text)
        return answer.status

    def close(self) -> None:
        self._line.close()


@pytest.fixture
def line(server: ServerThread) -> Iterator[Line]:
    line = Line(server)
    yield line
    assert line.ask("GET", "/api/v1") == 200
    line.close()


def exchanged(server: ServerThread, sent: bytes) -> bytes:
    """Return all that comes back for some bytes, after which nothing more is sent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_SECONDS) as line:
        try:
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: line.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""  # The server closed before all was sent: as clean as any.


def statuses(server: ServerThread, sent: bytes) -> list[int]:
    """Return the statuses of all answers to some bytes; the server must go on."""
    received = exchanged(server, sent)
    found = [int(status) for status in _STATUS.findall(received) if status != b"100"]
    assert all(map(is_clean, found)), received[:2000]
    assert exchanged(server, b"GET /api/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    return found


# By the description ------------------------------------------------------------------------------

_KEYS: Final = itertools.count()
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
NAMES_USED: Final = 8
REPLAYS_MAX: Final = 8
"""Each replay may double the messages of its queue."""
_REPLAYS: Final = itertools.count()
FEW_PARTITIONS: Final = 32
"""Sent in place of any valid number that is larger."""
DESCRIPTION: Final = json.loads(msgspec.json.encode(description_of(ALL)))
OPERATIONS: Final = [
    (method, path) for path, operations in DESCRIPTION["paths"].items() for method in operations
]


@pytest.fixture(scope="module")
def schema() -> OpenApiSchema:
    """The description, read by Schemathesis."""
    return schemathesis.openapi.from_dict(DESCRIPTION)


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_as_described(
    fresh_server: ServerThread, schema: OpenApiSchema, part: int
) -> None:
    """Whatever fits the description, or nearly does: no 5xx, and nothing it does not tell of.

    The cases are made here and not by Schemathesis' plugin for pytest, which makes those of all
    operations while tests are collected: twenty seconds, in each process that runs some of them.
    """
    failures = Failures()
    for method, path in OPERATIONS[part::PARTS]:
        with failures.case(f"{method} {path}"):
            check_operation(fresh_server, schema, method, path)

    failures.check()


def check_operation(server: ServerThread, schema: OpenApiSchema, method: str, path: str) -> None:
    """Send many cases for one operation of the description."""
    made = itertools.count(crc32(f"{method} {path}".encode()) % COVERAGE_SHARE)
    sent = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=not TORTURE,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    def is_as_described(case: schemathesis.Case) -> None:  # type: ignore[type-arg]  # Of any operation.
        nonlocal sent
        is_derived = case.meta is not None and case.meta.phase.name is meta.TestPhase.COVERAGE
        if is_derived and next(made) % COVERAGE_SHARE:
            return
        sent += 1
        ask(server, case)

    create_test(
        operation=schema[path][method],
        test_func=is_as_described,
        config=HypothesisTestConfig(project=schema.config, modes=list(HypothesisTestMode)),
    )()

    assert sent > 0


def ask(server: ServerThread, case: schemathesis.Case) -> None:  # type: ignore[type-arg]
    """Send a case and hold the answer to the description."""
    if "Idempotency-Key" in case.headers:
        case.headers["Idempotency-Key"] = f"fuzz-{next(_KEYS)}"  # Else most would be repetitions.
    for name, value in case.path_parameters.items():
        if _NAME.fullmatch(str(value)):  # What is about the same few things finds more.
            case.path_parameters[name] = f"fuzz-{crc32(str(value).encode()) % NAMES_USED}"
    if case.path.endswith("/replay") and next(_REPLAYS) >= REPLAYS_MAX:
        case.path_parameters["queue"] = "fuzz-empty"
    if isinstance(case.body, dict):
        limit_partitions(case.body)
    response = case.call(base_url=server.url, timeout=LIMIT_SECONDS)
    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


def limit_partitions(fields: dict[str, Any]) -> None:
    """Replace a valid number of partitions by a small one: each is an open file of the server."""
    count = fields.get("partitions")
    if isinstance(count, int) and FEW_PARTITIONS < count <= PARTITIONS_MAX:
        fields["partitions"] = FEW_PARTITIONS


# Bodies, queries and names that are none ---------------------------------------------------------

BODIES: Final = {
    "empty": b"",
    "space": b"  \r\n\t ",
    "garbage": b"\x00\x01\xfe\xff",
    "truncated": b'{"messages": [{"body": "x"',
    "null": b"null",
    "array": b"[]",
    "string": b'"x"',
    "number": b"1",
    "huge number": b"9" * 5_000,
    "infinite": b'{"count": 1e999, "ttl": 1e999, "priority": 1e999}',
    "nan": b'{"count": NaN, "ttl": -Infinity}',
    "deep array": b"[" * 200_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep inside": b'{"item": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "surrogate": b'{"body": "\\ud800", "name": "\\udfff", "lock_id": "\\ud800"}',
    "not utf-8": b'{"body": "\xff", "lock_id": "\xc3\x28"}',
    "utf-16": '{"count": 1}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf{}",
    "twice": b'{"count": 1, "count": 2, "receipt": "0-0/1", "receipt": 3}',
    "trailing": b"{} {}",
    "comment": b"{} // x",
    "unknown": b'{"__class__": "x", "nobody": 1}',
    "form": b"count=1&ttl=2",
    "xml": b'<?xml version="1.0"?><!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
}
NEVER_TAKEN: Final = {"garbage", "truncated", "array", "huge number", "nan", "deep array", "bom"}
"""Bodies that are 400 wherever the server reads JSON."""
METHODS: Final = ("PATCH", "OPTIONS", "TRACE", "PROPFIND", "HEAD", "DELETE", "PUT")
QUERIES: Final = ("?", "&&&", "=", "=&=", "a" * 20_000, "a=b;c=d", "%", "&".join("a" * 5_000))
VALUES: Final = (
    *("", "0", "-1", "1", "9" * 400, "-" + "9" * 30, "1e400", "NaN", "inf", "0x10", "1_000"),
    *("null", "true", "[]", "{}", "a" * 5_000, "1&{name}=2", "..%2F.."),
    *("%00", "%FF", "%ED%A0%80", "%", "%zz", "%D9%A3"),
)
NAMES: Final = (
    *("..", ".", "-x", "~", "*", ";", "a:b", "NUL", "__proto__", "x" * 10_000),
    *("%00", "%2F", "%2e%2e", "%20", "%FF", "%", "%zz", "%ED%A0%80", "a%0d%0aX:1", "%25%32%66"),
    *("0", "-1", "1e5", "9" * 400),
)


def filled(route: Route, name: Callable[[str], str]) -> str:
    """Return a route's path with something for each name in it."""
    return re.sub(r"\{(\w+)\}", lambda found: name(found[1]), route.full_path)


def usual(name: str) -> str:
    """Return what may well be the name of something."""
    return {"message": "0-0", "offset": "0", "partition": "0", "segment": "0"}.get(name, "fuzz")


def of(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_bad_bodies(line: Line) -> None:
    """Every route that takes a body survives every bad one."""
    wrong = []
    for route in ALL:
        if route.method == "GET":
            continue
        path = filled(route, usual)
        is_read = route.body is not None and not route.has_raw_body
        for name, body in BODIES.items():
            status = line.ask(route.method, path, body)
            if not is_clean(status) or (is_read and name in NEVER_TAKEN and status != 400):
                wrong.append((of(route), name, status))

    assert wrong == []


def test_bad_queries(line: Line) -> None:
    """Every parameter survives every bad value, its name said twice, and names nobody knows."""
    wrong = []
    for route in ALL:
        if route.query is None:
            continue
        names = (*route.query.__struct_encode_fields__, "nobody", "%00")
        queries = [
            f"{name}={value}".replace("{name}", name)
            for name, value in itertools.product(names, VALUES)
        ]
        for query in (*queries, *QUERIES):
            status = line.ask(route.method, f"{filled(route, usual)}?{query}")
            if not is_clean(status):
                wrong.append((of(route), query, status))

    assert wrong == []


def test_bad_names(line: Line) -> None:
    """No name leads out of the store, or anywhere but to a refusal or an answer."""
    wrong = []
    for route, name in itertools.product(ALL, NAMES):
        if "{" not in route.path:
            continue
        status = line.ask(route.method, filled(route, lambda _, name=name: name), b"{}")  # type: ignore[misc]
        if not is_clean(status):
            wrong.append((of(route), name, status))

    assert wrong == []


def test_other_methods(line: Line) -> None:
    """Are told which there are, or done if there is such a one."""
    wrong = []
    for method, route in itertools.product(METHODS, ALL):
        status = line.ask(method, filled(route, usual), b"" if method == "PUT" else None)
        if not is_clean(status):
            wrong.append((method, route.path, status))

    assert wrong == []


# Bytes -------------------------------------------------------------------------------------------

_HOST: Final = b"Host: 127.0.0.1\r\n"
_PUSH: Final = b"POST /queue/raw/push HTTP/1.1\r\n" + _HOST
_ITEM: Final = b'{"item": {"id": 1}}'
PUSHED: Final = _PUSH + b"Content-Length: %d\r\n\r\n" % len(_ITEM) + _ITEM
UPGRADED: Final = PUSHED.replace(_HOST, _HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
CHUNKED: Final = _PUSH + b"Transfer-Encoding: chunked\r\n\r\n"
LOOKED: Final = b"GET /api/v1 HTTP/1.1\r\n" + _HOST + b"\r\n"

REFUSED: Final = {
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "unknown method": b"BREW /pot HTTP/1.1\r\n" + _HOST + b"\r\n",
    "no version": b"GET /api/v1\r\n\r\n",
    "version 9": b"GET /api/v1 HTTP/9.9\r\n" + _HOST + b"\r\n",
    "length twice": _PUSH + b"Content-Length: 19\r\nContent-Length: 20\r\n\r\n" + _ITEM,
    "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 19\r\n\r\n")
    + b"0\r\n\r\n",
    "length below 0": _PUSH + b"Content-Length: -1\r\n\r\n" + _ITEM,
    "length in words": _PUSH + b"Content-Length: many\r\n\r\n" + _ITEM,
    "length with a sign": _PUSH + b"Content-Length: +19\r\n\r\n" + _ITEM,
    "chunk without size": CHUNKED + b"x\r\n" + _ITEM,
    "chunk size that overflows": CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\n" + _ITEM,
    "unknown encoding": _PUSH + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "space before colon": b"GET /api/v1 HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "header without colon": b"GET /api/v1 HTTP/1.1\r\nHost\r\n\r\n",
    "nul in header": b"GET /api/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n",
    "two hosts": b"GET /api/v1 HTTP/1.1\r\n" + _HOST + _HOST + b"\r\n",
    "connect": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + _HOST + b"\r\n" + LOOKED,
    "bare cr in header": b"GET /api/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rY: b\r\n\r\n",
}
ODD: Final = {
    "absolute form": b"GET http://127.0.0.1/api/v1 HTTP/1.1\r\n" + _HOST + b"\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n",
    "no slash": b"GET api/v1 HTTP/1.1\r\n" + _HOST + b"\r\n",
    "empty path": b"GET ? HTTP/1.1\r\n" + _HOST + b"\r\n",
    "many slashes": b"GET " + b"/" * 5_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
    "high bytes": b"GET /\xff\xfe\x80 HTTP/1.1\r\n" + _HOST + b"\r\n",
    "fragment": b"GET /api/v1#x HTTP/1.1\r\n" + _HOST + b"\r\n",
    "backslash": b"GET /api\\v1\\..\\ HTTP/1.1\r\n" + _HOST + b"\r\n",
    "long path": b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
    "folded header": b"GET /api/v1 HTTP/1.1\r\nX: a\r\n b\r\n" + _HOST + b"\r\n",
    "http 1.0": b"GET /api/v1 HTTP/1.0\r\n\r\n",
    "no host": b"GET /api/v1 HTTP/1.1\r\n\r\n",
    "websocket": LOOKED[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "websocket with a body": UPGRADED.replace(b"h2c", b"websocket"),
    "h2c": LOOKED[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
    "expects": _PUSH + b"Expect: 100-continue\r\nContent-Length: 19\r\n\r\n" + _ITEM,
    "expects too much": _PUSH + b"Expect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n",
    "body of a get": b"GET /api/v1 HTTP/1.1\r\n" + _HOST + b"Content-Length: 5\r\n\r\nhello",
    "body too short": _PUSH + b"Content-Length: 500\r\n\r\n" + _ITEM,
    "body too long": PUSHED + b'{"item": {"id": 2}}',
    "length that overflows": _PUSH + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "key of 10 kB": PUSHED.replace(_HOST, _HOST + b"Idempotency-Key: " + b"k" * 10_000 + b"\r\n"),
    "key with high bytes": PUSHED.replace(_HOST, _HOST + b"Idempotency-Key: \xff\xfe\r\n"),
    "bad trace": PUSHED.replace(_HOST, _HOST + b"traceparent: \xff\x80nonsense\r\n"),
    "bad token": LOOKED[:-2] + b"Authorization: Bearer \xff\xfe\r\n\r\n",
    "many headers": LOOKED[:-2] + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"\r\n",
    "empty": b"",
    "only newlines": b"\r\n" * 100,
    "half a request": LOOKED[:20],
    "half a body": CHUNKED + b"13\r\n" + _ITEM[:5],
}


def test_what_is_no_http_is_refused(server: ServerThread) -> None:
    """By 400, or by closing: never by guessing what it may have meant."""
    failures = Failures()
    for name, sent in REFUSED.items():
        with failures.case(name):
            found = statuses(server, sent)
            assert all(400 <= status < 500 for status in found), found

    failures.check()


def test_odd_requests_are_answered_or_refused(server: ServerThread) -> None:
    """One answer at most for what comes first, and nothing that is the server's fault."""
    failures = Failures()
    for name, sent in ODD.items():
        with failures.case(name):
            assert len(statuses(server, sent)) <= 2

    failures.check()


def test_chunked_bodies_are_put_together(server: ServerThread) -> None:
    """However small the chunks are, with extensions and trailers."""
    chunks = b"".join(b"1;x=y\r\n" + bytes([byte]) + b"\r\n" for byte in _ITEM)

    assert statuses(server, CHUNKED + chunks + b"0\r\nX: y\r\n\r\n") == [200]


def test_pipelined_requests_are_answered_in_order(server: ServerThread) -> None:
    """Each in its turn; what cannot be understood ends the connection."""
    assert statuses(server, (PUSHED + LOOKED + UPGRADED) * 20) == [200] * 60
    missing = LOOKED.replace(b"/api/v1", b"/nowhere")
    assert statuses(server, LOOKED + missing + LOOKED) == [200, 404, 200]
    found = statuses(server, LOOKED + PUSHED + b"nonsense\r\n\r\n" + LOOKED)
    assert found in ([200, 200, 400], [200, 200], [200, 400], [200], [400])


def test_a_body_that_is_too_large_is_refused_before_it_comes(server: ServerThread) -> None:
    """413, without reading any of it."""
    head = _PUSH + b"Content-Length: 99999999999\r\n\r\n"

    assert statuses(server, head) == [413]


@settings(max_examples=RAW_EXAMPLES)
@given(st.binary(max_size=300))
@example(b"\r\n\r\n")
def test_random_bytes(server: ServerThread, sent: bytes) -> None:
    """Noise is refused."""
    assert all(status == 400 for status in statuses(server, sent))


@settings(max_examples=RAW_EXAMPLES)
@given(
    st.sampled_from(
        [
            PUSHED,
            CHUNKED + b"13\r\n" + _ITEM + b"\r\n0\r\n\r\n",
            LOOKED + PUSHED,
            UPGRADED + UPGRADED + LOOKED,
        ]
    ),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=4)), max_size=4),
)
def test_requests_with_bytes_changed(
    server: ServerThread, sent: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    """Nothing that nearly is a request does any harm."""
    for place, gone, put in changes:
        at = place % len(sent)
        sent = sent[:at] + put + sent[at + gone :]

    statuses(server, sent)


_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(_words, each, max_size=4),
    max_leaves=12,
)


@settings(max_examples=RAW_EXAMPLES)
@given(
    st.sampled_from([route for route in ALL if route.body is not None]),
    st.dictionaries(st.integers(0, 30), _json, max_size=6),
)
def test_bodies_of_wrong_types(
    server: ServerThread, route: Route, values: dict[int, object]
) -> None:
    """Fields that there are, with values of any type."""
    assert route.body is not None
    fields = route.body.__struct_encode_fields__
    body = {fields[number % len(fields)]: each for number, each in values.items()}
    limit_partitions(body)
    line = Line(server)
    status = line.ask(route.method, filled(route, usual), json.dumps(body).encode())
    line.close()

    assert is_clean(status)


def test_the_store_is_well_after_all_that(server: ServerThread) -> None:
    """And does what it did before."""
    queue = server.app.store.queue("after")
    queue.push(b"x")

    assert queue.pop() is not None
