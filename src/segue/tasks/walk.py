"""Walking through the messages of queues for the tasks among them, from a place on to a place.

A place says where a list goes on: behind a message of a queue, or behind a record of a finished
task. Whoever asks gets it as text, and gives it back for the next page.
"""

import base64
import binascii
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Final, Literal, cast

import msgspec

from segue.delivery.message import DeadLetter, MessageId
from segue.errors import (
    Damage,
    InvalidArgument,
    LogClosed,
    LogLocked,
    StorageError,
    StoreClosed,
    UnsupportedFormat,
)
from segue.stores.contract import Counts, MessageState, MessageStatus, Queue, Store
from segue.stores.message_ids import key_of
from segue.stores.portions import Page
from segue.stores.queue_base import QueueBase
from segue.tasks.records import TaskRecord, task_id_of
from segue.tasks.standing import as_it_stands, status_of_dead
from segue.tasks.states import State
from segue.values import dataclass

STRETCH: Final = 250
"""How many messages are looked at in one step."""
OTHERS_MAX: Final = 250
"""After how many messages that are no tasks a queue is taken for one without."""
WITHOUT_SECONDS: Final = 10.0
"""For how long a queue is passed over that was met without a task, and has as many messages."""
PLACE_CHARACTERS_MAX: Final = 2_000
LETTER_NUMBER_MAX: Final = 1 << 53
"""Beyond which Redis would not tell numbers apart."""

UNREADABLE: Final = (StoreClosed, LogClosed, Damage, StorageError, UnsupportedFormat, LogLocked)
"""What is raised by one queue alone: it was removed meanwhile, or is damaged."""

Kind = Literal["requested", "leased", "delayed", "ready", "dead", "finished"]

_WALKED: Final[tuple[MessageState, ...]] = ("leased", "delayed", "ready", "dead")
"""In which order a queue's messages are looked at."""
_AS_MESSAGES: Final[dict[State, frozenset[MessageState]]] = {
    State.PROCESSING: frozenset({"leased"}),
    State.RETRYING: frozenset({"delayed", "ready"}),
    State.SCHEDULED: frozenset({"delayed"}),
    State.PENDING: frozenset({"ready"}),
    State.DEAD_LETTER: frozenset({"dead"}),
}
_WAITING: Final = frozenset({State.PENDING, State.SCHEDULED, State.RETRYING})

Known = Callable[[Sequence[str]], Mapping[str, TaskRecord]]
"""Returns what events say of some tasks."""
Without = dict[tuple[str, tuple[MessageState, ...]], tuple[Counts, float]]
"""Queues in whose messages of some states no task was met: how many there were, and until when by
the monotonic clock that is believed while they are as many."""
MayOpen = Callable[[str], bool]
"""Tells whether a queue may be opened just to be looked at."""


def any_queue(_: str) -> bool:
    """Have every queue count."""
    return True


# Places --------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a list goes on."""

    kind: Kind
    queue: str = ""
    after: str = ""
    """The message before, or the task before: empty at the beginning of a kind."""
    number: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] = -1
    """Of the dead letter before; or when the finished task before changed last."""

    def text(self) -> str:
        """Return the place as it is handed out."""
        return base64.urlsafe_b64encode(_encode(self)).rstrip(b"=").decode()


def place_from(text: str) -> Place:
    """Return the place that `text` stands for. Raises InvalidArgument."""
    try:
        if len(text) > PLACE_CHARACTERS_MAX:
            raise ValueError("too long")
        data = text.encode("ascii")
        padded = data + b"=" * (-len(data) % 4)
        place = _DECODER.decode(base64.b64decode(padded, b"-_", validate=True))
        if place.after and place.kind in ("leased", "delayed", "ready"):
            key_of(place.after)
        if place.kind == "dead" and not -1 <= place.number < LETTER_NUMBER_MAX:
            raise ValueError("no number of a letter")
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidArgument(f"after is no place in a list: {text[:100]!r}") from error
    return place


_encode: Final = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder(Place)


