"""Tasks, without any code of theirs: queueing, cancelling, bringing back."""

from typing import Final

from segue.errors import InvalidArgument, InvalidName, QueueFull, RecordTooLarge
from segue.server.call import Call
from segue.server.routes.tasks import ASKING, NOT_INSTALLED, TASK, asking, id_of, needing_tasks
from segue.server.routing import Role, Route
from segue.server.tracing import with_trace
from segue.stores.http.wire.tasks import Cancelled, EnqueueTask, Queued, Retried


async def enqueue(call: Call) -> Queued:
    """Queue a call of a task, and wake a worker that waits for one."""
    body = with_trace([call.body(EnqueueTask)], call.headers)[0]
    queue = call.names[0]
    task_id = await needing_tasks(call, lambda: _push(call, body))
    call.desk.waiting.wake(queue)
    return Queued(id=task_id, task=body.task)


def _push(call: Call, body: EnqueueTask) -> str:
    tasks = call.desk.tasks
    _ = tasks.desk  # Raises ExtraMissing.
    from segue.tasks.envelope import TASK_NAME_MAX, Envelope, write_envelope
    from segue.tasks.records import task_id_of
    from segue.tasks.rules import PRIORITY_DEFAULT

    name = body.task
    if not name.strip() or not name.isprintable() or len(name) > TASK_NAME_MAX:
        raise InvalidArgument(
            f"the name of a task is printable text of at most {TASK_NAME_MAX} characters"
        )
    if body.delay is not None and body.at_us is not None:
        raise InvalidArgument("a call has a delay or a time, not both")
    try:
        envelope = Envelope(name, body.arguments(), body.retries, body.timeout)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    delay = body.delay
    if body.at_us is not None:
        delay = max(0, body.at_us - tasks.clock()) / 1_000_000 or None
    message = call.queue.push(
        write_envelope(envelope),
        priority=PRIORITY_DEFAULT if body.priority is None else body.priority,
        delay=delay,
        ttl=body.ttl,
        # As a task names them: those of two tasks are not the same.
        key=None if body.unique is None else f"{name}:{body.unique}",
        group=None if body.key is None else f"{name}:{body.key}",
        headers=body.headers,
        wait=0,
    )
    return task_id_of(call.names[0], message)


def cancel(call: Call) -> Cancelled:
    """Have a task not run, or stop if it runs."""
    return Cancelled(cancelled=call.desk.tasks.desk.cancel(id_of(call)))


async def retry(call: Call) -> Retried:
    """Bring a dead task back, and wake a worker that waits for one."""

    def bring_back() -> bool:
        desk = call.desk.tasks.desk
        desk.record(id_of(call))  # Raises TaskNotFound.
        return desk.retry(id_of(call))

    retried = await needing_tasks(call, bring_back)
    if retried:
        call.desk.waiting.wake(call.names[0])
    return Retried(retried=retried)


ROUTES: Final = (
    Route(
        method="POST",
        path="/tasks/{queue}",
        summary="Queue a call of a task",
        role=Role.PRODUCE,
        about="tasks",
        handle_async=enqueue,
        body=EnqueueTask,
        answer=Queued,
        errors=(InvalidArgument, InvalidName, RecordTooLarge, QueueFull),
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="POST",
        path=f"{TASK}/cancel",
        summary="Have a task not run, or stop if it runs",
        role=Role.ADMIN,
        about="tasks",
        handle_async=asking(cancel),
        answer=Cancelled,
        errors=ASKING,
        statuses=(NOT_INSTALLED,),
    ),
    Route(
        method="POST",
        path=f"{TASK}/retry",
        summary="Bring a dead task back, with all its tries anew",
        role=Role.ADMIN,
        about="tasks",
        handle_async=retry,
        answer=Retried,
        errors=ASKING,
        statuses=(NOT_INSTALLED,),
    ),
)
