"""Tasks, without any code of theirs: which there are, and what became of them.

A task is a message; `/tasks/{queue}/{message}` is its id. Roles and names go by the queue.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

from segue.delivery.topic_record import MOMENT_US_MAX
from segue.errors import (
    AccessDenied,
    InvalidArgument,
    InvalidName,
    TaskNotFound,
)
from segue.server.call import Call
from segue.server.refusal import Refused
from segue.server.routing import AsyncHandler, Role, Route
from segue.server.task_desk import ExtraMissing
from segue.server.waiting import WAIT_SECONDS_MAX
from segue.stores.http.wire.tasks import (
    Counted,
    StateCounts,
    TaskCountsJson,
    TaskEventJson,
    TaskEvents,
    TaskJson,
    Tasks,
    TaskState,
)

if TYPE_CHECKING:
    from segue.tasks.events import TaskEvent
    from segue.tasks.records import TaskRecord

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 10_000
"""How many tasks one list shows."""
LOOK_SECONDS: Final = 1.0
LOOK_SECONDS_MAX: Final = 5.0
"""How often whoever waits looks whether the message is still there at all: ever less often."""
PRESENCE_SECONDS: Final = 0.5
"""How soon it is noticed that whoever waits has left."""

T = TypeVar("T")


class Filter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to list."""

    state: TaskState | None = None
    task: str | None = None
    queue: str | None = None
    error: str | None = None
    """Only those whose error has this in it."""
    since_us: Annotated[int, msgspec.Meta(ge=0, le=MOMENT_US_MAX)] | None = None
    """Only those that something happened to since."""
    until_us: Annotated[int, msgspec.Meta(ge=0, le=MOMENT_US_MAX)] | None = None
    limit: int = LIMIT_DEFAULT
    after: str | None = None
    """What the page before said as `next`: those behind it."""


