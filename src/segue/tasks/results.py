"""The handle of a queued task, and how whoever waits for it is told."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

import msgspec

from segue.errors import (
    OffsetTrimmed,
    ResultTimeout,
    SegueError,
    StoreClosed,
    TaskCancelled,
    TaskFailed,
)
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.tasks.events import EventLog, read_event
from segue.tasks.records import TaskRecord
from segue.tasks.states import TERMINAL, State
from segue.tasks.threads import in_thread

if TYPE_CHECKING:
    from segue.tasks.app import App
    from segue.tasks.signature import Signature

logger = logging.getLogger(__name__)

R = TypeVar("R")

LOOK_SECONDS: Final = 1.0
LOOK_SECONDS_MAX: Final = 5.0
"""How often whoever waits looks whether the message is still there at all: ever less often."""
FOLLOW_SECONDS: Final = 0.25
REST_SECONDS: Final = 2.0
"""How long the thread that follows the events stays after the last one stopped waiting."""


class _Returning(Protocol):
    @property
    def signature(self) -> "Signature": ...


class Result(Generic[R]):
    """A task that was queued: how it stands, and what comes of it. Safe from any thread."""

    __slots__ = ("_app", "_since_us", "_task", "id")

    def __init__(
        self, app: "App", task: _Returning | None, task_id: str, since_us: int = 0
    ) -> None:
        """Be the handle of a task that was pushed at or after `since_us`."""
        self._app = app
        self._task = task
        self._since_us = since_us
        self.id = task_id

    @property
    def state(self) -> State:
        """Where the task stands. Raises TaskNotFound once nothing is known of it."""
        return self.record().state

    @property
    def progress(self) -> object:
        """What the task last said of how far it is; None if nothing."""
        said = self.record().progress
        return None if said is None else msgspec.json.decode(said)

    def record(self) -> TaskRecord:
        """Return all that is known of the task. Raises TaskNotFound."""
        return self._look(self.id)

    def _look(self, task_id: str, /) -> TaskRecord:
        return self._app.desk.record(task_id, since_us=self._since_us)

    def get(self, timeout: Duration | None = None) -> R:
        """Wait for the result and return it.

        Raises TaskFailed if the task is a dead letter, TaskCancelled, ResultTimeout if nothing
        came of it within `timeout`, TaskNotFound if nothing is known of it any more.
        """
        timeout_us = duration_us(timeout, name="timeout")
        return self._value(wait_until(self._app.watch, self._look, self.id, timeout_us))

    async def get_async(self, timeout: Duration | None = None) -> R:
        """Wait for the result without holding up the event loop."""
        timeout_us = duration_us(timeout, name="timeout")
        watch = await in_thread(lambda: self._app.watch)  # It may have to be opened.
        return self._value(await wait_until_async(watch, self._look, self.id, timeout_us))

    def cancel(self) -> bool:
        """Have the task not run, or stop if it runs; tell whether it was not finished yet.

        One that runs stops if it can: a process is killed, a coroutine cancelled, a thread told.
        """
        return self._app.desk.cancel(self.id, since_us=self._since_us)

    def _value(self, record: TaskRecord) -> R:
        if record.state is State.CANCELLED:
            raise TaskCancelled(f"task {self.id} was cancelled")
        if record.state is State.DEAD_LETTER:
            raise TaskFailed(
                task_id=self.id,
                error=record.error,
                attempts=record.attempt,
                traceback=record.traceback,
            )
        data = record.result or b"null"
        if self._task is None:
            return cast("R", msgspec.json.decode(data))
        return cast("R", self._task.signature.read_result(data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Result {self.id}>"


class Watch:
    """Tells those who wait that something became of their task: one thread for a whole App."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def telling(self, task_id: str, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell`, in another thread, whenever the task may have finished, from now on.

        Asks nobody here: event loops wait by this, too.
        """
        key = task_id.encode()
        with self._lock:
            self._waiting.setdefault(key, []).append(tell)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="segue-results", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                waiting = self._waiting[key]
                waiting.remove(tell)
                if not waiting:
                    del self._waiting[key]

    def _run(self) -> None:
        idle_since: float | None = None
        start: int | None = None
        while True:
            with self._lock:
                if self._waiting:
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                if self._closed or (
                    idle_since is not None and time.monotonic() - idle_since > REST_SECONDS
                ):
                    self._thread = None
                    return
            try:
                if start is None:
                    start = self._log.end()
                    self._tell_all()  # What came before that they find by looking once more.
                for record in self._log.topic.follow({0: start}, timeout=FOLLOW_SECONDS):
                    start = record.offset + 1
                    if record.key is not None and record.key in self._waiting:
                        self._tell(record.key, record.value)
                    if self._closed:
                        break
            except OffsetTrimmed as error:
                start = error.earliest
            except LookupError:  # Nobody has appended anything: there is no such topic yet.
                time.sleep(FOLLOW_SECONDS)
            except StoreClosed:
                with self._lock:
                    self._thread = None
                return
            except (SegueError, OSError) as error:
                logger.warning("results may be told late reason=%s", error)
                start = None  # From the end on: what lies between may be damaged.
                time.sleep(FOLLOW_SECONDS)

    def _tell_all(self) -> None:
        with self._lock:
            waiting = [tell for each in self._waiting.values() for tell in each]
        for tell in waiting:
            tell()

    def _tell(self, key: bytes, value: bytes | None) -> None:
        event = read_event(value)
        if event is not None and event.happened in _FINISHED:
            with self._lock:
                waiting = list(self._waiting.get(key, ()))
            for tell in waiting:
                tell()

    def close(self) -> None:
        """Tell nobody anything any more."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=4 * FOLLOW_SECONDS)


