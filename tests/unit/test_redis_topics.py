"""What is special about topics on a server: keys, fences, and answers that are not believed."""

import re
import threading
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import redis

from segue import Event, Log, Topic, TopicRules
from segue.errors import (
    CorruptManifest,
    CorruptSegment,
    Damage,
    PartitionLost,
    ProducerBusy,
    SegueError,
    StorageError,
)
from segue.stores.redis.calls import Calls
from segue.stores.redis.store import RedisStore
from segue.stores.redis.topics import bulk, room
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.partition import ManifestChanged, Partition
from segue.stores.redis.topics.producer import CLAIM_SECONDS
from segue.stores.redis.topics.topic import RedisTopic
from tests.contract.topic_support import (
    SMALL,
    committed,
    fill,
    fill_segments,
    next_offsets,
    places,
    table_rows,
    values,
)
from tests.contract.worlds import RedisWorld
from tests.waiting import LIMIT_SECONDS, wait_until

FAR = 5_000_000_000
"""An offset that does not fit in 32 bits."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RedisWorld]:
    world = RedisWorld(tmp_path)
    yield world
    world.end()


@pytest.fixture
def store(world: RedisWorld) -> RedisStore:
    return world.open()


@pytest.fixture
def topic(store: RedisStore) -> RedisTopic:
    """A topic with one partition."""
    return store.topic("orders", partitions=1)


@pytest.fixture
def client(world: RedisWorld) -> Iterator["redis.Redis"]:
    """A plain client, to look at what is there and to damage it."""
    with world._server.client() as client:
        yield client


def door(topic: RedisTopic, partition: int = 0) -> Partition:
    return topic._core.partition(partition)


def keys_of(client: "redis.Redis", world: RedisWorld) -> dict[str, str]:
    """Return all keys there are, each with its type."""
    found = client.scan_iter(f"{world.namespace}:*", count=10_000)
    keys = sorted(key.decode() if isinstance(key, bytes) else key for key in found)
    return {key: cast("bytes", client.type(key)).decode().upper() for key in keys}


def sealed_file(path: Path, *payloads: bytes) -> Path:
    """Return a sealed segment of a log."""
    with Log(path, sync="os", segment_bytes=64 << 20) as log:
        log.append_many(list(payloads))
        log.roll()
    return path / "000000000.q"


# Keys --------------------------------------------------------------------------------------


def use_everything(store: RedisStore, sealed: Path) -> None:
    """Leave a key of every kind behind."""
    topic = store.topic("orders", partitions=3, rules=SMALL)
    for partition in range(3):
        fill_segments(topic, 3, 2, partition=partition)
        topic.append(b"x", key="k", partition=partition)
    reader = topic.reader("audit")
    reader.poll(2)
    reader.commit()
    topic.reader("idle", "latest", partitions=[2]).poll(timeout=0.01)
    member = topic.group("workers").join(start="latest")
    member.poll(timeout=0.01)
    member.commit()
    topic.producer("importer").append(b"x", partition=1)
    topic.adopt(sealed, partition=0, key="job")
    door(topic).stage("half_1", bulk._batch([1], [0], memoryview(b"x")), kept_ms=60_000)
    topic.roll()
    topic.compact()
    topic.append(b"y", partition=2)  # Wakes who waits there, or did.


def documented(*names: str) -> dict[re.Pattern[str], str]:
    """Return what the heads of functions say of keys: how they look, and of which type they are."""
    found = {}
    for name in names:
        text = files("segue.stores.redis.functions").joinpath(f"{name}.lua").read_text()
        head = text.split("\nlocal ", 1)[0]
        for key, kind in re.findall(r"-- <base>(:\S+) +(HASH|STRING|ZSET|LIST)  ", head):
            pattern = re.sub(r"<\w+>", r"[\\w.-]+", key)
            found[re.compile(pattern)] = kind
    return found


def test_every_key_is_in_the_schema(
    world: RedisWorld, store: RedisStore, client: "redis.Redis", tmp_path: Path
) -> None:
    """The head of a Lua file lists all there is to find on a server, with its type."""
    use_everything(store, sealed_file(tmp_path / "log", b"a", b"b"))
    of_partitions = documented("common", "partition")
    of_topics = documented("common", "topic")
    unknown, seen = [], set()
    for key, kind in keys_of(client, world).items():
        tag, _, rest = key.partition("}")
        if not tag.endswith(("{store", "{topic:orders")) and "{topic:" not in tag:
            unknown.append(key)
        if "{topic:" in tag:
            known = of_topics if tag.endswith("{topic:orders") else of_partitions
            ours = [each for each, said in known.items() if each.fullmatch(rest) and said == kind]
            seen.update(ours)
            unknown += [] if ours else [f"{key} {kind}"]

    assert unknown == []
    never = {each.pattern for each in (*of_partitions, *of_topics)} - {e.pattern for e in seen}
    assert never <= {":wake_[\\w.-]+", ":waiting_[\\w.-]+"}  # Here for a moment only.


def test_all_keys_of_a_partition_have_its_tag(
    world: RedisWorld, store: RedisStore, client: "redis.Redis", tmp_path: Path
) -> None:
    """So that partitions spread over a cluster, and each is whole on one of its nodes."""
    use_everything(store, sealed_file(tmp_path / "log", b"a"))
    tags = {key[key.index("{") : key.index("}") + 1] for key in keys_of(client, world)}

    partitions = {f"{{topic:orders:{number}}}" for number in range(3)}
    assert tags == {"{store}", "{topic:orders}", *partitions}


def test_no_call_uses_two_tags(store: RedisStore, tmp_path: Path) -> None:
    """What a function is called with is the base of all its keys."""
    bases: set[str] = set()

    def noted(original: object) -> object:
        def call(self: Calls, library: object, name: str, base: str, *words: object) -> object:
            text = [str(word) for word in words if isinstance(word, str)]
            assert not any("{" in word and "topic:" in word for word in text)
            bases.add(base)
            return original(self, library, name, base, *words)  # type: ignore[operator]

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calls, "change", noted(Calls.change))
        patch.setattr(Calls, "look", noted(Calls.look))
        use_everything(store, sealed_file(tmp_path / "log", b"a"))

    assert len(bases) == 4


def test_deleted_segments_leave_nothing(
    world: RedisWorld, topic: RedisTopic, client: "redis.Redis"
) -> None:
    """Neither their bytes nor what was known of them."""
    fill_segments(topic, 3, 3, 3)
    topic.append(b"last")
    topic.clean(keep_bytes=0)
    base = door(topic).base
    left = [key for key in keys_of(client, world) if ":seg_" in key]

    assert left == [f"{base}:seg_3:{part}" for part in ("batches", "payload", "slots")]
    assert client.hlen(f"{base}:segments") == 0


def test_who_gave_up_waiting_is_forgotten(
    world: RedisWorld, topic: RedisTopic, client: "redis.Redis"
) -> None:
    """Also where nothing is ever appended."""
    reader = topic.reader("audit")
    for _ in range(5):
        reader.poll(timeout=0.005)
        world.clock.advance(seconds=1)

    assert client.zcard(f"{door(topic).base}:waiting_records") == 1
    assert client.keys(f"{door(topic).base}:wake_*") == []


# Exactly once ------------------------------------------------------------------------------


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let the connection break after the server has done what it was asked, every other time."""
    original, turns = Calls._exchange, count()

    def exchange(self: Calls, *words: object, is_change: bool, timeout: float) -> object:
        answer = original(self, *words, is_change=is_change, timeout=timeout)  # type: ignore[arg-type]
        if is_change and next(turns) % 2 == 0:
            raise redis.ConnectionError("cut")
        return answer

    monkeypatch.setattr(Calls, "_exchange", exchange)
    return turns


