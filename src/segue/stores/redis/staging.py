"""Writes that are prepared aside by many and made to happen by one: the doors to staging.lua.

Whatever is put aside lies where it will go, in blocks that are adopted with one call each, once by
their names. What nobody adopts is gone after a while.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from segue.delivery.message import pack_message, unpack_prefix
from segue.delivery.topic_record import adoption_digest
from segue.errors import QueueFull, StorageError
from segue.log.staging import Batch
from segue.stores.deduplication import digest_of
from segue.stores.redis.calls import Refusal
from segue.stores.redis.items import ITEM_BYTES_MAX, Parcel
from segue.stores.redis.libraries import library
from segue.stores.redis.topics.answers import number_of, numbers_of, text_of, words_of
from segue.stores.redis.topics.appending import after_roll
from segue.stores.redis.topics.core import CHANGES_MAX, TopicCore
from segue.stores.redis.topics.partition import Batch as Sent
from segue.stores.redis.topics.room import room_by
from segue.stores.topic_manifest import Manifest
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.calls import Answer, Word
    from segue.stores.redis.store import RedisStore

KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long what is put aside waits for its write: longer than any write takes."""
BLOCK_RECORDS_MAX: Final = 5_000
BLOCK_BYTES_MAX: Final = 4 << 20
"""What one call adopts: the server does nothing else meanwhile."""
NAMES_PER_CALL: Final = 1_000
Listing = Literal["listed", "done", "pending", "withdrawn"]
LISTING: Final[Mapping[int, Listing]] = {1: "listed", 0: "done", -1: "pending", -2: "withdrawn"}

_ATTR: Final = struct.Struct(">I")
_SLOT: Final = np.dtype([("attr", "<u8"), ("length", "<u4")])