_FINISHED: Final = frozenset(state.value for state in TERMINAL)


def wait_until(watch: Watch, look: "Look", task_id: str, timeout_us: int | None) -> TaskRecord:
    """Return the record of a task once it is finished. Raises ResultTimeout, TaskNotFound."""
    deadline = None if timeout_us is None else time.monotonic() + timeout_us / 1_000_000
    record = look(task_id)
    if record.state in TERMINAL:
        return record
    news = threading.Event()
    pause = LOOK_SECONDS
    with watch.telling(task_id, news.set):
        while True:
            record = look(task_id)
            if record.state in TERMINAL:
                return record
            news.wait(_pause(record, pause, deadline))
            news.clear()
            pause = min(2 * pause, LOOK_SECONDS_MAX)


async def wait_until_async(
    watch: Watch, look: "Look", task_id: str, timeout_us: int | None
) -> TaskRecord:
    """Do as `wait_until` does, without a thread that waits."""
    deadline = None if timeout_us is None else time.monotonic() + timeout_us / 1_000_000
    news = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with suppress(RuntimeError):  # Nobody waits any more: the loop is closed.
            loop.call_soon_threadsafe(news.set)

    pause = LOOK_SECONDS
    with watch.telling(task_id, tell):
        while True:
            record = await in_thread(look, task_id)
            if record.state in TERMINAL:
                return record
            seconds = _pause(record, pause, deadline)
            with suppress(TimeoutError):  # Not around the line before: that one is ours.
                await asyncio.wait_for(news.wait(), seconds)
            news.clear()
            pause = min(2 * pause, LOOK_SECONDS_MAX)


def _pause(record: TaskRecord, pause: float, deadline: float | None) -> float:
    """Return how long to wait before the next look. Raises ResultTimeout if there is none."""
    if deadline is None:
        return pause
    left = deadline - time.monotonic()
    if left <= 0:
        raise ResultTimeout(f"task {record.id} is {record.state.value}, and has no result")
    return min(left, pause)


class Look(Protocol):
    """Returns how a task stands. Raises TaskNotFound."""

    def __call__(self, task_id: str, /) -> TaskRecord: ...
