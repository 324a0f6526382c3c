"""A queue on a server: what its keys are, what is done once, what is damaged, who is woken."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Final, cast

import pytest
import redis
from redis.crc import key_slot

from segue import Item, QueueRules
from segue.errors import Damage, LeaseLost, QueueFull, StorageFull
from segue.stores.contract import Queue
from segue.stores.opening import open_redis
from segue.stores.redis import waiting
from segue.stores.redis.audit import audit_queue
from segue.stores.redis.libraries import library
from segue.stores.redis.store import RedisStore
from tests.contract.queue_support import drain, meanwhile, push_all
from tests.contract.worlds import RedisWorld
from tests.redis_server import RedisServer, _text, shared_server
from tests.unit.support import failing_cases
from tests.waiting import LIMIT_SECONDS, wait_until

LONG_SECONDS: Final = 10 * LIMIT_SECONDS
"""A wait that no test sits out: it fails at the limit before."""
BLOCKED: Final = threading.Semaphore(0)
"""Released each time a call on the queue of `live` begins to block."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A queue, and a plain client that looks at its keys."""

    world: RedisWorld
    store: RedisStore
    queue: Queue
    client: "redis.Redis"

    @property
    def base(self) -> str:
        return self.store.base("queue", "jobs")

    def key(self, name: str) -> str:
        return f"{self.base}:{name}"

    def keys(self) -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self.base}:*", count=10_000))

    def segments(self, priority: int = 0) -> dict[int, int]:
        """Return the length of each segment there is."""
        prefix = self.key(f"queue_{priority}_seg_").encode()
        found = (key for key in self.keys() if key.startswith(prefix))
        return {int(key.removeprefix(prefix)): self.client.llen(key.decode()) for key in found}

    def lane(self, priority: int = 0) -> tuple[int, int, int]:
        """Return what the metadata say: count, head and tail segment."""
        names = [f"queue_{priority}:{name}" for name in ("count", "head_segment", "tail_segment")]
        said = cast("list[bytes | None]", self.client.hmget(self.key("metadata"), names))
        count, head, tail = (int(number or 0) for number in said)
        return count, head, tail

    def call(self, name: str, line: str, number: int, *words: str | int | bytes) -> object:
        """Send a request by hand."""
        moment = f"{self.world.clock()} {self.world.clock.ticks()}"
        function = library("queue").function(name)
        words = (1, self.base, moment, line, number, *words)
        answer: object = self.client.execute_command("FCALL", function, *words)  # type: ignore[no-untyped-call]
        return answer


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A queue of its own; intact when the test is over."""
    world = RedisWorld(Path())
    store = world.open()
    with shared_server().client() as client:
        yield Bench(world, store, store.queue("jobs"), client)
    world.end()


# Segments ----------------------------------------------------------------------------------


def test_the_metadata_say_how_the_segments_are_after_each_step(bench: Bench) -> None:
    """250 items are two segments of 100 and one of 50; those that are drained are gone."""
    for count in range(1, 251):
        bench.queue.push(b"%d" % count)
        assert bench.lane() == (count, 0, (count - 1) // 100)
    assert bench.segments() == {0: 100, 1: 100, 2: 50}
    assert bench.client.hget(bench.key("metadata"), "segment_size") == b"100"

    for taken in range(1, 250):
        bench.queue.pop()
        assert bench.lane() == (250 - taken, taken // 100, 2)
    assert bench.segments() == {2: 1}

    bench.queue.pop()
    assert (bench.lane(), bench.segments()) == ((0, 2, 2), {})


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_segment_holds_as_many_items_as_the_rules_say(bench: Bench, size: int) -> None:
    bench.queue.configure(QueueRules(segment_items=size))
    push_all(bench.queue, 5)
    bench.queue.push_many([b"%d" % number for number in range(5, 20)])

    lengths = bench.segments()
    assert sorted(lengths) == list(range((20 + size - 1) // size))
    assert max(lengths.values()) == size
    assert drain(bench.queue) == [b"%d" % number for number in range(20)]
    assert bench.segments() == {}


def test_another_size_holds_from_the_next_segment_on(bench: Bench) -> None:
    """What is there stays as it was cut, and comes in order all the same."""
    bodies = []
    for first, size in ((0, 4), (10, 2), (20, 7), (30, 3)):
        bench.queue.configure(QueueRules(segment_items=size))
        bodies += push_all(bench.queue, 10, first=first)
        bodies.pop(0)
        bench.queue.pop()
        assert audit_queue(bench.store, "jobs") == []

    assert [message.body for message in bench.queue.peek(100)] == bodies
    assert [each.message.body for each in bench.queue.browse()] == bodies
    assert drain(bench.queue) == bodies


@pytest.mark.parametrize("way", ["pop", "ack", "purge", "drop"])
def test_numbers_of_segments_never_start_over(bench: Bench, way: str) -> None:
    bench.queue.configure(QueueRules(segment_items=2, capacity=5, on_full="drop_oldest"))
    push_all(bench.queue, 5)
    if way == "pop":
        bench.queue.pop_many(5)
    elif way == "ack":
        bench.queue.ack_many(bench.queue.lease_many(5))
    elif way == "purge":
        bench.queue.purge()
    else:
        bench.queue.push_many([b"x"] * 5)
        bench.queue.pop_many(5)
    pushed = 10 if way == "drop" else 5
    assert bench.segments() == {}

    bench.world.crash(bench.store)
    queue = bench.world.open().queue("jobs")
    ids = queue.push_many([b"", b"", b""])

    assert ids == [f"0-{offset}" for offset in range(pushed, pushed + 3)]
    assert min(bench.segments()) == pushed // 2


# Keys --------------------------------------------------------------------------------------


def busy(queue: Queue) -> None:
    """Let a queue have every kind of key it can have."""
    queue.configure(QueueRules(keep_seconds=100, max_deliveries=1, rate=1000, rate_burst=100))
    queue.push_many([Item(body=b"", group="a", ttl=50, key="k"), Item(body=b"", group="a")])
    queue.push(b"", delay=5)
    queue.push(b"", delay=5, priority=3)
    queue.push_many([b""] * 9)
    queue.push(b"", priority=7)
    for job in queue.lease_many(5):
        if job.offset == 2:
            queue.nack(job, outcome="dead")
        elif job.offset == 3:
            queue.nack(job, outcome="release")
        elif job.offset == 4:
            queue.ack(job)
    queue.pause()
    queue.resume()


def test_all_keys_of_a_queue_are_in_one_slot(bench: Bench) -> None:
    busy(bench.queue)
    keys = bench.keys()

    assert len(keys) > 15
    assert len({key_slot(key) for key in keys}) == 1
    assert key_slot(b"queue:jobs") == key_slot(keys[0])


def test_every_key_is_named_where_the_functions_are(bench: Bench) -> None:
    """Whoever looks at a server finds in the header what each key is, and of which type."""
    busy(bench.queue)
    bench.queue.lease_many(100)
    with meanwhile(lambda: bench.queue.lease_many(1, wait=0.2)):
        wait_until(lambda: bool(bench.client.exists(bench.key("waiting_takers"))))
    bench.store.queue("gone").push(b"")
    bench.store.queue("gone").lease()
    bench.store.remove_queue("gone")
    functions = files("segue.stores.redis.functions")
    header = functions.joinpath("queue.lua").read_text()
    header += functions.joinpath("common.lua").read_text()
    named = {
        re.sub(r"<\w+>", "(.+)", name): kind.lower()
        for name, kind in re.findall(r"^--\s+(?:<base>)?:(\S+) +([A-Z]+) ", header, re.MULTILINE)
    }
    assert len(named) > 18

    gone = bench.store.base("queue", "gone")
    found = [*bench.keys(), *bench.client.scan_iter(f"{gone}:*", count=10_000)]
    for key in found:
        name = key.partition(b"}:")[2].decode("latin-1")
        kinds = [kind for pattern, kind in named.items() if re.fullmatch(pattern, name, re.DOTALL)]
        assert _text(bench.client.type(key)) in kinds, name


def test_namespaces_do_not_see_each_other(bench: Bench) -> None:
    other = RedisWorld(Path())
    queue = other.open().queue("jobs", QueueRules(capacity=3))
    queue.push(b"theirs", key="k")
    bench.queue.push(b"ours", key="k")

    assert (bench.queue.rules, bench.queue.count().ready) == (QueueRules(), 1)
    assert drain(bench.queue) == [b"ours"]
    bench.store.remove_queue("jobs")
    assert other.open().queues() == ["jobs"]
    assert drain(queue) == [b"theirs"]
    other.end()


# Once --------------------------------------------------------------------------------------


def test_a_push_that_arrives_twice_pushes_once(bench: Bench) -> None:
    bench.queue.count()
    words = ("", 0, 0, b"one", b"two")
    answers = [bench.call("push_plain", "us.0", 1, *words) for _ in range(3)]

    assert answers == [0, 0, 0]
    assert drain(bench.queue) == [b"one", b"two"]


def test_a_push_with_a_delay_that_arrives_twice_pushes_once(bench: Bench) -> None:
    bench.queue.count()
    words = ("", 0, 3, 5_000_000, 0, "", b"\0\0\0\0body", 0, 0, 0, "", b"\0\0\0\0body")
    answers = [bench.call("push", "us.0", 1, *words) for _ in range(3)]

    assert answers == [[b"later-0000000000000000", b"0-0"]] * 3
    assert bench.queue.count().total == 2


def test_a_pop_that_arrives_twice_takes_once(bench: Bench) -> None:
    push_all(bench.queue, 3)
    answers = [bench.call("pop", "us.0", 1, 2, "", 0) for _ in range(2)]

    assert answers[0] == answers[1]
    assert drain(bench.queue) == [b"2"]


def test_a_lease_that_arrives_twice_takes_once(bench: Bench) -> None:
    push_all(bench.queue, 3)
    words = (2, 9_000_000, "me", "", 0)
    first, again = (cast("list[int]", bench.call("lease", "us.0", 1, *words)) for _ in range(2))

    assert first[0] == again[0]
    assert [first[-2:], again[-1:]] == [first[-2:], first[-1:]]
    assert bench.queue.count().leased == 2
    bench.queue.ack_many([f"0-0/{again[0]}", f"0-1/{again[0]}"])


def test_a_lease_that_arrives_again_says_what_of_it_still_holds(bench: Bench) -> None:
    push_all(bench.queue, 2)
    words = (2, 9_000_000, "me", "", 0)
    first = cast("list[int]", bench.call("lease", "us.0", 1, *words))
    bench.queue.ack(f"0-0/{first[0]}")
    again = cast("list[int]", bench.call("lease", "us.0", 1, *words))

    assert len(again) == 4 + 6 + 1
    assert again[4:6] == [0, 1]


def test_an_ack_that_arrives_twice_is_answered_as_the_first(bench: Bench) -> None:
    bench.queue.push(b"")
    job = bench.queue.lease()
    answers = [bench.call("ack", "us.0", 1, job.id, job.token) for _ in range(2)]

    assert answers == [[], []]
    assert bench.queue.stats().totals["acked"] == 1
    with pytest.raises(LeaseLost):
        bench.queue.ack(job)


def test_a_nack_that_arrives_twice_counts_once(bench: Bench) -> None:
    """Also if somebody else has the message by then."""
    bench.queue.push(b"")
    job = bench.queue.lease()
    words = (job.id, job.token, 1, 0, "why", "0")
    answers = [bench.call("nack", "us.0", 1, *words)]
    again = bench.queue.lease()
    answers.append(bench.call("nack", "us.0", 1, *words))

    assert answers == [1, 1]
    assert bench.queue.stats().totals["failed"] == 1
    bench.queue.ack(again)


def test_a_request_that_is_overtaken_is_refused(bench: Bench) -> None:
    bench.queue.count()
    bench.call("push_plain", "us.0", 2, "", 0, 0, b"second")
    with pytest.raises(redis.ResponseError, match="SEGUESTALE"):
        bench.call("push_plain", "us.0", 1, "", 0, 0, b"first")
    bench.call("push_plain", "us.1", 1, "", 0, 0, b"another line")

    assert drain(bench.queue) == [b"second", b"another line"]


def test_a_refusal_that_is_asked_for_again_stays_one(bench: Bench) -> None:
    """Its caller was told no: a copy that comes late must not be granted, the next request may."""
    bench.queue.configure(QueueRules(capacity=1))
    bench.queue.push(b"full")
    with pytest.raises(redis.ResponseError, match="SEGUEFULL"):
        bench.call("push_plain", "us.0", 1, "", 0, 0, b"body")
    bench.queue.pop()
    with pytest.raises(redis.ResponseError, match="SEGUEFULL"):
        bench.call("push_plain", "us.0", 1, "", 0, 0, b"body")

    assert bench.call("push_plain", "us.0", 2, "", 0, 0, b"body") == 1


# Damage ------------------------------------------------------------------------------------

JUNK: Final = [b"", b"\xff" * 9, b"\xff" * 30, b"\0" * 12 + b"\xff" * 90]
READINGS: Final[dict[str, Callable[[Queue], object]]] = {
    "peek": lambda queue: queue.peek(9),
    "browse": lambda queue: queue.browse(),
    "look_up": lambda queue: [queue.look_up(each) for each in ("0-0", "0-1", "0-2")],  # type: ignore[arg-type]
    "stats": lambda queue: queue.stats(),
    "state": lambda queue: queue.state(),
    "count": lambda queue: queue.count(),
    "letters": lambda queue: list(queue.dead_letters()),
    "history": lambda queue: list(queue.history()),
    "lease": lambda queue: [job.message for job in queue.lease_many(9)],
    "pop": lambda queue: queue.pop_many(9),
    "redrive": lambda queue: queue.redrive(),
    "discard": lambda queue: queue.discard(),
    "purge": lambda queue: queue.purge(),
}


@contextmanager
def spoilt() -> Iterator[Bench]:
    """A queue whose keys a test may spoil; what is left of it is not looked at."""
    world = RedisWorld(Path())
    store = world.open()
    queue = store.queue("jobs", QueueRules(max_deliveries=3))
    queue.push_many([Item(body=b"", group="g"), b"1", b"2", b"3"])
    queue.nack(queue.lease(), outcome="dead")
    queue.nack(queue.lease(), outcome="release")
    with shared_server().client() as client:
        yield Bench(world, store, queue, client)
        for key in client.scan_iter(f"{world.namespace}:*", count=10_000):
            client.unlink(key)
    world.end()


@pytest.fixture
def damaged() -> Iterator[Bench]:
    with spoilt() as bench:
        yield bench


@pytest.mark.parametrize("what", ["fresh", "bodies", "touched", "letters"])
def test_what_is_damaged_is_called_so(what: str) -> None:
    """Whatever somebody wrote to the keys: Damage is raised, or what can be read is returned."""

    def check(reading: str, junk: bytes) -> None:
        with spoilt() as bench:
            if what == "fresh":
                bench.client.lset(bench.key("queue_0_seg_0"), 0, junk)  # type: ignore[arg-type]
            else:
                name = b"0-0" if what == "letters" else b"0-1"
                assert bench.client.hexists(bench.key(what), name)
                bench.client.hset(bench.key(what), name, junk)
            for _ in range(2):
                with contextlib.suppress(Damage):
                    READINGS[reading](bench.queue)

    assert failing_cases(check, product(READINGS, JUNK)) == []


def test_damage_does_not_stop_the_rest(damaged: Bench) -> None:
    """What cannot be read is passed over, or raises once: what lies behind it still comes."""
    damaged.client.hset(damaged.key("bodies"), "0-1", b"x")
    damaged.client.lset(damaged.key("queue_0_seg_0"), 0, b"x")  # type: ignore[arg-type]
    bodies = []
    for _ in range(6):
        try:
            bodies += [message.body for message in damaged.queue.pop_many(1)]
        except Damage:
            continue

    assert b"3" in bodies


# What once went wrong ---------------------------------------------------------------------


def test_what_waits_for_its_group_hides_nothing_less_urgent(bench: Bench) -> None:
    bench.queue.push_many([Item(body=b"", group="g"), Item(body=b"", group="g")])
    bench.queue.push(b"less urgent", priority=5)
    bench.queue.lease()

    assert bench.queue.wait(0)
    assert bench.queue.lease().body == b"less urgent"


def test_a_group_stays_in_order_however_many_wait(bench: Bench) -> None:
    """Also from 99 to 100, where ids do not sort as numbers do."""
    bodies = [b"%d" % number for number in range(103)]
    bench.queue.push_many([Item(body=body, group="g") for body in bodies])
    bench.queue.push(b"behind them")
    first = bench.queue.lease()
    assert bench.queue.lease().body == b"behind them"
    bench.queue.ack(first)

    assert drain(bench.queue) == bodies[1:]


def test_a_queue_made_anew_does_not_know_the_keys_of_the_one_before(bench: Bench) -> None:
    """Not even in the same microsecond."""
    bench.queue.push(b"before", key="k")
    bench.store.remove_queue("jobs")
    queue = bench.store.queue("jobs")
    queue.push(b"first")
    queue.push(b"second", key="k")

    assert drain(queue) == [b"first", b"second"]


def test_a_redriven_message_is_kept_once(bench: Bench) -> None:
    bench.queue.configure(QueueRules(keep_seconds=1000))
    bench.queue.push(b"body")
    bench.queue.nack(bench.queue.lease(), outcome="dead")
    bench.queue.redrive()
    assert len(list(bench.queue.history())) == 1
    bench.queue.pop()

    assert len(list(bench.queue.history())) == 1
    assert audit_queue(bench.store, "jobs") == []


def test_asking_whether_there_is_something_moves_nothing(bench: Bench) -> None:
    """Not the last of a segment into the next one either."""
    bench.queue.configure(QueueRules(segment_items=2))
    push_all(bench.queue, 4)
    bench.queue.pop()
    before = bench.lane(), bench.segments()
    assert bench.queue.wait(0)

    assert (bench.lane(), bench.segments()) == before == ((3, 0, 1), {0: 1, 1: 2})
    assert audit_queue(bench.store, "jobs") == []


def test_much_that_is_outlived_hides_nothing(bench: Bench) -> None:
    """One call looks at ten thousand messages; whoever asks is told of what lies behind them."""
    bench.queue.configure(QueueRules(on_expiry="drop"))
    for _ in range(3):
        bench.queue.push_many([Item(body=b"", ttl=1)] * 4_000)
    bench.queue.push(b"behind them")
    bench.world.clock.advance(seconds=2)

    assert bench.queue.wait(0)
    assert drain(bench.queue) == [b"behind them"]


# Memory ------------------------------------------------------------------------------------


def test_a_server_without_memory_refuses_pushes_and_lets_work_go_on(scratch: Path) -> None:
    with RedisServer(scratch / "server") as server, open_redis(server.url) as store:
        queue = store.queue("jobs")
        queue.push_many([b"x" * 1000 for _ in range(100)])
        held = queue.lease_many(10)
        server.ask("CONFIG", "SET", "maxmemory", "1mb")

        with pytest.raises(StorageFull):
            queue.push(b"more")
        with pytest.raises(StorageFull):
            queue.push(b"more", priority=3, delay=5)
        queue.ack_many(held[:5])
        queue.nack(held[5], delay=0)
        queue.nack(held[6], outcome="dead")
        queue.extend(held[7])
        assert queue.lease().id == held[5].id
        assert len(queue.pop_many(80)) == 80
        assert len(list(queue.dead_letters())) == 1
        assert queue.count().leased == 4

        server.ask("CONFIG", "SET", "maxmemory", "0")
        queue.push(b"more")
        assert audit_queue(store, "jobs") == []


# Waking ------------------------------------------------------------------------------------


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[QueueRules], Queue]]:
    """Makes a queue by the server's clock, on which a waiting call does not look by itself."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", LONG_SECONDS)
    while BLOCKED.acquire(blocking=False):
        pass
    block = waiting.Patience.wait

    def wait(patience: waiting.Patience, most_seconds: float | None = None) -> None:
        BLOCKED.release()
        block(patience, most_seconds)

    monkeypatch.setattr(waiting.Patience, "wait", wait)
    world = RedisWorld(Path())
    with open_redis(world.url) as store:
        yield lambda rules: store.queue("jobs", rules)
        assert audit_queue(store, "jobs") == []
    world.end()


