"""Messages that were written aside for a queue, taken in whole and once.

The first message of each segment says under which key it is to be adopted. The key is announced
before the messages are appended and noted after, as a deduplication key is: whoever is killed in
between leaves a trace, and the next to have a turn finds out how far it got.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.delivery import events
from segue.delivery.events import ASIDE
from segue.delivery.message import Prefix, pack_message, unpack_prefix
from segue.errors import InvalidArgument, QueueFull, RecordTooLarge
from segue.log import Log
from segue.log.staging import Batch, read_staged
from segue.stores.file.deduplication import (
    ADOPTION_REMEMBERED_US,
    adoption_digest,
    digest_of,
)
from segue.stores.file.pushing import Letter, Pusher

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

LETTERS_PER_PUSH: Final = 1000


def marked_first(batch: Batch, key: str) -> tuple[bytes, int]:
    """Return the first message of a batch with the key under which its segment is adopted."""
    payload = bytes(batch.data[: int(batch.lengths[0])])
    prefix, body = unpack_prefix(payload, int(batch.attrs[0]))
    marked: Prefix = {**prefix, "b": key}
    return pack_message(body, marked)


def adopt_messages(core: "QueueCore", path: Path, *, lane: int, key: str) -> bool:
    """Push the messages of a segment that was written aside; False if that was done before.

    Raises QueueFull, InvalidArgument, CorruptSegment, StorageError, FileNotFoundError.
    """
    digest = adoption_digest(key)
    core.look_at_rules()
    with read_staged(path, core.place.disk) as staged:
        first_batch = staged.batches[0]
        prefix, _ = unpack_prefix(
            bytes(first_batch.data[: int(first_batch.lengths[0])]), int(first_batch.attrs[0])
        )
        if prefix.get("b") != key:
            raise InvalidArgument(f"{path} was not made to be adopted under this key")
        with core.turn():
            ledger = core.ledger
            now_us = core.place.clock()
            if ledger.key_holder(digest, now_us) is not None:
                return False
            require_space(core, staged.count)
            log = core.lane_in_turn(lane).log
            _require_fit(log, lane, staged.batches)
            start = int(log.writer.written)
            core.journal.write(events.Keying(((digest, lane, start),)))
            if core.place.is_durable:
                # Before the messages can be: else they would come again after a power cut.
                core.journal.sync()
            with log.writer.mutex:
                wrote = False
                try:
                    log.writer.begin()
                    first = log.writer.put_staged(staged.batches)
                    wrote = True
                finally:
                    log.writer.end(wrote=wrote)
            if core.place.is_durable:
                # Before the key is noted: what the ledger says is there must be.
                log.flush()
            core.journal.write(events.Keyed(digest, now_us + ADOPTION_REMEMBERED_US, lane, first))
    if core.place.is_durable:
        core.journal.sync()
    core.journal.bell.ring()
    return True


def _require_fit(log: Log, lane: int, batches: Sequence[Batch]) -> None:
    """Refuse what could not be moved to the dead letters later, as a push does."""
    most = log.writer.new_segment_bytes_max // (2 if lane == ASIDE else 1)
    longest = max(int(batch.lengths.max()) for batch in batches)
    if longest > most:
        raise RecordTooLarge(size_bytes=longest, size_bytes_max=most)


def require_space(core: "QueueCore", count: int) -> None:
    """Raise QueueFull unless so many messages fit, in a turn."""
    capacity = core.ledger.rules.capacity
    if capacity is not None and core.held_count() + count > capacity:
        raise QueueFull(queue=core.name, capacity=capacity)


def forget_adoptions(core: "QueueCore", keys: Iterable[str]) -> None:
    """Forget adoptions that nobody will ask for again."""
    with core.turn():
        for key in keys:
            digest = adoption_digest(key)
            found = core.ledger.keys.get(digest)
            if found is not None:
                core.journal.write(events.Keyed(digest, 1, found[1], found[2]))
        core.ledger.forget_keys(core.place.clock())


def push_keyed(core: "QueueCore", path: Path) -> int:
    """Push messages that have deduplication keys, those whose key is new; return how many."""
    pusher = Pusher(core)
    core.look_at_rules()
    letters: list[Letter] = []
    count = 0
    with read_staged(path, core.place.disk) as staged:
        count = staged.count
        for batch in staged.batches:
            position = 0
            for length, attr in zip(batch.lengths.tolist(), batch.attrs.tolist(), strict=True):
                payload = bytes(batch.data[position : position + length])
                position += length
                letters.append(_letter(payload, attr))
                if len(letters) == LETTERS_PER_PUSH:
                    pusher.push_letters(letters, 0)
                    letters = []
    if letters:
        pusher.push_letters(letters, 0)
    return count


def _letter(payload: bytes, attr: int) -> Letter:
    prefix, body = unpack_prefix(payload, attr)
    key = prefix.get("k")
    if key is None:
        raise InvalidArgument("a message without a key among those that have one")
    lane = ASIDE
    if "n" not in prefix:
        lane = prefix.pop("p", 0)
    return Letter(lane, *pack_message(body, prefix), digest_of(key))