# Walking -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is met on the way through some queues."""

    store: Store
    queues: Sequence[str]
    """Their names, in order."""
    states: tuple[State, ...]
    known: Known
    requested: Mapping[str, int]
    """Which tasks are to be cancelled, and when they were pushed."""
    stretch: int = STRETCH
    may_open: MayOpen = any_queue
    """Queues that may not be opened are passed over."""
    has_tasks: Callable[[str], bool] = any_queue
    """Tells which queues hold tasks for sure. Others are left if their first messages are none."""
    without: Without = field(default_factory=dict)
    """What earlier walks learned, for the next ones."""

    def steps(
        self, start: Place | None, *, most: int | None = None
    ) -> Iterator[tuple[Place, TaskRecord | None]]:
        """Yield the place behind each message, and the task that it is; None if it is none.

        Of each queue's messages of one kind at most `most`. What moves meanwhile from one kind to
        another may be met twice, or not at all.
        """
        may_be_requested = start is None or start.kind == "requested"
        if may_be_requested and State.CANCELLED in self.states:
            if not _WAITING.intersection(self.states):  # Else they are met among those.
                yield from self._requested("" if start is None else start.after)
            start = None
        kinds = kinds_of(self.states)
        for name in self.queues if kinds else ():
            if (start is not None and name < start.queue) or not self.may_open(name):
                continue
            begin = start if start is not None and name == start.queue else None
            try:
                yield from self._queue(name, kinds, begin, most)
            except UNREADABLE:
                continue  # The others are there all the same.

    def _queue(
        self,
        name: str,
        kinds: Sequence[MessageState],
        begin: Place | None,
        most: int | None,
    ) -> Iterator[tuple[Place, TaskRecord | None]]:
        queue = self.store.queue(name)
        counts = queue.count()
        behind = Place("leased", name + "\0")  # And before all others.
        key = name, tuple(kinds)
        before, until = self.without.get(key, (None, 0.0))
        is_believed = before == counts and time.monotonic() < until
        if begin is None and is_believed and not self.has_tasks(name):
            yield behind, None
            return
        has_any = begin is not None
        for kind in kinds:
            if begin is not None and _WALKED.index(kind) < _WALKED.index(_walked(begin.kind)):
                continue
            place = begin if begin is not None and begin.kind == kind else Place(kind, name)
            looked = others = 0
            while count_of(counts, kind) and (most is None or looked < most):
                found = _stretch(queue, name, place, self.stretch)
                if not found:
                    break
                looked += len(found)
                steps = list(self._tasks(name, found))
                yield from steps
                has_any = has_any or any(record is not None for _, record in steps)
                place = found[-1][0]
                others += sum(record is None for _, record in steps)
                # Else millions of other messages would lie before the tasks of the next queue.
                if looked == others >= OTHERS_MAX and not self.has_tasks(name):
                    break
        if not has_any:
            self.without[key] = counts, time.monotonic() + WITHOUT_SECONDS
        yield behind, None

    def _tasks(
        self, name: str, found: list[tuple[Place, MessageStatus]]
    ) -> Iterator[tuple[Place, TaskRecord | None]]:
        ids = [task_id_of(name, status.message.id) for _, status in found]
        known = self.known(ids)
        for task_id, (place, status) in zip(ids, found, strict=True):
            try:
                record = as_it_stands(task_id, status, known.get(task_id), self.requested)
            except InvalidArgument:
                yield place, None  # A message that is no task.
            else:
                yield place, record

    def _requested(self, after: str) -> Iterator[tuple[Place, TaskRecord | None]]:
        """Yield what is to be cancelled and was not met yet: far fewer than what waits."""
        queues = frozenset(self.queues)
        ids = sorted(
            task_id
            for task_id in self.requested
            if task_id > after and task_id.partition("/")[0] in queues
        )
        known = self.known(ids)
        for task_id in ids:
            yield Place("requested", "", task_id), self._still_waiting(task_id, known.get(task_id))

    def _still_waiting(self, task_id: str, known: TaskRecord | None) -> TaskRecord | None:
        if (
            known is not None
            and known.pushed_us == self.requested[task_id]
            and known.state in (State.COMPLETED, State.CANCELLED, State.DEAD_LETTER)
        ):
            return None  # The request came too late; to look it up could take long.
        name, _, message_id = task_id.partition("/")
        if not self.may_open(name):
            return None
        try:
            status = self.store.queue(name).look_up(MessageId(message_id))
            if status is None:
                return None
            return as_it_stands(task_id, status, known, self.requested)
        except (InvalidArgument, *UNREADABLE):
            return None


def kinds_of(states: Sequence[State]) -> list[MessageState]:
    """Return which messages may be tasks in these states, in the order they are looked at."""
    kinds = {kind for state in states for kind in _AS_MESSAGES.get(state, ())}
    if State.CANCELLED in states and _WAITING.intersection(states):
        kinds |= {"delayed", "ready"}
    return [kind for kind in _WALKED if kind in kinds]


def _walked(kind: Kind) -> MessageState:
    return "leased" if kind in ("requested", "finished") else cast("MessageState", kind)


def count_of(counts: Counts, kind: MessageState) -> int:
    """Return how many messages are in a state."""
    return cast("int", getattr(counts, kind))


def _stretch(
    queue: Queue, name: str, behind: Place, most: int
) -> list[tuple[Place, MessageStatus]]:
    """Return some messages behind a place, each with the place behind it."""
    kind = _walked(behind.kind)
    if kind == "dead":
        # By number: to find the place behind an id, the queue goes through all of them.
        page = Page[DeadLetter](most)
        page.fill(cast("QueueBase", queue).letters.behind(behind.number))
        return [
            (Place("dead", name, "", letter.number), status_of_dead(letter))
            for letter in page.found
        ]
    after = MessageId(behind.after) if behind.after else None
    found = queue.browse(state=kind, limit=most, after=after)
    return [(Place(kind, name, status.message.id), status) for status in found]
