"""Schedules that fire once, however many workers there are and whatever becomes of them.

What has fired is kept in the topic `segue.schedules`; a firing is pushed under a deduplication key
made of the schedule and the moment it was due, and noted then. One worker at a time does so, under
a lock: that saves work, the key and the note are what makes it once.
"""

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from segue.clock import Clock
from segue.errors import (
    InvalidArgument,
    LockBusy,
    LockLost,
    QueueFull,
)
from segue.stores.contract import HeldLock, Queue, Store
from segue.tasks.envelope import Envelope, write_envelope
from segue.tasks.records import task_id_of
from segue.tasks.schedule import Cron, Every, Missed, due, schedule_from
from segue.tasks.topics import compact, end_of, records_between
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.tasks.app import App

logger = logging.getLogger(__name__)

SCHEDULES_TOPIC: Final = "segue.schedules"
LOCK_SECONDS: Final = 5.0
TICK_SECONDS: Final = 1.0
"""A schedule fires at most this much late, while the worker that fires is there; if it is killed,
another takes its place when its lock ends."""
WINDOW_SECONDS_MIN: Final = 60.0
"""For how long a queue must remember keys: longer than another takes to take over."""
FIRINGS_PER_TICK: Final = 1_000
NOTES_PER_TIDYING: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    """A schedule as the code has it."""

    name: str
    when: Cron | Every
    task: str
    queue: str
    priority: int
    arguments: bytes
    missed: Missed
    group: str = ""

    @property
    def key(self) -> str:
        """What tells it from others, of other versions of the code, too."""
        return f"{self.name} {self.when.text}"