class BlockGone(StorageError):
    """What was put aside is not there: its time was over, or somebody was faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSize:
    """How large what is put aside may be."""

    records_max: int
    bytes_max: int
    record_bytes_max: int


class Target(Protocol):
    """Where what is put aside will go."""

    writes: "Writes"
    block: BlockSize
    partitions: int
    """How many there are; 0 for a queue."""

    def stage(self, number: int, name: str, batches: list[Batch]) -> None:
        """Keep a block aside."""

    def adopt(self, number: int, name: str) -> None:
        """Put a block in its place, unless that was done. Raises BlockGone, QueueFull."""

    def hold(self, names: Mapping[int, list[str]], *, kept_ms: int) -> int:
        """Keep blocks for so long, or (0) until they are adopted; return how many are gone."""

    def unstage(self, names: Mapping[int, list[str]]) -> None:
        """Drop what is aside."""

    def forget(self, names: Mapping[int, list[str]]) -> None:
        """Forget that blocks were adopted: nobody will ask again."""

    def require_room(self, count: int) -> None:
        """Raise QueueFull if so many more would not fit."""


class Writes:
    """The writes to one topic or queue that are under way, and those that have happened."""

    def __init__(self, store: "RedisStore", base: str) -> None:
        self._calls = store.calls
        self._base = base
        self._library = library("staging")

    def _change(self, function: str, *words: "Word") -> "Answer":
        return self._calls.change(self._library, function, self._base, *words)

    def _look(self, function: str, *words: "Word") -> "Answer":
        return self._calls.look(self._library, function, self._base, *words)

    def announce(self, write: str, number: int, name: str) -> None:
        """Note that something is about to be put aside for a write."""
        self._change("announce", write, KEPT_MS, f"{number} {name}")

    def announced(self, write: str) -> dict[int, list[str]]:
        """Return the names of what was put aside for a write, by partition or lane."""
        return _named(self._look("announced", write))

    def withdraw(self, write: str) -> dict[int, list[str]]:
        """Have a write not happen, unless it has; return what is aside for it, to be dropped."""
        return _named(self._change("withdraw", write))

    def list_(
        self, write: str, query: str, batch: int | None, text: str, names: Mapping[int, list[str]]
    ) -> Listing:
        """Have a write of what was announced under these names happen, or say why it does not.

        It has before, another of its query is to be finished first, or it was withdrawn.
        """
        members = [f"{number} {name}" for number, some in names.items() for name in some]
        words = (write, query, "" if batch is None else batch, text, *members)
        return LISTING[number_of(self._change("list", *words))]

    def pending(self) -> dict[str, str]:
        """Return what has happened and is not finished: what it consists of, by write."""
        words = [text_of(word) for word in words_of(self._look("pending"))]
        return dict(sorted(zip(words[::2], words[1::2], strict=True)))

    def is_pending(self, write: str) -> bool:
        """Tell whether a write has happened and is not finished."""
        return number_of(self._look("is_pending", write)) > 0

    def is_done(self, query: str, batch: int | None) -> bool:
        """Tell whether a write is finished."""
        return number_of(self._look("is_done", query, "" if batch is None else batch)) > 0

    def finish(self, write: str, query: str, batch: int | None, *, is_repeatable: bool) -> None:
        """Note that all of a write is in its place."""
        words = (write, query, "" if batch is None else batch, int(is_repeatable))
        self._change("finish", *words)


def _named(answer: "Answer") -> dict[int, list[str]]:
    members = [text_of(word).partition(" ") for word in words_of(answer)]
    return by_number((int(number), name) for number, _, name in members)


class _Aside:
    """What both kinds of targets do with the names of blocks."""

    def __init__(self, store: "RedisStore") -> None:
        self._calls = store.calls
        self._staging = library("staging")

    def _base(self, number: int) -> str:
        raise NotImplementedError

    def _by_base(self, names: Mapping[int, list[str]]) -> Iterator[tuple[str, list[str]]]:
        by_base: dict[str, list[str]] = {}
        for number, some in names.items():
            by_base.setdefault(self._base(number), []).extend(some)
        for base, some in by_base.items():
            for first in range(0, len(some), NAMES_PER_CALL):
                yield base, some[first : first + NAMES_PER_CALL]

    def hold(self, names: Mapping[int, list[str]], *, kept_ms: int) -> int:
        return sum(
            number_of(self._calls.change(self._staging, "hold", base, kept_ms, *part))
            for base, part in self._by_base(names)
        )

    def unstage(self, names: Mapping[int, list[str]]) -> None:
        for base, part in self._by_base(names):
            self._calls.change(self._staging, "unstage", base, *part)

    def _forget(self, names: Mapping[int, list[str]]) -> None:
        for base, part in self._by_base(names):
            self._calls.change(self._staging, "forget", base, *part)


# Topics ----------------------------------------------------------------------------------------


class TopicTarget(_Aside):
    """Blocks of records for the partitions of a topic. Makes the topic if there is none."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        super().__init__(store)
        self._core: TopicCore = store.topic(name)._core
        self._partition = library("partition")
        manifest = self._core.existing()
        room = room_by(manifest.rules)
        has_size = manifest.rules.segment_bytes is not None
        self.partitions = manifest.partitions
        self.writes = Writes(store, self._core.base)
        self.block = BlockSize(
            records_max=min(BLOCK_RECORDS_MAX, room.items_max if has_size else BLOCK_RECORDS_MAX),
            bytes_max=min(BLOCK_BYTES_MAX, room.bytes_max if has_size else BLOCK_BYTES_MAX),
            record_bytes_max=room.record_bytes_max,
        )

    def _base(self, number: int) -> str:
        return self._core.partition(number).base

    def stage(self, number: int, name: str, batches: list[Batch]) -> None:
        slots = np.empty(sum(map(len, batches)), dtype=_SLOT)
        slots["attr"] = np.concatenate([batch.attrs for batch in batches])
        slots["length"] = np.concatenate([batch.lengths for batch in batches])
        sent = Sent(slots.tobytes(), b"".join(batch.data for batch in batches))
        self._core.partition(number).stage(f"{name}_1", sent, kept_ms=KEPT_MS)

    def adopt(self, number: int, name: str) -> None:
        for _ in range(CHANGES_MAX):
            manifest = self._core.existing()
            try:
                done, *rest = numbers_of(self._adopted(number, name, manifest), 1)
            except Refusal as refusal:
                if refusal.code != "MANIFEST":
                    raise
                self._core.forget_manifest()
                continue
            if not done:
                raise BlockGone(f"what was to be appended to partition {number} is gone")
            if done > 0 and rest[1]:
                after_roll(self._core, number, manifest.rules)
            return
        raise StorageError(f"topic {self._core.name} was changed by others all the time")

    def _adopted(self, number: int, name: str, manifest: Manifest) -> "Answer":
        room = room_by(manifest.rules)
        return self._calls.change(
            self._partition,
            "take_in",
            self._base(number),
            *(manifest.version, _digest(name), name, room.items_max, room.bytes_max),
            *(room.overhead_bytes(self.block.records_max), room.age_us_max, room.bytes_max // 2),
        )

    def forget(self, names: Mapping[int, list[str]]) -> None:
        self._forget({number: list(map(_digest, some)) for number, some in names.items()})

    def require_room(self, count: int) -> None:
        """There is no limit to a topic."""


def _digest(name: str) -> str:
    return adoption_digest(name).hex()


# Queues ----------------------------------------------------------------------------------------


class QueueTarget(_Aside):
    """Blocks of messages for the lanes of a queue."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        super().__init__(store)
        self._store = store
        self._queue = store.queue(name)
        self._name = name
        self._queue_base = store.base("queue", name)
        self.partitions = 0
        self.writes = Writes(store, self._queue_base)
        self.block = BlockSize(
            records_max=BLOCK_RECORDS_MAX,
            bytes_max=BLOCK_BYTES_MAX,
            record_bytes_max=ITEM_BYTES_MAX,
        )

    def _base(self, number: int) -> str:
        return self._queue_base

    def stage(self, number: int, name: str, batches: list[Batch]) -> None:
        """Keep messages aside. A time before which they may not come counts from their pushing."""
        words: list[Word]
        if number >= 0 and not any(batch.attrs.any() for batch in batches):
            words = [number, *(payload for batch in batches for payload, _ in _each(batch))]
        else:
            parcels = (
                _parcel(number, payload, attr)
                for batch in batches
                for payload, attr in _each(batch)
            )
            words = ["", *(word for parcel in parcels for word in parcel)]
        self._calls.change(self._staging, "stage", self._queue_base, name, KEPT_MS, *words)

    def adopt(self, number: int, name: str) -> None:
        self._store.register("queue", self._name)
        try:
            done = number_of(self._queue.change("take_in", name))
        except Refusal as refusal:
            if refusal.code not in {"FULL", "WAIT"}:
                raise
            raise QueueFull(queue=self._name, capacity=int(refusal.words[0])) from None
        if not done:
            raise BlockGone(f"what was to be pushed to queue {self._name} is gone")

    def forget(self, names: Mapping[int, list[str]]) -> None:
        self._forget(names)

    def require_room(self, count: int) -> None:
        rules = self._queue.rules
        if rules.capacity is None:
            return
        held = 0 if rules.on_full == "drop_oldest" else self._queue.count().total
        if held + count > rules.capacity:
            raise QueueFull(queue=self._name, capacity=rules.capacity)


def _each(batch: Batch) -> Iterator[tuple[bytes, int]]:
    position = 0
    for length, attr in zip(batch.lengths.tolist(), batch.attrs.tolist(), strict=True):
        yield bytes(batch.data[position : position + length]), attr
        position += length


def _parcel(lane: int, payload: bytes, attr: int) -> Parcel:
    """Return a message as a push takes it; its prefix says what its lane does not."""
    prefix, body = unpack_prefix(payload, attr)
    priority, delay_us = prefix.pop("p", max(0, lane)), prefix.pop("n", 0)
    if delay_us:
        prefix["p"] = priority
    key = prefix.get("k")
    packed, attr = pack_message(body, prefix)
    digest = b"" if key is None else digest_of(key)
    return priority, delay_us, 0, digest, _ATTR.pack(attr) + packed


# Blocks ----------------------------------------------------------------------------------------


def parted(batch: Batch, size: BlockSize) -> Iterator[Batch]:
    """Yield a batch in parts that fit in a block each; a record that does not has its own."""
    ends = np.cumsum(batch.lengths, dtype=np.int64)
    start, begin = 0, 0
    while start < len(batch):
        fitting = int(np.searchsorted(ends, begin + size.bytes_max, side="right"))
        stop = min(max(fitting, start + 1), start + size.records_max, len(batch))
        end = int(ends[stop - 1])
        yield Batch(
            lengths=batch.lengths[start:stop],
            attrs=batch.attrs[start:stop],
            data=batch.data[begin:end],
        )
        start, begin = stop, end


def by_number(blocks: Iterable[tuple[int, str]]) -> dict[int, list[str]]:
    """Return names by their partition or lane."""
    found: dict[int, list[str]] = {}
    for number, name in blocks:
        found.setdefault(number, []).append(name)
    return found
