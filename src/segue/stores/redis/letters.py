"""Dead letters of a queue on a server."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, cast

from segue.delivery.message import DeadLetter
from segue.errors import Damage
from segue.stores.letters import BATCH, DeadLetters, runs_of
from segue.stores.message_ids import key_of
from segue.stores.redis.items import key_from_wire, letter_of, wire_id

if TYPE_CHECKING:
    from segue.stores.redis.tables import QueueTable

NUMBER_MAX: Final = 1 << 53
"""Beyond which the server would not tell numbers apart."""

Ask = Callable[..., object]


class RedisDeadLetters(DeadLetters):
    """The dead letters of one queue. Safe from any thread."""

    def __init__(self, look: Ask, change: Ask, table: "QueueTable") -> None:
        self._look = look
        self._change = change
        self._table = table

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that died after the one with that number."""
        while True:
            answer = self._some(BATCH, number + 1)
            if not answer:
                return
            for name, place, packed in answer:
                number = int(place)
                with contextlib.suppress(Damage):  # Passed over; `discard` drops it, too.
                    yield letter_of(key_from_wire(name), packed)

    def at(self, numbers: Iterable[int]) -> Iterator[DeadLetter]:
        """Yield those with these numbers, which are in order, that are still there."""
        for number in numbers:
            for name, place, packed in self._some(1, number):
                if int(place) == number:
                    with contextlib.suppress(Damage):
                        yield letter_of(key_from_wire(name), packed)

    def _some(self, count: int, first: int) -> list[tuple[bytes, bytes, bytes]]:
        """Return the id, number and letter of some, from a number on."""
        answer = cast("list[bytes]", self._look("letters", count, first))
        return list(zip(answer[::3], answer[1::3], answer[2::3], strict=True))

    def numbers(self) -> list[tuple[int, int]]:
        """Return the numbers of those that are there now, as runs: (start, stop), in order."""
        return runs_of(self._table.numbers(0, NUMBER_MAX))

    def newest(self) -> int:
        """Return the highest number there is, or was; -1 if there never was one."""
        return self._table.size().dead_end - 1

    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one step, those that are still there; return how many."""
        return cast("int", self._change("revive", *_named(letters)))

    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one step, those that are still there; return how many."""
        return cast("int", self._change("discard", *_named(letters)))

    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""
        return cast("int", self._change("discard"))


def _named(letters: list[DeadLetter]) -> list[str | int]:
    words: list[str | int] = []
    for letter in letters:
        words += (wire_id(*key_of(letter.message.id)), letter.number)
    return words
