"""A task that was leased here, what it takes to run it, and what comes of it."""

import asyncio
import ctypes
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from segue.errors import BadArguments, BadResult, SegueError, TaskCancelled, TaskTimeout
from segue.stores.job import Job
from segue.tasks.context import GiveUp, Retry, TaskContext, set_current
from segue.tasks.envelope import Envelope
from segue.tasks.events import ERROR_CHARACTERS_MAX, TRACEBACK_CHARACTERS_MAX
from segue.tasks.tracing import span_of_run

if TYPE_CHECKING:
    from segue.tasks.task import TaskBase

Verdict = Literal["completed", "failed", "dead", "cancelled", "released", "lost"]
"""Failed is tried again if there are tries left; released is as if it had never been taken; of what
is lost somebody else takes care."""


class Stopped(BaseException):
    """Raised in the thread of a run that is over.

    Neither an Exception, which handlers would catch, nor an OSError, which a log would take for its
    disk's.
    """


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended."""

    verdict: Verdict
    result: bytes = b""
    error: str = ""
    traceback: str = ""
    delay: float | None = None
    is_timeout: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that whoever runs a task must know, in this process or another."""

    id: str
    task: str
    args: bytes = b"{}"
    """As JSON."""
    attempt: int = 1
    retries: int = 0
    headers: Mapping[str, str] = {}


class Run:
    """A task in the hands of this worker, from its lease until it is settled."""

    __slots__ = (
        "_lock",
        "call",
        "deadline",
        "ended_us",
        "envelope",
        "is_announced",
        "is_renewing",
        "job",
        "leased_until",
        "outcome",
        "progress",
        "renewed",
        "started_us",
        "task",
        "thread_id",
        "timeout",
    )

    def __init__(
        self, job: Job, envelope: Envelope, task: "TaskBase[Any, Any]", task_id: str, now: float
    ) -> None:
        rules = task.rules
        retries = rules.retries if envelope.retries is None else envelope.retries
        self.job = job
        self.envelope = envelope
        self.task = task
        self.timeout = rules.timeout if envelope.timeout is None else envelope.timeout
        self.call = Call(
            id=task_id,
            task=envelope.task,
            args=bytes(envelope.args),
            attempt=job.tries,
            retries=retries,
            headers=job.headers if job.has_headers else {},
        )
        self.renewed = now
        self.is_renewing = False
        self.leased_until = now + job.ttl_seconds
        self.started_us = 0
        self.ended_us = 0
        self.deadline: float | None = None
        self.outcome: Outcome | None = None
        self.progress: bytes | None = None
        self.is_announced = False
        self.thread_id = 0
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def is_over(self) -> bool:
        """Whether what comes of it is settled: whatever it does now counts no more."""
        return self.outcome is not None

    def begin(self, now_us: int, now: float) -> None:
        """Note that it begins."""
        self.started_us = now_us
        self.deadline = None if self.timeout is None else now + self.timeout

    def conclude(self, outcome: Outcome, now_us: int) -> bool:
        """Let this be what comes of it; False if something else came of it before."""
        with self._lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
            self.ended_us = now_us
            return True

    def report(self, progress: bytes) -> None:
        self.progress = progress

    def enter(self, thread_id: int) -> None:
        """Note in which thread it runs; 0 when it has left."""
        with self._lock:
            self.thread_id = thread_id

    def raise_in_thread(self) -> None:
        """Have Stopped raised in the thread it runs in, at its next step, while it is there."""
        with self._lock:
            if self.thread_id:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread_id), ctypes.py_object(Stopped)
                )


def execute(
    task: "TaskBase[Any, Any]",
    call: Call,
    *,
    report: Callable[[bytes], None],
    is_cancelled: Callable[[], bool],
    await_: Callable[[Coroutine[Any, Any, object]], object] = asyncio.run,
) -> Outcome:
    """Run a call in this thread, in a context of its own, and return what came of it.

    Raises Stopped alone, and only once the run is over.
    """
    return copy_context().run(_execute, task, call, report, is_cancelled, await_)


