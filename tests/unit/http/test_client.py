"""A client of a server: its connections, what it refuses to take for a server, and its secrets."""

import gc
import itertools
import logging
import os
import resource
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.errors import (
    AccessDenied,
    BatchTooLarge,
    ConnectionsBusy,
    InvalidArgument,
    LeaseLost,
    SegueError,
    StoreClosed,
    StoreUnavailable,
    UnsupportedServer,
)
from segue.server.building import build_app
from segue.server.requests import REMEMBERED_SECONDS
from segue.server.serving import ServerThread, config_of
from segue.server.tokens import add_token, make_token
from segue.stores.http import calls as http_calls
from segue.stores.http import queue as http_queue
from segue.stores.http.address import RETRY_SECONDS_MAX, Address, Options, address_from
from segue.stores.http.answer import Answer as Received
from segue.stores.http.line import Line
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_directory, open_http
from tests.contract.worlds import HttpWorld
from tests.http_proxy import Answer, HttpProxy, Impostor, answer_of
from tests.integration.server_support import Failures
from tests.ports import free_port
from tests.unit.http.support import Opener, count_heard, in_time, let_pass, using
from tests.waiting import LIMIT_SECONDS, wait_until

MEMORY_BYTES_MAX: Final = 128 << 20
CERTIFICATE: Final = Path(__file__).parents[2] / "certificates" / "loopback.crt"
KEY: Final = CERTIFICATE.with_suffix(".key")
SECRET: Final = "segue_ab12cd34ef_thisIsASecretThatNobodyMaySee"
BOOKS: Final = "xn--bcher-kva.example"
"""As the names of hosts are written that have more than ASCII."""
USUAL: Final = Options()
"""The options of a URL without any. The fixtures of conftest.py have not changed them yet."""


# Connections ---------------------------------------------------------------------------------


def test_calls_one_after_the_other_use_one_connection(opened: Opener, proxy: HttpProxy) -> None:
    """And what is read bit by bit one of its own: it may take as long as its reader likes."""
    queue = opened().queue("jobs")
    for number in range(30):
        queue.push(b"%d" % number)
        queue.count()
        list(queue.history())
        with pytest.raises(SegueError):
            queue.ack("0-99999/1")
        queue.pop()

    assert proxy.accepted == 2


def test_a_list_that_is_left_early_costs_its_connection_and_nothing_else(
    opened: Opener, proxy: HttpProxy
) -> None:
    """What would still come must not be taken for the next answer."""
    queue = opened().queue("jobs")
    queue.push_many([b"x" * 1_000] * 1_000)
    for message in queue.history():
        assert message.body == b"x" * 1_000
        break
    gc.collect()

    assert queue.count().ready == 1_000
    assert proxy.accepted <= 2


def test_a_long_list_is_not_read_byte_by_byte(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor line by line from the socket: what has come is taken as a whole."""
    queue = opened().queue("jobs")
    queue.push_many([b"x" * 100] * 3_000)
    fill = Received._fill
    reads = itertools.count()

    def filling(answer: Received) -> None:
        next(reads)
        fill(answer)

    monkeypatch.setattr(Received, "_fill", filling)

    assert sum(1 for _ in queue.history()) == 3_000
    assert next(reads) < 1_500


def test_many_acks_are_sent_in_parts_and_tell_of_all_that_are_lost(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes only so many."""
    monkeypatch.setattr(http_queue, "COUNT_MAX", 3)
    queue = opened().queue("jobs")
    queue.push_many([b"x"] * 8)
    jobs = queue.lease_many(8)
    gone = [jobs[1].receipt, jobs[4].receipt, jobs[5].receipt]
    for receipt in gone:
        queue.ack(receipt)
    with pytest.raises(LeaseLost) as refusal:
        queue.ack_many([job.receipt for job in jobs])

    assert sorted(refusal.value.lost) == sorted(gone)
    assert queue.count().total == 0


def test_threads_share_one_store(opened: Opener, proxy: HttpProxy) -> None:
    queue = opened(connections=4).queue("jobs")

    def work(number: int) -> bytes:
        queue.push(b"%d" % number)
        message = queue.pop(wait=LIMIT_SECONDS)
        assert message is not None
        return message.body

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(work, range(160)))

    assert sorted(found) == sorted(b"%d" % number for number in range(160))
    assert proxy.most_open <= 2 * 4  # As many for those who wait.


