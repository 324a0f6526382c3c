"""Dead letters of a queue: choosing them, bringing them back, dropping them. For every store."""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from segue.delivery.message import DeadLetter
from segue.errors import InvalidArgument
from segue.stores.contract import RedriveReport

BATCH: Final = 100
"""How many dead letters are dealt with in one step."""
RATE_STEP_SECONDS: Final = 0.1

Where = Callable[[DeadLetter], bool]


class DeadLetters(ABC):
    """The dead letters of one queue. Safe from any thread."""

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield those that are there now, oldest first."""
        return self.behind(-1)

    @abstractmethod
    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number."""

    @abstractmethod
    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one step, those that are still there; return how many."""

    @abstractmethod
    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one step, those that are still there; return how many."""

    @abstractmethod
    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""

    def chosen(self, where: Where | None, limit: int | None) -> Iterator[DeadLetter]:
        """Yield those that `where` says yes to, up to `limit`."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit must be a whole number: {limit!r}")
        most = None if limit is None else min(limit, sys.maxsize)
        return islice((letter for letter in self if where is None or where(letter)), most)

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
        self, where: Where | None, limit: int | None, rate: float | None
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
        return _paced(self.chosen(where, limit), step, rate)

    def discard(self, where: Where | None, limit: int | None) -> int:
        """Drop letters for good and return how many."""
        if where is None and limit is None:
            return self.drop_all()
        letters = self.chosen(where, limit)
        discarded = 0
        while batch := list(islice(letters, BATCH)):
            discarded += self.drop(batch)
        return discarded


def _paced(
    letters: Iterator[DeadLetter], step: int, rate: float | None
) -> Iterator[tuple[float, list[DeadLetter]]]:
    is_first = True
    while batch := list(islice(letters, step)):
        yield 0.0 if rate is None or is_first else len(batch) / rate, batch
        is_first = False