def _execute(
    task: "TaskBase[Any, Any]",
    call: Call,
    report: Callable[[bytes], None],
    is_cancelled: Callable[[], bool],
    await_: Callable[[Coroutine[Any, Any, object]], object],
) -> Outcome:
    try:
        args, kwargs = task.signature.read(call.args)
    except SegueError as error:
        return given_up(error)
    set_current(_context(call, report, is_cancelled))
    try:
        with span_of_run(call.task, call.id, call.attempt, call.headers):
            value = task.run(args, kwargs)
            if task.is_async:
                value = await_(cast("Coroutine[Any, Any, object]", value))
        return completed(task, value)
    except Stopped:
        raise
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything, SystemExit too.
        return failed_by(error, call.task, is_cancelled=is_cancelled())


async def execute_async(
    task: "TaskBase[Any, Any]",
    call: Call,
    *,
    report: Callable[[bytes], None],
    is_cancelled: Callable[[], bool],
) -> Outcome:
    """Run the call of an async task in this event loop. Raises CancelledError alone."""
    try:
        args, kwargs = task.signature.read(call.args)
    except SegueError as error:
        return given_up(error)
    set_current(_context(call, report, is_cancelled))
    try:
        with span_of_run(call.task, call.id, call.attempt, call.headers):
            value = await cast("Coroutine[Any, Any, object]", task.run(args, kwargs))
        return completed(task, value)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        return failed_by(error, call.task, is_cancelled=is_cancelled())


def completed(task: "TaskBase[Any, Any]", value: object) -> Outcome:
    """Return the outcome of a run that returned."""
    try:
        return Outcome(verdict="completed", result=task.signature.write_result(value))
    except SegueError as error:
        return given_up(error)


def failed_by(error: BaseException, task: str, *, is_cancelled: bool) -> Outcome:
    """Return the outcome of a run of `task` that raised.

    What was said of another task, which this one queued or waited for, is an error like any.
    """
    words = said(error)
    trace = traced(error)
    is_own = isinstance(error, BadArguments | BadResult) and error.task == task
    if isinstance(error, GiveUp) or is_own:
        return Outcome(verdict="dead", error=words, traceback=trace)
    if isinstance(error, TaskCancelled) and is_cancelled:
        return Outcome(verdict="cancelled", error=words)
    return Outcome(
        verdict="failed",
        error=words,
        traceback=trace,
        delay=error.delay if isinstance(error, Retry) else None,
        is_timeout=isinstance(error, TaskTimeout),
    )


def given_up(error: BaseException) -> Outcome:
    """Return the outcome of a call that can never succeed."""
    return Outcome(verdict="dead", error=said(error), traceback=traced(error))


def said(error: BaseException) -> str:
    """Return an error in one line: its class and its words."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - somebody else's __str__ may raise anything.
        words = "(it could not be said)"
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return _sayable(text[:ERROR_CHARACTERS_MAX])


def traced(error: BaseException) -> str:
    """Return an error's traceback, its end if it is long."""
    try:
        text = _sayable("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001 - as above
        return ""
    if len(text) <= TRACEBACK_CHARACTERS_MAX:
        return text
    return _CUT + text[-(TRACEBACK_CHARACTERS_MAX - len(_CUT)) :]


def _sayable(text: str) -> str:
    """Return text without the halves of characters that UTF-8 cannot say."""
    return text.encode(errors="backslashreplace").decode()


def _context(
    call: Call, report: Callable[[bytes], None], is_cancelled: Callable[[], bool]
) -> TaskContext:
    return TaskContext(
        task_id=call.id,
        task=call.task,
        attempt=call.attempt,
        retries=call.retries,
        report=report,
        is_cancelled=is_cancelled,
    )


_CUT: Final = "…\n"
