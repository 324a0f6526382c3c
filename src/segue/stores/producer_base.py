"""What a producer does in the same way wherever its topic is kept."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

from segue.delivery.message import Body
from segue.delivery.topic_record import SEQUENCE_MAX, Appended, Event, Key, Moment
from segue.errors import InvalidArgument, StoreClosed


class ProducerBase(ABC):
    """The part of a producer that stands on its other calls alone."""

    def append(
        self,
        value: Body | None,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: Moment | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Appended | None:
        """Append a record, or return None if it is there already."""
        event = Event(
            value=value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        return self.append_many([event], first_sequence=sequence)[0]

    @abstractmethod
    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""

    @abstractmethod
    def close(self) -> None:
        """Let others use the name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def checked_sequence(sequence: int | None) -> int:
    """Return a sequence number that can be one. Raises InvalidArgument."""
    if type(sequence) is not int or not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgument(f"sequence must be a whole number, not negative: {sequence!r}")
    return sequence


class Renewable(Protocol):
    """Has a name for a while, and for longer if it is renewed."""

    def renew(self) -> None: ...


def renewal_of(producer: Renewable) -> Callable[[], None]:
    """Return what keeps a name for as long as its producer is in use: who drops one frees it."""
    seen = weakref.ref(producer)

    def beat() -> None:
        user = seen()
        if user is None:
            raise StoreClosed("the producer was dropped")
        user.renew()

    return beat
