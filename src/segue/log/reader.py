"""Named readers: a durable place in the log that retention respects."""

import logging
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from segue.errors import InvalidArgument, LogClosed, LogReadOnly
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.options import Damaged, Duration, check_on_damage, microseconds_from
from segue.log.positions import SavedPosition
from segue.log.record import Record

if TYPE_CHECKING:
    from segue.log.log import Log

logger = logging.getLogger(__name__)

Start = Literal["resume", "earliest", "latest"] | int | datetime
"""Where to begin: a saved place, an end of the log, an offset, or the first record at a time."""

FETCH_ITEMS_MAX: Final = 1024
"""How many records an iterator holds in memory."""


class Reader:
    """Reads a log from a saved place on. Made by `Log.reader`; for one thread at a time.

    Registered on disk from the moment it exists, so nothing it has not committed is deleted by
    `cleanup()` without an explicit limit. Iterating yields what is there and stops at the end;
    `follow` waits for more.
    """

    def __init__(self, log: "Log", name: str, start: Start, *, on_damage: Damaged) -> None:
        check_on_damage(on_damage)  # Before anything is registered.
        self._log = log
        self._positions = log._positions
        self.name = name
        saved = self._positions.load(name) if start == "resume" else None
        self._saved = None if saved is None else saved.offset
        self._closed = False
        if saved is not None:
            offset = self._resumed(saved)
            if log._syncs and not log.read_only:
                log._positions.sync_names()  # Whoever registered it may have failed to.
        elif log.read_only:
            offset = self._begin(start)
        else:
            # Under the lock: what "latest" stood for a moment ago may have been trimmed by now.
            with log._writing().locked():
                offset = self._begin(start)
                self._save(offset)
        self._cursor = Cursor(log._horizon, offset, on_damage=on_damage)

    def _begin(self, start: Start) -> Offset:
        return self._log.resolve("earliest" if start == "resume" else start)

    def _resumed(self, saved: SavedPosition) -> Offset:
        latest = self._log.next_offset
        if saved.offset > latest:
            # The records it had read were lost with the power: what comes next is new to it.
            logger.warning(
                "reader stood beyond the end name=%s saved=%d latest=%d",
                self.name,
                saved.offset,
                latest,
            )
            return latest
        self._log._horizon.require(saved.offset)
        return saved.offset

    @property
    def position(self) -> Offset:
        """The offset of the next record."""
        return self._cursor.offset

    @property
    def lag(self) -> int:
        """How many records are there to read."""
        return max(0, self._log.next_offset - self._cursor.offset)

    @property
    def skipped(self) -> int:
        """How many damaged records `on_damage="skip"` passed over."""
        return self._cursor.skipped

    def read(self, count_max: int = FETCH_ITEMS_MAX, *, timeout: Duration = 0) -> list[Record]:
        """Return the next records, at least one if any arrives within `timeout` seconds."""
        self._require_open()
        if count_max < 1:
            raise InvalidArgument(f"count_max must be positive: {count_max}")
        records = self._cursor.fetch(count_max)
        timeout_us = microseconds_from(timeout, name="timeout")
        if not records and timeout_us:
            self._log.wait(self._cursor.offset, timeout=timeout_us / 1_000_000)
            records = self._cursor.fetch(count_max)
        return records

    def __iter__(self) -> Iterator[Record]:
        return self._iterate()

    def follow(self, *, timeout: Duration | None = None) -> Iterator[Record]:
        """Yield records as they come; end when none comes within `timeout` seconds."""
        while True:
            yield from self._iterate()
            if not self._log.wait(self._cursor.offset, timeout=timeout):
                return

    def _iterate(self) -> Iterator[Record]:
        """Yield one by one, so that `position` is always that of the next record."""
        self._require_open()
        cursor = self._cursor
        while records := cursor.fetch(FETCH_ITEMS_MAX):
            resume = cursor.offset
            for record in records:
                cursor.offset = Offset(record.offset + 1)
                yield record
                self._require_open()
                if cursor.offset != record.offset + 1:
                    break  # The consumer moved us.
            else:
                cursor.offset = resume

    def seek(self, start: Start) -> None:
        """Go to another place; `commit` makes it the saved one."""
        self._require_open()
        if start == "resume":
            saved = self._positions.load(self.name)
            start = "earliest" if saved is None else self._resumed(saved)
        self._cursor.offset = self._log.resolve(start)

    def commit(self, offset: int | None = None) -> None:
        """Save `offset`, or the current position, as the place to resume from.

        Replaced atomically. Synced unless the log's sync mode is "os"; losing a commit to a power
        cut means reading some records again.
        """
        self._require_open()
        if self._log.read_only:
            raise LogReadOnly("a reader of a log that is open read-only cannot commit")
        place = self._cursor.offset if offset is None else Offset(offset)
        if not 0 <= place <= self._log.next_offset:
            raise InvalidArgument(f"offset {place} is not in the log")
        if self._saved is not None and place >= self._saved:
            self._save(place)
        else:
            # Registering or going back: no deletion may come in between.
            with self._log._writing().locked():
                self._save(place)

    def _save(self, place: Offset) -> None:
        self._log._horizon.require(place)
        position = SavedPosition(self._log._segment_of(place), place)
        self._positions.save(self.name, position, sync=self._log._syncs)
        self._saved = place

    def _require_open(self) -> None:
        if self._closed:
            raise LogClosed(f"reader {self.name} is closed")

    def close(self) -> None:
        """Let go of the segment. Does not commit."""
        self._closed = True
        self._cursor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