def test_a_call_that_finds_all_connections_in_use_gives_up(opened: Opener) -> None:
    """After `pool_wait`; nothing was sent, so the caller may try again."""
    store = opened(connections=1, pool_wait=0.05, retry=RETRY_SECONDS_MAX)
    queue = store.queue("jobs")
    with store.calls._work.connection(), pytest.raises(ConnectionsBusy) as refusal:
        in_time(lambda: queue.push(b"no"))

    assert (refusal.value.size, refusal.value.seconds) == (1, 0.05)
    queue.push(b"yes")
    assert [message.body for message in queue.pop_many(9)] == [b"yes"]


@pytest.mark.usefixtures("long_polls")
def test_who_waits_takes_no_connection_from_who_works(opened: Opener, proxy: HttpProxy) -> None:
    """However many wait for messages, leases are renewed and messages pushed meanwhile."""
    store = opened(connections=2)
    queue = store.queue("jobs")
    with ThreadPoolExecutor(6) as threads:
        waiting = [threads.submit(queue.pop, wait=None) for _ in range(6)]
        wait_until(lambda: count_heard(proxy, b"/pop") >= 2)
        queue.push_many([b"x"] * 6)
        found = [each.result(LIMIT_SECONDS) for each in waiting]

    assert [message and message.body for message in found] == [b"x"] * 6


def test_threads_that_come_and_go_leave_no_connections(opened: Opener, proxy: HttpProxy) -> None:
    queue = opened(connections=4).queue("jobs")
    for _ in range(30):
        thread = threading.Thread(target=queue.push, args=(b"x",))
        thread.start()
        thread.join()

    assert queue.count().ready == 30
    assert proxy.accepted <= 4


def test_a_closed_store_has_no_connections(opened: Opener, proxy: HttpProxy) -> None:
    store = opened()
    queue = store.queue("jobs")
    queue.push(b"x")
    store.close()
    store.close()

    wait_until(lambda: proxy.open == 0)
    with pytest.raises(StoreClosed):
        store.queues()
    with pytest.raises(StoreClosed):
        queue.push(b"x")


@pytest.mark.parametrize("wait", [10 * LIMIT_SECONDS, None])
def test_closing_ends_a_long_poll(opened: Opener, proxy: HttpProxy, wait: float | None) -> None:
    store = opened(retry=RETRY_SECONDS_MAX, timeout=10 * LIMIT_SECONDS)
    with ThreadPoolExecutor(3) as threads:
        queue = store.queue("jobs")
        calls: list[Callable[[], object]] = [
            partial(queue.pop, wait=wait),
            partial(queue.lease, wait=wait),
            partial(queue.wait, wait),
        ]
        waiting = [threads.submit(call) for call in calls]
        wait_until(lambda: all(count_heard(proxy, b) for b in (b"/pop", b"/lease", b"/wait")))
        proxy.freeze()  # No answer ends them.
        in_time(store.close)
        try:
            for each in waiting:
                with pytest.raises(StoreClosed):
                    each.result(LIMIT_SECONDS)
        finally:
            proxy.restore()


