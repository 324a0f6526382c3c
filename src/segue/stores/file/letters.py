"""Dead letters of a queue: looking at them, bringing them back, dropping them."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from segue.delivery import events
from segue.delivery.events import ASIDE
from segue.delivery.message import DeadLetter, Key, Message, unpack_prefix
from segue.errors import Damage, InvalidArgument, OffsetOutOfRange, RecordRemoved
from segue.log.record import Record
from segue.stores.contract import RedriveReport
from segue.stores.job import message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

BATCH: Final = 100
"""How many dead letters are dealt with in one turn."""
RATE_STEP_SECONDS: Final = 0.1
DIGITS_MAX: Final = 20

Where = Callable[[DeadLetter], bool]


class DeadLetters:
    """The dead letters of one queue. Safe from any thread."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield those that are there now, oldest first."""
        core = self._core
        with core.turn():
            runs = core.ledger.dead.runs()
        if not runs:
            return
        log = core.lanes.dead.log
        for start, stop in runs:
            for offset in range(start, stop):
                try:
                    yield _letter(log.read(offset))
                except (Damage, OffsetOutOfRange, RecordRemoved):
                    continue  # Damaged, or dropped by somebody since we looked.

    def chosen(self, where: Where | None, limit: int | None) -> Iterator[DeadLetter]:
        """Yield those that `where` says yes to, up to `limit`."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit must be a whole number: {limit!r}")
        return islice((letter for letter in self if where is None or where(letter)), limit)

    def redrive(
        self, where: Where | None, limit: int | None, rate: float | None, *, dry_run: bool
    ) -> RedriveReport:
        """Bring letters back to the front of their priority."""
        given: object = rate
        if given is not None and (
            isinstance(given, bool)
            or not isinstance(given, int | float)
            or not 0 < given < math.inf
        ):
            raise InvalidArgument(f"rate must be a positive number a second: {rate!r}")
        matched = redriven = 0
        step = BATCH if rate is None else max(1, min(BATCH, int(rate * RATE_STEP_SECONDS)))
        letters = self.chosen(where, limit)
        while batch := list(islice(letters, step)):
            if rate is not None and matched and not dry_run:
                time.sleep(len(batch) / rate)
            matched += len(batch)
            if not dry_run:
                redriven += self._revive(batch)
        return RedriveReport(matched=matched, redriven=redriven, dry_run=dry_run)

    def _revive(self, batch: list[DeadLetter]) -> int:
        core = self._core
        revived = 0
        with core.turn():
            for letter in batch:
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

    def discard(self, where: Where | None, limit: int | None) -> int:
        """Drop letters for good and return how many."""
        core = self._core
        if where is None and limit is None:
            return self._discard_all()
        discarded = 0
        letters = self.chosen(where, limit)
        while batch := list(islice(letters, BATCH)):
            with core.turn():
                for letter in batch:
                    if letter.number in core.ledger.dead:
                        core.journal.write(events.Discarded(letter.number, 1))
                        discarded += 1
                core.upkeep.is_due = True
        return discarded

    def _discard_all(self) -> int:
        """Drop every letter, also those that cannot be read."""
        core = self._core
        with core.turn():
            count = len(core.ledger.dead)
            for start, stop in core.ledger.dead.runs():
                core.journal.write(events.Discarded(start, stop - start))
            core.upkeep.is_due = True
        return count


def is_number(text: str) -> bool:
    """Tell whether `text` is a whole number that fits in 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX


def key_of(message: str) -> Key:
    """Return where the message with that id was pushed to. Raises InvalidArgument."""
    lane, _, offset = message.rpartition("-")
    if lane == "later":
        lane = str(ASIDE)
    elif lane == str(ASIDE):
        lane = ""
    if is_number(lane) and is_number(offset):
        return Key(int(lane), int(offset))
    raise InvalidArgument(f"{message!r} is no message id")


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