def test_a_repeated_request_does_not_append_twice(topic: RedisTopic, breaking: object) -> None:
    """A connection that broke before the answer came is no reason to append again."""
    del breaking
    found = [topic.append(b"%d" % number) for number in range(5)]
    found += topic.append_many([b"5", b"6"])

    assert [place.offset for place in found] == list(range(7))
    assert values(topic.records()) == [b"%d" % number for number in range(7)]


def test_everything_survives_broken_connections(
    store: RedisStore, breaking: object, tmp_path: Path
) -> None:
    """Whatever changes something is done once: rolls, commits, joins, adoptions."""
    del breaking
    topic = store.topic("orders", partitions=2, rules=SMALL)
    fill_segments(topic, 3, 3)
    with topic.producer("importer") as producer:
        producer.append_many([b"a", b"b", b"c"], first_sequence=0)
    with topic.group("workers").join() as member:
        found = len(member.poll())
        member.commit()
    adopted = topic.adopt(sealed_file(tmp_path / "log", b"d"), partition=0, key="job")
    topic.grow(3)

    assert found == 9
    assert adopted.is_new
    assert [lag.records for lag in topic.group("workers").lag()][:2] == [1, 0]
    assert (topic.partitions, topic.info().version) == (3, 2)
    assert topic.clean(keep_bytes=0, partitions=[0]).deleted == {0: [0, 1]}


