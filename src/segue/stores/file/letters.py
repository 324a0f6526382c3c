"""Dead letters of a queue in a directory."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from segue.delivery import events
from segue.delivery.message import PREFIX_MASK, DeadLetter, Message, unpack_prefix
from segue.errors import Damage, OffsetNotWritten, OffsetTrimmed, RecordRemoved
from segue.log import Log
from segue.log.record import Record
from segue.stores.file.neighbours import read_neighbours
from segue.stores.letters import DeadLetters, LetterNote, runs_of
from segue.stores.message_ids import key_of, message_id

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

READ_FIRST: Final = 4
READ_MAX: Final = 1_024
"""How many letters are read at once: few at first, as they may be large."""
READ_BYTES_MAX: Final = 4 << 20
"""About how much is read at once, unless one letter alone is larger."""
RUNS_MAX: Final = 1_000
"""Of how many stretches without a gap is looked up at once who is there."""
GAP_MAX: Final = 64
"""How many that left may lie between two that are read together."""

_Runs = list[tuple[int, int]]


class FileDeadLetters(DeadLetters):
    """The dead letters of one queue. Safe from any thread."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number."""
        return map(_letter, self._records(number))

    def notes(self, number: int) -> Iterator[LetterNote]:
        """Yield what is known of the same, without their messages."""
        return map(_note, self._records(number))

    def _records(self, number: int) -> Iterator[Record]:
        core = self._core
        # Those that die from here on are not meant: who is brought back may be among them.
        last = self.newest()
        while number < last:
            with core.turn():
                runs = core.ledger.dead.runs(number + 1, RUNS_MAX)
            there = [
                (max(start, number + 1), min(stop, last + 1))
                for start, stop in runs
                if start <= last
            ]
            if not there:
                return
            yield from _read(core.lanes.dead.log, there)
            number = there[-1][1] - 1

    def at(self, numbers: Iterable[int]) -> Iterator[DeadLetter]:
        """Yield those with these numbers, which are in order, that are still there."""
        core = self._core
        with core.turn():
            runs = runs_of(number for number in numbers if number in core.ledger.dead)
        return map(_letter, _read(core.lanes.dead.log, runs)) if runs else iter(())

    def numbers(self) -> list[tuple[int, int]]:
        """Return the numbers of those that are there now, as runs: (start, stop), in order."""
        with self._core.turn():
            numbers = self._core.ledger.dead.copy()
        return numbers.runs()

    def newest(self) -> int:
        """Return the highest number there is; -1 if there is none."""
        with self._core.turn():
            last = self._core.ledger.dead.last
        return -1 if last is None else last

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


def _read(log: Log, runs: _Runs) -> Iterator[Record]:
    """Yield the records in these runs, but those that are damaged, or dropped since we looked."""
    place = 0
    start = runs[0][0]
    most = READ_FIRST
    while place < len(runs):
        start = max(start, runs[place][0])
        stop = min(start + most, _end_of_neighbours(runs, place, start + most))
        try:
            records, start = _stretch(log, start, stop)
        except OffsetTrimmed as error:
            start, records = max(start + 1, error.earliest), []
        except OffsetNotWritten:
            return  # A power cut took them back.
        for record in records:
            while place < len(runs) and runs[place][1] <= record.offset:
                place += 1
            if place < len(runs) and runs[place][0] <= record.offset:
                yield record
        while place < len(runs) and runs[place][1] <= start:
            place += 1
        most = _how_many(records, most)


def _end_of_neighbours(runs: _Runs, place: int, enough: int) -> int:
    """Return where a wide gap begins, or what is enough."""
    stop = runs[place][1]
    while stop < enough and place + 1 < len(runs) and runs[place + 1][0] - stop <= GAP_MAX:
        place += 1
        stop = runs[place][1]
    return stop


def _stretch(log: Log, start: int, stop: int) -> tuple[list[Record], int]:
    """Return what can be read between two offsets, and where it ends: before `stop` if it is large.

    Raises OffsetTrimmed, OffsetNotWritten.
    """
    if stop - start > 1:
        with suppress(Damage):
            return read_neighbours(log, start, stop)
    found = []
    for offset in range(start, stop):  # From a segment that stays mapped.
        try:
            found.append(log.read(offset))
        except (OffsetTrimmed, OffsetNotWritten):
            raise
        except (Damage, RecordRemoved):
            continue
    return found, stop


def _how_many(records: list[Record], most: int) -> int:
    """Return how many to read next, by how large these were."""
    if not records:
        return most
    mean_bytes = 1 + sum(len(record.payload) for record in records) // len(records)
    return max(1, min(4 * most, READ_MAX, READ_BYTES_MAX // mean_bytes))


def _note(record: Record) -> LetterNote:
    prefix, _ = unpack_prefix(record.payload[: record.attr & PREFIX_MASK], record.attr)
    return LetterNote(
        record.offset,
        message_id(prefix.get("f", 0), prefix.get("o", 0)),
        prefix.get("c", ""),
        prefix.get("r", ""),
        record.time_us,
    )


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
