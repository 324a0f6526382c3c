"""The settings of a queue, checked. They are kept in the ledger, so everybody has the same."""

import json
from dataclasses import asdict, fields
from typing import Final, Literal, get_args

from segue.delivery.rate import RATE_MAX, RATE_MIN, Rate
from segue.delivery.retry import (
    BASE_SECONDS_DEFAULT,
    CAP_SECONDS_DEFAULT,
    JITTER_DEFAULT,
    Backoff,
)
from segue.errors import InvalidArgument
from segue.values import dataclass

OnFull = Literal["refuse", "block", "drop_oldest"]
OnExpiry = Literal["dead", "drop"]

LEASE_SECONDS_DEFAULT: Final = 30.0
LEASE_SECONDS_MIN: Final = 0.001
LEASE_SECONDS_MAX: Final = 7 * 86_400.0
STRICT_LEASE_SECONDS_MIN: Final = 1.0
STRICT_LEASE_SECONDS_MAX: Final = 300.0
SECONDS_MAX: Final = 100 * 365 * 86_400.0
"""No duration is longer: a hundred years."""
DELIVERIES_MAX_DEFAULT: Final = 20
DEDUPLICATION_SECONDS_DEFAULT: Final = 300.0
SEGMENT_ITEMS_MAX: Final = 65_536
GROUP_CONCURRENCY_MAX: Final = 10_000
RATE_BURST_MAX: Final = 1_000_000
SEGMENT_SIZE_DEFAULT: Final = 100
"""Items per segment where the queue is shown in the words of its ancestors (`state`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How a queue behaves. Durations are seconds."""

    lease_ttl: float = LEASE_SECONDS_DEFAULT
    """How long a lease lasts that asks for nothing else."""
    max_leases: int | None = None
    """How many may be out at once. 1 is strict mode: then leases last 1 to 300 seconds, and who
    asks while one is out is told QueueLocked."""
    max_deliveries: int | None = DELIVERIES_MAX_DEFAULT
    """After so many failed or expired deliveries a message goes to the dead letters."""
    backoff_base: float = BASE_SECONDS_DEFAULT
    backoff_cap: float = CAP_SECONDS_DEFAULT
    backoff_jitter: float = JITTER_DEFAULT
    capacity: int | None = None
    """How many messages, dead letters left out, the queue takes."""
    on_full: OnFull = "refuse"
    on_expiry: OnExpiry = "dead"
    """Where messages go whose time to live is over when their turn comes."""
    dedup_window: float = DEDUPLICATION_SECONDS_DEFAULT
    keep_seconds: float | None = None
    """How long settled messages stay readable; without either of these they go at once."""
    keep_bytes: int | None = None
    """How much of settled messages stays readable."""
    segment_items: int | None = None
    """Items per segment on disk, and in `state`; by default segments are cut by bytes, and
    `state` shows a hundred items in each."""
    group_concurrency: int = 1
    """How many messages of one group may be out at once; 1 keeps them in order."""
    rate: float | None = None
    """How many messages a second are delivered, by all who deliver together."""
    rate_burst: int = 1
    """How many of them at once, after nobody has taken any for long enough."""

    def __post_init__(self) -> None:
        check_seconds("lease_ttl", self.lease_ttl, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX)
        check_count("max_leases", self.max_leases)
        check_count("max_deliveries", self.max_deliveries)
        check_count("capacity", self.capacity)
        check_count("keep_bytes", self.keep_bytes, least=0)
        check_count("segment_items", self.segment_items, most=SEGMENT_ITEMS_MAX)
        check_seconds("backoff_base", self.backoff_base, 0)
        check_seconds("backoff_cap", self.backoff_cap, 0)
        check_seconds("backoff_jitter", self.backoff_jitter, 0, 1)
        check_seconds("dedup_window", self.dedup_window, 0)
        if self.keep_seconds is not None:
            check_seconds("keep_seconds", self.keep_seconds, 0)
        _check_number("group_concurrency", self.group_concurrency, GROUP_CONCURRENCY_MAX)
        _check_number("rate_burst", self.rate_burst, RATE_BURST_MAX)
        _check_rate(self.rate)
        _check_choice("on_full", self.on_full, get_args(OnFull))
        _check_choice("on_expiry", self.on_expiry, get_args(OnExpiry))
        self.lease_us(self.lease_ttl)

    @property
    def is_strict(self) -> bool:
        return self.max_leases == 1

    @property
    def limit(self) -> Rate | None:
        """How fast messages are delivered, if that matters."""
        if self.rate is None:
            return None
        return Rate(per_second=self.rate, burst=self.rate_burst)

    @property
    def keeps_settled(self) -> bool:
        return self.keep_seconds is not None or self.keep_bytes is not None

    @property
    def segment_size(self) -> int:
        """Items per segment in the words of `state`."""
        return self.segment_items or SEGMENT_SIZE_DEFAULT

    @property
    def backoff(self) -> Backoff:
        return Backoff(
            base_us=round(self.backoff_base * 1_000_000),
            cap_us=round(self.backoff_cap * 1_000_000),
            jitter=self.backoff_jitter,
        )

    def lease_us(self, seconds: float) -> int:
        """Return how long a lease of `seconds` lasts. Raises InvalidArgument."""
        least, most = LEASE_SECONDS_MIN, LEASE_SECONDS_MAX
        if self.is_strict:
            least, most = STRICT_LEASE_SECONDS_MIN, STRICT_LEASE_SECONDS_MAX
        check_seconds("ttl", seconds, least, most)
        return round(seconds * 1_000_000)

    def to_json(self) -> str:
        """Return the rules as the ledger keeps them."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "QueueRules":
        """Return the rules that `to_json` wrote, also those of an older or newer version."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


def check_seconds(name: str, value: float, least: float, most: float = SECONDS_MAX) -> None:
    """Raise InvalidArgument unless `value` is a duration within its limits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} must be seconds: {value!r}")
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be from {least:g} to {most:g} seconds: {value!r}")


def check_count(name: str, value: int | None, *, least: int = 1, most: int = 1 << 53) -> None:
    """Raise InvalidArgument unless `value` is None or a whole number within its limits."""
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise InvalidArgument(f"{name} must be a whole number of at least {least}: {value!r}")


def _check_number(name: str, value: int, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from 1 to {most}: {value!r}")


def _check_rate(rate: float | None) -> None:
    given: object = rate
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidArgument(f"rate must be a number of messages a second: {rate!r}")
    if not RATE_MIN <= given <= RATE_MAX:
        raise InvalidArgument(f"rate must be from one a week to {RATE_MAX:,.0f} a second: {rate!r}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}: {value!r}")
