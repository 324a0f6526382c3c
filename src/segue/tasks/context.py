"""What a running task may know of itself and say of itself."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import msgspec

from segue.errors import InvalidArgument, TaskCancelled
from segue.log.options import Duration
from segue.tasks.rules import seconds_from
from segue.tasks.signature import check_plain

PROGRESS_BYTES_MAX: Final = 4_096


class Retry(Exception):
    """Raise it to be tried again, after `delay` or a backoff. Counts as a try."""

    def __init__(self, reason: str = "asked to be tried again", *, delay: Duration | None = None):
        super().__init__(reason)
        self.delay = None if delay is None else seconds_from(delay, name="delay")


class GiveUp(Exception):
    """Raise it to be a dead letter at once: trying again would not help."""


class TaskContext:
    """The task that runs here. For its own thread or coroutine."""

    def __init__(
        self,
        *,
        task_id: str,
        task: str,
        attempt: int,
        retries: int,
        report: Callable[[bytes], None],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self.id = task_id
        self.task = task
        self.attempt = attempt
        """Which try this is, from 1, since it was queued or brought back."""
        self.retries = retries
        self._report = report
        self._is_cancelled = is_cancelled

    @property
    def queue(self) -> str:
        return self.id.rpartition("/")[0]

    @property
    def is_last_try(self) -> bool:
        """Whether a failure makes it a dead letter."""
        return self.attempt > self.retries

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, timed out or lost its lease: its result will not count."""
        return self._is_cancelled()

    def check(self) -> None:
        """Raise TaskCancelled if it should stop. For loops that take long."""
        if self.is_cancelled:
            raise TaskCancelled(f"task {self.id} is to stop")

    def progress(self, value: object) -> None:
        """Tell how far it is: plain JSON, such as 0.5 or {"done": 3, "of": 10}.

        Told soon, not at once: of many in a moment only the last is.
        """
        try:
            check_plain(value)
            said = msgspec.json.encode(value)
            if len(said) > PROGRESS_BYTES_MAX:
                raise ValueError(f"more than {PROGRESS_BYTES_MAX} bytes")
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"progress: {error}") from error
        self._report(said)


_CURRENT: Final[ContextVar[TaskContext | None]] = ContextVar("segue_task", default=None)


def current() -> TaskContext:
    """Return the task that runs here. Raises InvalidArgument where none does."""
    found = _CURRENT.get()
    if found is None:
        raise InvalidArgument("no task runs here: current() is for code that a worker runs")
    return found


def set_current(context: TaskContext | None) -> None:
    """Say which task runs here. For workers."""
    _CURRENT.set(context)
