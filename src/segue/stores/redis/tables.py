"""Queues and rings as tables: what lies between two offsets, fetched by pages.

A page has an end in messages and in bytes. Every message has one place, its lane and its offset
there, whatever becomes of it: whoever reads each place once has each message once.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from segue.delivery.events import ASIDE, Cause
from segue.delivery.life import State
from segue.errors import Damage
from segue.stores.redis.items import (
    DELAYED,
    LEASED,
    key_from_wire,
    prefix_of,
    record_of,
)
from segue.stores.redis.libraries import library
from segue.stores.redis.topics.answers import bytes_of, number_of, numbers_of, words_of
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.calls import Word
    from segue.stores.redis.store import RedisStore

PAGE_OFFSETS_MAX: Final = 4_000
PAGE_BYTES_MAX: Final = 4 << 20
LISTED_MAX: Final = 20_000
"""How many offsets one call lists."""

_FRESH: Final = 0
_TOUCHED: Final = 1
_DEAD: Final = 2
_STATE: Final = struct.Struct(">BBQIIIQB16sH")
_LETTER: Final = struct.Struct(">QQIIIBH")
_ENTRY: Final = struct.Struct(">QQ")


class Row(NamedTuple):
    """A message, and all that is known of it."""

    lane: int
    offset: int
    number: int
    """Its place among the dead letters; -1 if it is none."""
    time_us: int
    attr: int
    payload: bytes
    state: State
    priority: int
    attempt: int
    not_before_us: int
    cause: str | None
    reason: str | None
    died_us: int


class Spoilt(NamedTuple):
    """A message that cannot be read."""

    lane: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSize:
    """A lane of a queue at one moment."""

    lane: int
    fresh: int
    """From here on nothing was delivered yet; before, only some are left."""
    end: int
    mean_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSize:
    """A queue at one moment."""

    lanes: list[LaneSize]
    dead_count: int
    dead_first: int
    dead_end: int


class QueueTable:
    """Reads one queue. Safe from any thread."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        self.name = name
        self._store = store
        self._base = store.base("queue", name)
        self._library = library("tables")

    def _look(self, function: str, *words: "Word") -> object:
        return self._store.calls.look(self._library, function, self._base, *words)

    def size(self) -> QueueSize:
        """Return where lanes begin and end now, after leases and delays that are over."""
        self._store.queue(self.name).count()
        _, later, dead, first, following, *lanes = numbers_of(self._look("lanes"), 5)
        found = [
            LaneSize(lane=lane, fresh=fresh, end=end, mean_bytes=mean)
            for lane, fresh, end, mean in zip(*[iter(lanes)] * 4, strict=True)
        ]
        if later:
            mean = max((each.mean_bytes for each in found), default=0)
            found.append(LaneSize(lane=ASIDE, fresh=later, end=later, mean_bytes=mean))
        return QueueSize(lanes=found, dead_count=dead, dead_first=first, dead_end=following)

    def taken(self) -> dict[int, list[int]]:
        """Return the offsets of what is there and was delivered or delayed, by lane, in order."""
        found: dict[int, set[int]] = {}
        for names in words_of(self._look("ids"), 2):
            for name in words_of(names):
                lane, offset = key_from_wire(bytes_of(name))
                found.setdefault(lane, set()).add(offset)
        for each in self.size().lanes:
            found.setdefault(each.lane, set()).update(self._kept(each.lane))
        return {lane: sorted(offsets) for lane, offsets in found.items()}

    def _kept(self, lane: int) -> Iterator[int]:
        start = 0
        while offsets := numbers_of(self._look("kept", lane, start, LISTED_MAX)):
            yield from offsets
            start = offsets[-1] + 1

    def numbers(self, start: int, stop: int) -> Iterator[int]:
        """Yield the numbers of the dead letters there are from `start` up to `stop`."""
        while found := numbers_of(self._look("numbers", start, stop, LISTED_MAX)):
            yield from found
            start = found[-1] + 1

    def rows(
        self, lane: int, start: int, stop: int, *, offsets_max: int = PAGE_OFFSETS_MAX
    ) -> Iterator[list[Row | Spoilt]]:
        """Yield the messages of a lane between two offsets, page by page."""
        while start < stop:
            limits = (min(offsets_max, PAGE_OFFSETS_MAX), PAGE_BYTES_MAX)
            following, *words = words_of(self._look("rows", lane, start, stop, *limits), 1)
            page = [
                _row(lane, number_of(offset), number_of(what), bytes_of(state), bytes_of(item))
                for offset, what, state, item in zip(*[iter(words)] * 4, strict=True)
            ]
            start = max(start + 1, number_of(following))
            if page:
                yield page

    def letters(self, start: int, stop: int) -> Iterator[list[Row | Spoilt]]:
        """Yield the dead letters with these numbers, page by page."""
        while start < stop:
            limits = (PAGE_OFFSETS_MAX, PAGE_BYTES_MAX)
            following, *words = words_of(self._look("letters", start, stop, *limits), 1)
            page = []
            for number, name, letter in zip(*[iter(words)] * 3, strict=True):
                lane, offset = key_from_wire(bytes_of(name))
                row = _row(lane, offset, _DEAD, bytes_of(letter), b"")
                page.append(row if isinstance(row, Row) else row._replace(offset=number_of(number)))
            start = max(start + 1, number_of(following))
            if page:
                yield page


