"""The App: tasks by name, the store they are queued in, and questions about both."""

import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, Protocol, Self, TypeVar, get_args, overload
from weakref import WeakSet

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.delivery.priority import Priority, priority_from
from segue.delivery.retry import Backoff
from segue.delivery.rules import DEDUPLICATION_SECONDS_DEFAULT
from segue.errors import InvalidArgument, TaskNotFound
from segue.log.layout import checked_name, is_name
from segue.log.options import Duration, SyncName
from segue.stores.contract import Queue, Store
from segue.tasks.desk import Desk
from segue.tasks.envelope import TASK_NAME_MAX
from segue.tasks.events import KEEP_SECONDS_DEFAULT, EventLog
from segue.tasks.opened import Opened
from segue.tasks.records import TaskRecord, split_id
from segue.tasks.results import Result, Watch, wait_until
from segue.tasks.rules import (
    PRIORITY_DEFAULT,
    QUEUE_DEFAULT,
    RETRIES_DEFAULT,
    TENANT_MARK,
    TIMEOUT_SECONDS_DEFAULT,
    KeyFunction,
    QueueShape,
    TaskRules,
    backoff_from,
    rate_from,
    seconds_from,
)
from segue.tasks.schedule import Cron, Every, Missed, schedule_from
from segue.tasks.scheduling import ScheduleEntry, require_window
from segue.tasks.shapes import Shapes
from segue.tasks.task import AsyncTask, Queued, Task, TaskBase

P = ParamSpec("P")
R = TypeVar("R")

Unsaid = Literal["default"]
"""As the App says."""


