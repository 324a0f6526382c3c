"""Servers that are restarted, protected, encrypted, full, or not fit for use."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest
import redis

from segue.errors import (
    LockBusy,
    StorageFull,
    StoreClosed,
    StoreUnavailable,
    UnsupportedFormat,
    UnsupportedServer,
)
from segue.stores.opening import open_redis
from segue.stores.redis import store as stores
from segue.stores.redis.servers import Guarded
from segue.stores.redis.store import RedisStore
from tests.ports import free_port
from tests.redis_proxy import EncryptedProxy, Proxy
from tests.redis_server import LOOPBACK, RedisServer, set_options, shared_server
from tests.waiting import LIMIT_SECONDS, wait_until

PASSWORD: Final = "hunter2"


@pytest.fixture
def server(scratch: Path) -> Iterator[RedisServer]:
    with RedisServer(scratch / "server") as server:
        yield server


# Coming back -------------------------------------------------------------------------------


def test_functions_are_loaded_again_when_they_are_gone(server: RedisServer) -> None:
    with open_redis(server.url) as store:
        ring = store.ring("bus", capacity=10)
        ring.enqueue(b"a")
        server.ask("FUNCTION", "FLUSH")

        assert ring.enqueue(b"b") == 1
        server.ask("FUNCTION", "FLUSH")
        assert ring.info().count == 2


def test_functions_are_loaded_again_after_a_restart(server: RedisServer) -> None:
    with open_redis(server.url) as store:
        store.ring("bus", capacity=10).enqueue(b"a")
        server.restart()  # Nothing was to be kept.

        assert store.ring("bus", capacity=10).enqueue(b"b") == 0


def test_a_server_that_hangs_for_a_while_is_waited_for(server: RedisServer) -> None:
    with (
        Proxy(server.port) as proxy,
        open_redis(f"{proxy.url}?timeout={LIMIT_SECONDS}&retry={LIMIT_SECONDS}") as store,
        ThreadPoolExecutor(1) as threads,
    ):
        ring = store.ring("bus", capacity=10)
        set_options(store, timeout=0.2)
        server.freeze()
        accepted = proxy.accepted
        waiting = threads.submit(ring.enqueue, b"once")
        wait_until(lambda: proxy.accepted > accepted, "it is tried again")
        server.thaw()
        waiting.result(LIMIT_SECONDS)

        assert ring.info().tail_offset == 1


@pytest.fixture
def lone_node(scratch: Path) -> Iterator[RedisServer]:
    """A cluster of one node, which has every slot."""
    settings = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with RedisServer(scratch / "node", settings) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        wait_until(
            lambda: "cluster_state:ok" in str(node.ask("CLUSTER", "INFO")),
            ignoring=(redis.RedisError, OSError),
        )
        yield node


def test_cut_connections_to_a_server_are_all_given_up_at_once(server: RedisServer) -> None:
    """Not one after the other, with a try for each."""
    _enqueue_after_a_cut(f"redis://{LOOPBACK}:{server.port}", server)


def test_cut_connections_to_a_node_are_all_given_up_at_once(lone_node: RedisServer) -> None:
    _enqueue_after_a_cut(f"redis+cluster://{LOOPBACK}:{lone_node.port}", lone_node)


def _enqueue_after_a_cut(url: str, server: RedisServer) -> None:
    options = f"timeout={LIMIT_SECONDS:g}&retry={LIMIT_SECONDS:g}"
    with open_redis(f"{url}?{options}") as store:
        ring = store.ring("bus", capacity=10)
        (node,) = store.calls.servers.nodes()
        for connection in [node.pool.take() for _ in range(16)]:
            node.pool.give_back(connection)
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        servers = store.calls.servers
        with patch.object(servers, "moved", wraps=servers.moved) as tried_again:
            assert ring.enqueue(b"after") == 0

        assert tried_again.call_count == 1


def test_a_call_that_waits_for_a_connection_outlasts_a_new_master(
    scratch: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server was replaced, not its store closed: it goes to the new one."""
    masters = [server]
    monkeypatch.setattr(Guarded, "_master", lambda _: (LOOPBACK, masters[-1].port))
    with (
        RedisServer(scratch / "other") as other,
        open_redis(f"redis+sentinel://{LOOPBACK}/main?connections=1") as store,
        ThreadPoolExecutor(1) as threads,
    ):
        for each in (server, other):
            with open_redis(each.url) as plain:
                plain.ring("bus", capacity=each.port, entries_per_segment=1)
        ring = store.ring("bus", mode="open")
        (node,) = store.calls.servers.nodes()
        with node.pool.connection():
            waiting = threads.submit(ring.info)
            masters.append(other)
            store.calls.servers.moved("", ConnectionError("the master is gone"))

        assert waiting.result(LIMIT_SECONDS).capacity == other.port
        with pytest.raises(StoreClosed):
            _closed(store).ring("bus")


def _closed(store: RedisStore) -> RedisStore:
    store.close()
    return store


# Getting in --------------------------------------------------------------------------------


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


CERTIFICATES = Path(__file__).parents[1] / "certificates"
"""Of 127.0.0.1, signed by itself, for a hundred years. The key is no secret."""


def test_a_line_may_be_encrypted() -> None:
    """The server's certificate is checked: another authority is not believed."""
    authority = CERTIFICATES / "loopback.crt"
    port = shared_server().port
    with EncryptedProxy(port, certificate=authority, key=CERTIFICATES / "loopback.key") as line:
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


# What will not do ---------------------------------------------------------------------------


def test_a_server_that_would_drop_keys_is_refused(scratch: Path) -> None:
    settings = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(scratch / "server", settings) as server:
        with pytest.raises(UnsupportedServer, match="allkeys-lru"):
            open_redis(server.url)
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        open_redis(server.url).close()


def test_a_server_without_memory_refuses_entries_and_gives_them_out(server: RedisServer) -> None:
    with open_redis(server.url) as store:
        ring = store.ring("bus", capacity=10)
        ring.enqueue(b"kept")
        store.lock("door").acquire().release()
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StorageFull):
            ring.enqueue(b"refused")
        with ring.transaction(ttl=LIMIT_SECONDS) as transaction:
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
