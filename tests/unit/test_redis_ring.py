"""What is special about rings and locks on a server: their keys, and what becomes of them."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

import pytest

from segue.errors import InvalidArgument, LockBusy, RingNotFound
from segue.stores.contract import Ring
from segue.stores.redis.ring import RedisRing
from segue.stores.redis.store import RedisStore
from tests.contract.worlds import RedisWorld
from tests.redis_server import shared_server

SEGMENT: Final = 3


@pytest.fixture
def world() -> Iterator[RedisWorld]:
    world = RedisWorld(None)  # type: ignore[arg-type] # It needs no place.
    yield world
    world.end()


@pytest.fixture
def store(world: RedisWorld) -> RedisStore:
    return world.open()


@pytest.fixture
def ring(store: RedisStore) -> RedisRing:
    return store.ring("bus", capacity=12, entries_per_segment=SEGMENT)


def keys_of(store: RedisStore, base: str) -> dict[str, str]:
    """Return the types of all keys of a thing, by what follows its base."""
    with shared_server().client() as client:
        names = [name.decode() for name in client.scan_iter(f"{base}*", count=1_000)]
        return {name.removeprefix(base): client.type(name).decode() for name in names}


def records(store: RedisStore) -> dict[str, int]:
    """Return how many entries each record of the ring has."""
    base = store.base("ring", "bus")
    with shared_server().client() as client:
        found = [key for key in keys_of(store, base) if key.startswith(":buffer_")]
        return {key.removeprefix(":"): client.hlen(base + key) for key in sorted(found)}


def drop(store: RedisStore, key: str, *fields: str) -> None:
    """Take something away, as a failover does to what was not replicated, or a careless hand."""
    with shared_server().client() as client:
        assert client.hdel(key, *fields) == len(fields)


# Records -----------------------------------------------------------------------------------


def test_entries_lie_in_records_of_a_segment_each(ring: Ring, store: RedisStore) -> None:
    """1.1.9, 1.2.3: a record of metadata, and as many of entries as segments fit."""
    for number in range(7):
        ring.enqueue(b"%d" % number)

    assert records(store) == {"buffer_0": 3, "buffer_1": 3, "buffer_2": 1}


def test_records_are_used_round_and_round(ring: Ring, store: RedisStore) -> None:
    for number in range(100):
        ring.enqueue(b"%d" % number, overwrite_if_full=True)

    assert records(store) == {f"buffer_{number}": SEGMENT for number in range(4)}


def test_what_was_taken_takes_up_no_memory(ring: Ring, store: RedisStore) -> None:
    for number in range(100):
        ring.enqueue(b"%d" % number, overwrite_if_full=True)
        ring.dequeue()

    assert records(store) == {}


def test_a_group_that_is_removed_takes_what_only_it_held_back_along(
    ring: Ring, store: RedisStore
) -> None:
    ring.add_group("slow")
    for number in range(12):
        ring.enqueue(b"%d" % number)
    for _ in range(10):
        ring.dequeue()
    ring.remove_group("slow")

    assert sum(records(store).values()) == 2
    assert [entry.offset for entry in (ring.dequeue(), ring.dequeue()) if entry] == [10, 11]


def test_much_that_goes_at_once_is_deleted_bit_by_bit(store: RedisStore) -> None:
    """No call keeps the server busy for long, and none of it stays for ever."""
    ring = store.ring("bus", capacity=10_000, entries_per_segment=5_000)
    ring.add_group("slow", start="tail")
    with ring.transaction(ttl=60) as transaction:
        for number in range(10_000):
            transaction.enqueue(b"%d" % number)
    with ring.transaction(ttl=60) as transaction:
        for _ in range(4_000):
            transaction.dequeue()
    ring.remove_group("slow")
    after = [sum(records(store).values())]
    for _ in range(4):
        ring.dequeue()
        after.append(sum(records(store).values()))

    assert after == [9_000, 8_000, 7_000, 6_000, 5_996]
    entry = ring.dequeue()
    assert entry is not None
    assert entry.body == b"4004"


def test_an_entry_that_is_missing_is_passed_over(ring: Ring, store: RedisStore) -> None:
    for number in range(8):
        ring.enqueue(b"%d" % number)
    drop(store, f"{store.base('ring', 'bus')}:buffer_0", "0", "2")
    with shared_server().client() as client:
        client.unlink(f"{store.base('ring', 'bus')}:buffer_1")
    with ring.transaction("look") as transaction:
        seen = [transaction.dequeue() for _ in range(4)]
        transaction.abort()
    taken = [ring.dequeue() for _ in range(4)]

    assert [entry and entry.body for entry in taken] == [b"1", b"6", b"7", None]
    assert seen == taken
    assert ring.get(0) is None
    assert ring.info().count == 0


# Tokens and outcomes -----------------------------------------------------------------------


def test_tokens_grow_also_where_the_last_ones_are_forgotten(
    ring: Ring, store: RedisStore, world: RedisWorld
) -> None:
    """A replica that takes over may not know of them; the clock does."""
    lock = store.lock("leader", ttl=1)
    before = [lock.acquire().token, ring.transaction("lost", ttl=1).token]
    metadata = f"{store.base('ring', 'bus')}:metadata"
    drop(store, f"{store.base('lock', 'leader')}:lock", "token", "owner", "until")
    drop(store, metadata, "lock_token", "lock_owner", "lock_until")
    with shared_server().client() as client:
        client.hset(metadata, "token", 0)
    world.clock.advance(ms=1)
    after = [lock.acquire().token, ring.transaction("next", ttl=1).token]

    assert all(late > early for early, late in zip(before, after, strict=True))


def test_no_more_than_a_thousand_outcomes_are_kept(ring: Ring, store: RedisStore) -> None:
    for number in range(1_020):
        ring.enqueue(b"x", number, overwrite_if_full=True)
    with shared_server().client() as client:
        base = store.base("ring", "bus")
        kept = client.hlen(f"{base}:outcomes"), client.zcard(f"{base}:outcome_order")

    assert kept == (1_000, 1_000)
    assert ring.outcome(19) is None
    assert ring.outcome(20) is not None


def test_a_ring_has_no_more_groups_than_it_may(ring: Ring) -> None:
    for number in range(99):
        ring.add_group(f"group-{number}")
    with pytest.raises(InvalidArgument, match="100"):
        ring.add_group("one-more")

    assert len(ring.info().groups) == 100


def test_a_ring_that_is_gone_is_not_made_anew_by_using_it(ring: Ring, store: RedisStore) -> None:
    """Whoever emptied the server did so; an enqueue must not make half a ring."""
    with shared_server().client() as client:
        for key in keys_of(store, store.base("ring", "bus")):
            client.unlink(store.base("ring", "bus") + key)
    for call in (lambda: ring.enqueue(b"a"), ring.dequeue, ring.transaction, ring.info):
        with pytest.raises(RingNotFound):
            call()

    assert store.rings() == []


def test_who_gave_up_waiting_is_forgotten(store: RedisStore, world: RedisWorld) -> None:
    """However often somebody asks for what another holds for long."""
    lock = store.lock("leader", ttl=86_400)
    lock.acquire()
    for _ in range(5):
        with pytest.raises(LockBusy):
            lock.acquire(wait=0.001)
        world.clock.advance(seconds=1)
    with shared_server().client() as client:
        waiting = client.zcard(f"{store.base('lock', 'leader')}:waiting_lock")

    assert waiting <= 1


# Keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ring", "lock"])
def test_every_key_is_named_on_top_of_its_functions(
    ring: Ring, store: RedisStore, kind: str
) -> None:
    """And is of the type that is said there."""
    held = store.lock("leader", ttl=60).acquire()
    with pytest.raises(LockBusy):
        store.lock("leader").acquire(wait=0.001)
    ring.enqueue(b"a", "t")
    ring.transaction("holds", ttl=60)
    with pytest.raises(LockBusy):
        ring.enqueue(b"b", wait=0.001)
    held.release()
    base = store.base("ring", "bus") if kind == "ring" else store.base("lock", "leader")
    said = _said(kind)
    found = keys_of(store, base)

    assert found
    for key, type_ in found.items():
        assert [each for each in said if re.fullmatch(each, key) and said[each] == type_], key


def _said(kind: str) -> dict[str, str]:
    text = files("segue.stores.redis.functions").joinpath(f"{kind}.lua").read_text()
    head = text.partition("\nlocal ")[0]
    lines = re.findall(r"^-- <base>(:\S+) +(HASH|LIST|ZSET|STRING) ", head, re.MULTILINE)
    return {re.sub(r"<\w+>", r"[\\w.]+", key): type_.lower() for key, type_ in lines}
