"""What a queue still keeps of what was pushed to it, and pushing it once more."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from segue.delivery.message import Key, Message, Prefix, message_from, pack_message, unpack_prefix
from segue.delivery.priority import Priority, priority_from
from segue.errors import InvalidArgument
from segue.log.record import Record
from segue.stores.file.pushing import Letter, Pusher
from segue.stores.job import message_id

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
        """Yield messages in order of priority, then of pushing."""
        for key, record in self._records(priority, start, stop):
            yield message_from(
                message_id(*key),
                record.payload,
                record.attr,
                priority=key.lane,
                attempt=1,
                time_us=record.time_us,
            )

    def _records(
        self, priority: Priority | None, start: Bound, stop: Bound
    ) -> Iterator[tuple[Key, Record]]:
        core = self._core
        if priority is None and (type(start) is int or type(stop) is int):
            raise InvalidArgument("an offset means something only within a priority: give one")
        with core.turn():
            known = list(core.ledger.order)
        chosen = known if priority is None else [priority_from(priority)]
        for number in [number for number in chosen if number in known]:
            log = core.lane(number).log
            last = log.resolve(stop) if isinstance(stop, datetime) else stop
            first = log.resolve("earliest" if start is None else start)
            for record in log.records(first, stop=last, on_damage="skip"):
                yield Key(number, record.offset), record

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt."""
        core = self._core
        with core.turn():
            ends = {number: core.end_of(number) for number in core.ledger.order}
        # Up to where it ends now: what is pushed again must not be read again.
        records = (
            (key, record)
            for key, record in self._records(priority, start, stop)
            if key.offset < ends.get(key.lane, 0)
        )
        pushed = 0
        while batch := list(islice(records, BATCH)):
            letters: list[Letter] = []
            for key, record in batch:
                prefix, body = unpack_prefix(record.payload, record.attr)
                again: Prefix = {**prefix, "a": prefix.get("a", 0) + 1}
                # It would be taken for a duplicate, or for late: it is meant to come once more.
                again.pop("k", None)
                again.pop("x", None)
                letters.append(Letter(key.lane, *pack_message(body, again)))
            self._pusher.append(letters)
            pushed += len(batch)
        return pushed
