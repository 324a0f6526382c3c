"""How many dead letters of one queue died of what, kept up to date in small steps.

Letters that came are read once. Who left is found out only when the count says that somebody did,
by the numbers of those that are there: none is read again.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, cast

from segue.server.letter_index import LetterGroup, LetterIndex
from segue.stores.contract import Queue
from segue.stores.letters import DeadLetters, LetterNote, note_of
from segue.stores.queue_base import QueueBase

BATCH: Final = 256
"""How many letters are taken in before it is looked whether the step is over."""
LOOKED_AT_MAX: Final = 20
"""How many letters that nobody told of are read, to see whether they can be."""


class Tally:
    """Of one queue. Stepped by one thread, and asked by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._index = LetterIndex()
        self._seen = -1
        self._unreadable = 0
        self._is_full = False
        self._full_at = (-1, -1)
        """How many letters there were when it was last looked who left, and the newest of them."""
        self._notes: Iterator[LetterNote] | None = None
        self._notes_end = -1

    def __len__(self) -> int:
        return len(self._index)

    @property
    def seen(self) -> int:
        """Up to which number all letters that can be read are known."""
        return self._seen

    @property
    def is_full(self) -> bool:
        """Whether there are more letters than may be known."""
        return self._is_full

    def groups(self) -> list[LetterGroup]:
        """Return the groups there are, most letters first, those not told apart last."""
        with self._lock:
            return [replace(group) for group in self._index.groups()]

    def numbers_of(
        self, *, cause: str | None, pattern: str | None, after: int, upto: int, count_max: int
    ) -> list[int]:
        """Return the numbers of letters that may be of a cause and pattern, in order."""
        with self._lock:
            return self._index.numbers_of(
                cause=cause, pattern=pattern, after=after, upto=upto, count_max=count_max
            )

    # For the one thread --------------------------------------------------------------------

    def step(self, queue: Queue, *, letters_max: int, is_over: Callable[[], bool]) -> bool:
        """Do some work, until `is_over`; tell whether all is as it was when the round began.

        Raises what the queue raises; then `break_off`, and the next step begins a round.
        """
        letters = cast("QueueBase", queue).letters
        if self._notes is None:
            if not self._is_same(letters):
                self.start_over()
            newest = letters.newest()
            if newest > self._seen and len(self._index) < letters_max:
                self._is_full = False
                self._notes, self._notes_end = letters.notes(self._seen), newest
        if self._notes is not None and not self._take(self._notes, letters_max, is_over):
            return False
        return self._see_who_left(queue, letters)

    def break_off(self) -> None:
        """End a round in the middle: what is known stays."""
        self._notes = None

    def start_over(self) -> None:
        """Forget everything: these are other letters, of a queue that was made anew."""
        self.break_off()
        with self._lock:
            self._index = LetterIndex()
            self._seen = -1
            self._unreadable = 0
            self._full_at = (-1, -1)
            self._is_full = False

    def _is_same(self, letters: DeadLetters) -> bool:
        """Tell whether the last letter that is known is the one that has its number now."""
        last = self._index.last
        found = None if last is None else next(letters.at([last[0]]), None)
        return found is None or last is None or found.died_us == last[1]

    def _take(
        self, notes: Iterator[LetterNote], letters_max: int, is_over: Callable[[], bool]
    ) -> bool:
        """Take in letters; tell whether the round has no more of them."""
        while True:
            room = letters_max - len(self._index)
            batch = _up_to(notes, self._notes_end, min(BATCH, max(0, room)))
            with self._lock:
                self._index.add(batch)
                self._seen = max(self._seen, batch[-1].number if batch else -1)
            if room <= len(batch):
                self._is_full = self._seen < self._notes_end
                break
            if len(batch) < BATCH:
                with self._lock:
                    self._seen = max(self._seen, self._notes_end)
                break
            if is_over():
                return False
        self.break_off()
        return True

    def _see_who_left(self, queue: Queue, letters: DeadLetters) -> bool:
        """Know nobody who is not there; tell whether it is the same queue still."""
        dead, newest = queue.count().dead, letters.newest()
        if self._has_all(dead, newest):
            return True
        runs = letters.numbers()
        index = self._index.kept(runs)
        unknown = index.unknown(runs, self._seen, LOOKED_AT_MAX)
        if unknown.count > self._unreadable and next(letters.at(unknown.some), None) is not None:
            self.start_over()  # Numbers never come back.
            return False
        for group, number in index.without_example():
            group.example = next(map(note_of, letters.at([number])), None)
        with self._lock:
            self._index = index
            self._unreadable = unknown.count
            self._full_at = dead, newest
        if self._is_same(letters):
            return True
        self.start_over()
        return False

    def _has_all(self, dead: int, newest: int) -> bool:
        """Tell whether nobody left, by how many letters there are; some may have come just now."""
        if self._is_full:
            return (dead, newest) == self._full_at
        came = dead - len(self._index) - self._unreadable
        return came == 0 or 0 < came == newest - self._seen


def _up_to(notes: Iterator[LetterNote], end: int, count: int) -> list[LetterNote]:
    """Return the next few: fewer only if there are no more with numbers up to `end`."""
    found: list[LetterNote] = []
    while len(found) < count:
        note = next(notes, None)
        if note is None or note.number > end:
            break
        found.append(note)
    return found
