"""How a log is opened, checked before anything is touched."""

import math
from datetime import timedelta
from enum import Enum
from typing import Final, Literal, get_args

from segue.clock import Clock, system_clock
from segue.errors import InvalidArgument
from segue.log.disk import Disk
from segue.log.layout import (
    BATCH_ITEMS_MAX,
    BYTES_PER_SLOT_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    Offset,
    SegmentHeader,
    SegmentId,
)
from segue.log.wake import Bell
from segue.values import dataclass

SyncName = Literal["always", "interval", "os"]
Damaged = Literal["raise", "skip"]
Duration = float | timedelta
"""Seconds, or a timedelta."""

LOCK_TIMEOUT_SECONDS_DEFAULT: Final = 5.0
SYNC_INTERVAL_MS_DEFAULT: Final = 50
SYNC_INTERVAL_MS_MAX: Final = 60_000


class Sync(Enum):
    """When an append has reached the device."""

    ALWAYS = "always"
    """Before it returns, and before anyone can read it."""
    INTERVAL = "interval"
    """Within the stated milliseconds after it returned."""
    OS = "os"
    """When the operating system sees fit: survives the process, not the power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What the keywords of `Log` mean, checked."""

    read_only: bool
    exclusive: bool
    create: bool
    sync: Sync
    sync_interval_ms: int
    segment_bytes: int | None
    segment_items: int | None
    segment_age_us: int | None
    allow_network: bool
    lock_timeout_us: int
    clock: Clock = system_clock
    disk: Disk
    bell: Bell | None = None

    def __post_init__(self) -> None:
        if self.read_only and self.exclusive:
            raise InvalidArgument("read_only and exclusive exclude each other")
        check_limit("sync_interval_ms", self.sync_interval_ms, 1, SYNC_INTERVAL_MS_MAX)
        check_limit("segment_bytes", self.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        check_limit("segment_items", self.segment_items, 1, BATCH_ITEMS_MAX)
        if self.segment_age_us is not None and self.segment_age_us <= 0:
            raise InvalidArgument("segment_age must be positive")
        if self.segment_bytes is not None:
            self.new_header(SegmentId(0), Offset(0), None)  # Do they fit together?

    def new_header(
        self,
        id_: SegmentId,
        first_offset: Offset,
        previous: SegmentHeader | None,
        *,
        nonce: int = 0,
        not_before_us: int = 0,
    ) -> SegmentHeader:
        """Return the header of a new segment: with our limits, else those of the one before."""
        bytes_max = self.segment_bytes
        items_max = self.segment_items
        inherited = None if previous is None else previous.inherited
        if bytes_max is None:
            bytes_max = SEGMENT_BYTES_DEFAULT if inherited is None else inherited.bytes_max
        if items_max is None:
            items_max = _items_default(bytes_max)
            if inherited is not None and inherited.items_max != _items_default(inherited.bytes_max):
                items_max = inherited.items_max
        return SegmentHeader(
            id=id_,
            first_offset=first_offset,
            items_max=items_max,
            bytes_max=bytes_max,
            created_us=max(self.clock(), not_before_us),
            nonce=nonce,
        )


def sync_from(name: SyncName) -> Sync:
    """Return the mode called `name`."""
    try:
        return Sync(name)
    except ValueError:
        names = ", ".join(get_args(SyncName))
        raise InvalidArgument(f"sync must be one of {names}: {name!r}") from None


def microseconds_from(duration: Duration | None, *, name: str) -> int | None:
    """Return seconds or a timedelta as microseconds."""
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidArgument(f"{name} must be seconds or a timedelta: {duration!r}")
    length_us = duration * 1_000_000
    if not math.isfinite(length_us):
        raise InvalidArgument(f"{name} must be finite: {duration}")
    return int(length_us)


def check_on_damage(on_damage: Damaged) -> Damaged:
    """Return `on_damage` if it is one of those there are."""
    if on_damage not in get_args(Damaged):
        raise InvalidArgument(f"on_damage must be raise or skip: {on_damage!r}")
    return on_damage


def _items_default(bytes_max: int) -> int:
    return max(1, bytes_max // BYTES_PER_SLOT_DEFAULT)


def check_limit(name: str, value: int | None, least: int, most: int) -> None:
    """Raise InvalidArgument unless `value` is None or a whole number within its limits."""
    if value is None:
        return
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from {least} to {most}: {value!r}")
