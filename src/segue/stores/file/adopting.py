"""Messages that were written aside for a queue, taken in whole and once.

The first message of each segment says under which key it is to be adopted. The key is announced
before the messages are appended and noted after, as a deduplication key is: whoever is killed in
between leaves a trace, and the next to have a turn finds out how far it got.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.delivery import events
from segue.delivery.events import ASIDE
from segue.delivery.message import Key, Prefix, pack_message, unpack_prefix
from segue.errors import InvalidArgument, QueueFull, RecordTooLarge
from segue.log import Log
from segue.log.staging import Batch, StagedSegment, read_staged
from segue.stores.deduplication import (
    ADOPTION_REMEMBERED_US,
    adoption_digest,
    digest_of,
)
from segue.stores.file.pushing import Letter, Pusher, by_lane

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
        check_marked(staged, key, path)
        with core.turn():
            ledger = core.ledger
            now_us = core.place.clock()
            if ledger.key_holder(digest, now_us) is not None:
                return False
            _make_space(core, staged.count)
            log = core.lane_in_turn(lane).log
            require_fit(log, lane, staged.batches)
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


def check_marked(staged: StagedSegment, key: str, path: Path) -> None:
    """Raise InvalidArgument unless a segment was made to be adopted under this key."""
    first = staged.batches[0]
    prefix, _ = unpack_prefix(bytes(first.data[: int(first.lengths[0])]), int(first.attrs[0]))
    if prefix.get("b") != key:
        raise InvalidArgument(f"{path} was not made to be adopted under this key")


def check_keyed(staged: StagedSegment) -> None:
    """Raise InvalidArgument unless all messages of a segment have deduplication keys."""
    for batch in staged.batches:
        for payload, attr in _each(batch):
            _letter(payload, attr)


def require_fit(log: Log, lane: int, batches: Sequence[Batch]) -> None:
    """Refuse what could not be moved to the dead letters later, as a push does."""
    most = log.writer.new_segment_bytes_max // (2 if lane == ASIDE else 1)
    longest = max(int(batch.lengths.max()) for batch in batches)
    if longest > most:
        raise RecordTooLarge(size_bytes=longest, size_bytes_max=most)


def check_space(core: "QueueCore", count: int) -> None:
    """Raise QueueFull unless so many messages fit, or others may be dropped for them; in a turn."""
    rules = core.ledger.rules
    if rules.capacity is None:
        return
    held = 0 if rules.on_full == "drop_oldest" else core.held_count()
    if held + count > rules.capacity:
        raise QueueFull(queue=core.name, capacity=rules.capacity)


def _make_space(core: "QueueCore", count: int) -> None:
    """Have space for so many messages, dropping others if the rules say so. Never waits."""
    if not Pusher(core).make_space(count):
        raise QueueFull(queue=core.name, capacity=core.ledger.rules.capacity or 0)


def forget_adoptions(core: "QueueCore", keys: Iterable[str]) -> None:
    """Forget adoptions that nobody will ask for again."""
    with core.turn():
        for key in keys:
            digest = adoption_digest(key)
            found = core.ledger.keys.get(digest)
            if found is not None:
                core.journal.write(events.Keyed(digest, 1, found[1], found[2]))
        core.ledger.forget_keys(core.place.clock())


def chunk_keys(key: str, count: int) -> list[str]:
    """Return the keys under which the parts of a segment of keyed messages are remembered."""
    return [f"{key}/{chunk}" for chunk in range(-(-count // LETTERS_PER_PUSH))]


def push_keyed(core: "QueueCore", path: Path, *, key: str) -> None:
    """Push messages that have deduplication keys, those whose key is new, a chunk at a time.

    Each chunk is remembered as an adopted segment is, longer than the window of its keys.
    """
    core.look_at_rules()
    with read_staged(path, core.place.disk) as staged:
        letters = [
            _letter(payload, attr) for batch in staged.batches for payload, attr in _each(batch)
        ]
    for place, chunk_key in enumerate(chunk_keys(key, len(letters))):
        first = place * LETTERS_PER_PUSH
        _push_chunk(core, letters[first : first + LETTERS_PER_PUSH], chunk_key)
    if core.place.is_durable:
        core.journal.sync()
    core.journal.bell.ring()


def _push_chunk(core: "QueueCore", letters: list[Letter], key: str) -> None:
    digest = adoption_digest(key)
    pusher = Pusher(core)
    pusher.require_fit(letters)
    with core.turn():
        if core.ledger.key_holder(digest, core.place.clock()) is not None:
            return
        fresh = pusher.leave_out_known(letters)
        if fresh:
            _make_space(core, len(fresh))
            # The last to be appended says that all are there.
            last = list(by_lane(fresh).values())[-1][-1]
            prefix, body = unpack_prefix(last.payload, last.attr)
            last.payload, last.attr = pack_message(body, {**prefix, "b": key})
            lane = core.lane_in_turn(last.lane).log
            announced = (digest, last.lane, int(lane.writer.written))
            pusher.announce_keys(fresh, announced)
            if core.place.is_durable:
                core.journal.sync()
            pusher.append(fresh)
            pusher.note_keys(fresh)
        until_us = core.place.clock() + ADOPTION_REMEMBERED_US
        place = last.key if fresh else Key(0, 0)
        core.journal.write(events.Keyed(digest, until_us, *place))


def _each(batch: Batch) -> Iterator[tuple[bytes, int]]:
    position = 0
    for length, attr in zip(batch.lengths.tolist(), batch.attrs.tolist(), strict=True):
        yield bytes(batch.data[position : position + length]), attr
        position += length


def _letter(payload: bytes, attr: int) -> Letter:
    prefix, body = unpack_prefix(payload, attr)
    key = prefix.get("k")
    if key is None:
        raise InvalidArgument("a message without a key among those that have one")
    lane = ASIDE
    if "n" not in prefix:
        lane = prefix.pop("p", 0)
    return Letter(lane, *pack_message(body, prefix), digest_of(key))
