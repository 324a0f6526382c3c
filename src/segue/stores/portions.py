"""How much one call hands over: what many calls would give at once must fit in memory, too."""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from segue.delivery.message import DeadLetter
from segue.stores.contract import MessageStatus

PORTION_BYTES_MAX: Final = 16 << 20
"""Unless one message alone is larger."""

Told = TypeVar("Told", MessageStatus, DeadLetter)


class Page(Generic[Told]):
    """The first of what is found, up to a number: what fits in one portion, and one at least."""

    def __init__(self, limit: int) -> None:
        self.found: list[Told] = []
        self._limit = limit
        self._left_bytes = PORTION_BYTES_MAX
        self._is_full = False

    def fill(self, found: Iterable[Told]) -> None:
        """Add what there is room for: nothing once something was left out, however small it is."""
        for each in () if self._is_full else found:
            self._left_bytes -= len(each.message.body)
            self._is_full = bool(self.found) and self._left_bytes < 0
            if self._is_full:
                return
            self.found.append(each)
            self._is_full = len(self.found) == self._limit
            if self._is_full:
                return
