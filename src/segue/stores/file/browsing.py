"""Looking for messages one by one: how each of them stands, and page after page of them."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, get_args

from segue.delivery.events import ASIDE
from segue.delivery.lines import Grant, Rest
from segue.delivery.message import DeadLetter, Key, MessageId
from segue.errors import InvalidArgument
from segue.log.record import Record
from segue.stores.contract import MessageState, MessageStatus
from segue.stores.file.lanes import UNREADABLE
from segue.stores.file.letter_search import letters_of
from segue.stores.file.letters import FileDeadLetters
from segue.stores.message_ids import key_of
from segue.stores.portions import Page

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

STATES: Final = get_args(MessageState)
FEW_MAX: Final = 10_000
"""So many messages that came back are sorted rather than looked for."""
SPREAD_MAX: Final = 4
"""So many offsets for each message that is there are gone through rather than sorted."""


class Browsing:
    """Finds the messages of one queue. Safe from any thread."""

    def __init__(self, core: "QueueCore", letters: FileDeadLetters) -> None:
        self._core = core
        self._letters = letters

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands. Raises InvalidArgument."""
        key = key_of(message_id)
        core = self._core
        with core.turn():
            alive = self.alive(key)
        if alive is not None:
            return alive[1]
        record = self.letter_of(key)
        if record is None:
            return None
        letter = next(self._letters.behind(record.offset - 1), None)
        is_there = letter is not None and letter.number == record.offset
        return _status_of_dead(letter) if letter is not None and is_there else None

    def letter_of(self, key: Key) -> Record | None:
        """Return the dead letter that a message is, if it is one; searched for, not in a turn."""
        core = self._core
        with core.turn():
            there = core.ledger.dead.copy()
        if not there or not core.lanes.has_dead:
            return None
        for record in letters_of(core.lanes.dead.log, key, there):
            with core.turn():
                if record.offset in core.ledger.dead:
                    return record
        return None

    def page(
        self, state: MessageState | None, limit: int, after: MessageId | None
    ) -> list[MessageStatus]:
        """Return messages in the order of their ids, the dead last. Raises InvalidArgument."""
        if state is not None and state not in STATES:
            raise InvalidArgument(f"state must be one of {', '.join(STATES)}: {state!r}")
        start = None if after is None else key_of(after)
        page = Page[MessageStatus](limit)
        behind = None if start is None else self._among_dead(start, state)
        if behind is not None:
            page.fill(map(_status_of_dead, behind))
            return page.found
        if state != "dead":
            with self._core.turn():
                page.fill(self._alive(state, start))
        if state in (None, "dead"):
            page.fill(map(_status_of_dead, self._letters))
        return page.found

    def _among_dead(self, key: Key, state: MessageState | None) -> Iterator[DeadLetter] | None:
        """Return the dead letters behind one of them; None if there is no such letter."""
        if state not in (None, "dead"):
            return None
        with self._core.turn():
            if self._core.ledger.find(key) is not None or self._is_fresh(key):
                return None
        record = self.letter_of(key)
        return None if record is None else self._letters.behind(record.offset)

    # In a turn -----------------------------------------------------------------------------

    def alive(self, key: Key) -> tuple[MessageState, MessageStatus | None] | None:
        """Return how a message stands, as far as it can be read; None if it is settled or dead."""
        found = self._core.ledger.find(key)
        if found is None and not self._is_fresh(key):
            return None
        return _state_of(found), self._status(key, found)

    def _is_fresh(self, key: Key) -> bool:
        core = self._core
        level = core.ledger.levels.get(key.lane)
        return level is not None and level.cursor <= key.offset < core.end_of(key.lane)

    def _alive(self, state: MessageState | None, after: Key | None) -> Iterator[MessageStatus]:
        for key in self._keys(state, after):
            found = self._core.ledger.find(key)
            if state in (None, _state_of(found)):
                status = self._status(key, found)
                if status is not None:
                    yield status

    def _keys(self, state: MessageState | None, after: Key | None) -> Iterator[Key]:
        """Yield messages in order, those that were never delivered only where they are asked for.

        The lane of what was pushed with a delay comes behind all others by its number.
        """
        core = self._core
        ledger = core.ledger
        few = self._few(state)
        for lane in [*ledger.order, ASIDE]:
            level = ledger.levels.get(lane)
            items = ledger.aside if level is None else level.items
            first = 0
            if after is not None:
                if lane < after.lane:
                    continue
                first = after.offset + 1 if lane == after.lane else 0
            if few is not None:
                yield from (key for key in few if key.lane == lane and key.offset >= first)
            else:
                stop = ledger.aside_next if level is None else level.cursor
                yield from (Key(lane, offset) for offset in _in_order(items, first, stop))
            if level is not None and state in (None, "ready"):
                for offset in range(max(first, level.cursor), core.end_of(lane)):
                    yield Key(lane, offset)

    def _few(self, state: MessageState | None) -> list[Key] | None:
        """Return what was touched and is in a state, in order, if that need not be looked for.

        There may be millions of others: what is delayed for a year counts as touched.
        """
        ledger = self._core.ledger
        if state == "leased":
            grants = ledger.grants_by_deadline(ledger.grants)
            return sorted(Key(each.lane, offset) for each in grants for offset in ledger.held(each))
        if state == "ready" and ledger.ready <= FEW_MAX:
            return sorted(Key(take.lane, take.first) for take in ledger.waiting(lambda _: 0))
        return [] if state == "delayed" and not ledger.delayed else None

    def _status(self, key: Key, found: Grant | Rest | None) -> MessageStatus | None:
        """Return how a message stands that is not dead; None if it cannot be read."""
        record = self._record(key)
        if record is None:
            return None
        core = self._core
        state = _state_of(found)
        if found is None:
            return MessageStatus(message=core.message(key, record, 1), state=state)
        tries = found.attempt - found.since
        if isinstance(found, Grant):
            return MessageStatus(
                message=core.message(key, record, found.attempt),
                state=state,
                owner=found.owner.decode(errors="replace"),
                seconds_left=(found.deadline_us - core.place.ticks()) / 1_000_000,
                tries=tries,
            )
        return MessageStatus(
            message=core.message(key, record, found.attempt + 1),
            state=state,
            due_us=None if found.is_ready else found.not_before_us,
            reason=found.reason.decode(errors="replace"),
            tries=tries,
        )

    def _record(self, key: Key) -> Record | None:
        try:
            return self._core.record_of(key)
        except UNREADABLE:
            return None  # Whoever delivers next deals with it.


def _in_order(items: Collection[int], first: int, stop: int) -> Iterator[int]:
    """Yield the offsets from `first` on in their order, at the cost of those that are taken.

    Unless they lie so far apart that it costs less to sort all of them.
    """
    start = first or min(items, default=stop)
    if stop - start <= SPREAD_MAX * len(items):
        return (offset for offset in range(start, stop) if offset in items)
    return iter(sorted(offset for offset in items if offset >= first))


def _state_of(found: Grant | Rest | None) -> MessageState:
    if isinstance(found, Grant):
        return "leased"
    return "ready" if found is None or found.is_ready else "delayed"


def _status_of_dead(letter: DeadLetter) -> MessageStatus:
    return MessageStatus(
        message=letter.message, state="dead", reason=letter.reason, tries=letter.tries
    )