def test_closing_ends_a_call_that_is_being_repeated(
    opened: Opener, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it pauses, here for at least half of RETRY_SECONDS_MAX, before the next try."""
    monkeypatch.setattr(http_calls, "PAUSE_SECONDS_MIN", RETRY_SECONDS_MAX)
    store = opened(retry=RETRY_SECONDS_MAX)
    pausing = threading.Event()
    pause = store.calls._closing.wait

    def waiting(seconds: float) -> bool:
        pausing.set()
        return pause(seconds)

    monkeypatch.setattr(store.calls._closing, "wait", waiting)
    proxy.cut()
    with ThreadPoolExecutor(1) as threads:
        pushing = threads.submit(store.queue("jobs").push, b"x")
        assert pausing.wait(LIMIT_SECONDS)
        in_time(store.close)
        with pytest.raises(StoreClosed):
            pushing.result(LIMIT_SECONDS)


def test_closing_while_a_connection_is_being_made(
    opened: Opener, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing interrupts open connections. This one is not open yet, so it must not be used."""
    store = opened()
    queue = store.queue("jobs")
    connect = Line.connect_within

    def connecting(line: Line, timeout: float) -> None:
        store.close()
        connect(line, timeout)

    monkeypatch.setattr(Line, "connect_within", connecting)
    with pytest.raises(StoreClosed):
        queue.pop(wait=LIMIT_SECONDS)

    assert count_heard(proxy, b"/pop") == 0


def test_closing_does_not_wait_for_a_server_that_is_frozen(
    opened: Opener, proxy: HttpProxy
) -> None:
    store = opened(retry=RETRY_SECONDS_MAX, timeout=10 * LIMIT_SECONDS)
    queue = store.queue("jobs")
    queue.push(b"x")
    job = queue.lease()
    proxy.freeze()
    in_time(store.close)
    del job


def test_a_server_that_is_frozen_is_unavailable_in_time(opened: Opener, proxy: HttpProxy) -> None:
    store = opened()
    queue = store.queue("jobs")
    proxy.freeze()
    with (
        using(store, timeout=0.1, retry=0.2),
        pytest.raises(StoreUnavailable, match="does not answer"),
    ):
        in_time(queue.count)

    proxy.restore()
    assert queue.count().ready == 0


def test_a_server_that_comes_back_is_used_again(opened: Opener, proxy: HttpProxy) -> None:
    queue = opened(retry=0).queue("jobs")
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        queue.push(b"1")
    proxy.restore()
    queue.push(b"2")

    assert [message.body for message in queue.pop_many(9)] == [b"2"]


def test_a_connection_that_the_server_closed_while_it_was_idle_is_no_failure(
    opened: Opener, proxy: HttpProxy
) -> None:
    """Servers close what is idle for long: that alone must cost nobody a retry."""
    queue = opened(retry=0).queue("jobs")
    queue.push(b"1")
    proxy.cut_once()
    wait_until(lambda: proxy.open == 0)
    queue.push(b"2")

    assert [message.body for message in queue.pop_many(9)] == [b"1", b"2"]


# That it forks while threads run is what is tested; newer Pythons warn of it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(opened: Opener, proxy: HttpProxy) -> None:
    queue = opened().queue("jobs")
    queue.push(b"before")
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if queue.pop() is not None and queue.count().ready == 0 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    accepted = proxy.accepted
    queue.push(b"after")

    assert status == 0
    assert (accepted, proxy.accepted) == (2, 2)


# No server of ours ---------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_unavailable_soon() -> None:
    with pytest.raises(StoreUnavailable, match=r"does not answer.*refused"):
        in_time(lambda: open_http(f"http://127.0.0.1:{free_port()}?retry=0.2"))


DRIP_SECONDS: Final = 0.05
DRIPPING_TIMEOUT_SECONDS: Final = 0.5


def endless(piece: bytes, *, head: bytes = b"") -> Callable[[], Iterator[bytes]]:
    """Return an answer that never ends."""
    return lambda: itertools.chain([head], itertools.repeat(piece))


def drip(piece: bytes, *, head: bytes) -> Callable[[], Iterator[bytes]]:
    """Return an answer that sends a little now and then, and never pauses for a whole timeout."""

    def pieces() -> Iterator[bytes]:
        yield head
        for _ in range(int(LIMIT_SECONDS / DRIP_SECONDS) * 2):
            let_pass(DRIP_SECONDS)
            yield piece

    return pieces


HTML: Final = b"<!doctype html><title>It works</title>"
OK: Final = b"HTTP/1.1 200 OK\r\n"
STRANGERS: Final[dict[str, Answer]] = {
    "a page": answer_of(200, HTML, content_type="text/html"),
    "no such page": answer_of(404, HTML),
    "no such route": answer_of(404, b'{"code":"not_found","detail":"there is nothing here"}'),
    "another API": answer_of(200, b'{"name":"other","version":{"number":"8"}}'),
    "not an object": answer_of(200, b"[1,2,3]"),
    "nothing": answer_of(200),
    "no content": answer_of(204),
    "elsewhere": answer_of(302, location="http://127.0.0.1:9/"),
    "not text": answer_of(200, b"\xff\xfe{}"),
    "deep": answer_of(200, b"[" * 100_000),
    "broken inside": answer_of(500, HTML),
    "teapot": answer_of(418, b"short and stout"),
    "deep refusal": answer_of(400, b"[" * 100_000),
    "strange refusal": answer_of(409, b'{"code":["lease_lost"],"detail":{"a":1}}'),
    "garbage": b"\x00\xff garbage \r\n\r\n" * 100,
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "a bad length": OK + b"content-length: many\r\n\r\n{}",
    "a negative length": OK + b"content-length: -5\r\n\r\n{}",
    "bad chunks": OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "a status of its own": b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n",
    "no status": b"HTTP/1.1 \r\n\r\n",
    "endless first line": endless(b"x" * 65_536),
    "endless headers": endless(b"x-more: yes\r\n" * 1_000, head=OK),
    "endless header": endless(b"x" * 65_536, head=OK + b"x-long: "),
    "endless going on": endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    "endless body": endless(b" " * 65_536, head=OK + b"\r\n"),
    "endless chunks": endless(
        b"10000\r\n" + b" " * 65_536 + b"\r\n", head=OK + b"transfer-encoding: chunked\r\n\r\n"
    ),
    "a huge length": endless(b" " * 65_536, head=OK + b"content-length: 99999999999\r\n\r\n"),
    "a huge refusal": endless(
        b" " * 65_536, head=b"HTTP/1.1 400 Bad\r\ncontent-length: 99999999999\r\n\r\n"
    ),
    "a huge chunk": endless(
        b" " * 65_536, head=OK + b"transfer-encoding: chunked\r\n\r\nfffffffff\r\n"
    ),
    "an endless chunk size": endless(
        b"0" * 65_536, head=OK + b"transfer-encoding: chunked\r\n\r\n"
    ),
    "dripping header": drip(b"y", head=OK + b"x: "),
    "dripping body": drip(b" ", head=OK + b"content-length: 10000\r\n\r\n"),
    "dripping chunks": drip(b"1\r\n \r\n", head=OK + b"transfer-encoding: chunked\r\n\r\n"),
    "dripping trailers": drip(
        b"x: y\r\n", head=OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    ),
}


def test_what_is_no_segue_server_is_found_out_in_bounded_time_and_memory() -> None:
    """Whatever listens there: an error of ours, soon, and nothing kept of what it sends."""
    before = _peak_bytes()
    # All at once, so that those that last until their timeout do so together.
    with ThreadPoolExecutor(len(STRANGERS)) as threads, ExitStack() as servers:
        refusals = {
            stranger: threads.submit(_refusal_of, servers.enter_context(Impostor(answer)).url)
            for stranger, answer in STRANGERS.items()
        }
        found = {stranger: each.result(LIMIT_SECONDS) for stranger, each in refusals.items()}
    wrong = {
        stranger: refusal
        for stranger, refusal in found.items()
        if not isinstance(refusal, UnsupportedServer | StoreUnavailable | InvalidArgument)
        or len(str(refusal)) >= 2_000
    }

    assert wrong == {}
    assert _peak_bytes() - before < MEMORY_BYTES_MAX


def _refusal_of(url: str) -> BaseException | None:
    """Return the error that opening a store raises, None if it opens."""
    try:
        open_http(f"{url}?timeout={DRIPPING_TIMEOUT_SECONDS}&retry=0.3").close()
    except Exception as error:  # noqa: BLE001 - the caller checks its type.
        return error
    return None


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_server_that_speaks_first_is_found_out() -> None:
    with (
        Impostor(b"what?\r\n", greeting=b"SSH-2.0-OpenSSH_9.6\r\n") as server,
        pytest.raises((UnsupportedServer, StoreUnavailable)),
    ):
        in_time(lambda: open_http(f"{server.url}?timeout=0.3&retry=0.3"))

    assert server.accepted < 100


def test_a_body_that_is_too_large_is_told_so(scratch: Path) -> None:
    """Though the server refuses it by its head, and reads no more of it."""
    with open_directory(scratch / "data", sync="os") as directory:
        app = build_app(directory, body_bytes_max=1 << 20)
        with (
            ServerThread(app) as server,
            open_http(server.url) as store,
        ):
            with pytest.raises(BatchTooLarge, match="at most 1048576 bytes"):
                store.queue("jobs").push_many([b"x" * 1_000_000] * 30)
            store.queue("jobs").push(b"small")


ABOUT: Final = b'{"server":"segue","version":"1","api":%d,"store":"file","durable":"os"}'


def test_a_server_that_is_older_is_not_used() -> None:
    with (
        Impostor(answer_of(200, ABOUT % 0)) as server,
        pytest.raises(UnsupportedServer, match="version 0; this Segue needs 1"),
    ):
        open_http(server.url)


def test_something_else_that_speaks_json_is_no_segue_server() -> None:
    with (
        Impostor(answer_of(200, ABOUT.replace(b"segue", b"other") % 1)) as server,
        pytest.raises(UnsupportedServer, match="is no Segue server"),
    ):
        open_http(server.url)


def test_a_server_that_is_newer_is_used() -> None:
    """It speaks to older clients, or it would have said that it does not."""
    about = ABOUT[:-1] % 2 + b',"news":{"anything":1}}'
    with Impostor(answer_of(200, about)) as server, open_http(server.url) as store:
        assert store.about.api == 2


def test_a_route_that_a_server_does_not_know_makes_it_an_older_one() -> None:
    unknown = answer_of(404, b'{"code":"not_found","detail":"there is nothing at /x"}')
    with (
        Impostor(answer_of(200, ABOUT % 1), unknown) as server,
        open_http(server.url) as store,
        pytest.raises(UnsupportedServer, match="older"),
    ):
        store.queue("jobs").count()


@pytest.mark.parametrize(
    "problem",
    [
        b'{"code":"lease_lost","detail":"gone"}',
        b'{"code":"lease_lost","detail":"gone","lost":7,"receipt":[],"reason":{}}',
        b'{"code":"queue_full","detail":"full","capacity":"many"}',
        b'{"code":"queue_locked","detail":"locked","seconds_left":"soon"}',
        b'{"code":"lease_lost","detail":"' + b"x" * 1_000_000 + b'"}',
    ],
)
def test_a_problem_with_other_fields_than_it_should_have_is_an_error_of_ours(
    problem: bytes,
) -> None:
    with (
        Impostor(answer_of(200, ABOUT % 1), answer_of(410, problem)) as server,
        open_http(f"{server.url}?retry=0") as store,
    ):
        queue = store.queue("jobs")
        for call in (
            lambda: queue.ack("0-0/1"),
            lambda: queue.push(b"x", wait=0),
            lambda: queue.lease(wait=0),
        ):
            with pytest.raises(SegueError):
                call()


# Tokens --------------------------------------------------------------------------------------


@pytest.fixture
def guarded(scratch: Path) -> Iterator[tuple[ServerThread, str]]:
    """A server that asks for a token, and one that it takes for reading."""
    path = scratch / "tokens.json"
    token, text = make_token(
        name="reader", roles=("read",), names=("*",), now_us=0, expires_us=None
    )
    add_token(path, token)
    with (
        open_directory(scratch / "data", sync="os") as store,
        ServerThread(build_app(store, tokens=path)) as server,
    ):
        yield server, text


def test_a_token_is_given_by_hand_or_by_the_environment(
    guarded: tuple[ServerThread, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, text = guarded
    with pytest.raises(AccessDenied):
        segue.open(server.url)
    with segue.open(server.url, token=text) as store:
        assert store.queues() == []
    monkeypatch.setenv("SEGUE_TOKEN", text)
    with segue.open(server.url) as store:
        assert store.queues() == []
        with pytest.raises(AccessDenied, match="role produce"):
            store.queue("jobs").push(b"x")
    with pytest.raises(AccessDenied):
        segue.open(server.url, token=SECRET)


@pytest.mark.filterwarnings("error")
def test_a_token_is_never_shown(
    guarded: tuple[ServerThread, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, text = guarded
    caplog.set_level(logging.DEBUG)
    shown = []
    with segue.open(f"{server.url}?retry=0.3", token=text) as store:
        assert isinstance(store, HttpStore)
        shown += [repr(store), str(store), store.url, repr(store.address), str(store.address)]
        shown += [repr(store.calls), repr(store.queue("jobs")), repr(vars(store))]
        for call in (lambda: store.queue("jobs").push(b"x"), lambda: store.queue("jobs").pop()):
            with pytest.raises(SegueError) as failure:
                call()
            shown.append("".join(traceback.format_exception(failure.value)))
        server.stop()
        with pytest.raises(SegueError) as failure:
            store.queues()
        shown.append("".join(traceback.format_exception(failure.value)))
    with pytest.raises(SegueError) as failure:
        segue.open(f"http://127.0.0.1:{free_port()}?retry=0.1", token=text)
    shown.append("".join(traceback.format_exception(failure.value)))
    secret = text.rpartition("_")[2]

    assert secret not in "\n".join(shown)
    assert secret not in caplog.text


@pytest.mark.parametrize("token", ["", "two\r\nlines", "tab\t", "ünï", "\x00", 123, b"bytes"])
def test_a_token_that_cannot_be_one_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        open_http("http://127.0.0.1:9", token=token)

    assert not token or str(token) not in str(refusal.value)


# URLs ----------------------------------------------------------------------------------------


def test_a_url_without_options_has_requests_repeated_and_limits_their_time() -> None:
    assert (USUAL.retry, USUAL.timeout, USUAL.pool_wait) == (10, 10, 4)


def test_a_url_says_where_the_server_is() -> None:
    cases = [
        ("http://box", Address(host="box", port=8000, is_encrypted=False)),
        ("http://box:80/", Address(host="box", port=80, is_encrypted=False)),
        ("https://box", Address(host="box", port=443, is_encrypted=True)),
        ("https://box:8443", Address(host="box", port=8443, is_encrypted=True)),
        ("http://[::1]:81", Address(host="::1", port=81, is_encrypted=False)),
        ("http://box/a/b/", Address(host="box", port=8000, is_encrypted=False, path="/a/b")),
        ("https://bücher.example", Address(host=BOOKS, port=443, is_encrypted=True)),
        (
            "http://box?retry=300",
            Address(host="box", port=8000, is_encrypted=False, options=Options(retry=300)),
        ),
        (
            "http://box?retry=3&timeout=0.5&connections=2&pool_wait=1&ca=/x",
            Address(
                host="box",
                port=8000,
                is_encrypted=False,
                options=Options(retry=3, timeout=0.5, connections=2, pool_wait=1, ca="/x"),
            ),
        ),
    ]

    assert [address_from(url) for url, _ in cases] == [expected for _, expected in cases]


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("http://box/api/v1", "http://box:8000"),
        ("https://box:1/below/api/v1/", "https://box:1/below"),
    ],
)
def test_a_url_with_the_path_of_the_api_is_told_what_it_should_be(url: str, right: str) -> None:
    """The client puts that path there by itself, and would ask for it twice."""
    with pytest.raises(InvalidArgument) as refusal:
        open_http(url)

    assert str(refusal.value).endswith(right)


def test_a_gateway_may_have_a_path_of_that_name_too() -> None:
    """What a proxy puts a server below is up to the proxy."""
    assert address_from("http://gw/api/v1/segue").path == "/api/v1/segue"


def test_a_host_is_spoken_to_by_the_name_that_others_know() -> None:
    """Headers are ASCII: what people type is not, as the wide letters that some keyboards have."""
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "localhost")
    with (
        Impostor(answer_of(200, ABOUT % 1)) as server,
        open_http(f"http://{wide}:{server.port}") as store,
    ):
        assert store.url == f"http://localhost:{server.port}"

    assert f"Host: localhost:{server.port}\r\n".encode() in server.requests[0]


def test_what_is_repeated_is_repeated_for_less_than_the_server_remembers() -> None:
    """Else a repetition would be done as if it were new."""
    assert 2 * RETRY_SECONDS_MAX <= REMEMBERED_SECONDS


SENSELESS: Final = [
    "http://",
    "http://:8000",
    "http:///path",
    "http://box:99999",
    "http://box:0",
    "http://box:port",
    "http://[::1",
    f"http://{SECRET}@box",
    f"http://ann:{SECRET}@box",
    f"http://box?token={SECRET}",
    "http://box?retries=3",
    "http://box?retry=",
    "http://box?retry=-1",
    "http://box?retry=nan",
    "http://box?retry=inf",
    "http://box?retry=301",
    "http://box/api/v1",
    "http://box?timeout=0",
    "http://box?connections=0",
    "http://box?connections=1.5",
    "http://box?connections=100000",
    "http://box?pool_wait=soon",
    "http://box/a b",
    "http://box/ä",
    "http://bo x",
    "http://" + "b" * 70,
    "https://127.0.0.1?ca=/nowhere.pem",
]


def test_a_url_that_makes_no_sense_is_refused_at_once() -> None:
    failures = Failures()
    for url in SENSELESS:
        with failures.case(url):
            with pytest.raises(InvalidArgument) as refusal:
                open_http(url)
            assert SECRET not in "".join(traceback.format_exception(refusal.value))

    failures.check()


# Encryption ----------------------------------------------------------------------------------


@pytest.fixture
def encrypted(scratch: Path) -> Iterator[ServerThread]:
    """A server with a self-signed certificate."""
    with open_directory(scratch / "data", sync="os") as store:
        app = build_app(store)
        with ServerThread(app, config=config_of(app, certificate=CERTIFICATE, key=KEY)) as server:
            yield server


def test_a_certificate_that_is_trusted_is_taken(encrypted: ServerThread) -> None:
    url = f"https://127.0.0.1:{encrypted.port}?ca={CERTIFICATE}"
    with open_http(url) as store:
        queue = store.queue("jobs")
        queue.push(b"secret")
        message = queue.pop()

    assert message is not None
    assert message.body == b"secret"


def test_a_certificate_that_is_not_trusted_is_refused_at_once(encrypted: ServerThread) -> None:
    """It gets no better by asking again."""
    url = f"https://127.0.0.1:{encrypted.port}?retry={RETRY_SECONDS_MAX}"
    with pytest.raises(StoreUnavailable, match="certificate") as refusal:
        in_time(lambda: open_http(url, token=SECRET))

    assert isinstance(refusal.value.__cause__, ssl.SSLError)
    assert type(refusal.value) is StoreUnavailable  # The command line shows its name.


def test_a_certificate_for_another_name_is_refused(encrypted: ServerThread) -> None:
    with pytest.raises(StoreUnavailable, match="certificate"):
        open_http(f"https://localhost:{encrypted.port}?ca={CERTIFICATE}&retry=0")


def test_a_server_that_does_not_encrypt_is_refused_at_once(world: HttpWorld) -> None:
    """Whoever wrote https:// by mistake is told so, and need not wait for it."""
    port = world.url.split(":")[2].partition("/")[0]
    url = f"https://127.0.0.1:{port}?retry={RETRY_SECONDS_MAX}&ca={CERTIFICATE}"
    with pytest.raises(StoreUnavailable, match="does not speak TLS: is it http://") as refusal:
        in_time(lambda: open_http(url))

    assert type(refusal.value) is StoreUnavailable


def test_a_server_that_encrypts_is_not_spoken_to_without(encrypted: ServerThread) -> None:
    """It says nothing at all, so whoever wrote http:// by mistake gets a hint."""
    with pytest.raises(StoreUnavailable, match="if it speaks TLS, it is https://"):
        open_http(f"http://127.0.0.1:{encrypted.port}?retry=0")


def test_a_server_that_answers_in_tls_is_refused_at_once() -> None:
    """An alert of TLS is no HTTP, and will not become it."""
    with (
        Impostor(b"\x15\x03\x01\x00\x02\x02\x46") as server,
        pytest.raises(StoreUnavailable, match="speaks TLS: is it https://") as refusal,
    ):
        in_time(lambda: open_http(f"{server.url}?retry={RETRY_SECONDS_MAX}"))

    assert type(refusal.value) is StoreUnavailable


def test_a_server_that_answered_before_is_not_said_to_encrypt(
    opened: Opener, proxy: HttpProxy
) -> None:
    """The hint is for who never got an answer over that line."""
    queue = opened(retry=0).queue("jobs")
    proxy.lose_answer()
    with pytest.raises(StoreUnavailable) as failure:
        queue.push(b"x")

    assert "TLS" not in str(failure.value)


@pytest.mark.usefixtures("long_polls")
def test_closing_ends_a_long_poll_that_is_encrypted(encrypted: ServerThread) -> None:
    store = open_http(f"https://127.0.0.1:{encrypted.port}?ca={CERTIFICATE}")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.queue("jobs").pop, wait=None)
        wait_until(lambda: encrypted.app.waiting.count)
        in_time(store.close)
        with pytest.raises(StoreClosed):
            waiting.result(LIMIT_SECONDS)
