"""How a task behaves, checked; and what that means for the queue it goes to."""

import re
from collections.abc import Callable
from dataclasses import field, replace
from datetime import timedelta
from typing import Final

from segue.delivery.priority import NAMES
from segue.delivery.retry import BASE_SECONDS_DEFAULT, CAP_SECONDS_DEFAULT, JITTER_DEFAULT, Backoff
from segue.delivery.rules import QueueRules, check_count, check_seconds
from segue.errors import InvalidArgument
from segue.log.options import Duration
from segue.tasks.envelope import RETRIES_MAX
from segue.tasks.events import KEEP_SECONDS_DEFAULT
from segue.tasks.schedule import Cron, Every, Missed
from segue.values import dataclass

QUEUE_DEFAULT: Final = "default"
PRIORITY_DEFAULT: Final = NAMES["normal"]
RETRIES_DEFAULT: Final = 3
TIMEOUT_SECONDS_DEFAULT: Final = 30.0
TENANT_MARK: Final = ".tenant."
"""Between the name of a queue and that of a tenant: each tenant has a queue of its own."""

KeyFunction = Callable[..., str]
_RATE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)\s*")
_PER: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRules:
    """How a task behaves. Durations are seconds."""

    name: str
    queue: str = QUEUE_DEFAULT
    priority: int = PRIORITY_DEFAULT
    retries: int = RETRIES_DEFAULT
    """How often it is tried again after its first failure; a worker that dies counts, too."""
    backoff: Backoff = field(default_factory=Backoff)
    timeout: float | None = TIMEOUT_SECONDS_DEFAULT
    unique: float | None = None
    """So long, the same call is queued only once, unless its queue remembers longer or less."""
    key: str | KeyFunction | None = None
    """The parameter, or a function of the arguments, that names what must go one after another."""
    result_ttl: float = KEEP_SECONDS_DEFAULT
    schedule: Cron | Every | None = None
    missed: Missed = "latest"

    def __post_init__(self) -> None:
        check_count("retries", self.retries, least=0, most=RETRIES_MAX)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout, 0.001)
        if self.unique is not None:
            check_seconds("unique", self.unique, 0.001)
        check_seconds("result_ttl", self.result_ttl, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShape:
    """What tasks ask of their queue. What is None is left as it is."""

    concurrency: int | None = None
    """How many of its tasks run at once, over all workers."""
    key_concurrency: int | None = None
    """How many of those with the same key."""
    rate: float | None = None
    """How many are begun a second, over all workers."""
    burst: int | None = None
    unique: float | None = None
    weight: int = 1
    """How much of the workers' attention it gets while others wait, too."""

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency)
        check_count("key concurrency", self.key_concurrency)
        check_count("burst", self.burst)
        check_count("weight", self.weight)
        if self.burst is not None and self.rate is None:
            raise InvalidArgument("burst means nothing without a rate")
        if self.rate is not None and not self.rate > 0:
            raise InvalidArgument(f"rate must be positive: {self.rate!r}")

    @property
    def has_limits(self) -> bool:
        """Whether it says something that other tasks in the queue would have to share."""
        limits = self.limits
        return any(limit is not None for limit in limits)

    @property
    def limits(self) -> tuple[float | None, ...]:
        return (self.concurrency, self.key_concurrency, self.rate, self.burst, self.unique)

    def applied_to(self, rules: QueueRules) -> QueueRules:
        """Return the rules a queue must have for its tasks."""
        # How often a task is tried is the task's to say, and its worker's to count.
        rules = replace(rules, max_deliveries=None)
        if self.concurrency is not None:
            rules = replace(rules, max_leases=self.concurrency)
        if self.key_concurrency is not None:
            rules = replace(rules, group_concurrency=self.key_concurrency)
        if self.rate is not None:
            rules = replace(rules, rate=self.rate, rate_burst=self.burst or 1)
        if self.unique is not None:
            rules = replace(rules, dedup_window=self.unique)
        return rules


def rate_from(rate: float | str) -> float:
    """Return a rate a second: a number, or text such as "100/m". Raises InvalidArgument."""
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate)
        if match is None:
            raise InvalidArgument(f"rate must be like 10/s, 100/m, 5000/h or a number: {rate!r}")
        return float(match[1]) / _PER[match[2]]
    given: object = rate
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise InvalidArgument(f"rate must be like 10/s, 100/m, 5000/h or a number: {rate!r}")
    return float(rate)


def backoff_from(backoff: Backoff | Duration | None) -> Backoff:
    """Return how long to wait between tries: a Backoff, or the first delay."""
    if isinstance(backoff, Backoff):
        return backoff
    base = BASE_SECONDS_DEFAULT if backoff is None else seconds_from(backoff, name="backoff")
    cap = max(base, CAP_SECONDS_DEFAULT)
    return Backoff(
        base_us=round(base * 1_000_000), cap_us=round(cap * 1_000_000), jitter=JITTER_DEFAULT
    )


def seconds_from(duration: Duration, *, name: str) -> float:
    """Return a duration as seconds. Raises InvalidArgument."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    check_seconds(name, seconds, 0)
    return float(seconds)
