"""Pushing: what is looked at before a message is appended, and where it goes."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, cast

from segue.delivery import events
from segue.delivery.events import ASIDE, How, Run, Settled
from segue.delivery.message import (
    Body,
    Key,
    MessageId,
    Prefix,
    body_from,
    headers_from,
    key_from,
    pack_message,
)
from segue.delivery.priority import priority_from
from segue.errors import InvalidArgument, QueueFull
from segue.log import Log
from segue.log.options import Duration
from segue.log.payloads import checked_payload
from segue.stores.arguments import duration_us
from segue.stores.contract import Item
from segue.stores.deduplication import digest_of
from segue.stores.message_ids import message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore


KEYS_PER_EVENT: Final = 10_000

_BYTES: Final = {bytes}


class Letter:
    """A message on its way in: checked, and laid out as the record it becomes."""

    __slots__ = ("attr", "digest", "key", "lane", "payload")

    def __init__(self, lane: int, payload: bytes, attr: int, digest: bytes | None = None) -> None:
        self.lane = lane
        self.payload = payload
        self.attr = attr
        self.digest = digest
        self.key = Key(0, 0)

    @classmethod
    def of(cls, item: Item, now_us: int) -> "Letter":
        """Lay out an item. Raises InvalidArgument, before anything is written."""
        priority = priority_from(item.priority)
        body = body_from(item.body)
        prefix: Prefix = {}
        headers = headers_from(item.headers)
        if headers:
            prefix["h"] = headers
        delay_us = duration_us(item.delay, name="delay")
        ttl_us = duration_us(item.ttl, name="ttl", least_us=1)
        if ttl_us is not None:
            prefix["x"] = now_us + ttl_us
        key = key_from(item.key)
        if key is not None:
            prefix["k"] = key
        group = key_from(item.group, name="group")
        if group is not None:
            prefix["g"] = group
        lane = priority
        if delay_us:
            prefix["n"] = now_us + delay_us
            prefix["p"] = priority
            lane = ASIDE
        digest = None if key is None else digest_of(key)
        return cls(lane, *pack_message(body, prefix), digest)


class Pusher:
    """Pushes to one queue. Safe from any thread."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core

    def push(self, items: Iterable[Item | Body], wait: Duration | None) -> list[MessageId]:
        """Push all items or none; return their ids."""
        now_us = self._core.place.clock()
        wait_us = duration_us(wait, name="wait")
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise InvalidArgument("push_many takes several items; push takes one")
        if not isinstance(items, list):
            items = list(items)
        ids = self._push_plain(items)
        if ids is not None:
            return ids
        letters = [
            Letter.of(item if isinstance(item, Item) else Item(body=item), now_us) for item in items
        ]
        if not letters:
            return []
        self.push_letters(letters, wait_us)
        return [message_id(*letter.key) for letter in letters]

    def push_letters(self, letters: list[Letter], wait_us: int | None) -> None:
        """Push all letters or none; each has its place then."""
        self.require_fit(letters)
        if self._core.is_plain and all(letter.digest is None for letter in letters):
            self.append(letters)
            self._core.look_at_rules()  # The queue may have been removed under our hands.
        else:
            self._push_in_turn(letters, wait_us)

    def _push_plain(self, items: list[Item | Body]) -> list[MessageId] | None:
        """Push bodies that need nothing looked at; None if these do."""
        core = self._core
        core.look_at_rules()
        if not core.is_plain or not items or set(map(type, items)) != _BYTES:
            return None
        log = core.lane(0).log
        bodies = cast("list[bytes]", items)
        if len(bodies) > log.writer.new_segment_items_max or (
            sum(map(len, bodies)) > log.writer.new_segment_bytes_max
        ):
            return None
        first = log.append_many(bodies)
        core.look_at_rules()
        ids = [f"0-{offset}" for offset in range(first, first + len(items))]
        return cast("list[MessageId]", ids)  # A call each would cost as much as the push.

    def require_fit(self, letters: list[Letter]) -> None:
        """Refuse what never fits before any of it is written."""
        for lane, group in by_lane(letters).items():
            size_bytes_max = self._core.lane(lane).log.writer.new_segment_bytes_max
            if lane == ASIDE:
                size_bytes_max //= 2  # Its segments are twice as wide, to take what is moved.
            for letter in group:
                checked_payload(letter.payload, size_bytes_max)

    def append(self, letters: list[Letter]) -> None:
        """Append what may be appended at any time."""
        batches: list[tuple[int, Log, list[list[Letter]]]] = []
        for lane, group in by_lane(letters).items():
            log = self._core.lanes.open(lane).log
            most = log.writer.new_segment_items_max, log.writer.new_segment_bytes_max
            batches.append((lane, log, list(_batches(group, *most))))
        if len(letters) > 1:
            _require_space(batches)
        for lane, log, parts in batches:
            for batch in parts:
                self._append_batch(lane, log, batch)

    def _append_batch(self, lane: int, log: Log, group: list[Letter]) -> None:
        if len(group) == 1:
            first = log.append(group[0].payload, attr=group[0].attr)
        else:
            first = log.append_many(
                [letter.payload for letter in group], attrs=[letter.attr for letter in group]
            )
        for place, letter in enumerate(group):
            letter.key = Key(lane, first + place)

    def _push_in_turn(self, letters: list[Letter], wait_us: int | None) -> None:
        """Append with the queue's capacity and its deduplication keys in sight."""
        core = self._core
        deadline = None if wait_us is None else time.monotonic() + wait_us / 1_000_000
        while True:
            with core.turn():
                fresh = self.leave_out_known(letters)
                if not fresh or self.make_space(len(fresh)):
                    self.announce_keys(fresh)
                    if core.place.sync == "always" and any(letter.digest for letter in fresh):
                        # Before the messages are there: else whoever pushes again after a power
                        # cut pushes a second one. What follows can be found out from it.
                        core.journal.sync()
                    self.append(fresh)
                    self.note_keys(fresh)
                    break
                seen = core.signature()
                pause = core.seconds_to_next()
            self._wait_for_space(seen, deadline, pause)
        known = {letter.digest: letter.key for letter in fresh if letter.digest is not None}
        for letter in letters:
            # The second of two in one call is the first of them.
            if letter.digest in known:
                letter.key = known[letter.digest]

    def leave_out_known(self, letters: list[Letter]) -> list[Letter]:
        """Return the letters whose key nobody has used; the others get the key's message."""
        core = self._core
        ledger = core.ledger
        now_us = core.place.clock()
        ledger.forget_keys(now_us)
        fresh: list[Letter] = []
        digests: set[bytes] = set()
        for letter in letters:
            holder = None
            if letter.digest is not None:
                holder = ledger.key_holder(letter.digest, now_us)
                if holder is None and letter.digest in digests:
                    continue
                digests.add(letter.digest)
            if holder is None:
                fresh.append(letter)
            else:
                letter.key = holder
        return fresh

    def announce_keys(self, letters: list[Letter], *more: tuple[bytes, int, int]) -> None:
        """Say which keys are about to be used: who is killed next leaves a trace."""
        core = self._core
        intents = list(more)
        intents += [
            (letter.digest, letter.lane, int(core.lanes.open(letter.lane).log.writer.written))
            for letter in letters
            if letter.digest is not None
        ]
        for place in range(0, len(intents), KEYS_PER_EVENT):
            core.journal.write(events.Keying(tuple(intents[place : place + KEYS_PER_EVENT])))

    def note_keys(self, letters: list[Letter]) -> None:
        """Note which messages the keys stand for from now on."""
        core = self._core
        window_us = round(core.ledger.rules.dedup_window * 1_000_000)
        until_us = core.place.clock() + window_us
        for letter in letters:
            if letter.digest is not None:
                core.journal.write(events.Keyed(letter.digest, until_us, *letter.key))

    def make_space(self, count: int) -> bool:
        """Tell whether `count` messages fit now, dropping the oldest if the rules say so."""
        core = self._core
        ledger = core.ledger
        rules = ledger.rules
        if rules.capacity is None:
            return True
        missing = core.held_count() + count - rules.capacity
        if missing <= 0:
            return True
        if count <= rules.capacity:
            if rules.on_full == "block":
                return False
            if rules.on_full == "drop_oldest" and self._drop(missing):
                return True
        raise QueueFull(queue=core.name, capacity=rules.capacity, is_final=True)

    def _drop(self, count: int) -> bool:
        """Drop the messages that have waited longest, from the least urgent priority on."""
        core = self._core
        ledger = core.ledger
        if count > ledger.ready + core.fresh_count():
            return False
        dropped = 0
        takes = list(ledger.waiting(core.end_of))
        for priority in reversed(ledger.order):
            for take in takes:
                if dropped == count:
                    return True
                found = ledger.find(Key(take.lane, take.first))
                if (found.priority if found is not None else take.lane) != priority:
                    continue
                size = min(take.size, count - dropped)
                if found is None:
                    core.journal.write(events.Passed(take.lane, take.first, size, How.DROPPED))
                else:
                    run = Run(take.lane, take.first, size)
                    core.journal.write(Settled(0, How.DROPPED, (run,)))
                core.upkeep.note(take.lane, take.first + size - 1, size)
                dropped += size
        return dropped == count

    def _wait_for_space(
        self, seen: tuple[int, int], deadline: float | None, pause: float | None
    ) -> None:
        core = self._core
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            rules = core.ledger.rules
            raise QueueFull(queue=core.name, capacity=rules.capacity or 0)
        waits = [seconds for seconds in (left, pause) if seconds is not None]
        core.wait_for_news(seen, min(waits, default=None))


def _require_space(batches: list[tuple[int, Log, list[list[Letter]]]]) -> None:
    """Raise StorageFull before the first of several batches is written, and not after it."""
    if sum(len(parts) for _, _, parts in batches) == 1:
        return
    with ExitStack() as held:
        for _, log, parts in batches:
            sizes = [(len(part), sum(len(letter.payload) for letter in part)) for part in parts]
            held.enter_context(log.writer.reserved(sizes))


def _batches(letters: list[Letter], items_max: int, size_bytes_max: int) -> Iterator[list[Letter]]:
    """Yield letters as few batches that each fit in a segment; mostly that is one."""
    batch: list[Letter] = []
    size_bytes = 0
    for letter in letters:
        size_bytes += len(letter.payload)
        if batch and (len(batch) == items_max or size_bytes > size_bytes_max):
            yield batch
            batch = []
            size_bytes = len(letter.payload)
        batch.append(letter)
    if batch:
        yield batch


def by_lane(letters: list[Letter]) -> dict[int, list[Letter]]:
    """Return letters by the lane they go to, in the order in which they are appended."""
    groups: dict[int, list[Letter]] = {}
    for letter in letters:
        groups.setdefault(letter.lane, []).append(letter)
    return groups
