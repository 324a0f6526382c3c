"""A leased message: what its holder sees and does. The same for every store."""

import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from segue.delivery.message import Message, MessageId, message_from
from segue.errors import InvalidArgument, LeaseLost
from segue.log.options import Duration
from segue.stores.contract import Outcome, Receipt
from segue.stores.heartbeat import Heartbeat, Pulse
from segue.stores.message_ids import message_id


class Holder(Protocol):
    """What a job needs of its queue."""

    name: str
    heartbeat: Heartbeat

    def ack(self, job: "Job | Receipt") -> None: ...

    def ack_many(self, jobs: "Iterable[Job | Receipt]") -> None: ...

    def nack(
        self,
        job: "Job | Receipt",
        *,
        outcome: Outcome = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None: ...

    def extend(self, job: "Job | Receipt", *, ttl: Duration | None = None) -> None: ...


class Job:
    """A message and the lease on it. For one thread at a time.

    `with job:` keeps the lease alive, acks at the end, and nacks if an exception ends it. Once the
    lease is lost, every call says so with LeaseLost.
    """

    __slots__ = (
        "_attempt",
        "_attr",
        "_message",
        "_payload",
        "_pulse",
        "_since",
        "_time_us",
        "holder",
        "is_settled",
        "lane",
        "offset",
        "priority",
        "token",
        "ttl_seconds",
    )

    def __init__(
        self,
        holder: Holder,
        lane: int,
        offset: int,
        token: int,
        ttl_seconds: float,
        priority: int,
        attempt: int,
        payload: bytes,
        attr: int,
        time_us: int,
        since: int = 0,
    ) -> None:
        self.holder = holder
        self.lane = lane
        self.offset = offset
        self.token = token
        self.ttl_seconds = ttl_seconds
        self.priority = priority
        self._attempt = attempt
        self._payload = payload
        self._attr = attr
        self._time_us = time_us
        self._since = since
        self._message: Message | None = None
        self._pulse: Pulse | None = None
        self.is_settled = False

    def know(self, message: Message) -> None:
        """Take a message that was read elsewhere. For stores; `attr` says that there is more."""
        self._message = message

    # The message ---------------------------------------------------------------------------

    @property
    def message(self) -> Message:
        """The message as a value."""
        if self._message is None:
            self._message = message_from(
                self.id,
                self._payload,
                self._attr,
                priority=self.priority,
                attempt=self._attempt,
                time_us=self._time_us,
            )
        return self._message

    @property
    def id(self) -> MessageId:
        """The message's id, which it keeps for ever."""
        return message_id(self.lane, self.offset)

    @property
    def receipt(self) -> Receipt:
        """What names this lease where there is no job at hand, as on a command line."""
        return f"{self.id}/{self.token}"

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._payload if not self._attr else self.message.body

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._attempt if not self._attr else self.message.attempt

    @property
    def tries(self) -> int:
        """Which delivery this is since the push or the last redrive, from 1."""
        return self._attempt - self._since

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.message.headers

    @property
    def has_headers(self) -> bool:
        """Whether there are headers; costs nothing for plain messages."""
        return bool(self._attr) and bool(self.message.headers)

    @property
    def pushed_us(self) -> int:
        """When the message was pushed, in microseconds since 1970."""
        return self._time_us if not self._attr else self.message.pushed_us

    @property
    def key(self) -> str | None:
        """What the message was deduplicated by."""
        return self.message.key

    @property
    def group(self) -> str | None:
        """The group whose messages come in order."""
        return self.message.group

    @property
    def pushed_at(self) -> datetime:
        """When the message was pushed, in UTC."""
        return self.message.pushed_at

    @property
    def text(self) -> str:
        """The body as text."""
        return self.message.text

    def json(self) -> object:
        """Return what the body says as JSON. Raises ValueError if it says none."""
        return self.message.json()

    # The lease -----------------------------------------------------------------------------

    def ack(self) -> None:
        """Say that the work is done. Raises LeaseLost."""
        self._require_held()
        self.holder.ack(self)

    def release(self, *, delay: Duration | None = None) -> None:
        """Give the message back as if it had never been taken. Raises LeaseLost."""
        self._require_held()
        self.holder.nack(self, outcome="release", delay=delay)

    def fail(self, reason: str = "", *, delay: Duration | None = None) -> None:
        """Have the message tried again, after `delay` or a backoff. Raises LeaseLost."""
        self._require_held()
        self.holder.nack(self, outcome="fail", delay=delay, reason=reason)

    def bury(self, reason: str = "") -> None:
        """Move the message to the dead letters. Raises LeaseLost."""
        self._require_held()
        self.holder.nack(self, outcome="dead", reason=reason)

    def extend(self, *, ttl: Duration | None = None) -> None:
        """Hold the message for `ttl` from now. Raises LeaseLost."""
        self._require_held()
        self.holder.extend(self, ttl=ttl)

    def check(self) -> None:
        """Raise LeaseLost if the lease is known to be lost; asks nobody."""
        self._require_held()

    def _require_held(self) -> None:
        pulse = self._pulse
        if pulse is not None and pulse.error is not None:
            raise pulse.error.with_traceback(None)
        if self.is_settled:
            raise InvalidArgument(f"message {self.id} was settled already")

    def settle(self) -> None:
        """Take note that the lease is over. For stores."""
        self.is_settled = True
        if self._pulse is not None:
            self._pulse.stop()

    def keep_alive(self) -> None:
        """Renew the lease in the background until it is settled."""
        if self._pulse is None and not self.is_settled:
            self._pulse = self.holder.heartbeat.start(
                lambda: self.holder.extend(self), self.ttl_seconds
            )

    def let_go(self) -> None:
        """Renew the lease no more."""
        if self._pulse is not None:
            self._pulse.stop()

    def drop(self) -> None:
        """Give the message back soon, unless it is settled. Takes no lock."""
        if not self.is_settled:
            self.holder.heartbeat.dropped.append(self.release)

    def __enter__(self) -> Self:
        self.keep_alive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.let_go()
        if self.is_settled:
            return
        if error is None:
            self.ack()
        else:
            with contextlib.suppress(LeaseLost):  # What went wrong in the block matters more.
                self._give_back(error)

    def _give_back(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.holder.nack(self, outcome="fail", reason=f"{type(error).__name__}: {error}")
        else:
            # The program is being stopped: that says nothing about the message.
            self.holder.nack(self, outcome="release")

    def __repr__(self) -> str:
        return f"<Job {self.receipt} attempt={self.attempt}>"
