"""Dead letters of a queue: choosing them, bringing them back, dropping them. For every store."""

import math
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

    @abstractmethod
    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield those that are there now, oldest first."""

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
                redriven += self.revive(batch)
        return RedriveReport(matched=matched, redriven=redriven, dry_run=dry_run)

    def discard(self, where: Where | None, limit: int | None) -> int:
        """Drop letters for good and return how many."""
        if where is None and limit is None:
            return self.drop_all()
        letters = self.chosen(where, limit)
        discarded = 0
        while batch := list(islice(letters, BATCH)):
            discarded += self.drop(batch)
        return discarded