# Damage ------------------------------------------------------------------------------------


def damage_slots(client: "redis.Redis", key: str) -> None:
    client.set(f"{key}:slots", (client.get(f"{key}:slots") or b"")[:-5])


def damage_lengths(client: "redis.Redis", key: str) -> None:
    client.setrange(f"{key}:slots", 8, b"\xff\xff\xff\xff")


def damage_flags(client: "redis.Redis", key: str) -> None:
    client.setrange(f"{key}:slots", 7, b"\x40")


def damage_batches(client: "redis.Redis", key: str) -> None:
    client.setrange(f"{key}:batches", 16, b"\0\0\0\0")


def damage_payload(client: "redis.Redis", key: str) -> None:
    client.set(f"{key}:payload", b"a")


def lose_slots(client: "redis.Redis", key: str) -> None:
    client.delete(f"{key}:slots")


def lose_batches(client: "redis.Redis", key: str) -> None:
    client.delete(f"{key}:batches")


@pytest.mark.parametrize(
    "damage",
    [
        damage_slots,
        damage_lengths,
        damage_flags,
        damage_batches,
        damage_payload,
        lose_slots,
        lose_batches,
    ],
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_damage_raises_an_error_of_ours(
    topic: RedisTopic, client: "redis.Redis", damage: object, is_sealed: bool
) -> None:
    """One that says where, and never one of struct or NumPy."""
    topic.append_many([b"a", b"b"])
    topic.append_many([b"c"])
    if is_sealed:
        topic.roll()
    damage(client, f"{door(topic).base}:seg_0")  # type: ignore[operator]
    for read in (topic.records, topic.tables):
        with pytest.raises((CorruptSegment, StorageError)):
            list(read())


def test_facts_that_were_cut_short_are_damage(topic: RedisTopic, client: "redis.Redis") -> None:
    """What a partition says of a segment is looked at before it is believed."""
    fill_segments(topic, 2)
    client.hset(f"{door(topic).base}:segments", "0", b"short")
    for use in (topic.info, topic.clean, lambda: list(topic.records())):
        with pytest.raises((Damage, StorageError)):
            use()


@pytest.mark.parametrize("rules", [b"{", b"[]", b"\xff", b'{"keep_bytes": -1}'])
def test_a_manifest_that_makes_no_sense_is_damage(
    topic: RedisTopic, client: "redis.Redis", rules: bytes
) -> None:
    """It is not replaced by one that does."""
    client.hset(f"{topic._core.base}:manifest", "rules", rules)
    with pytest.raises(CorruptManifest):
        topic.info()

    assert topic._core.store.topics() == ["orders"]


def test_a_group_whose_state_is_lost_begins_anew(topic: RedisTopic, client: "redis.Redis") -> None:
    """With tokens that are far beyond all that were given; who was there comes back."""
    group = topic.group("workers")
    one = group.join()
    before = one.assignment[0]
    client.hset(f"{topic._core.base}:group_workers:state", "state", b"not JSON")
    two = group.join()
    after = two.assignment[0]
    two.close()
    one.poll()

    assert before < after < one.assignment[0]
    assert client.hlen(f"{topic._core.base}:group_workers:alive") == 1


# Fences ------------------------------------------------------------------------------------


def test_a_member_with_an_old_token_cannot_commit(topic: RedisTopic) -> None:
    """The partition refuses it, whatever the group's state said a moment ago."""
    fill(topic, 3)
    member = topic.group("workers").join()
    member.poll()
    door(topic).hold("group.workers", member.assignment[0] + 1)
    with pytest.raises(PartitionLost):
        member.commit()

    assert committed(topic.group("workers").lag()) == {0: 0}


def test_a_group_that_was_reset_is_not_set_back(topic: RedisTopic, world: RedisWorld) -> None:
    """By a commit of somebody who was a member before and is late."""
    fill(topic, 3)
    member = topic.group("workers").join(ttl=10)
    token = str(member.assignment[0])
    world.clock.advance(seconds=11)
    topic.group("workers").reset("latest")

    assert not door(topic).save("group.workers", 1, token=token)
    assert committed(topic.group("workers").lag()) == {0: 3}


def test_a_name_is_free_when_its_time_is_over(
    topic: RedisTopic, world: RedisWorld, store: RedisStore
) -> None:
    """A producer that fell silent is refused by the partitions its successor has met."""
    silent = topic.producer("importer")
    silent.append(b"a", sequence=0)
    store.heartbeat.close()
    world.clock.advance(seconds=CLAIM_SECONDS + 1)
    late = world.open().topic("orders").producer("importer")
    again, following = late.append(b"a", sequence=0), late.append(b"b", sequence=1)
    with pytest.raises(ProducerBusy):
        silent.append(b"c", sequence=2)

    assert again is None
    assert following == (0, 1)
    assert values(topic.records()) == [b"a", b"b"]


def test_a_producer_that_was_dropped_is_renewed_no_more(topic: RedisTopic) -> None:
    """Whoever forgets to close one does not hold its name for ever."""
    producer = topic.producer("importer")
    pulse = producer._pulse
    del producer
    pulse.run()

    assert pulse.is_stopped


def test_sequence_numbers_are_not_rounded(topic: RedisTopic) -> None:
    """Also beyond what Lua can count."""
    last = (1 << 63) - 3
    with topic.producer("importer") as producer:
        found = [producer.append(b"x", sequence=last + each) for each in (0, 0, 1, 1, 2)]
    with topic.producer("importer") as producer:
        assert producer.last_sequence() == last + 2

    assert [place is None for place in found] == [False, True, False, True, False]


def test_nothing_is_deleted_that_somebody_went_back_to(topic: RedisTopic) -> None:
    """Who comes between the decision and the deletion is heard."""
    fill_segments(topic, 2, 2)
    topic.reader("audit", "latest").close()
    survey = door(topic).survey()
    topic.reader("late", "earliest").close()
    refused = door(topic).drop(1, back=survey.back)
    allowed = door(topic).drop(1, back=door(topic).survey().back)

    assert (list(refused), list(allowed)) == ([], [0, 1])


def test_an_old_manifest_is_refused(topic: RedisTopic, world: RedisWorld) -> None:
    """So that nobody routes keys by partitions that were."""
    there = world.open().topic("orders")
    there.append(b"a")
    topic.grow(2)
    batch = bulk._batch([1], [0], memoryview(b"x"))
    with pytest.raises(ManifestChanged):
        door(there).append(batch, version=1, room=room.room_by(TopicRules()))

    assert there.append(b"b", key=b"a").partition == 1


# What a replica did not have yet ------------------------------------------------------------


def test_a_topic_whose_manifest_is_older_than_its_partitions_goes_on(
    topic: RedisTopic, client: "redis.Redis"
) -> None:
    """A replica that took over may lack what partitions, elsewhere, were told of."""
    topic.append(b"a")
    topic.configure(SMALL)
    client.hset(f"{topic._core.base}:manifest", "version", "1")
    topic._core.forget_manifest()
    topic.append(b"b")

    assert values(topic.records()) == [b"a", b"b"]
    assert topic.info().version == 2


def test_a_group_whose_tokens_are_older_than_its_partitions_goes_on(topic: RedisTopic) -> None:
    """Its next tokens are beyond all that were seen."""
    fill(topic, 3)
    group = topic.group("workers")
    group.join().close()
    door(topic).hold("group.workers", 900)
    member = group.join()
    found = member.poll()
    member.commit()

    assert len(found) == 3
    assert member.assignment[0] > 900
    assert committed(group.lag()) == {0: 3}


def test_a_producer_whose_epoch_is_older_than_its_partitions_goes_on(
    topic: RedisTopic, client: "redis.Redis"
) -> None:
    """As long as the name is its own."""
    with topic.producer("importer") as producer:
        producer.append(b"a", sequence=0)
    client.hset(f"{topic._core.base}:producer_importer", "epoch", "0")
    client.hset(f"{door(topic).base}:producers", mapping={str(producer._number): f"50 {0:019d}"})
    with topic.producer("importer") as producer:
        found = [producer.append(b"a", sequence=0), producer.append(b"b", sequence=1)]

    assert found == [None, (0, 1)]


# Large -------------------------------------------------------------------------------------


def test_large_offsets_are_not_rounded(topic: RedisTopic, client: "redis.Redis") -> None:
    """Numbers beyond 32 bits are written whole, wherever they are kept."""
    base = door(topic).base
    client.hset(f"{base}:head", mapping={"next": FAR, "first": FAR, "begin": FAR})
    fill_segments(topic, 2, 2)
    fill(topic, 1)
    reader = topic.reader("audit")
    found = places(reader.poll(3))
    reader.commit()
    topic.clean()

    assert found == [(0, FAR + number) for number in range(3)]
    assert committed(reader.lag()) == {0: FAR + 3}
    assert topic.info().partitions[0].first_offset == FAR + 2
    assert [row[1] for row in table_rows(topic.tables())] == [FAR + 2, FAR + 3, FAR + 4]


def test_much_is_adopted_in_one_step(
    topic: RedisTopic,
    client: "redis.Redis",
    world: RedisWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent piece by piece to where nobody looks, and then shown all at once."""
    monkeypatch.setattr(bulk, "BATCH_RECORDS_MAX", 4)
    fill(topic, 3)
    payloads = [b"%d" % number for number in range(10)]
    path = sealed_file(tmp_path / "log", *payloads)
    found = [topic.adopt(path, partition=0, key="job") for _ in range(2)]
    topic.append(b"after")

    assert [(each.first_offset, each.count, each.is_new) for each in found] == [
        (3, 10, True),
        (3, 10, False),
    ]
    assert values(topic.records(3)) == [*payloads, b"after"]
    assert topic.info().partitions[0].segments == 5
    left = {key for key in keys_of(client, world) if ":staged_" in key}
    assert all(client.pttl(key) > 0 for key in left)  # Of the second try, and not for long.
    assert all(client.pttl(key) == -1 for key in keys_of(client, world) if ":seg_" in key)


def test_what_took_too_long_to_send_is_not_adopted(
    world: RedisWorld,
    topic: RedisTopic,
    client: "redis.Redis",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in part, either."""
    monkeypatch.setattr(bulk, "BATCH_RECORDS_MAX", 1)
    monkeypatch.setattr(bulk, "STAGED_MS", 1)
    adopt = Partition.adopt

    def adopt_late(
        self: Partition, name: str, overheads: Sequence[int], *, version: int, adoption: str
    ) -> tuple[int, int]:
        wait_until(lambda: not any(":staged_" in key for key in keys_of(client, world)))
        return adopt(self, name, overheads, version=version, adoption=adoption)

    monkeypatch.setattr(Partition, "adopt", adopt_late)
    path = sealed_file(tmp_path / "log", *[b"x"] * 40)
    with pytest.raises(StorageError):
        topic.adopt(path, partition=0, key="job")

    assert next_offsets(topic) == [0]


def test_one_call_brings_many_records(topic: RedisTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who polls for one at a time does not ask the server for each."""
    topic.append_many([b"%d" % number for number in range(500)])
    reader = topic.reader("audit")
    reads = []
    original = Partition.read

    def read(self: Partition, *words: int, **more: int) -> object:
        reads.append(words)
        return original(self, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "read", read)
    found = [reader.poll(1)[0].offset for _ in range(500)]

    assert found == list(range(500))
    assert len(reads) == 1


def test_who_waits_for_several_partitions_is_woken(world: RedisWorld, store: RedisStore) -> None:
    """By the server, and not by looking again: the clock that would tell stands still."""
    topic = store.topic("wide", partitions=40)
    reader = topic.reader("audit")
    together = threading.Event()
    found: list[object] = []

    def wait() -> None:
        together.set()
        found.extend(reader.poll(timeout=LIMIT_SECONDS))

    thread = threading.Thread(target=wait)
    thread.start()
    together.wait()
    world.open().topic("wide").append(b"x", partition=33)
    thread.join(LIMIT_SECONDS)

    assert values(found) == [b"x"]  # type: ignore[arg-type]


def test_a_topic_is_what_the_contract_says(topic: RedisTopic) -> None:
    """As mypy sees it."""
    promised: Topic = topic
    core: TopicCore = topic._core

    assert promised.name == core.name == "orders"


def test_a_segment_sent_is_the_same_each_time(topic: RedisTopic, tmp_path: Path) -> None:
    """With the times its records had, so that who goes on with it can."""
    topic.append_many([Event(value=b"a", key="k"), b"b"])
    topic.roll()
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as file:
            topic.send_segment(0, 0, file)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_an_answer_that_makes_no_sense_is_told(
    topic: RedisTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes over the network is looked at before it is believed."""
    topic.append(b"x")
    for answer in (None, b"text", [], [1], [b"x", 1, 1], [0, 1, 1, 0, 0, 1, 2, 3]):
        monkeypatch.setattr(Calls, "look", lambda *_, answer=answer: answer)
        with pytest.raises(SegueError):
            door(topic).read(0, records_max=1, bytes_max=1)
