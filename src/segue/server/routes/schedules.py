"""Schedules that workers have met: which there are, firing one by hand, forgetting one."""

from typing import TYPE_CHECKING, Final

from segue.errors import AccessDenied, InvalidArgument, QueueFull
from segue.server.call import Call
from segue.server.refusal import Refused
from segue.server.routes.tasks import NOT_INSTALLED, asking, needing_tasks
from segue.server.routing import Role, Route
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.tasks import Fired, ScheduleJson, Schedules

if TYPE_CHECKING:
    from segue.tasks.scheduling import ScheduleState


def states_of(call: Call) -> "list[ScheduleState]":
    """Return all schedules of the queues that are meant, by name."""
    tasks = call.desk.tasks
    with tasks.lock:
        states = list(tasks.book.states().values())
    covered = [state for state in states if call.grant.covers(state.queue)]
    return sorted(covered, key=lambda state: (state.name, state.when))


def find(call: Call) -> Schedules:
    """List schedules."""
    now_us = call.desk.tasks.clock()
    return Schedules(schedules=[schedule_json(state, now_us) for state in states_of(call)])


def schedule_json(state: "ScheduleState", now_us: int) -> ScheduleJson:
    """Return a schedule as it is sent."""
    from segue.tasks.scheduling import next_firing_us

    try:
        next_us = next_firing_us(state, now_us)
    except InvalidArgument:  # Noted by a version that knows other schedules than this one.
        next_us = None
    return ScheduleJson(
        name=state.name,
        when=state.when,
        task=state.task,
        queue=state.queue,
        priority=state.priority,
        missed=state.missed,
        fired=state.fired,
        fired_us=state.fired_us or None,
        next_us=next_us,
        last_id=state.last_id or None,
        args=state.args,
    )


async def fire(call: Call) -> Fired:
    """Queue the task of a schedule now, once, and wake a worker that waits for one."""

    def push() -> "tuple[ScheduleState, str]":
        state = _existing(call)
        from segue.tasks import scheduling

        return state, scheduling.fire(call.desk.queue(state.queue), state)

    state, task_id = await needing_tasks(call, push)
    call.desk.waiting.wake(state.queue)
    return Fired(schedule=state.name, task=state.task, id=task_id)


def remove(call: Call) -> Removed:
    """Forget a schedule that no code has any more."""
    tasks = call.desk.tasks
    name = call.names[0]
    if call.grant.is_limited:
        _existing(call)  # Those of queues the token is not for are not there.
    with tasks.lock:
        queues = {state.queue for state in tasks.book.states().values() if state.name == name}
        if not all(map(call.grant.covers, queues)):
            raise Refused(403, "access_denied", f"{name} is of queues the token is not for, too")
        return Removed(removed=tasks.book.remove(name))


def _existing(call: Call) -> "ScheduleState":
    """Return the schedule that the path names, at the time it had last."""
    name = call.names[0]
    found = [state for state in states_of(call) if state.name == name]
    if not found:
        raise Refused(404, "schedule_not_found", f"there is no schedule {name}")
    return max(found, key=lambda state: state.last_us)


_SCHEDULE: Final = "/schedules/{schedule}"

ROUTES: Final = (
    Route(
        method="GET",
        path="/schedules",
        summary="List the schedules that workers have met, and when they fire",
        role=Role.READ,
        about="schedules",
        handle_async=asking(find),
        answer=Schedules,
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="POST",
        path=f"{_SCHEDULE}/fire",
        summary="Queue the task of a schedule now; when it fires by itself stays as it was",
        role=Role.PRODUCE,
        about="schedules",
        is_guarded=False,
        handle_async=fire,
        is_audited=True,
        answer=Fired,
        errors=(QueueFull, AccessDenied),
        statuses=(404, NOT_INSTALLED),
    ),
    Route(
        method="DELETE",
        path=_SCHEDULE,
        summary="Forget a schedule that no code has any more",
        role=Role.ADMIN,
        about="schedules",
        is_guarded=False,
        handle_async=asking(remove),
        answer=Removed,
        statuses=(404, NOT_INSTALLED),
    ),
)
