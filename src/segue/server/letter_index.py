"""Which dead letter of a queue died of what: seventeen bytes each, and nothing of their messages.

Letters come in the order of their numbers, and go in any. All of it is for who has the lock.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from segue.delivery.reasons import pattern_of
from segue.stores.letters import LetterNote
from segue.values import dataclass

GROUPS_MAX: Final = 200
"""How many groups are told apart; letters of others are counted together."""
CAUSES_MAX: Final = 50
"""For how many causes those others are counted."""
REASON_CHARACTERS_MAX: Final = 1_000
"""How much of a reason is shown as an example."""
OTHER: Final = "(other)"
"""The pattern of groups that are not told apart."""

Runs = Sequence[tuple[int, int]]
"""Numbers as (start, stop), in order."""


@dataclass(slots=True, kw_only=True)
class LetterGroup:
    """Dead letters that died of the same."""

    cause: str
    pattern: str
    count: int = 0
    first_us: int = 0
    last_us: int = 0
    """When the first and the last of them died."""
    example: LetterNote | None = None
    """The last of them; None once it is gone, until another is known."""

    @property
    def is_other(self) -> bool:
        """Whether they are those that are not told apart."""
        return self.pattern == OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Letters that are there, and that nobody told of."""

    count: int
    some: list[int]
    """The numbers of a few of them."""


class LetterIndex:
    """The dead letters of one queue, by what they died of. Not for two threads at once."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._died_us = array("q")
        self._kinds = bytearray()
        """Of each letter, which of the groups it belongs to."""
        self._groups: list[LetterGroup | None] = []
        self._places: dict[tuple[str, str], int] = {}
        self._vacant: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def last(self) -> tuple[int, int] | None:
        """The highest number there is, and when that letter died."""
        return (self._numbers[-1], self._died_us[-1]) if self._numbers else None

    def groups(self) -> list[LetterGroup]:
        """Return the groups there are, most letters first, those not told apart last."""
        found = [group for group in self._groups if group is not None and group.count]
        return sorted(found, key=lambda group: (group.is_other, -group.count, group.last_us))

    # Coming --------------------------------------------------------------------------------

    def add(self, notes: Iterable[LetterNote]) -> None:
        """Take in letters, each with a higher number than all before."""
        for note in notes:
            place = self._place(sound(note.cause), pattern_of(note.reason))
            group = self._groups[place]
            assert group is not None
            self._numbers.append(note.number)
            self._died_us.append(note.died_us)
            self._kinds.append(place)
            if not group.count:
                group.first_us = note.died_us
            group.count += 1
            group.last_us = note.died_us
            group.example = note

    def _place(self, cause: str, pattern: str) -> int:
        place = self._places.get((cause, pattern))
        if place is not None:
            return place
        if pattern != OTHER and self._is_room(GROUPS_MAX):
            return self._new_group(cause, pattern)
        place = self._places.get((cause, OTHER))
        if place is not None:
            return place
        if self._is_room(GROUPS_MAX + CAUSES_MAX):
            return self._new_group(cause, OTHER)
        place = self._places.get(("", OTHER))
        return self._new_group("", OTHER) if place is None else place

    def _is_room(self, most: int) -> bool:
        return len(self._places) < most

    def _new_group(self, cause: str, pattern: str) -> int:
        group = LetterGroup(cause=cause, pattern=pattern)
        if self._vacant:
            place = self._vacant.pop()
            self._groups[place] = group
        else:
            place = len(self._groups)
            self._groups.append(group)
        self._places[cause, pattern] = place
        return place

    # Going ---------------------------------------------------------------------------------

    def kept(self, runs: Runs) -> "LetterIndex":
        """Return the same with those alone whose numbers are in `runs`. This one stays as it is.

        What a group shows as an example may be gone; whoever has the letters gives another.
        """
        index = LetterIndex()
        place = 0
        for start, stop in runs:
            low = bisect_left(self._numbers, start, place)
            place = bisect_left(self._numbers, stop, low)
            index._numbers += self._numbers[low:place]
            index._died_us += self._died_us[low:place]
            index._kinds += self._kinds[low:place]
        for at, group in enumerate(self._groups):
            index._groups.append(None if group is None else index._what_is_left(at, group))
        for at, group in enumerate(index._groups):
            if group is None:
                index._vacant.append(at)
            else:
                index._places[group.cause, group.pattern] = at
        return index

    def _what_is_left(self, place: int, group: LetterGroup) -> LetterGroup | None:
        kind = bytes((place,))
        count = self._kinds.count(kind)
        if not count:
            return None
        first, last = self._kinds.find(kind), self._kinds.rfind(kind)
        example = group.example
        return LetterGroup(
            cause=group.cause,
            pattern=group.pattern,
            count=count,
            first_us=self._died_us[first],
            last_us=self._died_us[last],
            example=example if example and example.number == self._numbers[last] else None,
        )

    def without_example(self) -> list[tuple[LetterGroup, int]]:
        """Return the groups that need another example, and the number of the letter to show."""
        return [
            (group, self._numbers[self._kinds.rfind(bytes((place,)))])
            for place, group in enumerate(self._groups)
            if group is not None and group.count and group.example is None
        ]

    def unknown(self, runs: Runs, upto: int, some_max: int) -> Unknown:
        """Return which numbers up to `upto` are in `runs` and not here, where all are in them."""
        there = sum(min(stop, upto + 1) - start for start, stop in runs if start <= upto)
        if there == len(self):
            return Unknown(count=0, some=[])
        missing = (
            number
            for start, stop in runs
            if start <= upto
            for number in _gaps(self._numbers, start, min(stop, upto + 1))
        )
        return Unknown(count=there - len(self), some=list(islice(missing, some_max)))

    # Finding -------------------------------------------------------------------------------

    def numbers_of(
        self, *, cause: str | None, pattern: str | None, after: int, upto: int, count_max: int
    ) -> list[int]:
        """Return the numbers of letters that may be of a cause and pattern, in order.

        Those that are not told apart may be of any pattern.
        """
        kinds = bytes(
            place
            for place, group in enumerate(self._groups)
            if group is not None
            and (cause is None or group.cause == cause or (group.is_other and not group.cause))
            and (pattern is None or group.pattern == pattern or group.is_other)
        )
        if not kinds:
            return []
        low, high = bisect_right(self._numbers, after), bisect_right(self._numbers, upto)
        found = re.compile(b"[" + re.escape(kinds) + b"]", re.DOTALL).finditer(
            self._kinds, low, high
        )
        return [self._numbers[each.start()] for each in islice(found, count_max)]


def _gaps(numbers: "array[int]", start: int, stop: int) -> Iterator[int]:
    """Yield the numbers from `start` up to `stop` that are not there."""
    place = bisect_left(numbers, start)
    while start < stop:
        # As long as no number is missing they grow by one, as their places do.
        first, base = place, start - place
        place = bisect_right(range(len(numbers)), base, first, key=lambda at: numbers[at] - at)
        start += place - first
        following = min(stop, numbers[place]) if place < len(numbers) else stop
        yield from range(start, following)
        start = max(start, following)


def sound(text: str) -> str:
    """Return text that UTF-8 can say: from a damaged file there may be half a character in it."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def shown(note: LetterNote) -> str:
    """Return as much of a reason as is shown as an example."""
    return sound(note.reason[:REASON_CHARACTERS_MAX])
