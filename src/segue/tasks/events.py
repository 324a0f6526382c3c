"""What happens to tasks, as events in a topic: the log that everything else is derived from.

A push is an event of its queue and a lease one of its ledger, so that these need none here. What a
worker knows and the queue does not (a result, an error, how long it took) is one event of the
topic `segue.tasks`, durable before the message is settled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Final, Literal

import msgspec

from segue.delivery.topic_record import Event
from segue.delivery.topic_rules import TopicRules
from segue.errors import Damage, OffsetOutOfRange, RecordRemoved, TopicNotFound
from segue.stores.contract import Store
from segue.stores.topic_contract import Topic
from segue.tasks.topics import end_of, place_of, records_between

TASKS_TOPIC: Final = "segue.tasks"
TRACEBACK_CHARACTERS_MAX: Final = 8_000
ERROR_CHARACTERS_MAX: Final = 1_000
ARGUMENTS_BYTES_MAX: Final = 4_096
"""Longer arguments are not repeated in events; a dead letter has them anyway."""
KEEP_SECONDS_DEFAULT: Final = 7 * 86_400.0

NOTHING: Final = msgspec.Raw(b"")

Happening = Literal[
    "processing", "completed", "retrying", "dead_letter", "cancelled", "pending", "progress", "lost"
]
"""A state that begins; or progress within one; or that what was said last did not count, because
the lease was lost by then."""

Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""What fits in a column of the index, also with a week added to it: anybody may append."""


class TaskEvent(msgspec.Struct, omit_defaults=True, frozen=True):
    """Something that happened to a task. Times are microseconds since 1970."""

    id: str
    happened: Happening
    at_us: Number
    task: str = ""
    attempt: Number = 0
    pushed_us: Number = 0
    started_us: Number = 0
    worker: str = ""
    error: str = ""
    traceback: str = ""
    result: msgspec.Raw = NOTHING
    progress: msgspec.Raw = NOTHING
    due_us: Number = 0
    """When it is tried again."""
    expires_us: Number = 0
    """When its record may be forgotten."""
    args: msgspec.Raw = NOTHING
    schedule: str = ""


def write_event(event: TaskEvent) -> Event:
    """Return an event as a record to append, under the id of its task."""
    return Event(value=_ENCODER.encode(event), key=event.id)


def read_event(value: bytes | None) -> TaskEvent | None:
    """Return the event a record holds, or None if it holds none: anybody may append."""
    try:
        return None if value is None else _DECODER.decode(value)
    except (ValueError, RecursionError):
        return None


class EventLog:
    """The topic of all events. Safe from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.topic: Topic = store.topic(TASKS_TOPIC)

    def prepare(self, keep_seconds: float) -> None:
        """Have the topic, and have it keep events for so long at least."""
        exists = TASKS_TOPIC in self._store.topics()
        rules = self.topic.rules if exists else TopicRules()
        kept = rules.keep_seconds
        if not exists or (kept is not None and kept < keep_seconds):
            self.topic = self._store.topic(
                TASKS_TOPIC,
                partitions=None if exists else 1,
                rules=replace(rules, keep_seconds=keep_seconds),
            )

    def append(self, events: Iterable[TaskEvent]) -> None:
        """Append events in one step; durable as the store's sync says."""
        self.topic.append_many([write_event(event) for event in events])

    def end(self) -> int:
        """Return the offset the next event gets."""
        return end_of(self.topic)

    def earliest(self) -> int:
        """Return the offset of the oldest event that is left, or of the next if there is none."""
        return place_of(self.topic, "earliest")

    def read(self, start: int, stop: int | None = None) -> Iterator[tuple[int, TaskEvent]]:
        """Yield events from `start` on with their offsets; passes over what retention took."""
        for record in records_between(self.topic, start, self.end() if stop is None else stop):
            event = read_event(record.value)
            if event is not None:
                yield record.offset, event

    def at(self, offsets: Iterable[int]) -> Iterator[TaskEvent]:
        """Yield the events at these offsets, but those that retention took."""
        for offset in offsets:
            try:
                # With a stop: without one a thousand would be read to have one.
                records = self.topic.records({0: offset}, stop={0: offset + 1}, max_records=1)
                events = [read_event(record.value) for record in records]
            except (OffsetOutOfRange, RecordRemoved, TopicNotFound, Damage):
                continue
            yield from (event for event in events if event is not None)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(TaskEvent)
