"""What a ring and a lock share: turns to look, decide and write in, following others, waiting."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from segue.errors import InvalidArgument
from segue.log import Log
from segue.log.appender import Appender
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.options import Duration, microseconds_from
from segue.log.record import Record

FETCH_RECORDS: Final = 32
"""How many records are in memory at once while a log is followed; they may be large."""


class Turn:
    """A turn on a log: nobody else writes it meanwhile."""

    def __init__(self, writer: Appender) -> None:
        self._writer = writer
        self.end = Offset(0)
        """The offset after what was put last."""
        self.wrote = False
        self.is_durable = False

    def put(self, payload: bytes, *, durable: bool = False) -> Offset:
        """Append a record; `durable` has it synced before the turn is over for the caller."""
        offset = self._writer.put(payload, 0)
        self._note(offset, 1)
        self.is_durable |= durable
        return offset

    def put_at_start(self, payloads: list[bytes], *, attr: int) -> Offset:
        """Append a batch at the start of a segment, the first record with `attr`."""
        self._writer.roll_in_turn()
        offset = self._writer.put_many(payloads, [attr] + [0] * (len(payloads) - 1))
        self._note(offset, len(payloads))
        return offset

    def _note(self, offset: Offset, count: int) -> None:
        self.end = Offset(offset + count)
        self.wrote = True

    def sync(self) -> None:
        """Return once all that was put is on the device, before anybody else's turn."""
        self._writer.sync(self.end)


@contextmanager
def turn_on(log: Log) -> Iterator[Turn]:
    """Keep every other writer out of `log` for the length of the block."""
    writer = log.writer
    turn = Turn(writer)
    with writer.mutex:
        try:
            writer.begin()
            yield turn
        finally:
            writer.end(wrote=turn.wrote)
    if turn.is_durable:
        writer.sync(turn.end)


class Follower:
    """Reads on in a log that others append to and trim. One thread at a time."""

    def __init__(self, log: Log) -> None:
        """Begin with the oldest record there is."""
        self._log = log
        self._cursor = Cursor(log._horizon, log.first_offset, on_damage="skip", pin=False)
        self.missed = 0
        """How many records could not be read in the last round, damaged or set aside."""

    @property
    def offset(self) -> int:
        """The offset of the record to be read next."""
        return self._cursor.offset

    def records(self, *, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """Yield what has come since, or is there from `start` on. Raises OffsetTrimmed."""
        cursor = self._cursor
        if start is not None:
            cursor.offset = Offset(start)
        self.missed = 0
        while True:
            before = cursor.offset
            records = cursor.fetch(FETCH_RECORDS, None if stop is None else Offset(stop))
            self.missed += cursor.offset - before - len(records)
            if not records:
                return
            yield from records

    def close(self) -> None:
        """Let go of the log's files."""
        self._cursor.close()


class Patience:
    """How long a caller is willing to wait, from now on. Raises InvalidArgument."""

    def __init__(self, wait: Duration | None) -> None:
        wait_us = microseconds_from(wait, name="wait")
        if wait_us is not None and wait_us < 0:
            raise InvalidArgument(f"wait must not be negative: {wait!r}")
        self._end = None if wait_us is None else time.monotonic() + wait_us / 1_000_000

    def seconds_left(self) -> float | None:
        """Return what is left, None if there is no end to it."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def wait_for(
    log: Log, patience: Patience, changed: Callable[[], bool], *, seconds_max: float
) -> bool:
    """Sleep until `changed`, until `seconds_max`, or until patience is over: then return False.

    Whoever writes to a log that rings this one's bell wakes us.
    """
    left = patience.seconds_left()
    if left == 0:
        return False
    waiter = log.writer.bell.waiter()
    try:
        waiter.wait(changed, seconds_max if left is None else min(left, seconds_max))
    finally:
        waiter.close()
    return True
