"""Much at once, long lines, changed rules, servers and URLs that will not do, nodes that hang."""

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
import redis

import segue
from segue import Item, QueueRules
from segue.delivery.message import MessageId
from segue.errors import InvalidArgument, LeaseLost, StoreUnavailable, UnsupportedServer
from segue.stores.heartbeat import Heartbeat
from segue.stores.job import Job
from segue.stores.opening import open_redis
from segue.stores.redis import store as stores
from segue.stores.redis.address import SCHEMES, address_from
from segue.stores.redis.audit import audit_queue, audit_store
from segue.stores.redis.calls import Word
from segue.stores.redis.keys import Kind, names_key
from segue.stores.redis.queue import RedisQueue
from segue.stores.redis.servers import Connection
from segue.stores.redis.store import RedisStore
from tests.contract.queue_support import drain, meanwhile
from tests.contract.worlds import RedisWorld
from tests.redis_proxy import Proxy
from tests.redis_server import RedisServer, set_options, shared_server
from tests.waiting import LIMIT_SECONDS, wait_until

MANY: Final = 12_000
"""More than one call to the server deals with."""
PER_CALL: Final = 6_000


@dataclass(frozen=True, slots=True)
class Bench:
    """A queue, and a plain client that looks at its keys and at what is done to them."""

    world: RedisWorld
    store: RedisStore
    queue: RedisQueue
    client: "redis.Redis"

    def keys(self, name: str) -> list[bytes]:
        base = self.store.base("queue", "jobs")
        return sorted(self.client.scan_iter(f"{base}:{name}*", count=10_000))

    def commands_of(self, call: Callable[[], object]) -> int:
        """Return how many commands a call has the server do, those in functions included."""
        before = self._commands()
        call()
        return self._commands() - before

    def _commands(self) -> int:
        return sum(facts["calls"] for facts in self.client.info("commandstats").values())

    def ranges_of(self, call: Callable[[], object]) -> list[int]:
        """Return how much of each line a call asks for at a time; -1 is all of it."""
        found = []
        with self.client.monitor() as monitor:  # type: ignore[no-untyped-call]
            call()
            self.client.echo("over")
            while (said := monitor.next_command()["command"]) != "ECHO over":
                words = said.split(" ")
                if words[0] == "ZRANGE" and ":ready_" in words[1]:
                    first, last = int(words[2]), int(words[3])
                    found.append(-1 if last < 0 else last - first + 1)
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A queue of its own, on a clock that is set; intact when the test is over."""
    world = RedisWorld(Path())
    store = world.open()
    with shared_server().client() as client:
        yield Bench(world, store, store.queue("jobs"), client)
    world.end()


# Much at once --------------------------------------------------------------------------------


def lease_all(queue: RedisQueue) -> list[Job]:
    jobs: list[Job] = []
    while taken := queue.lease_many(PER_CALL, ttl=1):
        jobs += taken
    return jobs


@pytest.fixture
def expired(bench: Bench) -> list[Job]:
    """As many leases as one call does not deal with, all of them over; nothing was asked since."""
    bench.queue.push_many([b"x"] * MANY)
    jobs = lease_all(bench.queue)
    assert len(jobs) == MANY
    bench.world.clock.advance(seconds=2)
    return jobs


def test_all_leases_that_have_expired_are_counted_as_ready(
    bench: Bench, expired: list[Job]
) -> None:
    counts = bench.queue.count()

    assert (counts.ready, counts.leased) == (len(expired), 0)


def test_all_leases_that_have_expired_are_in_the_stats(bench: Bench, expired: list[Job]) -> None:
    stats = bench.queue.stats()

    assert stats.ready_by_priority == {0: len(expired)}
    assert (stats.counts.ready, stats.leases) == (len(expired), [])
    assert stats.totals["expired"] == len(expired)


def test_no_lease_that_has_expired_can_be_settled(bench: Bench, expired: list[Job]) -> None:
    """However many have: the last of them is not still good."""
    with pytest.raises(LeaseLost) as refusal:
        bench.queue.ack_many([job.receipt for job in expired])

    assert len(refusal.value.lost) == len(expired)
    assert bench.queue.count().ready == len(expired)


def test_a_purge_drops_all_whose_leases_have_expired(bench: Bench, expired: list[Job]) -> None:
    assert bench.queue.purge() == len(expired)
    assert bench.queue.count().total == 0


def bury_all(bench: Bench) -> None:
    bench.queue.configure(QueueRules(max_deliveries=1))
    bench.queue.push_many([b"x"] * MANY)
    lease_all(bench.queue)
    bench.world.clock.advance(seconds=2)


def test_all_that_died_with_their_leases_are_in_the_stats(bench: Bench) -> None:
    """None of them is ready, though it cannot be delivered any more."""
    bury_all(bench)
    stats = bench.queue.stats()

    assert (stats.counts.ready, stats.counts.leased, stats.counts.dead) == (0, 0, MANY)
    assert stats.ready_by_priority == {}


def test_a_discard_drops_all_that_died_with_their_leases(bench: Bench) -> None:
    bury_all(bench)

    assert bench.queue.discard() == MANY
    assert bench.queue.count().total == bench.queue.count().dead == 0


@pytest.mark.parametrize("way", ["count", "stats", "purge", "pop"])
def test_all_that_are_due_at_once_have_come(bench: Bench, way: str) -> None:
    """However many were delayed to the same moment, and whoever asks first."""
    for _ in range(MANY // PER_CALL):
        bench.queue.push_many([Item(body=b"x", delay=1)] * PER_CALL)
    bench.world.clock.advance(seconds=2)
    asks: dict[str, Callable[[], int]] = {
        "count": lambda: bench.queue.count().ready,
        "stats": lambda: bench.queue.stats().ready_by_priority[0],
        "purge": bench.queue.purge,
        "pop": lambda: len(bench.queue.pop_many(PER_CALL)) + len(bench.queue.pop_many(PER_CALL)),
    }

    assert asks[way]() == MANY
    assert bench.queue.count().delayed == 0


def test_rules_that_stop_keeping_drop_all_that_was_kept(bench: Bench) -> None:
    """Also what is more than one call looks at, of any priority, or was pushed with a delay."""
    bench.queue.configure(QueueRules(keep_seconds=3_600))
    bench.queue.push_many([b"x"] * MANY)
    bench.queue.push_many([Item(body=b"x", priority=7), Item(body=b"x", delay=1)])
    bench.world.clock.advance(seconds=2)
    while bench.queue.pop_many(PER_CALL):
        pass
    assert bench.keys("kept") != []
    bench.queue.push(b"waits")
    bench.queue.configure(QueueRules())

    assert bench.keys("kept") == []
    assert [message.body for message in bench.queue.history()] == [b"waits"]
    assert drain(bench.queue) == [b"waits"]
    assert list(bench.queue.history()) == []


# Segments of several sizes -------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3, 1, 5, 2, 7), (1, 2, 1, 2), (10, 11, 10), (7, 7, 1)])
def test_every_message_is_found_after_segments_became_of_another_size(
    bench: Bench, sizes: tuple[int, ...]
) -> None:
    """Each by its id, in pages, in the history and in its turn, whatever was taken meanwhile."""
    expected: dict[MessageId, bytes] = {}
    for step, size in enumerate(sizes):
        bench.queue.configure(QueueRules(segment_items=size))
        bodies = [b"%d %d" % (step, number) for number in range(9)]
        expected |= dict(zip(bench.queue.push_many(list(bodies)), bodies, strict=True))
        for _ in range(4):
            taken = bench.queue.pop()
            assert taken is not None
            assert expected.pop(taken.id) == taken.body
            assert_found(bench, expected)
            assert bench.queue.look_up(taken.id) is None

    assert [message.body for message in bench.queue.peek(100)] == list(expected.values())
    assert drain(bench.queue) == list(expected.values())
    assert bench.keys("queue_0_seg_") == []


def assert_found(bench: Bench, expected: dict[MessageId, bytes]) -> None:
    for name, body in expected.items():
        status = bench.queue.look_up(name)
        assert status is not None
        assert status.message.body == body
    paged: dict[MessageId, bytes] = {}
    while page := bench.queue.browse(limit=4, after=list(paged)[-1] if paged else None):
        paged |= {status.message.id: status.message.body for status in page}
    assert paged == expected
    assert {each.id: each.body for each in bench.queue.history()} == expected
    assert audit_queue(bench.store, "jobs") == []


def test_a_page_after_segments_became_of_another_size_is_as_short_a_way(bench: Bench) -> None:
    """No walk through all segments for each message of it, nor for one that is looked up."""
    bench.queue.configure(QueueRules(segment_items=2))
    names = bench.queue.push_many([b"x"] * 2_000)
    bench.queue.configure(QueueRules(segment_items=3))
    names += bench.queue.push_many([b"x"] * 2_000)

    for name in (names[10], names[1_500], names[3_500]):
        look = bench.commands_of(partial(bench.queue.look_up, name))
        page = bench.commands_of(partial(bench.queue.browse, limit=10, after=name))
        assert look < 50
        assert page < 150


# Long lines ----------------------------------------------------------------------------------

LINE: Final = 3_000
WIDEST: Final = 500
"""How much of a line may be looked at at a time."""


@pytest.mark.parametrize("way", ["peek", "stats", "push"])
def test_a_long_line_of_returned_messages_is_looked_at_from_its_front(
    bench: Bench, way: str
) -> None:
    """What only the first of it matters to takes as long however many stand behind."""
    bench.queue.push_many([Item(body=b"x", delay=1)] * LINE)
    bench.world.clock.advance(seconds=2)
    assert bench.queue.count().ready == LINE
    bench.queue.configure(QueueRules(capacity=LINE, on_full="drop_oldest"))
    asks: dict[str, Callable[[], object]] = {
        "peek": bench.queue.peek,
        "stats": bench.queue.stats,
        "push": lambda: bench.queue.push(b"y"),
    }
    ranges = bench.ranges_of(asks[way])

    assert ranges != []
    assert min(ranges) > 0
    assert sum(ranges) < WIDEST
    assert bench.commands_of(asks[way]) < 150
    assert bench.queue.count().ready == LINE


def test_the_end_of_a_lease_calls_up_one_message_of_its_group(bench: Bench) -> None:
    """However many priorities the group has messages of: only the first can be next."""
    priorities = 300
    bench.queue.push_many(
        [Item(body=b"%d" % number, group="g", priority=number) for number in range(priorities)]
    )
    bodies = []
    for _ in range(5):
        job = bench.queue.lease()
        assert bench.queue.lease_many(1) == []
        bodies.append(job.body)
        assert bench.commands_of(partial(bench.queue.ack, job)) < 60
        assert len(bench.keys("ready_")) == 1

    assert bodies + drain(bench.queue) == [b"%d" % number for number in range(priorities)]


# What will not do ----------------------------------------------------------------------------


def test_no_policy_that_drops_anything_will_do(scratch: Path) -> None:
    """Not even of what has a time to live: that is what makes repeating safe."""
    policies = ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-random"]
    with RedisServer(scratch / "server") as server:
        for policy in policies:
            server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
            with pytest.raises(UnsupportedServer, match=policy):
                open_redis(server.url)
            server.ask("CONFIG", "SET", "maxmemory", "0")
            open_redis(server.url).close()
        server.ask("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "noeviction")
        open_redis(server.url).close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rest", ["/host", "/ann:hunter2@host:6379/0"])
def test_a_server_with_one_slash_is_no_directory(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, rest: str
) -> None:
    """Messages for a server must not go to the local disk for a slash that was forgotten."""
    monkeypatch.chdir(scratch)
    with pytest.raises(InvalidArgument, match="two slashes") as refusal:
        segue.open(f"{scheme}:{rest}")

    assert list(scratch.iterdir()) == []
    assert "hunter" not in all_of(refusal.value)


def all_of(error: BaseException) -> str:
    """Return all that anybody sees of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ann:hunter\u21002@host/0",
        "redis://:hunter2/0",
        "redis://ann:hunter2:6379",
        "redis://ann:hunter2",
        "redis+cluster://a:hunter2,b",
        "redis+sentinel://ann:hunter2/main",
        "redis://ann:hunter2@[::1",
        "redis://ann:hunter2@host:\uff16\uff13x",
        "redis://ann:hunter2@host?timeout=nan",
        "redis://ann:hunter2@host?connections=many",
        "redis://ann:hunter2@host?namespace=a{b",
        "redis://ann:hunter2@host/x",
        "unix://ann:hunter2@",
        "unix://ann:hunter2@host/tmp/x",
        "redis://host?password=hunter2",
        "redis+sentinel://host?sentinel_password=hunter2",
        "REDIS://ann:hunter2@host",
        "http://ann:hunter2@host",
    ],
)
def test_no_error_has_a_part_of_a_password(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Wherever in a URL somebody wrote it."""
    monkeypatch.chdir(scratch)
    with pytest.raises(InvalidArgument) as refusal:
        segue.open(url)

    assert "hunter" not in all_of(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "unix://ann:hunter2@/tmp/x?db=1",
        "redis://ann%00:hunter2@host",
        "redis://:hunter2@host",
        "redis+cluster://ann:hunter2@a,b",
        "redis+sentinel://ann:hunter2@a/main?sentinel_username=s&sentinel_password=hunter3",
    ],
)
def test_nothing_that_is_shown_has_a_part_of_a_password(url: str) -> None:
    address = address_from(url)

    assert "hunter" not in f"{address.url} {address!r} {address} {address.options!r}"


# What hangs ----------------------------------------------------------------------------------


def test_beats_that_hang_hold_up_no_other() -> None:
    """A node that hangs costs the leases on it, and none elsewhere."""
    heartbeat = Heartbeat(side_by_side=4)
    go, hanging, beats = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def hang() -> None:
        hanging.release()
        go.wait(LIMIT_SECONDS)

    try:
        for _ in range(3):
            heartbeat.start(hang, 0.03)
        for _ in range(3):
            assert hanging.acquire(timeout=LIMIT_SECONDS)
        heartbeat.start(beats.release, 0.03)

        for _ in range(5):
            assert beats.acquire(timeout=LIMIT_SECONDS)
        assert not hanging.acquire(blocking=False)  # Nor is one begun anew that is under way.
    finally:
        go.set()
        heartbeat.close()


def test_a_heartbeat_is_closed_though_a_beat_hangs() -> None:
    heartbeat = Heartbeat(side_by_side=2)
    go, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        go.wait(LIMIT_SECONDS)

    try:
        pulse = heartbeat.start(hang, 0.03)
        assert hangs.wait(LIMIT_SECONDS)
        with meanwhile(heartbeat.close) as closed:
            closed.result(LIMIT_SECONDS / 2)

        assert not go.is_set()
        pulse.stop()
    finally:
        go.set()
    wait_until(lambda: not [t for t in threading.enumerate() if "segue-beat" in t.name])


def test_a_lease_is_renewed_only_for_as_long_as_another_beat_needs() -> None:
    """However long calls are tried otherwise: beats that wait would take all places."""
    world = RedisWorld(Path())
    with (
        Proxy(shared_server().port) as proxy,
        open_redis(f"{proxy.url}?namespace={world.namespace}&retry={LIMIT_SECONDS}") as store,
    ):
        queue = store.queue("jobs")
        queue.push(b"")
        job = queue.lease(ttl=1.2)
        proxy.freeze()
        with pytest.raises(StoreUnavailable, match=r"tried for 0\.2 s"):
            queue.extend(job)
        proxy.restore()
    world.end()


def noted_tries(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list to which each try to have the server do something adds its time limit."""
    tries: list[float] = []
    exchange = store.calls._exchange

    def noting(
        connection: Connection, request: tuple[Word, ...], *, is_change: bool, timeout: float
    ) -> object:
        tries.append(timeout)
        return exchange(connection, request, is_change=is_change, timeout=timeout)

    monkeypatch.setattr(store.calls, "_exchange", noting)
    return tries


def test_a_store_whose_server_hangs_is_closed_after_one_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not after one for each of those who have popped."""
    world = RedisWorld(Path())
    with Proxy(shared_server().port) as proxy:
        store = open_redis(f"{proxy.url}?namespace={world.namespace}")
        queue = store.queue("jobs")
        queue.push_many([b"x"] * 8)
        with ExitStack() as lines:
            for _ in range(8):
                queue.pop()
                # As if its thread had another call under way.
                lines.enter_context(store.calls._line())
        tries = noted_tries(store, monkeypatch)
        proxy.freeze()
        with meanwhile(store.close) as closed:
            closed.result(LIMIT_SECONDS)
        proxy.restore()

    assert 1 <= len(tries) <= 2
    world.end()


def test_a_store_whose_server_hangs_waits_once_for_all_who_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long calls are tried otherwise: who was not told finds out when its time is over."""
    world = RedisWorld(Path())
    with Proxy(shared_server().port) as proxy:
        store = open_redis(f"{proxy.url}?namespace={world.namespace}&timeout={LIMIT_SECONDS:g}")
        topic = store.topic("orders", partitions=1)
        users = [topic.group("billing").join(), topic.group("mail").join(), topic.producer("till")]
        set_options(store, timeout=0.1, retry=300)
        tries = noted_tries(store, monkeypatch)
        proxy.freeze()
        with meanwhile(store.close) as closed:
            closed.result(LIMIT_SECONDS)
        proxy.restore()

    assert 1 <= len(tries) <= stores.CLOSING_SECONDS / 0.1 + len(users)
    world.end()


# Names ---------------------------------------------------------------------------------------


def test_a_name_that_a_failover_lost_is_noted_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of another slot than its queue, whose messages are confirmed: who lists looks there."""
    bench.queue.push(b"before")
    bench.client.srem(names_key(bench.store.namespace, "queue"), "jobs")
    assert bench.store.queues() == []
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + stores.NAMED_SECONDS)
    monkeypatch.setattr(stores, "time", later)
    bench.queue.push(b"after")

    assert bench.store.queues() == ["jobs"]


def test_the_name_of_a_queue_goes_with_it(bench: Bench) -> None:
    """Each name costs a call of whoever lists: those of queues that are gone would add up."""
    for name in ("a", "b"):
        bench.store.queue(name).push(b"")
    bench.store.remove_queue("a")

    assert bench.client.smembers(names_key(bench.store.namespace, "queue")) == {b"b"}
    assert bench.store.queues() == ["b"]


@pytest.mark.parametrize("delay", [None, 60])
def test_a_queue_that_another_removed_is_listed_once_it_is_made_anew(
    bench: Bench, delay: int | None
) -> None:
    """Also by who noted its name a moment ago, and does not do so with every push."""
    bench.queue.push(b"before", delay=delay)
    bench.world.open().remove_queue("jobs")
    bench.queue.push(b"after", delay=delay)

    assert bench.store.queues() == ["jobs"]


def test_a_queue_that_is_made_anew_while_it_is_removed_is_listed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is taken off the list after somebody else has noted it again."""
    other = bench.world.open()
    change = RedisQueue.change

    def change_and_push(queue: RedisQueue, name: str, *words: Word) -> object:
        answer = change(queue, name, *words)
        monkeypatch.undo()
        bench.queue.push(b"after")
        return answer

    bench.queue.push(b"before")
    monkeypatch.setattr(RedisQueue, "change", change_and_push)
    other.remove_queue("jobs")

    assert bench.store.queues() == ["jobs"]


FOREIGN: Final = (b"\xff\xfe", b"", b"../up", b"a{b}", b"n" * 10_000)
"""What no thing can be called."""


def test_foreign_bytes_among_the_names_do_no_harm(bench: Bench) -> None:
    """Who lists passes them over, and so does an audit."""
    bench.queue.push(b"")
    bench.store.ring("bus", capacity=3).enqueue(b"")
    bench.store.lock("door").acquire().release()
    bench.store.topic("news", partitions=1)
    kinds: tuple[Kind, ...] = ("queue", "ring", "lock", "topic")
    for kind in kinds:
        bench.client.sadd(names_key(bench.store.namespace, kind), *FOREIGN, b"never-used")
    store = bench.store

    assert [store.queues(), store.rings()] == [["jobs"], ["bus"]]
    assert [store.locks(), store.topics()] == [["door"], ["news"]]
    assert audit_store(store).keys() - {"never-used"} == {"jobs"}
