"""Connections to a server: how many, what happens when they break, and what is refused."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from segue.errors import (
    ConnectionsBusy,
    LockBusy,
    StorageFull,
    StoreClosed,
    StoreUnavailable,
    UnsupportedFormat,
    UnsupportedServer,
)
from segue.stores.opening import open_redis
from segue.stores.redis import connections
from segue.stores.redis import store as stores
from segue.stores.redis.store import RedisStore
from tests.redis_proxy import EncryptedProxy, Proxy
from tests.redis_server import LOOPBACK, RedisServer, eventually, shared_server

PATIENCE_SECONDS: Final = 30.0
"""Longer than anything here takes on any machine."""
PASSWORD: Final = "hunter2"

Opener = Callable[..., RedisStore]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A line to the server that can be disturbed."""
    with Proxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def opened(proxy: Proxy) -> Iterator[Opener]:
    """Opens stores behind the proxy, in a namespace of the test's own; closes them at the end."""
    namespace = f"test-{os.urandom(8).hex()}"
    found: list[RedisStore] = []

    def opened(**options: object) -> RedisStore:
        said = "".join(f"&{name}={value}" for name, value in options.items())
        store = open_redis(f"{proxy.url}?namespace={namespace}{said}")
        found.append(store)
        return store

    yield opened
    proxy.restore()
    for store in found:
        store.close()


# How many ----------------------------------------------------------------------------------


def test_no_more_connections_are_open_than_allowed(opened: Opener, proxy: Proxy) -> None:
    store = opened(connections=3)
    ring = store.ring("bus", capacity=1_000)
    with ThreadPoolExecutor(12) as threads:
        offsets = list(threads.map(lambda _: ring.enqueue(b"x"), range(200)))

    assert sorted(offsets) == list(range(200))
    assert proxy.most_open <= 3


