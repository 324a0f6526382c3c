"""What a queue still keeps of what was pushed to it, and pushing it once more."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from segue.delivery.events import ASIDE
from segue.delivery.message import (
    CARRIED,
    Key,
    Message,
    Prefix,
    message_from,
    pack_message,
    unpack_prefix,
)
from segue.delivery.priority import Priority, priority_from
from segue.errors import InvalidArgument
from segue.log import Log
from segue.log.record import Record
from segue.stores.file.pushing import Letter, Pusher
from segue.stores.message_ids import message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

BATCH: Final = 100

Bound = int | datetime | None


class History:
    """Reads a queue's lanes from wherever they begin."""

    def __init__(self, core: "QueueCore", pusher: Pusher) -> None:
        self._core = core
        self._pusher = pusher

    def messages(self, priority: Priority | None, start: Bound, stop: Bound) -> Iterator[Message]:
        """Yield messages in order of priority, then of pushing; last those pushed with a delay."""
        for key, level, record in self._records(priority, start, stop):
            yield message_from(
                message_id(*key),
                record.payload,
                record.attr,
                priority=level,
                attempt=1,
                time_us=record.time_us,
            )

    def _records(
        self, priority: Priority | None, start: Bound, stop: Bound
    ) -> Iterator[tuple[Key, int, Record]]:
        """Yield where each message was pushed, its priority and its record."""
        core = self._core
        has_offset = type(start) is int or type(stop) is int
        if priority is None and has_offset:
            raise InvalidArgument("an offset means something only within a priority: give one")
        wanted = None if priority is None else priority_from(priority)
        with core.turn():
            known = [number for number in core.ledger.order if wanted in (None, number)]
            has_aside = core.ledger.has_aside and not has_offset
        for number in known:
            for record in _between(core.lane(number).log, start, stop):
                yield Key(number, record.offset), number, record
        if has_aside:
            for record in _between(core.lanes.aside.log, start, stop):
                level = unpack_prefix(record.payload, record.attr)[0].get("p", 0)
                if not record.attr & CARRIED and wanted in (None, level):
                    yield Key(ASIDE, record.offset), level, record

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt."""
        core = self._core
        with core.turn():
            ends = {number: core.end_of(number) for number in core.ledger.order}
        # Up to where it ends now: what is pushed again must not be read again.
        records = (
            (level, record)
            for key, level, record in self._records(priority, start, stop)
            if key.lane == ASIDE or key.offset < ends.get(key.lane, 0)
        )
        pushed = 0
        while batch := list(islice(records, BATCH)):
            self._pusher.push_letters([_again(level, record) for level, record in batch], 0)
            pushed += len(batch)
        return pushed


def _between(log: Log, start: Bound, stop: Bound) -> Iterator[Record]:
    last = log.resolve(stop) if isinstance(stop, datetime) else stop
    first = log.resolve("earliest" if start is None else start)
    return log.records(first, stop=last, on_damage="skip")


def _again(level: int, record: Record) -> Letter:
    """Return a message as it is pushed once more."""
    prefix, body = unpack_prefix(record.payload, record.attr)
    again: Prefix = {**prefix, "a": prefix.get("a", 0) + 1}
    # By its key it would be taken for a duplicate, by its times for late: it is meant to come.
    for name in ("k", "x", "n", "p"):
        again.pop(name, None)  # type: ignore[misc]
    return Letter(level, *pack_message(body, again))
