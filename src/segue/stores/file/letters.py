"""Dead letters of a queue in a directory."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from segue.delivery import events
from segue.delivery.message import DeadLetter, Message, unpack_prefix
from segue.errors import Damage, OffsetOutOfRange, RecordRemoved
from segue.log.record import Record
from segue.stores.letters import DeadLetters
from segue.stores.message_ids import key_of, message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore


class FileDeadLetters(DeadLetters):
    """The dead letters of one queue. Safe from any thread."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number."""
        core = self._core
        with core.turn():
            runs = core.ledger.dead.runs()
        if not runs:
            return
        log = core.lanes.dead.log
        for start, stop in runs:
            for offset in range(max(start, number + 1), stop):
                try:
                    yield _letter(log.read(offset))
                except (Damage, OffsetOutOfRange, RecordRemoved):
                    continue  # Damaged, or dropped by somebody since we looked.

    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one turn, those that are still there; return how many."""
        core = self._core
        revived = 0
        with core.turn():
            for letter in letters:
                if letter.number in core.ledger.dead:
                    lane, offset = key_of(letter.message.id)
                    core.journal.write(
                        events.Revived(
                            letter.number,
                            lane,
                            offset,
                            letter.message.priority,
                            letter.deliveries,
                        )
                    )
                    revived += 1
        return revived

    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one turn, those that are still there; return how many."""
        core = self._core
        dropped = 0
        with core.turn():
            for letter in letters:
                if letter.number in core.ledger.dead:
                    core.journal.write(events.Discarded(letter.number, 1))
                    dropped += 1
            core.upkeep.is_due = True
        return dropped

    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""
        core = self._core
        with core.turn():
            count = len(core.ledger.dead)
            for start, stop in core.ledger.dead.runs():
                core.journal.write(events.Discarded(start, stop - start))
            core.upkeep.is_due = True
        return count


def _letter(record: Record) -> DeadLetter:
    prefix, body = unpack_prefix(record.payload, record.attr)
    deliveries = prefix.get("d", 0)
    return DeadLetter(
        message=Message(
            id=message_id(prefix.get("f", 0), prefix.get("o", 0)),
            body=body,
            priority=prefix.get("p", 0),
            attempt=deliveries + prefix.get("a", 0),
            headers=MappingProxyType(prefix.get("h", {})),
            key=prefix.get("k"),
            group=prefix.get("g"),
            pushed_us=prefix.get("t", 0),
            expires_us=prefix.get("x"),
        ),
        cause=prefix.get("c", ""),
        reason=prefix.get("r", ""),
        died_us=record.time_us,
        number=record.offset,
        deliveries=deliveries,
        tries=max(0, deliveries - prefix.get("s", 0)),
    )
