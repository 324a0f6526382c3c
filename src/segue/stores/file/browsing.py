"""Looking for messages one by one: how each of them stands, and page after page of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, get_args

from segue.delivery.events import ASIDE
from segue.delivery.lines import Grant, Rest
from segue.delivery.message import DeadLetter, Key, MessageId
from segue.errors import InvalidArgument
from segue.log.record import Record
from segue.stores.contract import MessageState, MessageStatus
from segue.stores.file.lanes import UNREADABLE
from segue.stores.file.letters import FileDeadLetters
from segue.stores.message_ids import key_of
from segue.stores.portions import Page

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

STATES: Final = get_args(MessageState)


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
            found = core.ledger.find(key)
            if found is not None or self._is_fresh(key):
                return self._status(key, found)
        letter = next((each for each in self._letters if key_of(each.message.id) == key), None)
        return None if letter is None else _status_of_dead(letter)

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
        letters = iter(self._letters)
        for letter in letters:
            if key_of(letter.message.id) == key:
                return letters
        return None

    # In a turn -----------------------------------------------------------------------------

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
        for lane in [*ledger.order, ASIDE]:
            level = ledger.levels.get(lane)
            items = ledger.aside if level is None else level.items
            first = 0
            if after is not None:
                if lane < after.lane:
                    continue
                first = after.offset + 1 if lane == after.lane else 0
            for offset in sorted(offset for offset in items if offset >= first):
                yield Key(lane, offset)
            if level is not None and state in (None, "ready"):
                for offset in range(max(first, level.cursor), core.end_of(lane)):
                    yield Key(lane, offset)

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


def _state_of(found: Grant | Rest | None) -> MessageState:
    if isinstance(found, Grant):
        return "leased"
    return "ready" if found is None or found.is_ready else "delayed"


def _status_of_dead(letter: DeadLetter) -> MessageStatus:
    return MessageStatus(
        message=letter.message, state="dead", reason=letter.reason, tries=letter.tries
    )
