"""Pushing: what is checked before a message is sent, and waiting for room."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from segue.delivery.message import Body, MessageId
from segue.errors import BatchTooLarge, InvalidArgument, QueueFull, SegueError
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.contract import Item
from segue.stores.redis.calls import Refusal, Word
from segue.stores.redis.items import (
    BATCH_BYTES_MAX,
    Parcel,
    check_size,
    id_from_wire,
    parcel_of,
)
from segue.stores.redis.waiting import Patience, seconds_of

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore

ITEMS_PER_CALL_MAX: Final = 100_000
"""How many messages one call pushes: the server does nothing else meanwhile."""

_BYTES: Final = {bytes}


class Pusher:
    """Pushes to one queue. Safe from any thread."""

    def __init__(
        self, store: "RedisStore", name: str, base: str, change: Callable[..., object]
    ) -> None:
        self._store = store
        self._name = name
        self._base = base
        self._change = change

    def push(self, items: Iterable[Item | Body], wait: Duration | None) -> list[MessageId]:
        """Push all items or none; return their ids."""
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise InvalidArgument("push_many takes several items; push takes one")
        duration_us(wait, name="wait")
        taken = items if isinstance(items, list) else list(items)
        if not taken:
            return []
        if set(map(type, taken)) == _BYTES:
            return self.push_plain(0, cast("list[bytes]", taken), wait)
        parcels = [parcel_of(item if isinstance(item, Item) else Item(body=item)) for item in taken]
        priority = parcels[0][0]
        if all(_is_plain(parcel, priority) for parcel in parcels):
            return self.push_plain(priority, [parcel[-1][4:] for parcel in parcels], wait)
        return self.push_parcels(parcels, wait)

    def push_plain(
        self, priority: int, bodies: list[bytes], wait: Duration | None
    ) -> list[MessageId]:
        """Push bodies of one priority that have nothing else to say."""
        _check_batch(list(map(len, bodies)))
        first = cast("int", self._pushed("push_plain", [priority, *bodies], wait))
        if first == 0:
            self._note_new()
        ids = [f"{priority}-{offset}" for offset in range(first, first + len(bodies))]
        return cast("list[MessageId]", ids)

    def push_parcels(self, parcels: list[Parcel], wait: Duration | None) -> list[MessageId]:
        """Push messages that are laid out already."""
        _check_batch([len(parcel[4]) for parcel in parcels])
        words = [word for parcel in parcels for word in parcel]
        ids = cast("list[bytes]", self._pushed("push", words, wait))
        if any(_is_first(name) for name in ids):
            self._note_new()
        return [id_from_wire(name) for name in ids]

    def _note_new(self) -> None:
        """Note the queue again: it may be made anew, by us, after somebody else removed it."""
        with suppress(SegueError):  # What was pushed is; the next push notes it.
            self._store.register("queue", self._name, is_new=True)

    def _pushed(self, function: str, words: Sequence[Word], wait: Duration | None) -> object:
        """Push, waiting for room where the rules say so. Raises QueueFull."""
        self._store.register("queue", self._name)
        patience: Patience | None = None
        waiting: tuple[Word, Word] = ("", 0)
        while True:
            try:
                return self._change(function, *waiting, *words)
            except Refusal as refusal:
                if refusal.code not in ("WAIT", "FULL"):
                    raise
                capacity, is_final = int(refusal.words[0]), refusal.code == "FULL"
                full = QueueFull(queue=self._name, capacity=capacity, is_final=is_final)
                if is_final or (patience is not None and patience.is_over):
                    raise full from None
                if patience is None:
                    patience = Patience(self._store.calls, self._base, wait)
                    if not patience.waiter:
                        raise full from None
                else:
                    patience.wait(seconds_of(int(refusal.words[1])))
                waiting = (patience.waiter, patience.step_us)


def _is_first(name: bytes) -> bool:
    """Tell whether a message is the first of its priority, or of those with a delay."""
    return not name.rpartition(b"-")[2].strip(b"0")


def _is_plain(parcel: Parcel, priority: int) -> bool:
    """Tell whether a message has one priority and a body, and nothing else."""
    return parcel[:4] == (priority, 0, 0, b"") and parcel[4].startswith(b"\0\0\0\0")


def _check_batch(sizes: list[int]) -> None:
    """Raise RecordTooLarge or BatchTooLarge before anything is sent."""
    check_size(max(sizes))
    if len(sizes) > ITEMS_PER_CALL_MAX or sum(sizes) > BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"one push takes {ITEMS_PER_CALL_MAX:,} messages and {BATCH_BYTES_MAX:,} bytes at most"
        )
