"""Looking at a queue without changing it."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, cast

from segue.delivery.events import ASIDE
from segue.delivery.message import DeadLetter, Key, Message, MessageId
from segue.errors import InvalidArgument
from segue.stores.contract import Counts, LeaseInfo, MessageState, MessageStatus, QueueStats
from segue.stores.message_ids import key_of, message_id
from segue.stores.portions import Page
from segue.stores.redis.items import (
    DELAYED,
    HELD_BACK,
    LEASED,
    READY,
    Standing,
    key_from_wire,
    letter_of,
    message_of,
    prefix_of,
    standing_of,
    wire_id,
)
from segue.stores.redis.letters import Ask, RedisDeadLetters
from segue.stores.state import METADATA, Span, Waiting, metadata_of, only, segment_of, state_of

_STATES: Final[dict[int, MessageState]] = {
    LEASED: "leased",
    READY: "ready",
    DELAYED: "delayed",
    HELD_BACK: "ready",
}
_WANTED: Final = (None, "ready", "delayed", "leased", "dead")
_STATUS_WORDS: Final = 5
PAGE: Final = 500
"""How many messages one call looks at."""

Scan = Callable[[str], Iterator[Key]]
"""Lists the messages that one of a queue's hashes has."""


class Inspection:
    """Reads one queue."""

    def __init__(self, name: str, look: Ask, letters: RedisDeadLetters, scan: Scan) -> None:
        self._name = name
        self._look = look
        self._scan = scan
        self._letters = letters

    def counts(self) -> Counts:
        """Return how many messages are in which state."""
        return _counts(cast("list[int]", self._look("count")))

    def peek(self, count: int) -> list[Message]:
        """Return the messages that would be delivered next."""
        answer = cast("list[object]", self._look("peek", count))
        return [
            message_of(
                key_from_wire(cast("bytes", name)),
                cast("bytes", item),
                priority=cast("int", priority),
                attempt=cast("int", attempt),
            )
            for name, priority, attempt, item in _rows(answer, 4)
        ]

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""
        counts, ready, paused, oldest_us, leases, totals, size_bytes = cast(
            "list[object]", self._look("stats")
        )
        by_priority = cast("list[int]", ready)
        words = cast("list[bytes]", totals)
        said = {
            name.decode(): int(count) for name, count in zip(words[::2], words[1::2], strict=True)
        }
        return QueueStats(
            name=self._name,
            counts=_counts(cast("list[int]", counts)),
            ready_by_priority=dict(zip(by_priority[::2], by_priority[1::2], strict=True)),
            paused=bool(paused),
            oldest_ready_seconds=(
                None if cast("int", oldest_us) < 0 else cast("int", oldest_us) / 1_000_000
            ),
            leases=[
                _lease(cast("bytes", name), cast("bytes", packed), cast("int", left_us))
                for name, packed, left_us in _rows(cast("list[object]", leases), 3)
            ],
            totals=said,
            size_bytes=cast("int", size_bytes),
            pinned_bytes=0,
            damaged=said.get("damaged", 0),
        )

    def state(self, key: str | None) -> dict[str, object]:
        """Return what waits, or one key of it, in the words of the queue's ancestors."""
        if key == METADATA:
            return {key: self._metadata()}
        segment = None if key is None else segment_of(key)
        if key is not None and segment is None:
            return {}
        words = () if segment is None else (segment.priority, segment.number)
        size, cursors, waiting = cast("list[object]", self._look("state", *words))
        starts = cast("list[int]", cursors)
        found = state_of(
            [
                Waiting(
                    priority=cast("int", priority),
                    offset=None if cast("int", offset) < 0 else cast("int", offset),
                    body=prefix_of(cast("bytes", item))[1],
                )
                for priority, offset, item in _rows(cast("list[object]", waiting), 3)
            ],
            cursors=dict(zip(starts[::2], starts[1::2], strict=True)),
            segment_size=cast("int", size),
        )
        return found if segment is None else only(found, segment.key)

    def _metadata(self) -> dict[str, object]:
        size, rows = cast("tuple[int, list[object]]", self._look("metadata"))
        spans = (
            Span(priority=priority, count=count, head=head, tail=tail)
            for priority, count, head, tail in cast("Iterator[tuple[int, ...]]", _rows(rows, 4))
        )
        return metadata_of(spans, segment_size=size)

    # One by one ----------------------------------------------------------------------------

    def look_up(self, name: MessageId) -> MessageStatus | None:
        """Return how one message stands. Raises InvalidArgument."""
        found = self.found(key_of(name))
        if isinstance(found, DeadLetter):
            return _status_of_dead(found)
        return None if found is None else found[0]

    def found(self, key: Key) -> tuple[MessageStatus, Standing | None] | DeadLetter | None:
        """Return how a message stands, and what is noted of it if it was touched."""
        alive, letter = cast(
            "tuple[list[object], list[bytes]]", self._look("look_up", wire_id(*key))
        )
        if alive:
            packed = cast("bytes", alive[2])
            return next(_statuses(alive)), standing_of(packed) if packed else None
        return letter_of(key, letter[1]) if letter else None

    def page(
        self, state: MessageState | None, limit: int, after: MessageId | None
    ) -> list[MessageStatus]:
        """Return messages in the order of their ids, the dead last. Raises InvalidArgument."""
        if state not in _WANTED:
            known = ", ".join(str(name) for name in _WANTED if name)
            raise InvalidArgument(f"state must be one of {known}: {state!r}")
        key = None if after is None else key_of(after)
        behind = self._letters.behind(-1)
        page = Page[MessageStatus](limit)
        if key is not None and state in (None, "dead"):
            alive, letter = cast(
                "tuple[list[object], list[bytes]]", self._look("look_up", wire_id(*key))
            )
            if letter and not alive:
                behind = self._letters.behind(letter_of(key, letter[1]).number)
                page.fill(map(_status_of_dead, behind))
                return page.found
        if state != "dead":
            page.fill(self._alive(state, key, limit))
        if state in (None, "dead"):
            page.fill(map(_status_of_dead, behind))
        return page.found

    def _alive(
        self, state: MessageState | None, after: Key | None, limit: int
    ) -> Iterator[MessageStatus]:
        keys = self._keys(state, after)
        while page := list(islice(keys, min(limit, PAGE))):
            words = [wire_id(*key) for key in page]
            answer = cast("list[object]", self._look("statuses", *words))
            for status in _statuses(answer):
                if state in (None, status.state):
                    yield status

    def _keys(self, state: MessageState | None, after: Key | None) -> Iterator[Key]:
        """Yield messages in order, those that were never delivered only where they are asked for.

        What was touched is listed by the client, in steps, so that the server is never busy with
        it for long.
        """
        ends = self.lanes()
        touched = sorted(self._scan("touched"))
        for lane, (fresh, end) in ends.items():
            first = 0
            if after is not None:
                if lane < after.lane:
                    continue
                first = after.offset + 1 if lane == after.lane else 0
            yield from (key for key in touched if key.lane == lane and key.offset >= first)
            if lane != ASIDE and state in (None, "ready"):
                yield from (Key(lane, offset) for offset in range(max(first, fresh), end))

    def lanes(self) -> dict[int, tuple[int, int]]:
        """Return where what was never delivered begins in each lane, and where it ends."""
        return {
            cast("int", lane): (cast("int", fresh), cast("int", end))
            for lane, fresh, end in _rows(cast("list[object]", self._look("lanes")), 3)
        }


