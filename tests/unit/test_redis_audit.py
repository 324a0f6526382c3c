"""The audit of a queue on a server: silent while all is well, and it finds what is not."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import redis

from segue import Item, QueueRules
from segue.stores.deduplication import digest_of
from segue.stores.redis.audit import audit_queue, audit_store
from segue.stores.redis.store import RedisStore
from tests.contract.worlds import RedisWorld
from tests.redis_server import shared_server

LOOKS: Final = 20

Spoil = Callable[["redis.Redis", str], object]


@pytest.fixture
def store() -> Iterator[RedisStore]:
    """A store whose queue `jobs` has something of everything; it may be spoilt."""
    world = RedisWorld(Path())
    store = world.open()
    queue = store.queue("jobs", QueueRules(segment_items=3, keep_seconds=100, max_deliveries=2))
    queue.push_many([Item(body=b"", group="g"), Item(body=b"", group="g"), b"a", b"b", b"c"])
    queue.push(b"later", delay=5, key="k")
    queue.push_many([b"%d" % number for number in range(9)])
    queue.push(b"other", priority=5)
    jobs = queue.lease_many(5)  # 0-0 and, for 0-1 must wait, 0-2 to 0-5.
    queue.nack(jobs[1], outcome="release")
    queue.nack(jobs[2], outcome="dead")
    queue.ack(jobs[3])
    yield store
    with shared_server().client() as client:
        for key in client.scan_iter(f"{world.namespace}:*", count=10_000):
            client.unlink(key)
    world.end()


def test_a_queue_that_was_used_in_every_way_is_well(store: RedisStore) -> None:
    assert audit_store(store) == {"jobs": []}


def test_a_queue_that_is_not_there_is_well(store: RedisStore) -> None:
    assert audit_queue(store, "nobody") == []


def test_a_queue_that_was_removed_is_well(store: RedisStore) -> None:
    """Its name went with it, and nothing else was left."""
    store.remove_queue("jobs")

    assert audit_store(store) == {}
    assert audit_queue(store, "jobs") == []


def test_a_queue_in_use_is_well(store: RedisStore) -> None:
    """What it is read for is one moment, however much happens meanwhile."""
    rules = QueueRules(segment_items=1, keep_seconds=100, max_deliveries=3)
    busy = store.queue("busy", rules)
    done = threading.Event()

    def use() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            items = [Item(body=b"", group=f"{number}-{each}") for each in range(2)]
            busy.push_many([*items, *items, Item(body=b"", priority=number % 1000)])
            for place, job in enumerate(busy.lease_many(5)):
                busy.ack(job) if place == 0 else busy.nack(job)

    with ThreadPoolExecutor(2) as threads:
        users = [threads.submit(use) for _ in range(2)]
        try:
            said = [audit_queue(store, "busy") for _ in range(LOOKS)]
        finally:
            done.set()
        for user in users:
            user.result()

    assert said == [[]] * LOOKS
    assert busy.stats().totals["acked"], "it was in use"


def test_what_a_removal_left_is_found(store: RedisStore) -> None:
    store.remove_queue("jobs")
    with shared_server().client() as client:
        client.rpush(f"{store.base('queue', 'jobs')}:queue_0_seg_9", b"item")

    assert audit_queue(store, "jobs") == ["there is no queue, and yet b'queue_0_seg_9'"]


SPOILS: Final[dict[str, tuple[Spoil, str]]] = {
    "a count": (lambda c, b: c.hincrby(f"{b}:metadata", "queue_0:count", 1), "count is"),
    "an item": (lambda c, b: c.rpush(f"{b}:queue_0_seg_4", b"x"), "the segments hold"),
    "a segment": (
        lambda c, b: c.rpush(f"{b}:queue_0_seg_9", b"x"),
        "and should be {2: 3, 3: 3, 4: 2}",
    ),
    "a long segment": (
        lambda c, b: c.rpush(f"{b}:queue_0_seg_3", *[b"x"] * 4),
        "3: 7",
    ),
    "a lost segment": (lambda c, b: c.delete(f"{b}:queue_0_seg_2"), "the segments are"),
    "the head": (lambda c, b: c.hset(f"{b}:metadata", "queue_0:head_segment", "1"), "head_segment"),
    "the tail": (lambda c, b: c.hset(f"{b}:metadata", "queue_0:tail_count", "1"), "and has had 1"),
    "the size": (lambda c, b: c.hset(f"{b}:metadata", "segment_size", "7"), "segment_size is 7"),
    "a lane": (lambda c, b: c.zrem(f"{b}:lanes", "5"), "not among the lanes"),
    "a line": (lambda c, b: c.zrem(f"{b}:lines", "5"), "not among the lines"),
    "a body": (lambda c, b: c.hdel(f"{b}:bodies", "0-2"), "a state and no item"),
    "a state": (lambda c, b: c.hdel(f"{b}:touched", "0-2"), "an item and no state"),
    "a short state": (lambda c, b: c.hset(f"{b}:touched", "0-2", b"x"), "has no head"),
    "a lease": (lambda c, b: c.zrem(f"{b}:leases", "0-0"), "should be at"),
    "another lease": (lambda c, b: c.zadd(f"{b}:leases", {"0-9": 5}), "should be at []"),
    "a place in line": (lambda c, b: c.zadd(f"{b}:ready_0", {"0-2": 5}), "should be at"),
    "two places": (lambda c, b: c.zadd(f"{b}:delayed", {"0-2": 5}), "should be at"),
    "a due time": (
        lambda c, b: c.zadd(f"{b}:delayed", {"later-0000000000000000": 5}),
        "should be at",
    ),
    "what is in line": (lambda c, b: c.hincrby(f"{b}:metadata", "in_line", 1), "in_line is"),
    "what is held": (lambda c, b: c.hincrby(f"{b}:metadata", "held", 1), "held is"),
    "what a lane holds": (
        lambda c, b: c.hincrby(f"{b}:metadata", "queue_0:held", 1),
        "priority 0: held is",
    ),
    "a group": (
        lambda c, b: c.hincrby(f"{b}:groups".encode(), b"l" + digest_of("g"), 1),
        "the groups count",
    ),
    "a held one": (
        lambda c, b: c.delete(f"{b}:held_".encode() + digest_of("g")),
        "should be at",
    ),
    "the first lease": (
        lambda c, b: c.hset(f"{b}:metadata", "lease_first", "9" * 15),
        "lease_first is",
    ),
    "the first due": (
        lambda c, b: c.hset(f"{b}:metadata", "delayed_first", ""),
        "delayed_first is",
    ),
    "a letter": (lambda c, b: c.hdel(f"{b}:letters", "0-3"), "a number and no letter"),
    "a number": (lambda c, b: c.zadd(f"{b}:dead", {"0-3": 7}), "is number 0"),
    "the numbers": (
        lambda c, b: c.hset(f"{b}:metadata", "dead:next_number", "0"),
        "a number nobody gave",
    ),
    "an item that is kept": (lambda c, b: c.hdel(f"{b}:kept", "0-4"), "an offset and no item"),
    "an offset that is kept": (lambda c, b: c.zrem(f"{b}:kept_0", "4"), "an item and no offset"),
    "the bytes that are kept": (
        lambda c, b: c.hincrby(f"{b}:metadata", "kept_0:bytes", 1),
        "what is kept says otherwise",
    ),
    "a key": (lambda c, b: c.set(f"{b}:surprise", "1"), "nobody knows the key b'surprise'"),
    "a lifetime": (lambda c, b: c.expire(f"{b}:touched", 1000), "the server forgets b'touched'"),
    "no lifetime": (
        lambda c, b: c.persist(f"{b}:key_".encode() + digest_of("k")),
        "the server never forgets",
    ),
    "a token": (lambda c, b: c.hset(f"{b}:metadata", "token", "1"), "with token"),
}


@pytest.mark.parametrize("what", list(SPOILS))
def test_what_is_not_as_it_should_be_is_found(store: RedisStore, what: str) -> None:
    spoil, sentence = SPOILS[what]
    with shared_server().client() as client:
        spoil(client, store.base("queue", "jobs"))
    found = audit_queue(store, "jobs")

    assert any(sentence in said for said in found), found
