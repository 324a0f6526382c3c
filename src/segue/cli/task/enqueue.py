"""`segue task enqueue`: queues a call of a task, and waits for its result if asked to."""

import json
import math
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.output import Json, show_json, show_line
from segue.cli.places import store_url
from segue.cli.store_arguments import body_from
from segue.cli.task.arguments import opened_desk, require_tasks
from segue.cli.task.records import json_value
from segue.errors import InvalidArgument, TaskCancelled, TaskFailed
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.tasks.records import TaskRecord

ARGUMENTS_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is read of standard input before it counts as something that never ends."""

_APP: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:([^\W\d]\w*(\.[^\W\d]\w*)*)?")

Wait = Callable[[str, int | None], "TaskRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What is to be queued, and how; None is as the task says."""

    task: str
    arguments: bytes
    queue: str | None
    priority: int | None
    delay: float | None
    at: datetime | None
    key: str | None
    unique: str | None


def enqueue(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|MODULE:APP",
            help="The store, a directory or the URL of a server, or where the App is.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="The name of the task.", show_default=False)
    ],
    arguments: Annotated[
        str,
        typer.Argument(
            metavar="ARGUMENTS",
            help="A JSON object by name, or a list by position; - for standard input.",
        ),
    ] = "{}",
    *,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The queue to go to.", show_default="the task's, or 'default'"
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            "-p",
            metavar="P",
            parser=parsing.priority,
            help="A number, 0 first, or critical, high, normal, low.",
            show_default="the task's, or normal",
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Run it not before so long.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Run it at an ISO 8601 time.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Run it one after another with others of this key.", show_default=False),
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            help="Queue nothing if a call of this name was queued a short while ago.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.waiting_time,
            help="Wait so long for the result, or 'forever', and print it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a call of a task and print its id, or with --wait its result as JSON.

    With MODULE:APP the arguments are checked against the task's signature, and it goes where the
    task says. With a STORE nothing is known of the task: the call is queued unchecked, and a worker
    whose App has no such task gives it up. The store must be there.

    With --wait exit code 12 says that the task failed for good or was cancelled, 13 that it was not
    finished in time.

    \b
    Examples:
      segue task enqueue shop:app resize '{"path": "a.png"}' --wait 30s
      segue task enqueue data resize '["a.png"]' --queue images --delay 5m
    """
    if delay is not None and at is not None:
        raise typer.BadParameter("does not go with --delay", param_hint="--at")
    call = _Call(
        task=task,
        arguments=_arguments(arguments),
        queue=queue,
        priority=priority,
        delay=delay,
        at=None if at is None else _time(at),
        key=key,
        unique=unique,
    )
    require_tasks()
    if _APP.fullmatch(target) and not Path(target).exists():
        _by_app(target, call, wait, as_json=as_json)
    else:
        _by_store(store_url(target), call, wait, as_json=as_json)


def _by_app(target: str, call: _Call, wait: float | None, *, as_json: bool) -> None:
    from segue.tasks.loading import load_app

    with load_app(target) as app:
        task = app.find_task(call.task)
        args, kwargs = task.signature.read(call.arguments)
        queued = task.using(
            priority=call.priority,
            delay=call.delay,
            at=call.at,
            key=call.key,
            unique=call.unique,
            queue=call.queue,
        )
        task_id = queued.enqueue(*args, **kwargs).id
        _finish(call, task_id, wait, app.wait_for, as_json=as_json)


def _by_store(url: str, call: _Call, wait: float | None, *, as_json: bool) -> None:
    import msgspec

    from segue.tasks.desk import Desk
    from segue.tasks.envelope import Envelope, read_envelope, write_envelope
    from segue.tasks.results import Watch, wait_until
    from segue.tasks.rules import PRIORITY_DEFAULT, QUEUE_DEFAULT

    def wait_for(desk: Desk, task_id: str, timeout_us: int | None) -> "TaskRecord":
        watch = Watch(desk.log)
        try:
            return wait_until(watch, desk.record, task_id, timeout_us)
        finally:
            watch.close()

    _check_name(call.task)
    envelope = write_envelope(Envelope(call.task, msgspec.Raw(call.arguments)))
    try:
        read_envelope(envelope)
    except InvalidArgument as error:  # Such as NaN, which is no JSON to everybody.
        raise typer.BadParameter(
            f"no worker could read them: {error.__cause__}", param_hint="ARGUMENTS"
        ) from error
    with opened_desk(url) as desk:
        queue = desk.store.queue(call.queue or QUEUE_DEFAULT)
        message_id = queue.push(
            envelope,
            priority=PRIORITY_DEFAULT if call.priority is None else call.priority,
            delay=call.delay if call.at is None else _seconds_until(call.at),
            # As a task names them: those of two tasks are not the same.
            key=None if call.unique is None else f"{call.task}:{call.unique}",
            group=None if call.key is None else f"{call.task}:{call.key}",
        )
        _finish(
            call,
            f"{queue.name}/{message_id}",
            wait,
            lambda task_id, timeout_us: wait_for(desk, task_id, timeout_us),
            as_json=as_json,
        )


def _finish(
    call: _Call, task_id: str, wait: float | None, wait_for: Wait, *, as_json: bool
) -> None:
    """Print the id, or what comes of the task. Raises TaskFailed, TaskCancelled, ResultTimeout."""
    from segue.tasks.states import State

    queued: dict[str, Json] = {"id": task_id, "task": call.task}
    if wait is None:
        if as_json:
            show_json(queued)
        else:
            show_line(task_id)
        return
    record = wait_for(task_id, None if math.isinf(wait) else round(wait * 1_000_000))
    if record.state is State.CANCELLED:
        raise TaskCancelled(f"task {task_id} was cancelled")
    if record.state is State.DEAD_LETTER:
        raise TaskFailed(task_id=task_id, error=record.error, attempts=record.attempt)
    result = record.result or b"null"
    if as_json:
        show_json({**queued, "state": record.state.value, "result": json_value(result)})
    else:
        show_line(result.decode(errors="backslashreplace"))


def _arguments(word: str) -> bytes:
    data = sys.stdin.buffer.read(ARGUMENTS_BYTES_MAX) if word == "-" else body_from(word)
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"no JSON: {error}", param_hint="ARGUMENTS") from None
    if not isinstance(found, dict | list):
        raise typer.BadParameter(
            'a JSON object by name, such as {"path": "a.png"}, or a list by position',
            param_hint="ARGUMENTS",
        )
    return data.strip()


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no ISO 8601 time", param_hint="--at") from None


def _seconds_until(moment: datetime) -> float | None:
    from segue.clock import system_clock

    left = moment.timestamp() - system_clock() / 1_000_000
    return left if left > 0 else None


def _check_name(task: str) -> None:
    from segue.tasks.envelope import TASK_NAME_MAX

    if not task.strip() or not task.isprintable() or len(task) > TASK_NAME_MAX:
        raise typer.BadParameter(
            f"a name is printable text of at most {TASK_NAME_MAX} characters", param_hint="TASK"
        )
