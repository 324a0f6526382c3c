"""Dead letters of a queue on a server."""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

from segue.delivery.message import DeadLetter
from segue.errors import Damage
from segue.stores.letters import BATCH, DeadLetters
from segue.stores.message_ids import key_of
from segue.stores.redis.items import key_from_wire, letter_of, wire_id

Ask = Callable[..., object]


class RedisDeadLetters(DeadLetters):
    """The dead letters of one queue. Safe from any thread."""

    def __init__(self, look: Ask, change: Ask) -> None:
        self._look = look
        self._change = change

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that died after the one with that number."""
        while True:
            answer = cast("list[bytes]", self._look("letters", BATCH, number + 1))
            if not answer:
                return
            for name, place, packed in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
                number = int(place)
                with contextlib.suppress(Damage):  # Passed over; `discard` drops it, too.
                    yield letter_of(key_from_wire(name), packed)

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