class Decorator(Protocol):
    """Makes a task of a function, sync or async."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class App:
    """Tasks and the store they are queued in.

    app = App("data")

    @app.task(retries=5)
    def resize(path: str) -> str: ...

    The store is opened when it is first needed, in each process anew. Safe from any thread.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        sync: SyncName = "always",
        queue: str = QUEUE_DEFAULT,
        retries: int = RETRIES_DEFAULT,
        timeout: Duration | None = TIMEOUT_SECONDS_DEFAULT,
        backoff: Backoff | Duration | None = None,
        result_ttl: Duration = KEEP_SECONDS_DEFAULT,
        weights: Mapping[str, int] | None = None,
        clock: Clock = system_clock,
        ticks: Ticks = system_ticks,
    ) -> None:
        """Have tasks in the store at `url`; the rest is what tasks do that say nothing else.

        `weights` are the shares of tenants in the workers' attention, 1 unless said.
        """
        self.url = url
        self.clock = clock
        self.ticks = ticks
        self.on_queued: Callable[[], None] | None = None
        """What to do each time something was queued: tests run it at once (segue.testing)."""
        self.tasks: dict[str, TaskBase[Any, Any]] = {}
        self.schedules: dict[str, ScheduleEntry] = {}
        self.sync: SyncName = sync
        self._defaults = TaskRules(
            name="default",
            queue=checked_name(queue),
            retries=retries,
            timeout=_timeout_from(timeout),
            backoff=backoff_from(backoff),
            result_ttl=seconds_from(result_ttl, name="result_ttl"),
        )
        self._shapes = Shapes(weights or {})
        self._lock = threading.RLock()
        self._rooms: Opened | None = None
        _APPS.add(self)

    # Declaring -----------------------------------------------------------------------------

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: Priority = PRIORITY_DEFAULT,
        retries: int | None = None,
        backoff: Backoff | Duration | None = None,
        timeout: Duration | Unsaid | None = "default",
        unique: bool | Duration = False,
        key: str | KeyFunction | None = None,
        rate: float | str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        result_ttl: Duration | None = None,
        schedule: str | Duration | Cron | Every | None = None,
        missed: Missed = "latest",
    ) -> Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: Priority = PRIORITY_DEFAULT,
        retries: int | None = None,
        backoff: Backoff | Duration | None = None,
        timeout: Duration | Unsaid | None = "default",
        unique: bool | Duration = False,
        key: str | KeyFunction | None = None,
        rate: float | str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        result_ttl: Duration | None = None,
        schedule: str | Duration | Cron | Every | None = None,
        missed: Missed = "latest",
    ) -> Any:
        """Make a task of a function: `@app.task` or `@app.task(retries=5, …)`.

        `retries`, with a `backoff` that doubles from its first delay, before it is a dead letter;
        stopped after `timeout` seconds. `unique` queues the same call once for so long. Calls with
        the same `key`, a parameter or a function of the arguments, run one after another, or so
        many at once as `concurrency` says; without a key that is for the task as a whole. `rate`
        is how many begin, as 10 a second or "100/m", over all workers. `rate`, `burst`,
        `concurrency` and a time for `unique` are rules of a queue, so that a task with any has one
        of its own, called as the task is unless `queue` says otherwise. `schedule` runs it by
        itself. Raises InvalidArgument.
        """
        if function is not None:
            return self._declare(function, replace(self._defaults, name=_name_of(function)), None)
        shape = QueueShape(
            concurrency=concurrency if key is None else None,
            key_concurrency=concurrency if key is not None else None,
            rate=None if rate is None else rate_from(rate),
            burst=burst,
            unique=None if isinstance(unique, bool) else seconds_from(unique, name="unique"),
        )
        defaults = self._defaults

        def declare(declared: Callable[..., Any]) -> TaskBase[Any, Any]:
            task_name = _name_of(declared) if name is None else name
            if queue is None and shape.has_limits and not is_name(task_name):
                raise InvalidArgument(
                    f"task {task_name!r} has limits, and so a queue of its own, which cannot be "
                    "called like that: give it a queue="
                )
            rules = TaskRules(
                name=task_name,
                queue=queue or (task_name if shape.has_limits else defaults.queue),
                priority=priority_from(priority),
                retries=defaults.retries if retries is None else retries,
                backoff=defaults.backoff if backoff is None else backoff_from(backoff),
                timeout=defaults.timeout if timeout == "default" else _timeout_from(timeout),
                unique=DEDUPLICATION_SECONDS_DEFAULT if unique is True else shape.unique,
                key=key,
                result_ttl=defaults.result_ttl
                if result_ttl is None
                else seconds_from(result_ttl, name="result_ttl"),
                schedule=None if schedule is None else schedule_from(schedule),
                missed=missed,
            )
            return self._declare(declared, rules, shape)

        return declare

    def _declare(
        self, function: Callable[..., Any], rules: TaskRules, shape: QueueShape | None
    ) -> TaskBase[Any, Any]:
        _check_task_name(rules.name)
        checked_name(rules.queue)
        with self._lock:
            if rules.name in self.tasks:
                raise InvalidArgument(
                    f"there is a task {rules.name} already; give one of them another name="
                )
            kind = AsyncTask if inspect.iscoroutinefunction(function) else Task
            task: TaskBase[Any, Any] = kind(self, function, rules)
            if isinstance(rules.key, str):
                task.signature.require_parameter(rules.key)
            if rules.schedule is not None:
                task.signature.write((), {})  # It must be callable without arguments.
                self._require_unplanned(rules.name)
                require_window(rules.name, (shape or self._shapes.of(rules.queue)).unique)
            self._shapes.claim(rules, shape or QueueShape())
            if rules.schedule is not None:
                group = task.group_of((), {})
                self._plan(rules.name, rules.schedule, task, b"{}", rules.missed, group)
            self.tasks[rules.name] = task
        return task

    def queue(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        rate: float | str | None = None,
        burst: int | None = None,
        weight: int | None = None,
    ) -> None:
        """Say how a queue of several tasks is worked on: its limits, over all workers together.

        `weight` is its share of the workers' attention while other queues wait, too.
        """
        with self._lock:
            self._shapes.declare(
                name,
                concurrency=concurrency,
                key_concurrency=key_concurrency,
                rate=None if rate is None else rate_from(rate),
                burst=burst,
                weight=weight,
            )

    def schedule(
        self,
        name: str,
        when: str | Duration | Cron | Every,
        task: TaskBase[P, Any],
        *args: object,
        missed: Missed = "latest",
    ) -> None:
        """Have a task queued by itself, under a name of its own and with arguments."""
        arguments = task.signature.write(args, {})
        with self._lock:
            self._require_unplanned(name)
            group = task.group_of(args, {})
            self._plan(name, schedule_from(when), task, arguments, missed, group)

    def _plan(
        self,
        name: str,
        when: Cron | Every,
        task: TaskBase[Any, Any],
        arguments: bytes,
        missed: Missed,
        group: str | None,
    ) -> None:
        if missed not in get_args(Missed):
            choices = ", ".join(get_args(Missed))
            raise InvalidArgument(f"missed must be one of {choices}: {missed!r}")
        require_window(name, self._shapes.of(task.rules.queue).unique)
        self.schedules[name] = ScheduleEntry(
            name=name,
            when=when,
            task=task.name,
            queue=task.rules.queue,
            priority=task.rules.priority,
            arguments=arguments,
            missed=missed,
            group=group or "",
        )

    def _require_unplanned(self, name: str) -> None:
        _check_task_name(name)
        if name in self.schedules:
            raise InvalidArgument(f"there is a schedule {name} already")

    # Queuing -------------------------------------------------------------------------------

    def queue_for(self, name: str, tenant: str | None = None, *, sets_rules: bool = False) -> Queue:
        """Return a queue, with the rules its tasks need if it is new.

        `sets_rules` has it follow the code in any case, as workers have it.
        """
        full = name if tenant is None else f"{name}{TENANT_MARK}{checked_name(tenant)}"
        rooms = self._opened()
        found = rooms.queues.get(full)
        if found is not None and not sets_rules:
            return found
        with self._lock:
            sets_rules = sets_rules or full not in rooms.store.queues()
            queue = rooms.store.queue(checked_name(full))
            rules = queue.rules
            wanted = self._shapes.of(name).applied_to(rules)
            if sets_rules and wanted != rules:
                queue.configure(wanted)
            rooms.queues[full] = queue
        return queue

    def forget_queue(self, name: str) -> None:
        """Let go of a queue that was removed."""
        self._opened().queues.pop(name, None)

    def require_queue(self, name: str) -> None:
        """Raise InvalidArgument unless workers of the App look at a queue by themselves."""
        names = self.queue_names()
        if name not in names:
            raise InvalidArgument(
                f"no worker would look at queue {name}: declare it by app.queue({name!r}); the App "
                f"has {', '.join(names)}"
            )

    def weight_of(self, queue: str) -> int:
        """Return the share of a queue, or of a tenant's, in the workers' attention."""
        return self._shapes.weight_of(queue)

    def queue_names(self) -> list[str]:
        """Return the queues that the App's tasks go to."""
        return sorted({task.rules.queue for task in self.tasks.values()} | self._shapes.declared)

    def enqueue(
        self, task: str, arguments: bytes = b"{}", *, queue: str | None = None
    ) -> Result[object]:
        """Queue a call of a task by its name, with arguments as JSON.

        Raises TaskNotFound, BadArguments before anything is written.
        """
        found = self.find_task(task)
        args, kwargs = found.signature.read(arguments)
        queued: Queued[Any, object] = found if queue is None else found.using(queue=queue)
        return queued.enqueue(*args, **kwargs)

    def find_task(self, name: str) -> TaskBase[Any, Any]:
        """Return a task by its name. Raises TaskNotFound."""
        task = self.tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise TaskNotFound(f"there is no task {name}; the app has: {known}")
        return task

    # Asking --------------------------------------------------------------------------------

    def result(self, task_id: str) -> Result[object]:
        """Return the handle of a task by its id."""
        split_id(task_id)
        return Result(self, None, task_id)

    def record(self, task_id: str) -> TaskRecord:
        """Return all that is known of a task. Raises TaskNotFound."""
        return self.desk.record(task_id)

    def wait_for(self, task_id: str, timeout_us: int | None) -> TaskRecord:
        """Return the record of a task once it is finished. Raises ResultTimeout, TaskNotFound."""
        return wait_until(self.watch, self.record, task_id, timeout_us)

    def cancel(self, task_id: str) -> bool:
        """Have a task not run, or stop; tell whether it was not finished yet."""
        return self.desk.cancel(task_id)

    # The store -----------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store, opened when it is first asked for."""
        return self._opened().store

    @property
    def desk(self) -> "Desk":
        """Where to ask about tasks, and to act on them."""
        return self._opened().desk

    @property
    def watch(self) -> Watch:
        """What tells those who wait for results."""
        return self._opened().watch

    @property
    def log(self) -> EventLog:
        return self._opened().desk.log

    @property
    def result_ttl_max(self) -> float:
        """How long the record of any task is kept at most."""
        ttls = [task.rules.result_ttl for task in self.tasks.values()]
        return max([self._defaults.result_ttl, *ttls])

    def _opened(self) -> Opened:
        rooms = self._rooms
        if rooms is not None and rooms.pid == os.getpid():
            return rooms
        with self._lock:
            rooms = self._rooms
            if rooms is None or rooms.pid != os.getpid():
                rooms = self._rooms = Opened(self)
        return rooms

    def use(
        self,
        url: str | os.PathLike[str],
        *,
        sync: SyncName | None = None,
        clock: Clock | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        """Go on with another store, as tests and settings at run time need it."""
        self.close()
        with self._lock:
            self.url = url
            self.sync = sync or self.sync
            self.clock, self.ticks = clock or self.clock, ticks or self.ticks

    def close(self) -> None:
        """Close the store. The App opens it again when it is needed."""
        with self._lock:
            rooms, self._rooms = self._rooms, None
        if rooms is not None and rooms.pid == os.getpid():
            rooms.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        scheme, mark, rest = os.fspath(self.url).rpartition("://")
        # Without who logs in, and their password.
        place = scheme + mark + (rest.rpartition("@")[2] if mark else rest)
        return f"<App {place} tasks={len(self.tasks)}>"


_APPS: Final[WeakSet[App]] = WeakSet()


def _forget_locks() -> None:
    """Have locks that nobody holds, in a process that was forked while somebody did."""
    for app in list(_APPS):
        app._lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_locks)


def _timeout_from(timeout: Duration | Unsaid | None) -> float | None:
    if isinstance(timeout, str):
        raise InvalidArgument(f"timeout must be seconds, or None for no limit: {timeout!r}")
    return None if timeout is None else seconds_from(timeout, name="timeout")


def _name_of(function: Callable[..., Any]) -> str:
    name: object = getattr(function, "__name__", None)
    if not isinstance(name, str) or not callable(function):
        raise InvalidArgument(f"{function!r} has no name; say name=")
    return name


def _check_task_name(name: str) -> None:
    given: object = name
    if not isinstance(given, str) or not given.isprintable() or not given.strip():
        raise InvalidArgument(f"a name is printable text: {name!r}")
    if len(given) > TASK_NAME_MAX:
        raise InvalidArgument(f"a name has at most {TASK_NAME_MAX} characters: {name[:40]}…")