def assert_woken(waits: Callable[[], object], act: Callable[[], object], what: str) -> object:
    """Return what a call returns that waits until `act` is done, and not for LONG_SECONDS."""
    with meanwhile(waits) as outcome:
        assert BLOCKED.acquire(timeout=LIMIT_SECONDS), what
        assert not outcome.done(), what
        act()
        return outcome.result(LIMIT_SECONDS)


Live = Callable[[QueueRules], Queue]


def test_a_push_wakes_who_leases(live: Live) -> None:
    queue = live(QueueRules())
    assert_woken(lambda: queue.lease(wait=LONG_SECONDS), lambda: queue.push(b""), "lease")


def test_a_push_wakes_who_pops(live: Live) -> None:
    queue = live(QueueRules())
    assert_woken(lambda: queue.pop(wait=LONG_SECONDS), lambda: queue.push(b"", priority=9), "pop")


def test_a_push_wakes_who_only_waits(live: Live) -> None:
    queue = live(QueueRules())
    assert assert_woken(lambda: queue.wait(LONG_SECONDS), lambda: queue.push(b""), "wait")


def test_a_push_with_a_delay_wakes_who_leases_when_it_is_due(live: Live) -> None:
    queue = live(QueueRules())
    assert_woken(
        lambda: queue.lease(wait=LONG_SECONDS), lambda: queue.push(b"", delay=0.1), "lease"
    )


