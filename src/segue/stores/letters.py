"""Dead letters of a queue: choosing them, bringing them back, dropping them. For every store."""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from segue.delivery.message import DeadLetter, MessageId
from segue.errors import InvalidArgument
from segue.stores.contract import RedriveReport
from segue.stores.portions import PORTION_BYTES_MAX

BATCH: Final = 100
"""How many dead letters are dealt with in one step; fewer if they are large."""
RATE_STEP_SECONDS: Final = 0.1

Where = Callable[[DeadLetter], bool]


class LetterNote(NamedTuple):
    """What is known of a dead letter but its message."""

    number: int
    id: MessageId
    cause: str
    reason: str
    died_us: int


class DeadLetters(ABC):
    """The dead letters of one queue. Safe from any thread."""

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield those that are there now, oldest first."""
        return self.behind(-1)

    @abstractmethod
    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number."""

    def notes(self, number: int) -> Iterator[LetterNote]:
        """Yield what is known of the same, without their messages."""
        return map(note_of, self.behind(number))

    def at(self, numbers: Iterable[int]) -> Iterator[DeadLetter]:
        """Yield those with these numbers, which are in order, that are still there."""
        for number in numbers:
            found = next(self.behind(number - 1), None)
            if found is not None and found.number == number:
                yield found

    def numbers(self) -> list[tuple[int, int]]:
        """Return the numbers of those that are there now, as runs: (start, stop), in order."""
        return runs_of(letter.number for letter in self)

    def newest(self) -> int:
        """Return the highest number there is, or was; -1 if there never was one."""
        runs = self.numbers()
        return runs[-1][1] - 1 if runs else -1

    @abstractmethod
    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one step, those that are still there; return how many."""

    @abstractmethod
    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one step, those that are still there; return how many."""

    @abstractmethod
    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""

    def chosen(
        self,
        where: Where | None,
        limit: int | None,
        among: Iterable[DeadLetter] | None = None,
    ) -> Iterator[DeadLetter]:
        """Yield those that `where` says yes to, up to `limit`; `among` some of them, if given."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit must be a whole number: {limit!r}")
        most = None if limit is None else min(limit, sys.maxsize)
        letters = self if among is None else among
        return islice((letter for letter in letters if where is None or where(letter)), most)

    def redrive(
        self, where: Where | None, limit: int | None, rate: float | None, *, dry_run: bool
    ) -> RedriveReport:
        """Bring letters back to the front of their priority."""
        matched = redriven = 0
        for pause_seconds, batch in self.batches(where, limit, rate):
            matched += len(batch)
            if not dry_run:
                time.sleep(pause_seconds)
                redriven += self.revive(batch)
        return RedriveReport(matched=matched, redriven=redriven, dry_run=dry_run)

    def batches(
        self,
        where: Where | None,
        limit: int | None,
        rate: float | None,
        among: Iterable[DeadLetter] | None = None,
    ) -> Iterator[tuple[float, list[DeadLetter]]]:
        """Yield letters to be dealt with in one step, and how many seconds to wait before it."""
        given: object = rate
        if given is not None and (
            isinstance(given, bool)
            or not isinstance(given, int | float)
            or not 0 < given < math.inf
        ):
            raise InvalidArgument(f"rate must be a positive number a second: {rate!r}")
        step = BATCH if rate is None else max(1, min(BATCH, int(rate * RATE_STEP_SECONDS)))
        return _paced(in_batches(self.chosen(where, limit, among), step), rate)

    def discard(
        self,
        where: Where | None,
        limit: int | None,
        among: Iterable[DeadLetter] | None = None,
    ) -> int:
        """Drop letters for good and return how many."""
        if where is None and limit is None and among is None:
            return self.drop_all()
        return sum(map(self.drop, in_batches(self.chosen(where, limit, among))))


def note_of(letter: DeadLetter) -> LetterNote:
    """Return what is known of a letter, without its message."""
    return LetterNote(letter.number, letter.message.id, letter.cause, letter.reason, letter.died_us)


def in_batches(letters: Iterable[DeadLetter], step: int = BATCH) -> Iterator[list[DeadLetter]]:
    """Yield letters by the batch: as many as fit in one portion of memory, and one at least."""
    batch: list[DeadLetter] = []
    left_bytes = PORTION_BYTES_MAX
    for letter in letters:
        batch.append(letter)
        left_bytes -= len(letter.message.body)
        if len(batch) == step or left_bytes <= 0:
            yield batch
            batch, left_bytes = [], PORTION_BYTES_MAX
    if batch:
        yield batch


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers that are in order as runs: (start, stop)."""
    runs: list[tuple[int, int]] = []
    start = stop = -1
    for number in numbers:
        if number != stop:
            if start >= 0:
                runs.append((start, stop))
            start = number
        stop = number + 1
    if start >= 0:
        runs.append((start, stop))
    return runs


def _paced(
    batches: Iterator[list[DeadLetter]], rate: float | None
) -> Iterator[tuple[float, list[DeadLetter]]]:
    is_first = True
    for batch in batches:
        yield 0.0 if rate is None or is_first else len(batch) / rate, batch
        is_first = False
