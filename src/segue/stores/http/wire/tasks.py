"""Tasks, schedules and workers: what is asked of them, and what is answered.

Of tasks there is no code here: arguments and results are JSON that nobody reads on the way.
"""

from typing import Literal

import msgspec

from segue.errors import InvalidArgument
from segue.stores.http.wire.base import Answer, Raw, Wire

TaskState = Literal[
    "pending", "scheduled", "processing", "retrying", "completed", "dead_letter", "cancelled"
]

# What is sent --------------------------------------------------------------------------------


class EnqueueTask(Wire):
    """A call of a task to queue: one of `args` and `kwargs`, or neither."""

    task: str
    args: Raw = msgspec.Raw(b"")
    """A list by position or an object by name."""
    kwargs: Raw = msgspec.Raw(b"")
    """An object by name."""
    priority: int | None = None
    delay: float | None = None
    at_us: int | None = None
    """Run it not before this moment."""
    ttl: float | None = None
    key: str | None = None
    """Run it one after another with others of this key."""
    unique: str | None = None
    """Queue nothing if a call of this name was queued a short while ago."""
    retries: int | None = None
    timeout: float | None = None
    headers: dict[str, str] | None = None

    def arguments(self) -> Raw:
        """Return the arguments, to the letter. Raises InvalidArgument."""
        args, kwargs = bytes(self.args).strip(), bytes(self.kwargs).strip()
        if args and kwargs:
            raise InvalidArgument("a call has args or kwargs, not both")
        if kwargs and not kwargs.startswith(b"{"):
            raise InvalidArgument("kwargs is an object by name")
        if args and not args.startswith((b"[", b"{")):
            raise InvalidArgument("args is a list by position, or an object by name")
        return msgspec.Raw(args or kwargs or b"{}")


# What is answered ----------------------------------------------------------------------------


class Queued(Answer):
    """A call that was queued."""

    id: str
    task: str


class TaskJson(Answer):
    """A task at one moment; null is not yet, or not at all."""

    id: str
    task: str
    queue: str
    state: TaskState
    attempt: int
    pushed_us: int | None
    due_us: int | None
    started_us: int | None
    finished_us: int | None
    updated_us: int | None
    wait_seconds: float | None
    """How long it waited for its start."""
    run_seconds: float | None
    """How long it ran."""
    worker: str | None
    schedule: str | None
    error: str | None
    traceback: str | None
    args: Raw = msgspec.Raw(b"null")
    """Null where they were too long to repeat."""
    progress: Raw = msgspec.Raw(b"null")
    result: Raw = msgspec.Raw(b"null")


class Tasks(Answer):
    """Tasks: those that are not finished first, then the finished, the latest first."""

    tasks: list[TaskJson]
    next: str | None = None
    """What to say as `after` for the next page; null at the end. A page may be empty before."""
    behind: int = 0
    """How many events are still to be taken in: what they say is not among these tasks yet."""


class StateCounts(Answer):
    """How many tasks are in which state."""

    pending: int
    scheduled: int
    processing: int
    retrying: int
    completed: int
    dead_letter: int
    cancelled: int


class TaskCountsJson(Answer):
    """How many tasks of one name are in which state, as far as events say it."""

    task: str
    states: dict[TaskState, int]
    """Those with any."""


class Counted(Answer):
    """How many tasks there are."""

    states: StateCounts
    tasks: list[TaskCountsJson]
    """Those with most first, at most a hundred."""
    behind: int
    """How many events are still to be taken in."""
    more_queues: int
    """How many queues nobody has looked at yet: their waiting tasks are not among these."""


class TaskEventJson(Answer):
    """Something that happened to a task."""

    at_us: int
    happened: Literal[
        "processing",
        "completed",
        "retrying",
        "dead_letter",
        "cancelled",
        "pending",
        "progress",
        "lost",
    ]
    """A state that began; progress; or that what was said last did not count."""
    attempt: int
    worker: str
    error: str
    traceback: str
    due_us: int | None
    """When it was to be tried again."""
    progress: Raw = msgspec.Raw(b"null")


class TaskEvents(Answer):
    """What happened to a task, in its order."""

    events: list[TaskEventJson]
    """Of many the first 16 and the last 48; of progress only the last."""
    is_whole: bool
    """Whether none is missing, but for progress."""


class Cancelled(Answer):
    """Whether a task was not finished yet."""

    cancelled: bool


class Retried(Answer):
    """Whether a task was a dead letter, and is brought back."""

    retried: bool


class ScheduleJson(Answer):
    """A schedule that workers have met."""

    name: str
    when: str
    task: str
    queue: str
    priority: int
    missed: str
    fired: int
    """How often it has fired."""
    fired_us: int | None
    """The last moment that fired."""
    next_us: int | None
    """When it fires next, if a worker is there whose App still has it."""
    last_id: str | None
    """The task that fired last."""
    args: Raw = msgspec.Raw(b"{}")


class Schedules(Answer):
    """The schedules there are."""

    schedules: list[ScheduleJson]


class Fired(Answer):
    """A task that was queued by hand."""

    schedule: str
    task: str
    id: str


class SlotJson(Answer):
    """One slot of a worker."""

    number: int
    state: str
    seconds: float
    """For how long it has been in that state."""
    task: str
    id: str
    pid: int


class DecisionJson(Answer):
    """Something the autoscaler did, and why."""

    at_us: int
    before: int
    after: int
    reason: str


class WorkerJson(Answer):
    """A worker, as it last told of itself."""

    worker: str
    host: str
    pid: int
    kind: str
    state: str
    """running or draining"""
    at_us: int
    started_us: int
    queues: list[str]
    size: int
    busy: int
    min: int
    max: int
    slots: list[SlotJson]
    decisions: list[DecisionJson]
    standing: str
    """Why the autoscaler does nothing just now."""
    is_safe_to_stop: bool
    """Whether stopping it now would interrupt nothing and leave nothing waiting."""
    given_up: int
    per_second: float


class Workers(Answer):
    """The workers that are there."""

    workers: list[WorkerJson]
    silent: list[WorkerJson]
    """Those that said nothing for over ten seconds, and not that they stop; for ten minutes."""