def test_half_of_the_connections_stay_open_when_idle(
    opened: Opener, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come at once when they are needed, and the others do not stay for ever."""
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.0)
    ring = opened(connections=6).ring("bus", capacity=1_000)
    proxy.delay_seconds = 0.02
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: ring.enqueue(b"x"), range(24)))
    proxy.delay_seconds = 0.0
    ring.info()

    assert proxy.most_open == 6
    eventually(lambda: proxy.open == 3)
    accepted = proxy.accepted
    ring.info()
    assert proxy.accepted == accepted


def test_a_call_that_finds_all_connections_in_use_gives_up(opened: Opener) -> None:
    """After `pool_wait`; nothing was sent, so whoever calls may try again."""
    store = opened(connections=1, pool_wait=0.05, retry=PATIENCE_SECONDS)
    ring = store.ring("bus", capacity=10)
    (node,) = store.calls.servers.nodes()
    begun = time.monotonic()
    with node.pool.connection(), pytest.raises(ConnectionsBusy) as refusal:
        ring.enqueue(b"no")

    assert time.monotonic() - begun < PATIENCE_SECONDS / 2
    assert (refusal.value.size, refusal.value.seconds) == (1, 0.05)
    assert ring.enqueue(b"yes") == 0


def test_a_call_waits_for_a_connection_to_be_free(opened: Opener) -> None:
    store = opened(connections=1, pool_wait=PATIENCE_SECONDS)
    ring = store.ring("bus", capacity=10)
    (node,) = store.calls.servers.nodes()
    with ThreadPoolExecutor(1) as threads:
        with node.pool.connection():
            waiting = threads.submit(ring.enqueue, b"patient")

        assert waiting.result(PATIENCE_SECONDS) == 0


def test_who_waits_takes_no_connection_from_who_works(opened: Opener) -> None:
    """However many wait, the one who lets them go gets through."""
    store = opened(connections=2, pool_wait=1)
    held = store.lock("door").acquire()
    with ThreadPoolExecutor(6) as threads:
        waiting = [
            threads.submit(lambda: store.lock("door").acquire(wait=PATIENCE_SECONDS).release())
            for _ in range(6)
        ]
        held.release()
        for each in waiting:
            each.result(PATIENCE_SECONDS)

    assert store.lock("door").holder() is None


def test_a_closed_store_has_no_connections(opened: Opener, proxy: Proxy) -> None:
    store = opened()
    store.ring("bus", capacity=10)
    store.close()

    eventually(lambda: proxy.open == 0)
    with pytest.raises(StoreClosed):
        store.rings()


# Breaking ----------------------------------------------------------------------------------


def test_a_connection_that_was_cut_is_made_anew(opened: Opener, proxy: Proxy) -> None:
    ring = opened().ring("bus", capacity=10)
    ring.enqueue(b"before")
    proxy.cut_once()

    assert ring.enqueue(b"after") == 1


def test_a_call_goes_on_when_the_server_is_back(opened: Opener, proxy: Proxy) -> None:
    ring = opened(retry=PATIENCE_SECONDS).ring("bus", capacity=10)
    proxy.cut()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ring.enqueue, b"patient")
        time.sleep(0.05)
        proxy.restore()

        assert waiting.result(PATIENCE_SECONDS) == 0


def test_who_waits_for_a_lock_outlasts_a_cut(opened: Opener, proxy: Proxy) -> None:
    store = opened()
    held = store.lock("door").acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.lock("door").acquire, wait=PATIENCE_SECONDS)
        eventually(lambda: proxy.open > 1)
        proxy.cut_once()
        held.release()

        assert waiting.result(PATIENCE_SECONDS).token > held.token


def test_an_enqueue_whose_answer_was_lost_happens_once(opened: Opener, proxy: Proxy) -> None:
    """The server remembers the request; the second try is told what the first one did."""
    ring = opened().ring("bus", capacity=10)
    for number in range(3):
        proxy.lose_answer()

        assert ring.enqueue(b"%d" % number) == number
        assert proxy.lost.is_set()
    assert ring.info().count == 3


def test_a_dequeue_whose_answer_was_lost_yields_its_entry(opened: Opener, proxy: Proxy) -> None:
    ring = opened().ring("bus", capacity=10)
    for number in range(3):
        ring.enqueue(b"%d" % number)
    proxy.lose_answer()
    taken = ring.dequeue()

    assert proxy.lost.is_set()
    assert taken is not None
    assert (taken.offset, taken.body) == (0, b"0")
    assert ring.info().head_offset == 1


def test_a_commit_whose_answer_was_lost_is_a_commit(opened: Opener, proxy: Proxy) -> None:
    ring = opened().ring("bus", capacity=10)
    with ring.transaction("once", ttl=PATIENCE_SECONDS) as transaction:
        transaction.enqueue(b"a")
        transaction.enqueue(b"b")
        proxy.lose_answer()
    outcome = ring.outcome("once")

    assert proxy.lost.is_set()
    assert outcome is not None
    assert outcome.enqueued == range(2)
    assert ring.info().tail_offset == 2


def test_a_commit_that_nobody_answered_may_be_tried_again(opened: Opener, proxy: Proxy) -> None:
    """By its token: what is committed already is not committed twice, nor taken for broken."""
    ring = opened(retry=0).ring("bus", capacity=10)
    transaction = ring.transaction("once", ttl=PATIENCE_SECONDS)
    transaction.enqueue(b"a")
    proxy.lose_answer()
    with pytest.raises(StoreUnavailable):
        transaction.commit()
    transaction.commit()

    assert ring.info().tail_offset == 1


def test_a_lock_whose_answer_was_lost_is_ours(opened: Opener, proxy: Proxy) -> None:
    lock = opened().lock("door")
    proxy.lose_answer()
    held = lock.acquire(wait=0)

    assert proxy.lost.is_set()
    assert (lock.holder() or ("", 0, 0.0))[1] == held.token
    proxy.lose_answer()
    held.release()
    assert lock.holder() is None


def test_a_push_whose_answer_was_lost_happens_once(opened: Opener, proxy: Proxy) -> None:
    queue = opened().queue("mail")
    for number in range(3):
        proxy.lose_answer()
        queue.push(b"%d" % number)

    assert proxy.lost.is_set()
    assert queue.count().ready == 3
    assert [message.body for message in queue.pop_many(10)] == [b"0", b"1", b"2"]


def test_a_lease_whose_answer_was_lost_is_delivered_once(opened: Opener, proxy: Proxy) -> None:
    queue = opened().queue("mail")
    queue.push(b"work")
    proxy.lose_answer()
    job = queue.lease(ttl=PATIENCE_SECONDS)

    assert proxy.lost.is_set()
    assert (job.body, job.attempt) == (b"work", 1)
    proxy.lose_answer()
    queue.ack(job)
    assert queue.count().total == 0


def test_a_server_that_falls_silent_is_given_up(opened: Opener, proxy: Proxy) -> None:
    """A line that is half open takes requests and never answers: each try ends with `timeout`."""
    ring = opened(timeout=0.1, retry=0.3).ring("bus", capacity=10)
    proxy.freeze()
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"tried for 0\.3 s"):
        ring.enqueue(b"lost")

    assert time.monotonic() - begun < PATIENCE_SECONDS / 3
    proxy.restore()
    assert ring.enqueue(b"back") in {0, 1}


def test_a_request_that_arrives_late_changes_nothing_again(opened: Opener, proxy: Proxy) -> None:
    """What was stuck in a frozen line is delivered after the same request came through another."""
    ring = opened(timeout=0.1, retry=PATIENCE_SECONDS).ring("bus", capacity=10)
    for _ in range(3):
        proxy.freeze()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ring.enqueue, b"once")
            time.sleep(0.25)
            proxy.restore()
            waiting.result(PATIENCE_SECONDS)

    assert ring.info().tail_offset == 3


def test_a_store_that_cannot_be_reached_says_so(opened: Opener, proxy: Proxy) -> None:
    ring = opened(retry=0.1).ring("bus", capacity=10)
    proxy.cut()

    with pytest.raises(StoreUnavailable, match=r"tried for 0\.1 s: .+"):
        ring.info()
    with pytest.raises(ConnectionError):
        opened(retry=0.1)


def test_nobody_at_the_port_is_found_out_within_the_time_for_tries() -> None:
    with Proxy(1) as proxy:
        port = proxy.port

    with pytest.raises(StoreUnavailable):
        open_redis(f"redis://{LOOPBACK}:{port}?retry=0.1")


# Servers -----------------------------------------------------------------------------------


def test_functions_are_loaded_again_when_they_are_gone(opened: Opener) -> None:
    ring = opened().ring("bus", capacity=10)
    ring.enqueue(b"a")
    shared_server().ask("FUNCTION", "FLUSH")

    assert ring.enqueue(b"b") == 1
    shared_server().ask("FUNCTION", "FLUSH")
    assert ring.info().count == 2


def test_functions_are_loaded_again_after_a_restart(scratch: Path) -> None:
    with RedisServer(scratch / "server") as server, open_redis(server.url) as store:
        store.ring("bus", capacity=10).enqueue(b"a")
        server.restart()  # Nothing was to be kept.

        assert store.ring("bus", capacity=10).enqueue(b"b") == 0


def test_a_server_that_hangs_for_a_while_is_waited_for(scratch: Path) -> None:
    with (
        RedisServer(scratch / "server") as server,
        open_redis(f"{server.url}?timeout=0.2&retry=30") as store,
        ThreadPoolExecutor(1) as threads,
    ):
        ring = store.ring("bus", capacity=10)
        server.freeze()
        waiting = threads.submit(ring.enqueue, b"once")
        time.sleep(0.3)
        server.thaw()
        waiting.result(PATIENCE_SECONDS)

        assert ring.info().tail_offset == 1


def test_a_password_is_used_and_never_shown(scratch: Path) -> None:
    with RedisServer(scratch / "server", {"requirepass": PASSWORD}) as server:
        url = f"redis://:{PASSWORD}@{LOOPBACK}:{server.port}/0?retry=0.1"
        with open_redis(url) as store:
            ring = store.ring("bus", capacity=10)
            shown = [store.url, repr(store), repr(store.address), repr(ring), str(vars(store))]
            server.kill()
            with pytest.raises(StoreUnavailable) as failure:
                ring.info()
            shown += [str(failure.value), repr(failure.value.__cause__)]
        server.restart()
        with pytest.raises(StoreUnavailable, match="let us in") as refusal:
            open_redis(f"redis://:{PASSWORD}er@{LOOPBACK}:{server.port}/0?retry=0.1")
        shown.append(str(refusal.value))
        with pytest.raises(StoreUnavailable):
            open_redis(f"{server.url}?retry=0.1")

    assert [text for text in shown if PASSWORD in text] == []


def test_a_server_that_would_drop_keys_is_refused(scratch: Path) -> None:
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(scratch / "server", settings) as server:
        with pytest.raises(UnsupportedServer, match="allkeys-lru"):
            open_redis(server.url)
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        open_redis(server.url).close()


def test_a_server_without_memory_refuses_entries_and_gives_them_out(scratch: Path) -> None:
    with RedisServer(scratch / "server") as server, open_redis(server.url) as store:
        ring = store.ring("bus", capacity=10)
        ring.enqueue(b"kept")
        store.lock("door").acquire().release()
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StorageFull):
            ring.enqueue(b"refused")
        with ring.transaction(ttl=PATIENCE_SECONDS) as transaction:
            taken = transaction.dequeue()

        assert taken is not None
        assert taken.body == b"kept"
        assert ring.dequeue() is None
        assert store.lock("door").acquire(wait=0).is_held


def test_a_server_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAJOR_VERSION_MIN", 99)

    with pytest.raises(UnsupportedServer, match="version"):
        open_redis(shared_server().url)


def test_a_store_of_another_format_is_refused() -> None:
    server = shared_server()
    server.ask("SET", "other-format:{store}:format", 2)

    with pytest.raises(UnsupportedFormat, match="'2'"):
        open_redis(f"{server.url}?namespace=other-format")


def test_a_socket_in_the_file_system_will_do(scratch: Path) -> None:
    path = scratch / "server.sock"
    with (
        RedisServer(scratch / "server", {"unixsocket": str(path)}) as server,
        open_redis(f"unix://{path}") as store,
    ):
        held = store.lock("door").acquire()
        with pytest.raises(LockBusy):
            store.lock("door").acquire(wait=0.01)
        held.release()

        assert store.url == f"unix://{path}"
        assert store.ring("bus", capacity=3).enqueue(b"a") == 0
        assert server.is_running


@pytest.fixture
def certificates(scratch: Path) -> Path:
    """A directory with an authority and a certificate of the server that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    place = scratch / "certificates"
    place.mkdir()
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    common = ["-nodes", "-days", "1", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test"]
    names = ["-addext", f"subjectAltName=IP:{LOOPBACK}"]
    subprocess.run([*request, *common, *names], cwd=place, check=True, capture_output=True)
    return place


def test_a_line_may_be_encrypted(certificates: Path) -> None:
    """The server's certificate is checked: another authority is not believed."""
    authority = certificates / "ca.crt"
    port = shared_server().port
    with EncryptedProxy(port, certificate=authority, key=certificates / "ca.key") as line:
        options = f"retry=0.1&namespace=test-{os.urandom(8).hex()}"
        place = f"{LOOPBACK}:{line.port}?{options}"
        with open_redis(f"rediss://{place}&ca={authority}") as store:
            assert store.ring("bus", capacity=3).enqueue(bytes(1_000_000)) == 0
            entry = store.ring("bus").dequeue()
            assert entry is not None
            assert entry.body == bytes(1_000_000)
        with pytest.raises(StoreUnavailable, match="certificate"):
            open_redis(f"rediss://{place}")
        with pytest.raises(StoreUnavailable):
            open_redis(f"redis://{place}")


def test_threads_that_come_and_go_leave_no_connections(opened: Opener, proxy: Proxy) -> None:
    ring = opened(connections=4).ring("bus", capacity=1_000)
    for _ in range(30):
        thread = threading.Thread(target=ring.enqueue, args=(b"x",))
        thread.start()
        thread.join()

    assert ring.info().count == 30
    assert proxy.accepted <= 4