class Wait(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long to wait."""

    wait: float = 0


async def needing_tasks(call: Call, step: Callable[[], T]) -> T:
    """Return what `step` returns, from a thread. Raises Refused where tasks are not installed."""
    try:
        return await call.in_thread(step)
    except ExtraMissing as error:
        raise Refused(501, "extra_missing", str(error)) from None


def asking(step: Callable[[Call], object]) -> AsyncHandler:
    """Return a handler that makes `step` in a thread, where tasks are installed."""

    async def handle(call: Call) -> object:
        return await needing_tasks(call, lambda: step(call))

    return handle


def id_of(call: Call) -> str:
    """Return the id of the task that the path names."""
    queue, message = call.names
    return f"{queue}/{message}"


# Looking ---------------------------------------------------------------------------------------


def find(call: Call) -> Tasks:
    """List tasks."""
    asked = call.query(Filter)
    if not 1 <= asked.limit <= LIMIT_MAX:
        raise InvalidArgument(f"limit must be from 1 to {LIMIT_MAX}: {asked.limit}")
    if asked.queue is not None and not call.grant.covers(asked.queue):
        raise AccessDenied(f"the token is not good for queue {asked.queue}")
    desk = call.desk.tasks.desk
    from segue.tasks.states import State

    found, following = desk.page(
        states=() if asked.state is None else (State(asked.state),),
        task=asked.task,
        queue=asked.queue,
        error=asked.error,
        since_us=asked.since_us,
        until_us=asked.until_us,
        limit=asked.limit,
        after=asked.after,
        covers=call.grant.covers if call.grant.is_limited else None,
    )
    return Tasks(
        tasks=[task_json(record) for record in found], next=following, behind=desk.index.behind
    )


def counts(call: Call) -> Counted:
    """Count tasks by state."""
    desk = call.desk.tasks.desk
    found = desk.counts(call.grant.covers)
    return Counted(
        states=StateCounts(**{state.value: count for state, count in found.states.items()}),
        tasks=[
            TaskCountsJson(
                task=task,
                states={state.value: count for state, count in states.items() if count},
            )
            for task, states in found.tasks
        ],
        behind=desk.index.behind,
        more_queues=found.more_queues,
    )


def events(call: Call) -> TaskEvents:
    """Tell what happened to a task."""
    found, is_whole = call.desk.tasks.desk.events(id_of(call))
    return TaskEvents(events=[_event_json(event) for event in found], is_whole=is_whole)


def _event_json(event: "TaskEvent") -> TaskEventJson:
    return TaskEventJson(
        at_us=event.at_us,
        happened=event.happened,
        attempt=event.attempt,
        worker=event.worker,
        error=event.error,
        traceback=event.traceback,
        due_us=event.due_us or None,
        progress=raw_json(bytes(event.progress)),
    )


def show(call: Call) -> TaskJson:
    """Tell all that is known of a task."""
    return task_json(call.desk.tasks.desk.record(id_of(call)))


def task_json(record: "TaskRecord") -> TaskJson:
    """Return a record as it is sent."""
    return TaskJson(
        id=record.id,
        task=record.task,
        queue=record.queue,
        state=record.state.value,
        attempt=record.attempt,
        pushed_us=record.pushed_us or None,
        due_us=record.due_us or None,
        started_us=record.started_us or None,
        finished_us=record.finished_us or None,
        updated_us=record.updated_us or None,
        wait_seconds=record.wait_us / 1_000_000 if record.started_us else None,
        run_seconds=record.run_us / 1_000_000 if record.finished_us else None,
        worker=record.worker or None,
        schedule=record.schedule or None,
        error=record.error or None,
        traceback=record.traceback or None,
        args=raw_json(record.args),
        progress=raw_json(record.progress),
        result=raw_json(record.result),
    )


def raw_json(data: bytes | None) -> msgspec.Raw:
    """Return JSON to the letter; what turns out to be none, as text."""
    if not data:
        return msgspec.Raw(b"null")
    try:
        msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(data.decode(errors="backslashreplace")))
    return msgspec.Raw(data)


async def result(call: Call) -> TaskJson | None:
    """Wait until a task is finished."""
    deadline = time.monotonic() + min(call.query(Wait).wait, WAIT_SECONDS_MAX)
    tasks = call.desk.tasks
    task_id = id_of(call)
    record = await needing_tasks(call, lambda: tasks.desk.record(task_id))
    if not is_finished(record) and time.monotonic() < deadline:
        news = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # Nobody waits any more: the loop is closed.
                loop.call_soon_threadsafe(news.set)

        telling = tasks.watch.telling(task_id, tell)
        await call.in_thread(telling.__enter__)
        try:
            record = await _finished(
                call,
                lambda: call.in_thread(lambda: tasks.desk.record(task_id)),
                news,
                deadline,
            )
        finally:
            telling.__exit__(None, None, None)
    return task_json(record) if is_finished(record) else None


async def _finished(
    call: Call, look: "Callable[[], Awaitable[TaskRecord]]", news: asyncio.Event, deadline: float
) -> "TaskRecord":
    """Look whenever there is news, and now and then; return the last that was seen."""
    pause = LOOK_SECONDS
    while True:
        call.require_grant()
        record = await look()
        now = time.monotonic()
        if is_finished(record) or now >= deadline:
            return record
        look_again = min(now + pause, deadline)
        while not news.is_set() and (left := look_again - time.monotonic()) > 0:
            if call.is_gone() or call.desk.waiting.is_closed:
                return record
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), min(left, PRESENCE_SECONDS))
        news.clear()
        pause = min(2 * pause, LOOK_SECONDS_MAX)


def is_finished(record: "TaskRecord") -> bool:
    """Tell whether anything will follow."""
    from segue.tasks.states import TERMINAL

    return record.state in TERMINAL


TASK: Final = "/tasks/{queue}/{message}"
ASKING: Final = (InvalidArgument, InvalidName, TaskNotFound)
NOT_INSTALLED: Final = 501

ROUTES: Final = (
    Route(
        method="GET",
        path="/tasks",
        summary="List tasks by page: the unfinished first, then the finished, the latest first",
        role=Role.READ,
        about="tasks",
        handle_async=asking(find),
        query=Filter,
        answer=Tasks,
        errors=(InvalidArgument, InvalidName, AccessDenied),
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="GET",
        path="/task-counts",
        summary="Count tasks by state",
        role=Role.READ,
        about="tasks",
        handle_async=asking(counts),
        answer=Counted,
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="GET",
        path=TASK,
        summary="Tell all that is known of a task",
        role=Role.READ,
        about="tasks",
        handle_async=asking(show),
        answer=TaskJson,
        errors=ASKING,
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="GET",
        path=f"{TASK}/events",
        summary="Tell what happened to a task",
        role=Role.READ,
        about="tasks",
        handle_async=asking(events),
        answer=TaskEvents,
        errors=ASKING,
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="GET",
        path=f"{TASK}/result",
        summary="Wait until a task is finished; 204 if it is not yet",
        role=Role.READ,
        about="tasks",
        handle_async=result,
        query=Wait,
        answer=TaskJson,
        errors=ASKING,
        statuses=(204, NOT_INSTALLED),
    ),
)
