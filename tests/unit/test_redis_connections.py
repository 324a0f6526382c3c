"""Connections to a server: how many, what happens when they break, and what is refused."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from segue.errors import (
    ConnectionsBusy,
    StoreClosed,
    StoreUnavailable,
)
from segue.stores import connections
from segue.stores.opening import open_redis
from segue.stores.redis.store import RedisStore
from tests.redis_proxy import Proxy
from tests.redis_server import LOOPBACK, set_options, shared_server
from tests.waiting import LIMIT_SECONDS, wait_until

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
        options = {"timeout": LIMIT_SECONDS, **options}
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
    store = opened(connections=3, pool_wait=LIMIT_SECONDS)
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
    wait_until(lambda: proxy.open == 3)
    accepted = proxy.accepted
    ring.info()
    assert proxy.accepted == accepted


def test_a_call_that_finds_all_connections_in_use_gives_up(opened: Opener) -> None:
    """After `pool_wait`; nothing was sent, so whoever calls may try again."""
    store = opened(connections=1, pool_wait=0.05, retry=300)
    ring = store.ring("bus", capacity=10)
    (node,) = store.calls.servers.nodes()
    with node.pool.connection(), pytest.raises(ConnectionsBusy) as refusal:
        ring.enqueue(b"no")

    assert (refusal.value.size, refusal.value.seconds) == (1, 0.05)
    assert ring.enqueue(b"yes") == 0


def test_a_call_waits_for_a_connection_to_be_free(opened: Opener) -> None:
    store = opened(connections=1, pool_wait=LIMIT_SECONDS)
    ring = store.ring("bus", capacity=10)
    (node,) = store.calls.servers.nodes()
    with ThreadPoolExecutor(1) as threads:
        with node.pool.connection():
            waiting = threads.submit(ring.enqueue, b"patient")

        assert waiting.result(LIMIT_SECONDS) == 0


def test_who_waits_takes_no_connection_from_who_works(opened: Opener) -> None:
    """However many wait, the one who lets them go gets through."""
    store = opened(connections=2, pool_wait=LIMIT_SECONDS / 2)
    held = store.lock("door").acquire()
    with ThreadPoolExecutor(6) as threads:
        waiting = [
            threads.submit(lambda: store.lock("door").acquire(wait=LIMIT_SECONDS).release())
            for _ in range(6)
        ]
        held.release()
        for each in waiting:
            each.result(LIMIT_SECONDS)

    assert store.lock("door").holder() is None


def test_threads_that_come_and_go_leave_no_connections(opened: Opener, proxy: Proxy) -> None:
    ring = opened(connections=4).ring("bus", capacity=1_000)
    for _ in range(30):
        thread = threading.Thread(target=ring.enqueue, args=(b"x",))
        thread.start()
        thread.join()

    assert ring.info().count == 30
    assert proxy.accepted <= 4


def test_a_closed_store_has_no_connections(opened: Opener, proxy: Proxy) -> None:
    store = opened()
    store.ring("bus", capacity=10)
    store.close()

    wait_until(lambda: proxy.open == 0)
    with pytest.raises(StoreClosed):
        store.rings()


# Breaking ----------------------------------------------------------------------------------


def test_a_connection_that_was_cut_is_made_anew(opened: Opener, proxy: Proxy) -> None:
    ring = opened().ring("bus", capacity=10)
    ring.enqueue(b"before")
    proxy.cut_once()

    assert ring.enqueue(b"after") == 1


def test_a_call_goes_on_when_the_server_is_back(opened: Opener, proxy: Proxy) -> None:
    ring = opened(retry=LIMIT_SECONDS).ring("bus", capacity=10)
    proxy.cut()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ring.enqueue, b"patient")
        wait_until(lambda: proxy.refused > 0)
        proxy.restore()

        assert waiting.result(LIMIT_SECONDS) == 0


def test_who_waits_for_a_lock_outlasts_a_cut(opened: Opener, proxy: Proxy) -> None:
    store = opened()
    held = store.lock("door").acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.lock("door").acquire, wait=LIMIT_SECONDS)
        wait_until(lambda: proxy.open > 1)
        proxy.cut_once()
        held.release()

        assert waiting.result(LIMIT_SECONDS).token > held.token


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
    with ring.transaction("once", ttl=LIMIT_SECONDS) as transaction:
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
    transaction = ring.transaction("once", ttl=LIMIT_SECONDS)
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
    job = queue.lease(ttl=LIMIT_SECONDS)

    assert proxy.lost.is_set()
    assert (job.body, job.attempt) == (b"work", 1)
    proxy.lose_answer()
    queue.ack(job)
    assert queue.count().total == 0


def test_a_server_that_falls_silent_is_given_up(opened: Opener, proxy: Proxy) -> None:
    """A line that is half open takes requests and never answers: each try ends with `timeout`."""
    store = opened()
    ring = store.ring("bus", capacity=10)
    set_options(store, timeout=0.1, retry=0.3)
    proxy.freeze()
    with ThreadPoolExecutor(1) as threads:
        losing = threads.submit(ring.enqueue, b"lost")
        with pytest.raises(StoreUnavailable, match=r"tried for 0\.3 s"):
            losing.result(LIMIT_SECONDS)

    proxy.restore()
    set_options(store, timeout=LIMIT_SECONDS, retry=LIMIT_SECONDS)
    assert ring.enqueue(b"back") in {0, 1}


def test_a_block_that_cannot_say_that_it_ends_ends_with_its_own_error(
    opened: Opener, proxy: Proxy
) -> None:
    """Members and producers are gone when their time is over; what went wrong in them is told."""
    store = opened()
    topic = store.topic("orders", partitions=1)

    def fail_while_away() -> None:
        with topic.group("billing").join(), topic.producer("till"):
            set_options(store, timeout=0.1, retry=0.2)
            proxy.freeze()
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        fail_while_away()
    proxy.restore()


def test_a_request_that_arrives_late_changes_nothing_again(opened: Opener, proxy: Proxy) -> None:
    """What was stuck in a frozen line is delivered after the same request came through another."""
    store = opened(retry=LIMIT_SECONDS)
    ring = store.ring("bus", capacity=10)
    set_options(store, timeout=0.1)
    for _ in range(3):
        proxy.freeze()
        with ThreadPoolExecutor(1) as threads:
            accepted = proxy.accepted
            waiting = threads.submit(ring.enqueue, b"once")
            wait_until(partial(_is_tried_again, proxy, accepted))
            proxy.restore()
            waiting.result(LIMIT_SECONDS)

    assert ring.info().tail_offset == 3


def _is_tried_again(proxy: Proxy, accepted: int) -> bool:
    return proxy.accepted > accepted


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
