"""How a whole store stands, now and over time, as it is answered."""

from typing import Literal

from segue.stores.http.wire.base import Answer, Count, Moment


class StoreJson(Answer):
    """What kind of store it is."""

    kind: Literal["directory", "redis"]
    durable: str
    """When what was acknowledged has reached the device: always, interval, os, or redis."""
    version: str
    """Of the server."""


class You(Answer):
    """Who asks, and what they may do."""

    name: str
    roles: list[str]
    names: list[str]
    """The patterns of names that the token is good for."""
    may_act: bool
    """Whether acts are allowed: to who has the role admin, on a server that is not read-only."""


class HealthJson(Answer):
    """How the server is."""

    status: str
    reason: str
    """Empty if all is well."""


class DiskJson(Answer):
    """The device that a directory is on."""

    total_bytes: Count
    free_bytes: Count
    store_bytes: Count
    """What queues and topics take up; topics as of up to half a minute ago."""


class Totals(Answer):
    """All queues together, but for those that cannot be looked at."""

    ready: Count
    delayed: Count
    leased: Count
    dead: Count
    paused: Count
    """How many queues are."""
    in_per_second: float | None
    out_per_second: float | None
    failed_per_second: float | None
    oldest_seconds: float | None
    oldest_queue: str
    size_bytes: Count


class PercentilesJson(Answer):
    """The spread of some durations; all 0 if there are none."""

    count: Count
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class TasksJson(Answer):
    """What the workers that are there did since they were started."""

    wait: PercentilesJson
    run: PercentilesJson
    per_second: float
    """How many are completed, of late."""
    counts: dict[str, int]
    """completed, failed, retried, dead, cancelled, timeout"""


class WorkersJson(Answer):
    """The workers that are there."""

    count: Count
    slots: Count
    busy: Count


class QueueRow(Answer):
    """A queue as it was last seen."""

    name: str
    ready: Count
    delayed: Count
    leased: Count
    dead: Count
    paused: bool
    oldest_seconds: float | None
    """How long the message that would be leased next has waited."""
    in_per_second: float | None
    """Rates are null until the queue was looked at twice."""
    out_per_second: float | None
    failed_per_second: float | None
    size_bytes: Count
    problem: str
    """Why it cannot be looked at now: then the numbers are those last known, or 0."""


class Overview(Answer):
    """The whole store, as far as the token is good for it."""

    at_us: Moment
    store: StoreJson
    you: You
    health: HealthJson
    disk: DiskJson | None
    """Null unless the store is a directory."""
    syncs_per_second: float | None
    totals: Totals
    tasks: TasksJson | None
    """Null where the extra `tasks` is not installed, as are the workers."""
    workers: WorkersJson | None
    queues: list[QueueRow]
    """By name."""
    more_queues: Count
    """How many there are besides."""


class HistoryJson(Answer):
    """Columns of equal length, a point for each step; what is not known is null."""

    queue: str | None
    step_seconds: float
    at_us: list[Moment]
    """When each step begins."""
    ready: list[int | None]
    """Numbers are the last of their step, rates the mean over it, the rest the most in it."""
    delayed: list[int | None]
    leased: list[int | None]
    dead: list[int | None]
    in_per_second: list[float | None]
    out_per_second: list[float | None]
    failed_per_second: list[float | None]
    oldest_seconds: list[float | None]
    size_bytes: list[int | None]
    wait_p50_ms: list[float | None]
    """Of tasks that ended in the step, to a tenth. From here on only of the whole store."""
    wait_p99_ms: list[float | None]
    run_p50_ms: list[float | None]
    run_p99_ms: list[float | None]
    syncs_per_second: list[float | None]
    free_bytes: list[int | None]
