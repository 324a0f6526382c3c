"""A function that can be queued. Calling it runs it here; `enqueue` has a worker run it."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast

import msgspec

from segue.delivery.priority import Priority, priority_from
from segue.errors import BadArguments, InvalidArgument
from segue.log.options import Duration
from segue.stores.contract import Item
from segue.tasks.envelope import Envelope, write_envelope
from segue.tasks.records import task_id_of
from segue.tasks.results import Result
from segue.tasks.rules import TaskRules, seconds_from
from segue.tasks.signature import Signature
from segue.tasks.threads import in_thread
from segue.tracing import headers_of_span

if TYPE_CHECKING:
    from segue.tasks.app import App

P = ParamSpec("P")
R = TypeVar("R")

DIGEST_BYTES: Final = 16
CLOCK_SLACK_US: Final = 1_000_000
"""How much the clock may go back between asking for the time and pushing."""
SERVER_SLACK_US: Final = 3_600_000_000
"""How far the clock of a server, which says when a message was pushed, may be behind ours."""


class Options:
    """What one call has of its own; None is as the task says."""

    __slots__ = (
        "at",
        "delay",
        "headers",
        "key",
        "priority",
        "queue",
        "retries",
        "tenant",
        "timeout",
        "ttl",
        "unique",
    )

    def __init__(self) -> None:
        self.priority: int | None = None
        self.delay: float | None = None
        self.at: datetime | None = None
        self.ttl: float | None = None
        self.key: str | None = None
        self.unique: str | None = None
        self.tenant: str | None = None
        self.queue: str | None = None
        self.retries: int | None = None
        self.timeout: float | None = None
        self.headers: Mapping[str, str] | None = None


_AS_DECLARED: Final = Options()


class Queued(Generic[P, R]):
    """What tasks, and tasks with options, have in common: being queued."""

    def __init__(self, app: "App", rules: TaskRules, signature: Signature) -> None:
        self.app = app
        self.rules = rules
        self.signature = signature
        self._options = _AS_DECLARED
        self._start = b'{"task":' + msgspec.json.encode(rules.name) + b',"args":'

    @property
    def name(self) -> str:
        return self.rules.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Queue a call and return the handle of its result. Durable as the store's sync says.

        Raises BadArguments, QueueFull before anything is written.
        """
        return self._push([self._item(args, kwargs)])[0]

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Queue a call without holding up the event loop."""
        return await in_thread(self.enqueue, *args, **kwargs)

    def map(self, values: Iterable[object]) -> list[Result[R]]:
        """Queue a call for each value, its only argument, all in one step."""
        return self.starmap((value,) for value in values)

    def starmap(self, calls: Iterable[Iterable[object]]) -> list[Result[R]]:
        """Queue a call for each tuple of arguments, all in one step, or none if one is bad."""
        items = [self._item(tuple(call), {}) for call in calls]
        return self._push(items) if items else []

    # How -----------------------------------------------------------------------------------

    def _item(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Item:
        options, rules = self._options, self.rules
        arguments = self.signature.write(args, kwargs)
        if options.retries is None and options.timeout is None:
            body = self._start + arguments + b"}"
        else:
            body = write_envelope(
                Envelope(rules.name, msgspec.Raw(arguments), options.retries, options.timeout)
            )
        return Item(
            body=body,
            priority=rules.priority if options.priority is None else options.priority,
            delay=self._delay(),
            ttl=options.ttl,
            key=self._unique_key(args, kwargs),
            group=self.group_of(args, kwargs),
            headers=headers_of_span(options.headers),
        )

    def _push(self, items: list[Item]) -> list[Result[R]]:
        # The message of a unique call may have been there long before.
        slack_us = SERVER_SLACK_US if "://" in self.app.store.url else CLOCK_SLACK_US
        since_us = 0 if items[0].key is not None else self.app.clock() - slack_us
        queue = self.app.queue_for(self._options.queue or self.rules.queue, self._options.tenant)
        if len(items) == 1:
            item = items[0]
            ids = [
                queue.push(
                    item.body,
                    priority=item.priority,
                    delay=item.delay,
                    ttl=item.ttl,
                    key=item.key,
                    group=item.group,
                    headers=item.headers,
                )
            ]
        else:
            ids = queue.push_many(items)
        if self.app.on_queued is not None:
            self.app.on_queued()
        return [Result(self.app, self, task_id_of(queue.name, each), since_us) for each in ids]

    def _delay(self) -> float | None:
        options = self._options
        if options.at is None:
            return options.delay
        left = options.at.timestamp() - self.app.clock() / 1_000_000
        return left if left > 0 else None

    def _unique_key(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        unique = self._options.unique
        if unique is None and self.rules.unique is None:
            return None
        if unique is None:
            canonical = self.signature.canonical(args, kwargs)
            unique = blake2b(canonical, digest_size=DIGEST_BYTES).hexdigest()
        return f"{self.rules.name}:{unique}"

    def group_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        """Return the group of messages that a call belongs to by its key, if it has one."""
        key = self._options.key
        if key is None and self.rules.key is not None:
            key = self._key_of(self.rules.key, args, kwargs)  # None is no key, and no order.
        return None if key is None else f"{self.rules.name}:{key}"

    def _key_of(
        self,
        key: str | Callable[..., str],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> str | None:
        try:
            value = self.signature.value_of(key, args, kwargs)
        except Exception as error:
            raise BadArguments(task=self.name, reason=f"its key: {error!r}") from error
        return None if value is None else str(value)


class TaskBase(Queued[P, R]):
    """What tasks have in common, whether their function is async or not."""

    def __init__(self, app: "App", function: Callable[..., Any], rules: TaskRules) -> None:
        super().__init__(app, rules, Signature(function, rules.name))
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def using(
        self,
        *,
        priority: Priority | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        ttl: Duration | None = None,
        key: str | None = None,
        unique: str | None = None,
        tenant: str | None = None,
        queue: str | None = None,
        retries: int | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "Queued[P, R]":
        """Return the task with options for the calls to be queued by it.

        Not before `delay` or the time `at`, not after `ttl`; one after another with others of the
        same `key`; once as long as the queue remembers `unique`; for a `tenant`, who has a share
        of the workers. Raises InvalidArgument.
        """
        queued: Queued[P, R] = Queued(self.app, self.rules, self.signature)
        options = queued._options = Options()
        options.priority = None if priority is None else priority_from(priority)
        options.delay = None if delay is None else seconds_from(delay, name="delay")
        options.ttl = None if ttl is None else seconds_from(ttl, name="ttl")
        if timeout is not None:
            seconds = seconds_from(timeout, name="timeout")
            options.timeout = replace(self.rules, timeout=seconds).timeout  # Checked on the way.
        if queue is not None:
            self.app.require_queue(queue)
        options.key, options.unique, options.tenant, options.queue = key, unique, tenant, queue
        options.headers = headers
        if at is not None and (delay is not None or at.tzinfo is None):
            raise InvalidArgument("`at` must have a time zone, and not come with a delay")
        options.at = at
        if retries is not None:
            options.retries = replace(self.rules, retries=retries).retries
        return queued

    def run(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Call the function. For workers."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} queue={self.rules.queue}>"

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} is not to be pickled: queue it, or pass its name")


class Task(TaskBase[P, R]):
    """A plain function as a task."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here and now."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncTask(TaskBase[P, R]):
    """An async function as a task."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return the coroutine that runs it here."""
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]
