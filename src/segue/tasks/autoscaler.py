"""How many workers there should be, from how much waits and who is idle.

Pure: it starts and stops nobody. Whoever looks after the workers asks once every `check_seconds`
and does what the decision says. Time is ticks, which never step.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Final

from segue.delivery.rules import check_seconds
from segue.errors import InvalidArgument
from segue.values import dataclass

DECISIONS_KEPT: Final = 100
WORKERS_MAX: Final = 10_000
MAX_WORKERS_DEFAULT: Final = 10
IDLE_SECONDS_DEFAULT: Final = 120.0
COOLDOWN_UP_SECONDS_DEFAULT: Final = 30.0
COOLDOWN_DOWN_SECONDS_DEFAULT: Final = 120.0
CHECK_SECONDS_DEFAULT: Final = 1.0
CHECK_SECONDS_MIN: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """When workers are added and taken away. Durations are seconds."""

    min_workers: int = 1
    max_workers: int = MAX_WORKERS_DEFAULT
    depth_up: int = 100
    """With more waiting than this there are too few workers, however many there are;"""
    depth_per_worker_up: int = 10
    """and with more than this for each of them."""
    step_depth: int = 50
    """One worker is added for so many that wait; at least one."""
    idle_seconds: float = IDLE_SECONDS_DEFAULT
    """A worker without a task for so long is one too many."""
    cooldown_up_seconds: float = COOLDOWN_UP_SECONDS_DEFAULT
    """Between adding workers and adding more."""
    cooldown_down_seconds: float = COOLDOWN_DOWN_SECONDS_DEFAULT
    """Between any change and taking workers away."""
    check_seconds: float = CHECK_SECONDS_DEFAULT
    """How often to ask for a decision."""
    step_up_fraction: float = 0.5
    """Of the workers there are, how many may be added at once, plus one."""
    step_down_fraction: float = 0.25
    """Of the workers there are, how many may be taken away at once; at least one."""

    def __post_init__(self) -> None:
        _check_number("min_workers", self.min_workers, most=WORKERS_MAX)
        _check_number("max_workers", self.max_workers, least=1, most=WORKERS_MAX)
        if self.min_workers > self.max_workers:
            raise InvalidArgument(
                f"min_workers must not be more than max_workers: "
                f"{self.min_workers} > {self.max_workers}"
            )
        _check_number("depth_up", self.depth_up)
        _check_number("depth_per_worker_up", self.depth_per_worker_up)
        _check_number("step_depth", self.step_depth, least=1)
        check_seconds("idle_seconds", self.idle_seconds, 0)
        check_seconds("cooldown_up_seconds", self.cooldown_up_seconds, 0)
        check_seconds("cooldown_down_seconds", self.cooldown_down_seconds, 0)
        check_seconds("check_seconds", self.check_seconds, CHECK_SECONDS_MIN)
        _check_fraction("step_up_fraction", self.step_up_fraction)
        _check_fraction("step_down_fraction", self.step_down_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How things stand at one moment."""

    ticks_us: int
    depth: int
    """How many tasks wait, those that workers have left out."""
    workers: int
    busy: int
    """How many of them have a task."""
    idle_us: Sequence[int] = ()
    """For each of the others, how long it has had none."""
    time_us: int = 0
    """The clock, for people who read the decisions."""

    def __post_init__(self) -> None:
        _check_number("depth", self.depth)
        _check_number("workers", self.workers)
        _check_number("busy", self.busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many workers there should be from now on, and why."""

    ticks_us: int
    time_us: int
    workers_before: int
    workers_after: int
    reason: str
    depth: int
    busy: int

    @property
    def is_change(self) -> bool:
        return self.workers_after != self.workers_before


@dataclass(slots=True)
class Autoscaler:
    """Decides by `rules`; remembers when it changed something, and why.

    One thread asks it for decisions; any may read what it decided.
    """

    rules: ScalingRules = field(default_factory=ScalingRules)
    decisions: tuple[Decision, ...] = field(default=(), init=False)
    """The last DECISIONS_KEPT that changed something, oldest first."""
    standing: str = field(default="", init=False)
    """Why nothing was changed the last time nothing was."""
    _up_us: int | None = field(default=None, init=False)
    _changed_us: int | None = field(default=None, init=False)
    _idle_seen_us: int | None = field(default=None, init=False)

    def decide(self, sample: Sample) -> Decision:
        """Return how many workers there should be; more load outweighs idle workers.

        Up if more wait than `depth_up` or than `depth_per_worker_up` for each worker, or if all are
        busy and anything waits. Down if workers were idle for `idle_seconds` on this check and the
        one before, or, with nothing waiting, if at least half of them were on this one. A number
        outside `min_workers` to `max_workers` is put right at once, without a cool-down.
        """
        idle_count = self._idle_count(sample)
        # Kept for the next check, which needs both; a second look at one moment is no second check.
        seen_us, self._idle_seen_us = self._idle_seen_us, sample.ticks_us if idle_count else None
        is_idle_again = seen_us is not None and seen_us < sample.ticks_us
        rules, workers = self.rules, sample.workers
        if workers < rules.min_workers:
            return self._change(sample, rules.min_workers, f"at least {rules.min_workers} wanted")
        if workers > rules.max_workers:
            return self._change(sample, rules.max_workers, f"at most {rules.max_workers} wanted")
        if pressure := self._pressure(sample):
            return self._up(sample, pressure)
        is_half = sample.depth == 0 and 2 * idle_count >= workers
        if idle_count and (is_half or is_idle_again):
            return self._down(sample, idle_count)
        return self._stay(sample, f"{sample.busy} busy, {sample.depth} waiting")

    def _up(self, sample: Sample, pressure: str) -> Decision:
        rules, workers = self.rules, sample.workers
        if workers == rules.max_workers:
            return self._stay(sample, f"the most there may be; {pressure}")
        wait_us = _left_us(self._up_us, rules.cooldown_up_seconds, sample.ticks_us)
        if wait_us > 0:
            return self._stay(
                sample, f"up again in {_seconds(wait_us)} at the earliest; {pressure}"
            )
        wanted = max(1, sample.depth // rules.step_depth)
        allowed = int(workers * rules.step_up_fraction) + 1
        self._up_us = self._changed_us = sample.ticks_us
        after = min(workers + min(wanted, allowed), rules.max_workers)
        return self._change(sample, after, pressure)

    def _down(self, sample: Sample, idle_count: int) -> Decision:
        rules, workers = self.rules, sample.workers
        idle = f"{idle_count} idle for {_seconds(round(rules.idle_seconds * 1_000_000))} or longer"
        if workers == rules.min_workers:
            return self._stay(sample, f"the fewest there may be; {idle}")
        wait_us = _left_us(self._changed_us, rules.cooldown_down_seconds, sample.ticks_us)
        if wait_us > 0:
            return self._stay(sample, f"down in {_seconds(wait_us)} at the earliest; {idle}")
        allowed = max(1, int(workers * rules.step_down_fraction))
        self._changed_us = sample.ticks_us
        after = max(workers - min(idle_count, allowed), rules.min_workers)
        return self._change(sample, after, f"{idle}, {sample.depth} waiting")

    def _pressure(self, sample: Sample) -> str:
        """Say why there are too few workers; nothing if there are not."""
        rules, depth, workers = self.rules, sample.depth, sample.workers
        if depth > 0 and workers == 0:
            return f"nobody works, {depth} waiting"
        if depth > 0 and sample.busy >= workers:
            everybody = "the only worker" if workers == 1 else f"all {workers} workers"
            return f"{everybody} busy, {depth} waiting"
        if depth > rules.depth_up:
            return f"{depth} waiting, more than {rules.depth_up}"
        if depth > rules.depth_per_worker_up * workers:
            return f"{depth} waiting, more than {rules.depth_per_worker_up} for each worker"
        return ""

    def _idle_count(self, sample: Sample) -> int:
        idle_us = round(self.rules.idle_seconds * 1_000_000)
        free = max(0, sample.workers - sample.busy)
        # Workers may have found a task since their idleness was looked up: never stop those.
        return min(free, sum(worker_us >= idle_us for worker_us in sample.idle_us))

    def _change(self, sample: Sample, after: int, why: str) -> Decision:
        direction = "up" if after > sample.workers else "down"
        decision = _decision(sample, after, f"{direction} {sample.workers} → {after}: {why}")
        # A new tuple each time, so that readers in other threads never see half of one.
        self.decisions = (*self.decisions, decision)[-DECISIONS_KEPT:]
        return decision

    def _stay(self, sample: Sample, why: str) -> Decision:
        decision = _decision(sample, sample.workers, f"{_workers(sample.workers)}: {why}")
        self.standing = decision.reason
        return decision


def is_safe_to_stop(sample: Sample) -> bool:
    """Say whether all may go: nothing is leased and nothing waits."""
    return sample.busy == 0 and sample.depth == 0


def _decision(sample: Sample, after: int, reason: str) -> Decision:
    return Decision(
        ticks_us=sample.ticks_us,
        time_us=sample.time_us,
        workers_before=sample.workers,
        workers_after=after,
        reason=reason,
        depth=sample.depth,
        busy=sample.busy,
    )


def _left_us(since_us: int | None, cooldown_seconds: float, ticks_us: int) -> int:
    """Return how much of a cool-down is left."""
    if since_us is None:
        return 0
    return since_us + round(cooldown_seconds * 1_000_000) - ticks_us


def _seconds(duration_us: int) -> str:
    return f"{-(-duration_us // 1_000_000)} s"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _check_number(name: str, value: object, *, least: int = 0, most: int = 1 << 53) -> None:
    """Raise InvalidArgument unless `value` is a whole number within its limits."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from {least} to {most}: {value!r}")


def _check_fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgument(f"{name} must be from 0 to 1: {value!r}")