@pytest.mark.parametrize("way", ["ack", "release", "fail", "dead"])
def test_the_end_of_a_lease_wakes_who_waits_for_a_strict_queue(live: Live, way: str) -> None:
    queue = live(QueueRules(max_leases=1))
    queue.push_many([b"", b""])
    job = queue.lease()
    ends: dict[str, Callable[[], None]] = {
        "ack": lambda: queue.ack(job),
        "release": lambda: queue.nack(job, outcome="release"),
        "fail": lambda: queue.nack(job, outcome="fail", delay=60),
        "dead": lambda: queue.nack(job, outcome="dead"),
    }
    assert_woken(lambda: queue.lease(wait=LONG_SECONDS), ends[way], way)


@pytest.mark.parametrize("way", ["ack", "release", "dead"])
def test_the_end_of_a_lease_wakes_who_waits_for_its_group(live: Live, way: str) -> None:
    queue = live(QueueRules())
    queue.push_many([Item(body=b"", group="g"), Item(body=b"", group="g")])
    job = queue.lease()
    ends: dict[str, Callable[[], None]] = {
        "ack": lambda: queue.ack(job),
        "release": lambda: queue.nack(job, outcome="release"),
        "dead": lambda: queue.nack(job, outcome="dead"),
    }
    assert_woken(lambda: queue.lease(wait=LONG_SECONDS), ends[way], way)