def _rows(words: list[object], width: int) -> Iterator[tuple[object, ...]]:
    for place in range(0, len(words) - width + 1, width):
        yield tuple(words[place : place + width])


def _counts(numbers: list[int]) -> Counts:
    ready, delayed, leased, dead = numbers
    return Counts(ready=ready, delayed=delayed, leased=leased, dead=dead)


def _lease(name: bytes, packed: bytes, left_us: int) -> LeaseInfo:
    key = key_from_wire(name)
    standing = standing_of(packed)
    return LeaseInfo(
        message_id=message_id(*key),
        receipt=f"{message_id(*key)}/{standing.token}",
        owner=standing.text,
        attempt=standing.attempt,
        seconds_left=left_us / 1_000_000,
    )


def _statuses(words: list[object]) -> Iterator[MessageStatus]:
    for name, priority, packed, left_us, item in _rows(words, _STATUS_WORDS):
        key = key_from_wire(cast("bytes", name))
        if not packed:
            message = message_of(
                key, cast("bytes", item), priority=cast("int", priority), attempt=1
            )
            yield MessageStatus(message=message, state="ready")
            continue
        standing = standing_of(cast("bytes", packed))
        state = _STATES.get(standing.kind, "ready")
        is_leased = state == "leased"
        message = message_of(
            key,
            cast("bytes", item),
            priority=standing.priority,
            attempt=standing.attempt + (not is_leased),
        )
        yield MessageStatus(
            message=message,
            state=state,
            due_us=standing.not_before_us if state == "delayed" else None,
            owner=standing.text if is_leased else None,
            seconds_left=cast("int", left_us) / 1_000_000 if is_leased else None,
            reason="" if is_leased else standing.text,
            tries=standing.attempt - standing.since,
        )


def _status_of_dead(letter: DeadLetter) -> MessageStatus:
    return MessageStatus(
        message=letter.message, state="dead", reason=letter.reason, tries=letter.tries
    )
