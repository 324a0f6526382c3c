"""Reading a few of the messages that wait in a queue, without going through it.

A directory and a Redis server know where what was never delivered lies, and what came back they
have at hand. Of any other store the first page is read.
"""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import msgspec

from segue.delivery.events import ASIDE, IN_ASIDE
from segue.delivery.lines import Rest
from segue.delivery.message import KEY_CHARACTERS_MAX, Key, unpack_prefix
from segue.delivery.reasons import pattern_of
from segue.errors import Damage, InvalidArgument, OffsetOutOfRange, RecordRemoved
from segue.log import Log
from segue.server.letter_index import sound
from segue.stores.contract import MessageStatus, Queue
from segue.stores.file.core import QueueCore
from segue.stores.file.neighbours import read_neighbours
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.queue import RedisQueue
    from segue.stores.redis.store import RedisStore

STALE_SHARE: Final = 4
"""How many places in line are looked at for each message: some stand for what has moved on."""
TASK_BYTES_MAX: Final = 64 << 10
"""How large a message may be that is read whole to see which task it is for."""
NO_REASON: Final = "(no reason)"

_UNREADABLE: Final = (Damage, OffsetOutOfRange, RecordRemoved)
"""What reading a message may come to: it is damaged, or somebody took it since we looked."""
_BEGINNING: Final = re.compile(rb'\s*\{\s*"task"\s*:\s*("(?:[^"\\]|\\.){1,200}")', re.DOTALL)

IsOver = Callable[[], bool]
"""Tells whether looking has taken long enough."""


class Span(NamedTuple):
    """Where messages lie side by side."""

    lane: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """How much waits."""

    fresh: list[Span]
    """What was never delivered."""
    resting: int
    """How many came back, or are delayed."""


class Seen(NamedTuple):
    """What a message counts for."""

    key: str | None
    task: str | None
    reason: str | None
    """The pattern of why it came back; None if it did not."""
    size_bytes: int


class Reader(Protocol):
    """Reads messages of one queue."""

    def survey(self) -> Survey:
        """Tell how much waits, and where."""

    def fresh(self, span: Span) -> list[Seen]:
        """Return those in a span that can be read."""

    def resting(self, count_max: int, is_over: IsOver) -> list[Seen]:
        """Return some of those that came back or are delayed: all, if they are no more."""


# Of a directory --------------------------------------------------------------------------------


class FileReader:
    """Reads the logs of a queue, and looks at its ledger in short turns."""

    def __init__(self, core: QueueCore, chance: random.Random) -> None:
        self._core = core
        self._chance = chance

    def survey(self) -> Survey:
        """Tell how much waits, and where."""
        core = self._core
        with core.turn():
            ledger = core.ledger
            fresh = [
                Span(lane, ledger.levels[lane].cursor, core.end_of(lane)) for lane in ledger.order
            ]
            return Survey(fresh=fresh, resting=ledger.ready + ledger.delayed)

    def fresh(self, span: Span) -> list[Seen]:
        """Return those in a span that can be read."""
        log = self._core.lane(span.lane).log
        with suppress(*_UNREADABLE):
            records, _ = read_neighbours(log, span.start, span.stop)
            return [seen_of(record.payload, record.attr) for record in records]
        return []

    def resting(self, count_max: int, is_over: IsOver) -> list[Seen]:
        """Return some of those that came back or are delayed: all, if they are no more."""
        with self._core.turn():
            places = [(*self._place(key), rest) for key, rest in self._chosen(count_max).items()]
        found = []
        for log, offset, rest in places:
            if is_over():
                break
            with suppress(*_UNREADABLE):
                record = log.read(offset)
                reason = rest.reason.decode(errors="replace")
                is_back = rest.attempt > 0 or bool(reason)
                found.append(seen_of(record.payload, record.attr, reason if is_back else None))
        return found

    # In a turn -----------------------------------------------------------------------------

    def _chosen(self, count_max: int) -> dict[Key, Rest]:
        ledger = self._core.ledger
        found: dict[Key, Rest] = {}
        for key, rest in self._in_line(STALE_SHARE * count_max):
            if ledger.find(key) is rest:
                found[key] = rest
                if len(found) == count_max:
                    break
        return found

    def _in_line(self, count_max: int) -> Iterator[tuple[Key, Rest]]:
        """Yield who stands in any line at random, all if they are few; some have moved on."""
        ledger = self._core.ledger
        lines = [level.ready for level in ledger.levels.values()]
        if ledger.held_back:
            lines.append([each for lane in ledger.order for each in ledger.groups.held(lane)])
        ends = list(accumulate(map(len, lines)))
        ready = ends[-1] if ends else 0
        total = ready + len(ledger.due)
        for place in self._chance.sample(range(total), min(total, count_max)):
            if place >= ready:
                _, _, lane, offset, rest = ledger.due[place - ready]
            else:
                line = bisect_right(ends, place)
                _, offset, _, lane, rest = lines[line][place - ends[line]]  # From its end.
            yield Key(lane, offset), rest

    def _place(self, key: Key) -> tuple[Log, int]:
        """Return where a message lies now."""
        core = self._core
        place = core.ledger.places.get(key)
        if place is None:
            return core.lane_in_turn(key.lane).log, key.offset
        where, at = place
        return (core.lanes.aside if where == IN_ASIDE else core.lanes.dead).log, at


