"""Dead letters of a queue behind a server, and what it keeps of its past."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from segue.delivery.message import DeadLetter, Message
from segue.delivery.priority import Priority, priority_from
from segue.delivery.topic_record import moment_us
from segue.errors import StoreUnavailable
from segue.stores.http.calls import LONG_SECONDS, Calls
from segue.stores.http.wire.queues import (
    LetterJson,
    LetterName,
    Letters,
    MessageJson,
    Number,
    Redrive,
    Redriven,
    Replay,
)
from segue.stores.letters import DeadLetters
from segue.stores.queue_base import Bound

T = TypeVar("T")
Ask = Callable[[], Calls]
"""Returns what asks the server. Raises StoreClosed if the queue was removed here."""


class HttpDeadLetters(DeadLetters):
    """The dead letters of one queue."""

    def __init__(self, ask: Ask, path: str) -> None:
        self._ask = ask
        self._path = f"{path}/dead-letters"

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number.

        Who takes long over each of them is cut off by the server, and goes on behind the last one.
        """

        def listed(last: DeadLetter | None) -> Iterator[DeadLetter]:
            query = {"after": number if last is None else last.number}
            for said in self._ask().lines(f"{self._path}/all", LetterJson, query=query):
                yield said.letter()

        return _going_on(listed)

    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one step, those that are still there; return how many."""
        body = Redrive(letters=_names(letters))
        return self._ask().post(f"{self._path}/redrive", body, Redriven).redriven

    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one step, those that are still there; return how many."""
        body = Letters(letters=_names(letters))
        return self._ask().post(f"{self._path}/discard", body, Number).count

    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""
        path = f"{self._path}/discard"
        return self._ask().post(path, Letters(), Number, takes=LONG_SECONDS).count


class HttpHistory:
    """What a queue still keeps of what was pushed to it."""

    def __init__(self, ask: Ask, path: str) -> None:
        self._ask = ask
        self._path = path

    def messages(self, priority: Priority | None, start: Bound, stop: Bound) -> Iterator[Message]:
        """Yield messages in order of priority, then of pushing; last those pushed with a delay.

        Who takes long over each of them goes on behind the last one, as with dead letters.
        """
        span = _span(priority, start, stop)

        def listed(last: Message | None) -> Iterator[Message]:
            query = {**span, "after": None if last is None else last.id}
            for said in self._ask().lines(f"{self._path}/history", MessageJson, query=query):
                yield said.message()

        return _going_on(listed)

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt; return how many."""
        body = Replay(**_span(priority, start, stop))
        answer = self._ask().post(f"{self._path}/replay", body, Number, takes=LONG_SECONDS)
        return answer.count


def _going_on(listed: Callable[[T | None], Iterator[T]]) -> Iterator[T]:
    """Yield what is listed behind the last one that came, whenever a list breaks off.

    Raises StoreUnavailable if it does so before anything came of it.
    """
    last: T | None = None
    while True:
        begun = last
        try:
            for each in listed(last):
                last = each
                yield each
        except StoreUnavailable:
            if last is begun:
                raise
        else:
            return


def _span(priority: Priority | None, start: Bound, stop: Bound) -> dict[str, int]:
    span: dict[str, int] = {}
    if priority is not None:
        span["priority"] = priority_from(priority)
    for name, bound in (("start", start), ("stop", stop)):
        if isinstance(bound, datetime):
            span[f"{name}_us"] = moment_us(bound, name=name)
        elif bound is not None:
            span[name] = bound
    return span


def _names(letters: list[DeadLetter]) -> list[LetterName]:
    return [LetterName(id=letter.message.id, number=letter.number) for letter in letters]
