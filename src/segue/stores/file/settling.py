"""Settling: how leases end."""

import logging
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from segue.delivery import events
from segue.delivery.events import (
    ASIDE,
    REASON_BYTES_MAX,
    SETTLED,
    Cause,
    How,
    Run,
    Settled,
    pack_settlement,
)
from segue.delivery.lines import Grant, Rest
from segue.delivery.message import (
    HAS_GROUP,
    PREFIX_MASK,
    Key,
    Prefix,
    pack_message,
    unpack_prefix,
)
from segue.errors import LeaseLost
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.file.lanes import UNREADABLE
from segue.stores.message_ids import message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

logger = logging.getLogger(__name__)

RUNS_PER_EVENT: Final = 10_000

_NOTHING: Final[dict[int, Grant | Rest]] = {}


class Settling:
    """Ends the leases of one queue. Everything here happens in a turn."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._journal = core.journal
        self._chance = random.Random()

    def grant_of(self, lane: int, offset: int, token: int) -> Grant:
        """Return the lease of a message if `token` is its token. Raises LeaseLost."""
        found = self._journal.ledger.find(Key(lane, offset))
        if isinstance(found, Grant):
            if found.token == token:
                return found
            reason = "somebody else has the message now"
        elif found is not None and found.cause != Cause.HELD:
            reason = "it expired or was given back"
        else:
            reason = "the message is settled, dead or was never leased"
        raise LeaseLost(receipt=f"{message_id(lane, offset)}/{token}", reason=reason)

    # Flat on purpose, as leasing is.
    def ack(self, lane: int, offset: int, token: int) -> None:
        """Settle one message. Raises LeaseLost."""
        journal = self._journal
        ledger = journal.ledger
        level = ledger.levels.get(lane)
        items = ledger.aside if lane == ASIDE else level.items if level is not None else _NOTHING
        found = items.get(offset)
        if type(found) is not Grant or found.token != token:
            found = self.grant_of(lane, offset, token)
        payload = pack_settlement(token, 0, lane, offset, 1)
        journal.applied = Offset(journal.writer.put(payload, SETTLED) + 1)
        journal.wrote = True
        ledger.settle_held(items, lane, offset, found)
        self._core.upkeep.note(lane, offset, 1)

    def ack_many(self, leases: Sequence[tuple[int, int, int]]) -> list[LeaseLost]:
        """Settle many messages; return what is lost."""
        ledger = self._journal.ledger
        held: list[tuple[int, int]] = []
        lost: list[LeaseLost] = []
        items: dict[int, Grant | Rest] = {}
        items_of = -1
        for lane, offset, token in leases:
            if lane != items_of:
                level = ledger.levels.get(lane)
                items = ledger.aside if lane == ASIDE else level.items if level else _NOTHING
                items_of = lane
            found = items.get(offset)
            if type(found) is Grant and found.token == token:
                held.append((lane, offset))
                continue
            try:
                self.grant_of(lane, offset, token)
            except LeaseLost as error:
                lost.append(error)
        for runs in _runs_of(held):
            self._journal.write(Settled(leases[0][2], How.ACKED, runs))
            for lane, first, size in runs:
                self._core.upkeep.note(lane, first + size - 1, size)
        return lost

    def give_back(
        self, lease: tuple[int, int, int], cause: Cause, delay_us: int | None, reason: str
    ) -> None:
        """End a lease without success. Raises LeaseLost."""
        lane, offset, token = lease
        grant = self.grant_of(lane, offset, token)
        ledger = self._journal.ledger
        words = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        if cause is Cause.DEAD or (
            cause is Cause.FAILED and ledger.is_last(grant.attempt, grant.since)
        ):
            self._bury(Key(lane, offset), grant, cause, words)
            return
        if delay_us is None:
            delay_us = 0
            if cause is Cause.FAILED:
                failures = grant.attempt - grant.since - 1
                delay_us = ledger.rules.backoff.delay_us(failures, self._chance)
        not_before_us = self._core.place.clock() + delay_us if delay_us > 0 else 0
        run = Run(lane, offset, 1)
        self._journal.write(events.Returned(token, cause, not_before_us, words, (run,)))

    def extend(self, lane: int, offset: int, token: int, ttl_us: int) -> None:
        """Let a lease end `ttl_us` from now. Raises LeaseLost."""
        self.grant_of(lane, offset, token)
        deadline_us = self._core.place.ticks() + ttl_us
        self._journal.write(events.Extended(token, deadline_us, (Run(lane, offset, 1),)))

    def expire(self, grant: Grant) -> None:
        """Give back what a lease that has ended still holds."""
        ledger = self._journal.ledger
        offsets = ledger.held(grant)
        reason = b"its lease expired"
        if ledger.is_last(grant.attempt, grant.since):
            for offset in offsets:
                if ledger.find(Key(grant.lane, offset)) is grant:
                    self._bury(Key(grant.lane, offset), grant, Cause.EXPIRED, reason)
            return
        for runs in _runs_of([(grant.lane, offset) for offset in offsets]):
            self._journal.write(events.Returned(grant.token, Cause.EXPIRED, 0, reason, runs))

    # Dead letters --------------------------------------------------------------------------

    def _bury(self, key: Key, grant: Grant, cause: Cause, reason: bytes) -> None:
        try:
            record = self._core.record_of(key)
        except UNREADABLE as error:
            logger.warning("lost queue=%s message=%s reason=%s", self._core.name, key, error)
            self.give_up(key, How.LOST)
            return
        self.bury_record(key, record, grant, cause, reason)

    def give_up(self, key: Key, how: How) -> None:
        """Settle a message that is nowhere to be found, unless looking for it has done so."""
        if self._journal.ledger.find(key) is not None:
            self._journal.write(Settled(0, how, (Run(key.lane, key.offset, 1),)))
            self._core.upkeep.note(key.lane, key.offset, 1)

    def bury_record(
        self, key: Key, record: Record, found: Grant | Rest | None, cause: Cause, reason: bytes
    ) -> None:
        """Move a message to the dead letters."""
        core = self._core
        attempt, since = (0, 0) if found is None else (found.attempt, found.since)
        prefix, body = unpack_prefix(record.payload, record.attr)
        letter: Prefix = {
            **prefix,
            "t": prefix.get("t", record.time_us),
            "p": core.priority_of(key),
            "f": key.lane,
            "o": key.offset,
            "d": attempt,
            "c": cause.name.lower(),
            "r": reason.decode(errors="replace"),
        }
        letter.pop("s", None)
        if since:
            letter["s"] = since
        payload, attr = pack_message(body, letter)
        # Before the event: a letter nobody knows of is nothing, a message nobody has is lost.
        at = core.lanes.dead.append(payload, attr=attr & (PREFIX_MASK | HAS_GROUP))
        self._journal.write(events.Buried(key.lane, key.offset, at, cause))
        core.upkeep.note(key.lane, key.offset, 1)


def _runs_of(keys: Sequence[tuple[int, int]]) -> Iterator[tuple[Run, ...]]:
    """Yield messages as runs of neighbours, as many as go into one event."""
    runs = _neighbours(keys)
    while batch := tuple(islice(runs, RUNS_PER_EVENT)):
        yield batch


def _neighbours(keys: Sequence[tuple[int, int]]) -> Iterator[Run]:
    if not keys:
        return
    (lane, first), size = keys[0], 0
    for next_lane, offset in keys:
        if next_lane == lane and offset == first + size:
            size += 1
            continue
        yield Run(lane, first, size)
        lane, first, size = next_lane, offset, 1
    yield Run(lane, first, size)