# Of a Redis server -----------------------------------------------------------------------------


class RedisReader:
    """Asks the server for spans, and for some of what was touched."""

    def __init__(self, store: "RedisStore", queue: "RedisQueue") -> None:
        from segue.stores.redis.tables import QueueTable

        self._store = store
        self._queue = queue
        self._table = QueueTable(store, queue.name)

    def survey(self) -> Survey:
        """Tell how much waits, and where."""
        counts = self._queue.count()
        fresh = [
            Span(each.lane, each.fresh, each.end)
            for each in self._table.size().lanes
            if each.lane != ASIDE
        ]
        known = sum(span.stop - span.start for span in fresh)
        return Survey(fresh=fresh, resting=max(0, counts.ready + counts.delayed - known))

    def fresh(self, span: Span) -> list[Seen]:
        """Return those in a span that can be read."""
        from segue.stores.redis.tables import Row

        rows = next(self._table.rows(span.lane, span.start, span.stop), [])
        return [seen_of(row.payload, row.attr) for row in rows if isinstance(row, Row)]

    def resting(self, count_max: int, is_over: IsOver) -> list[Seen]:
        """Return some of those that came back or are delayed: all, if they are no more."""
        from segue.stores.redis.items import id_from_wire

        key = f"{self._store.base('queue', self._queue.name)}:touched"
        names = cast("list[bytes]", self._store.calls.command(key, "HRANDFIELD", key, count_max))
        found = []
        for name in names:
            if is_over():
                break
            with suppress(Damage):
                status = self._queue.look_up(id_from_wire(name))
                if status is not None and status.state in ("ready", "delayed"):
                    found.append(seen_as(status))
        return found


# Of any other store ----------------------------------------------------------------------------


class PageReader:
    """Reads the first page of what waits."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def survey(self) -> Survey:
        """Tell how much waits."""
        counts = self._queue.count()
        return Survey(fresh=[], resting=counts.ready + counts.delayed)

    def fresh(self, span: Span) -> list[Seen]:
        """Return nothing: it is not known where what was never delivered lies."""
        return []

    def resting(self, count_max: int, is_over: IsOver) -> list[Seen]:
        """Return the first of all that waits."""
        found = self._queue.browse(state="ready", limit=count_max)
        if len(found) < count_max and not is_over():
            found += self._queue.browse(state="delayed", limit=count_max)
        return [seen_as(status) for status in islice(found, count_max)]


# What messages count for -----------------------------------------------------------------------


def seen_of(payload: bytes, attr: int, reason: str | None = None) -> Seen:
    """Return what a message counts for that lies in a log, and came back if there is a reason."""
    prefix, body = unpack_prefix(payload, attr)
    return _seen(prefix.get("g") or prefix.get("k"), body, reason)


def seen_as(status: MessageStatus) -> Seen:
    """Return what a message counts for."""
    message = status.message
    is_back = bool(status.reason) or message.attempt > 1 or status.tries > 0
    return _seen(message.group or message.key, message.body, status.reason if is_back else None)


def _seen(key: str | None, body: bytes, reason: str | None) -> Seen:
    return Seen(
        None if key is None else sound(key[:KEY_CHARACTERS_MAX]),
        task_of(body),
        None if reason is None else pattern_of(reason) or NO_REASON,
        len(body),
    )


def task_of(body: bytes) -> str | None:
    """Return the name of the task that a message calls; None if it calls none."""
    read = _reading_tasks()
    if read is None:
        return None
    if len(body) <= TASK_BYTES_MAX:
        return read(body)
    # To read all of it takes longer than what is wanted is worth.
    beginning = _BEGINNING.match(body)
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return None if beginning is None else msgspec.json.decode(beginning[1], type=str)
    return None


@cache
def _reading_tasks() -> Callable[[bytes], str | None] | None:
    """Return what reads the name of a task; None where the extra is missing."""
    try:
        from segue.tasks.envelope import read_envelope
    except ModuleNotFoundError:
        return None

    def read(body: bytes) -> str | None:
        try:
            return read_envelope(body).task
        except InvalidArgument:
            return None

    return read
