"""Requests that come late, twice, or from a forked child; answers that are lost or unconfirmed."""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Literal

import pytest

from segue import QueueRules
from segue.errors import ConnectionsBusy, NotReplicated, QueueFull, QueueLocked, StoreUnavailable
from segue.stores.opening import open_redis
from segue.stores.redis import calls
from segue.stores.redis.calls import Calls
from segue.stores.redis.queue import RedisQueue
from segue.stores.redis.servers import Connection
from segue.stores.redis.store import RedisStore
from tests.contract.forks import push_around_forks
from tests.contract.queue_support import drain, meanwhile
from tests.contract.worlds import RedisWorld
from tests.redis_proxy import CHUNK_BYTES, Proxy
from tests.redis_server import LOOPBACK, set_options, shared_server
from tests.waiting import LIMIT_SECONDS

TRY_SECONDS: Final = 0.4
"""How soon a request whose answer does not come is tried again."""

Fate = Literal["hold", "pass", "stop"]


class LateLine:
    """A line to the server on which requests stay, and from which they come late."""

    def __init__(self, port: int) -> None:
        self._target = (LOOPBACK, port)
        self._mark = b""
        self._fates: deque[Fate] = deque()
        self._held: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self.stopped = threading.Event()
        """Set once a request stands still."""
        self.go = threading.Event()
        """To be set for those that do."""
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self, mark: bytes, *fates: Fate) -> None:
        """Let that become of the next requests that hold `mark`; the last for all that follow."""
        self._mark = mark
        self._fates.extend(fates)

    @property
    def held(self) -> int:
        """How many requests are still on their way."""
        return len(self._held)

    def deliver(self) -> bytes:
        """Have the oldest request that was held arrive, though who sent it has gone: the answer."""
        with socket.create_connection(self._target, timeout=LIMIT_SECONDS) as late:
            late.sendall(self._held.pop(0))
            return late.recv(CHUNK_BYTES)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += (client, server)
                for work in (self._forward, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK_BYTES):
                fate: Fate = "pass"
                if self._mark and self._mark in data and self._fates:
                    fate = self._fates.popleft() if len(self._fates) > 1 else self._fates[0]
                if fate == "hold":
                    self._held.append(data)
                    continue
                if fate == "stop":
                    self.stopped.set()
                    self.go.wait(LIMIT_SECONDS)
                server.sendall(data)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                client.sendall(data)

    def __enter__(self) -> "LateLine":
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def world() -> Iterator[RedisWorld]:
    """A namespace whose queues are intact when the test is over."""
    world = RedisWorld(Path())
    yield world
    world.end()


@pytest.fixture
def queue(world: RedisWorld) -> Iterator[RedisQueue]:
    """A queue on an undisturbed line, by the server's clock."""
    with open_redis(world.url) as store:
        yield store.queue("jobs")


@pytest.fixture
def late() -> Iterator[LateLine]:
    with LateLine(shared_server().port) as late:
        yield late


@pytest.fixture
def behind(world: RedisWorld, late: LateLine) -> Iterator[RedisStore]:
    """A store whose requests may come late; it tries again soon and for long."""
    options = f"namespace={world.namespace}&timeout={LIMIT_SECONDS}&retry={LIMIT_SECONDS}"
    with open_redis(f"redis://{LOOPBACK}:{late.port}/0?{options}") as store:
        set_options(store, timeout=TRY_SECONDS)
        yield store


# Late ----------------------------------------------------------------------------------------


def test_a_late_copy_of_a_refused_push_is_not_granted(
    queue: RedisQueue, behind: RedisStore, late: LateLine
) -> None:
    """Who was told QueueFull was told that nothing is pushed, whatever is still on its way."""
    queue.configure(QueueRules(capacity=1))
    queue.push(b"first")
    late.expect(b"late body", "hold", "pass")
    with pytest.raises(QueueFull):
        behind.queue("jobs").push(b"late body")
    assert late.held == 1
    assert drain(queue) == [b"first"]

    assert late.deliver().startswith(b"-SEGUEFULL")
    assert drain(queue) == []
    behind.queue("jobs").push(b"late body")
    assert drain(queue) == [b"late body"]