def test_a_release_wakes_who_leases(live: Live) -> None:
    queue = live(QueueRules())
    queue.push(b"")
    job = queue.lease()
    assert_woken(
        lambda: queue.lease(wait=LONG_SECONDS), lambda: queue.nack(job, outcome="release"), "lease"
    )


def test_a_redrive_wakes_who_leases(live: Live) -> None:
    queue = live(QueueRules())
    queue.push(b"")
    queue.nack(queue.lease(), outcome="dead")
    assert_woken(lambda: queue.lease(wait=LONG_SECONDS), queue.redrive, "lease")


def test_a_resume_wakes_who_leases(live: Live) -> None:
    queue = live(QueueRules())
    queue.push(b"")
    queue.pause()
    assert_woken(lambda: queue.lease(wait=LONG_SECONDS), queue.resume, "lease")


def test_other_rules_wake_who_leases(live: Live) -> None:
    queue = live(QueueRules(max_leases=1))
    queue.push_many([b"", b""])
    queue.lease()
    assert_woken(
        lambda: queue.lease(wait=LONG_SECONDS), lambda: queue.configure(QueueRules()), "lease"
    )


@pytest.mark.parametrize("way", ["ack", "pop", "purge", "configure", "dead"])
def test_room_wakes_who_pushes(live: Live, way: str) -> None:
    rules = QueueRules(capacity=2, on_full="block")
    queue = live(rules)
    queue.push_many([b"", b""])
    job = queue.lease()
    with pytest.raises(QueueFull):
        queue.push(b"", wait=0)
    makes: dict[str, Callable[[], object]] = {
        "ack": lambda: queue.ack(job),
        "pop": queue.pop,
        "purge": queue.purge,
        "configure": lambda: queue.configure(QueueRules(capacity=3)),
        "dead": lambda: queue.nack(job, outcome="dead"),
    }
    assert_woken(lambda: queue.push(b"", wait=LONG_SECONDS), makes[way], way)


def test_several_who_wait_are_woken_by_as_many(live: Live) -> None:
    queue = live(QueueRules())
    with (
        meanwhile(lambda: queue.lease(wait=LONG_SECONDS)) as one,
        meanwhile(lambda: queue.pop(wait=LONG_SECONDS)) as two,
        meanwhile(lambda: queue.lease(wait=LONG_SECONDS)) as three,
    ):
        for _ in range(3):
            assert BLOCKED.acquire(timeout=LIMIT_SECONDS)
        queue.push_many([b"", b"", b""])
        for outcome in (one, two, three):
            outcome.result(LIMIT_SECONDS)