class ScheduleState(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """A schedule as the store knows it. Times are microseconds since 1970."""

    name: str
    when: str
    task: str
    queue: str
    priority: int
    args: msgspec.Raw
    missed: Missed
    group: str = ""
    last_us: int
    """The last moment that was dealt with: nothing at or before it fires again."""
    fired_us: int = 0
    """The last moment that fired."""
    fired: int = 0
    """How often it has fired."""
    last_id: str = ""
    """The task that fired last."""

    @property
    def key(self) -> str:
        """What tells it from others, of other versions of the code, too."""
        return f"{self.name} {self.when}"


class ScheduleBook:
    """What is known of the schedules of a store. Not for two threads at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: dict[str, ScheduleState] = {}
        self._next = 0
        self._notes = 0

    def states(self) -> dict[str, ScheduleState]:
        """Return every schedule by its key, as it is now.

        One whose time was changed in the code is another: two versions that run side by side each
        keep to their own.
        """
        topic = self._store.topic(SCHEDULES_TOPIC)
        end = end_of(topic)
        for record in records_between(topic, self._next, end):
            self._take_in((record.key or b"").decode(errors="replace"), record.value)
        self._next = max(self._next, end)
        return self._states

    def _take_in(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._states.pop(name, None)
            return
        try:
            state = msgspec.json.decode(value, type=ScheduleState)
        except ValueError:
            return  # Written by somebody else.
        known = self._states.get(name)
        if known is not None and known.last_us > state.last_us:
            return  # Noted by one who had the lock before and was slow to say so.
        self._states[name] = state

    def note(self, state: ScheduleState) -> None:
        """Keep how a schedule stands."""
        topic = self._store.topic(SCHEDULES_TOPIC)
        topic.append(msgspec.json.encode(state), key=state.key)
        self._notes += 1
        if self._notes % NOTES_PER_TIDYING == 0:
            compact(topic)

    def remove(self, name: str) -> bool:
        """Forget a schedule, with all the times it has had; tell whether it was there."""
        found = [state for state in self.states().values() if state.name == name]
        for state in found:
            self._store.topic(SCHEDULES_TOPIC).append(None, key=state.key)
        return bool(found)


class Scheduler:
    """Fires the schedules of an App, while it is the one to do so. For one thread."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._clock: Clock = app.clock
        self._book = ScheduleBook(app.store)
        names = "\n".join(sorted(app.schedules))
        digest = blake2b(names.encode(), digest_size=8).hexdigest()
        self._lock = app.store.lock(f"segue.schedules.{digest}", ttl=LOCK_SECONDS)
        self._held: HeldLock | None = None
        self._began: set[str] = set()

    def tick(self) -> float:
        """Fire what is due; return after how many seconds to look again."""
        if not self._app.schedules:
            return TICK_SECONDS
        if not self._leads():
            return TICK_SECONDS
        states = self._book.states()
        for entry in self._app.schedules.values():
            state = states.get(entry.key)
            if state is None or _differs(entry, state) or entry.key not in self._began:
                state = self._register(entry, state, _last_of(entry.name, states))
                self._began.add(entry.key)
            self._fire_due(entry, state)
        return TICK_SECONDS

    def _leads(self) -> bool:
        if self._held is not None:
            try:
                self._held.renew()
            except LockLost:
                self._held = None
            else:
                return True
        try:
            self._held = self._lock.acquire(wait=0)
        except LockBusy:
            return False
        return True

    def _register(
        self, entry: ScheduleEntry, known: ScheduleState | None, last_us: int
    ) -> ScheduleState:
        """Note a schedule that is new, and begins now; or that the code has changed.

        One that had another time in between goes on where that one ended.
        """
        state = ScheduleState(
            name=entry.name,
            when=entry.when.text,
            task=entry.task,
            queue=entry.queue,
            priority=entry.priority,
            args=msgspec.Raw(entry.arguments),
            missed=entry.missed,
            group=entry.group,
            last_us=max(known.last_us, last_us) if known is not None else self._clock(),
            fired_us=known.fired_us if known is not None else 0,
            fired=known.fired if known is not None else 0,
            last_id=known.last_id if known is not None else "",
        )
        if state != known:
            self._book.note(state)
        return state

    def _fire_due(self, entry: ScheduleEntry, state: ScheduleState) -> None:
        found = due(
            entry.when,
            last_us=state.last_us,
            now_us=self._clock(),
            missed=entry.missed,
            limit=FIRINGS_PER_TICK,
        )
        if found.last_us == state.last_us:
            return
        queue = self._app.queue_for(entry.queue)
        last_us = state.last_us
        try:
            for firing_us in found.firings:
                if self._held is None or not self._held.is_held:
                    return  # Somebody else goes on, from what is noted.
                state = msgspec.structs.replace(
                    state,
                    last_id=fire(queue, state, key=f"schedule:{entry.name}:{firing_us}"),
                    fired=state.fired + 1,
                    fired_us=firing_us,
                    last_us=firing_us,
                )
            state = msgspec.structs.replace(state, last_us=found.last_us)
        except QueueFull as error:
            logger.warning("not fired yet schedule=%s reason=%s", entry.name, error)
        finally:
            if state.last_us != last_us:
                self._book.note(state)

    def close(self) -> None:
        """Let others fire."""
        held, self._held = self._held, None
        if held is not None:
            try:
                held.release()
            except LockLost:
                return


def fire(queue: Queue, state: ScheduleState, *, key: str | None = None) -> str:
    """Queue what a schedule says, and return the id of the task."""
    body = write_envelope(Envelope(state.task, state.args, schedule=state.name))
    message_id = queue.push(body, priority=state.priority, key=key, group=state.group or None)
    return task_id_of(queue.name, message_id)


def require_window(name: str, window: float | None) -> None:
    """Raise InvalidArgument if a queue forgets keys too soon to fire a schedule once."""
    if window is not None and window < WINDOW_SECONDS_MIN:
        raise InvalidArgument(
            f"schedule {name}: the calls of its queue are unique for {window:g} s, and a schedule "
            f"needs {WINDOW_SECONDS_MIN:g} s to fire once; give it another queue="
        )


def next_firing_us(state: ScheduleState, now_us: int) -> int | None:
    """Return when a schedule fires next, if it ever does."""
    return schedule_from(state.when).after(max(state.last_us, now_us))


def _last_of(name: str, states: Mapping[str, ScheduleState]) -> int:
    """Return the last moment that was dealt with for a schedule, at whatever time it had."""
    return max((state.last_us for state in states.values() if state.name == name), default=0)


def _differs(entry: ScheduleEntry, state: ScheduleState) -> bool:
    return (
        entry.group != state.group
        or entry.task != state.task
        or entry.queue != state.queue
        or entry.priority != state.priority
        or entry.missed != state.missed
        or entry.arguments != bytes(state.args)
    )