def test_a_late_copy_of_a_push_that_waits_for_room_is_not_granted(
    queue: RedisQueue, behind: RedisStore, late: LateLine
) -> None:
    """It is asked for again under another number: both would be pushed."""
    queue.configure(QueueRules(capacity=1, on_full="block"))
    queue.push(b"first")
    late.expect(b"late body", "hold", "pass", "stop")
    with meanwhile(lambda: behind.queue("jobs").push(b"late body", wait=LIMIT_SECONDS)) as pushed:
        assert late.stopped.wait(LIMIT_SECONDS)
        assert drain(queue) == [b"first"]
        assert late.deliver().startswith(b"-SEGUEWAIT")
        assert queue.count().total == 0
        late.go.set()
        name = pushed.result(LIMIT_SECONDS)

    queue.configure(QueueRules())  # Copies that were stopped may come even now, and find room.
    assert [(message.id, message.body) for message in queue.peek(9)] == [(name, b"late body")]


def test_a_late_copy_of_a_pop_takes_nothing_though_the_store_is_closed(
    queue: RedisQueue, behind: RedisStore, late: LateLine
) -> None:
    """Closing has the server forget what was popped, and not that it was."""
    queue.push_many([b"1", b"2", b"3"])
    late.expect(b"segue_queue_pop_", "hold", "pass")
    taken = behind.queue("jobs").pop()
    behind.close()
    assert (late.held, taken and taken.body) == (1, b"1")
    answer = late.deliver()

    assert b"2" not in answer
    assert drain(queue) == [b"2", b"3"]


def test_a_late_copy_of_a_lease_that_was_refused_takes_nothing(
    queue: RedisQueue, behind: RedisStore, late: LateLine
) -> None:
    """A queue that was locked, and is not any more, has nothing leased to nobody."""
    queue.configure(QueueRules(max_leases=1))
    queue.push_many([b"1", b"2"])
    job = queue.lease()
    late.expect(b"segue_queue_lease_", "hold", "pass")
    with pytest.raises(QueueLocked):
        behind.queue("jobs").lease(wait=0)
    queue.ack(job)

    assert late.deliver().startswith(b"-SEGUELOCKED")
    assert queue.count().leased == 0


def test_a_closed_store_leaves_the_numbers_of_its_pops_and_no_bodies(
    world: RedisWorld, queue: RedisQueue
) -> None:
    """Those who pop and go would fill the server with what nobody can ask for again."""
    body = b"x" * 100_000
    with shared_server().client() as client:
        for _ in range(3):
            queue.push_many([body] * 2)
            with open_redis(world.url) as store:
                base = store.base("queue", "jobs")
                before = set(client.scan_iter(f"{base}:request_*", count=10_000))
                assert len(store.queue("jobs").pop_many(2)) == 2
                (key,) = set(client.scan_iter(f"{base}:request_*", count=10_000)) - before
                kept = client.strlen(key.decode())

            assert kept > 2 * len(body)
            assert client.strlen(key.decode()) < 100
            assert client.getrange(key.decode(), 0, 7) == (1).to_bytes(8)
            assert 0 < client.pttl(key) <= 600_000


# Lost ----------------------------------------------------------------------------------------


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def narrow(world: RedisWorld, proxy: Proxy) -> Iterator[RedisStore]:
    """A store with a single connection, that tries for long."""
    options = f"connections=1&pool_wait=0.02&timeout={LIMIT_SECONDS}&retry={LIMIT_SECONDS}"
    with open_redis(f"{proxy.url}?namespace={world.namespace}&{options}") as store:
        store.queue("jobs").push(b"before")
        yield store
        proxy.restore()


@contextlib.contextmanager
def connection_lost_to_another(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, *, refusals_max: int
) -> Iterator[list[float]]:
    """Have somebody else take the only connection in the moment in which it breaks.

    Yields what they waited for who then found none; after so many of them it is free again.
    """
    (node,) = store.calls.servers.nodes()
    pool = node.pool
    take, drop = pool.take, pool.drop
    taken: list[Connection] = []
    refused: list[float] = []

    def dropping(connection: Connection) -> None:
        drop(connection)
        taken.append(take())

    def taking(*, wait_seconds: float | None = None) -> Connection:
        try:
            return take(wait_seconds=wait_seconds)
        except ConnectionsBusy as error:
            refused.append(error.seconds)
            if len(refused) == refusals_max:
                pool.give_back(taken.pop())
            raise

    with monkeypatch.context() as patching:
        patching.setattr(pool, "drop", dropping)
        patching.setattr(pool, "take", taking)
        yield refused
    while taken:
        pool.give_back(taken.pop())