def _row(lane: int, offset: int, what: int, state: bytes, item: bytes) -> Row | Spoilt:
    try:
        if what == _DEAD:
            return _dead(lane, offset, state)
        time_us, attr, payload = record_of(item)
        if what == _TOUCHED:
            return _touched(lane, offset, state, (time_us, attr, payload))
        priority = prefix_of(item)[0].get("p", 0) if lane == ASIDE else lane
    except (Damage, struct.error) as error:
        return Spoilt(lane, offset, str(error))
    return Row(
        lane=lane,
        offset=offset,
        number=-1,
        time_us=time_us,
        attr=attr,
        payload=payload,
        state=State.READY if what == _FRESH else State.SETTLED,
        priority=priority,
        attempt=0,
        not_before_us=0,
        cause=None,
        reason=None,
        died_us=0,
    )


def _touched(lane: int, offset: int, packed: bytes, record: tuple[int, int, bytes]) -> Row:
    kind, _, _, attempt, _, priority, not_before_us, cause, _, size = _STATE.unpack_from(packed)
    text = packed[_STATE.size : _STATE.size + size].decode(errors="replace")
    is_leased = kind == LEASED
    return Row(
        lane=lane,
        offset=offset,
        number=-1,
        time_us=record[0],
        attr=record[1],
        payload=record[2],
        state=State.LEASED if is_leased else State.DELAYED if kind == DELAYED else State.READY,
        priority=priority,
        attempt=attempt,
        not_before_us=0 if is_leased else not_before_us,
        cause=None if is_leased or not attempt else _cause_name(cause),
        reason=None if is_leased or not text else text,
        died_us=0,
    )


def _dead(lane: int, offset: int, packed: bytes) -> Row:
    number, died_us, priority, attempt, _, cause, size = _LETTER.unpack_from(packed)
    text = packed[_LETTER.size : _LETTER.size + size].decode(errors="replace")
    time_us, attr, payload = record_of(packed[_LETTER.size + size :])
    return Row(
        lane=lane,
        offset=offset,
        number=number,
        time_us=time_us,
        attr=attr,
        payload=payload,
        state=State.DEAD,
        priority=priority,
        attempt=attempt,
        not_before_us=0,
        cause=_cause_name(cause),
        reason=text,
        died_us=died_us,
    )


def _cause_name(cause: int) -> str | None:
    try:
        return Cause(cause).name.lower()
    except ValueError:
        return None  # Of a later version.


class RingTable:
    """Reads one ring. Safe from any thread."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        self._calls = store.calls
        self._base = store.base("ring", name)
        self._library = library("tables")

    def mean_bytes(self, offset: int) -> int:
        """Return how long entries are, by a look at a few from `offset` on."""
        return number_of(self._calls.look(self._library, "sample", self._base, offset))

    def entries(self, start: int, stop: int) -> Iterator[list[tuple[int, int, bytes]]]:
        """Yield offset, time and body of what is between two offsets, page by page."""
        while start < stop:
            words = (start, stop, PAGE_OFFSETS_MAX, PAGE_BYTES_MAX)
            answer = self._calls.look(self._library, "entries", self._base, *words)
            following, *found = words_of(answer, 1)
            page = []
            for word in found:
                entry = bytes_of(word)
                page.append((*_ENTRY.unpack_from(entry), entry[_ENTRY.size :]))
            start = max(start + 1, number_of(following))
            if page:
                yield page