def test_a_call_that_was_sent_is_tried_again_though_connections_are_short(
    narrow: RedisStore,
    proxy: Proxy,
    queue: RedisQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connection_lost_to_another(narrow, monkeypatch, refusals_max=3) as refused:
        proxy.lose_answer()
        name = narrow.queue("jobs").push(b"once")

    assert len(refused) == 3
    assert [(each.id, each.body) for each in queue.pop_many(9)][1:] == [(name, b"once")]


def test_a_call_that_was_sent_never_ends_as_one_that_was_not(
    narrow: RedisStore,
    proxy: Proxy,
    queue: RedisQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ConnectionsBusy says that nothing was sent: whoever pushes again then makes it two."""
    with (
        connection_lost_to_another(narrow, monkeypatch, refusals_max=1_000) as refused,
        monkeypatch.context() as patching,
    ):

        def monotonic() -> float:
            """Return a time after the last try as soon as a try was refused a connection."""
            return time.monotonic() + LIMIT_SECONDS * bool(refused)

        later = SimpleNamespace(monotonic=monotonic, sleep=lambda _: None)
        patching.setattr(calls, "time", later)
        proxy.lose_answer()
        with pytest.raises(StoreUnavailable) as failure:
            narrow.queue("jobs").push(b"once")

    assert refused
    assert not isinstance(failure.value, ConnectionsBusy)
    assert drain(queue) == [b"before", b"once"]


def test_a_call_that_finds_no_connection_says_that_nothing_was_sent(
    narrow: RedisStore, queue: RedisQueue
) -> None:
    (node,) = narrow.calls.servers.nodes()
    with node.pool.connection(), pytest.raises(ConnectionsBusy):
        narrow.queue("jobs").push(b"never")

    assert drain(queue) == [b"before"]


# Not confirmed -------------------------------------------------------------------------------


@pytest.fixture
def unconfirmed(world: RedisWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisQueue]:
    """The queue of a client that requires a replica, on a server that has none.

    The server waits only 10 ms for the replica. The client's own timeout stays long.
    """
    with open_redis(f"{world.url}&replicas=1&timeout={LIMIT_SECONDS}") as store:
        set_options(store, retry=0.5)
        monkeypatch.setattr(Calls, "_confirmation", lambda self: ("WAIT", 1, 10))
        yield store.queue("jobs")


def test_a_pop_that_is_not_confirmed_returns_what_it_took(
    queue: RedisQueue, unconfirmed: RedisQueue
) -> None:
    """It is gone from the server: nobody else would ever see it."""
    queue.push_many([b"1", b"2", b"3"])
    taken = unconfirmed.pop_many(2)

    assert [message.body for message in taken] == [b"1", b"2"]
    assert drain(queue) == [b"3"]


def test_a_lease_that_is_not_confirmed_returns_what_it_took(
    queue: RedisQueue, unconfirmed: RedisQueue
) -> None:
    """It would be out, held by nobody, until its time is over."""
    queue.push_many([b"1", b"2"])
    job = unconfirmed.lease(ttl=LIMIT_SECONDS)

    assert (job.body, job.attempt, queue.count().leased) == (b"1", 1, 1)
    queue.ack(job.receipt)
    assert drain(queue) == [b"2"]


def test_a_push_that_is_not_confirmed_says_so_and_is_there_once(
    queue: RedisQueue, unconfirmed: RedisQueue
) -> None:
    with pytest.raises(NotReplicated):
        unconfirmed.push(b"once")

    assert drain(queue) == [b"once"]


# Forks ---------------------------------------------------------------------------------------

FORKS: Final = 30


# That it forks while threads run is what is tested; newer Pythons warn of it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_loses_and_doubles_nothing_of_its_parent(
    world: RedisWorld, queue: RedisQueue
) -> None:
    """Its threads have a name, numbers and connections of their own from their first request on."""
    with open_redis(world.url) as store:
        pushed = push_around_forks(store.queue("jobs"), FORKS)

    assert sorted(message.body for message in queue.pop_many(10_000)) == sorted(pushed)
