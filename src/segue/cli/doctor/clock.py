"""Whether the machine's clock can be believed: delays, leases and records go by it."""

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.text import human_seconds, iso_time

CLOCK: Final = "clock"
SYNCED: Final = "clock sync"
EARLIEST_US: Final = 1_735_689_600_000_000
"""The beginning of 2025: before there was any Segue."""
LATEST_US: Final = 4_102_444_800_000_000
"""The beginning of 2100: nobody will ask."""
BEHIND_US_MAX: Final = 1_000_000
"""How much newer than now a record may be."""
STEP_US_MAX: Final = 500_000
"""How far the wall clock may move against the steady one while we look."""
_UNSYNCED: Final = 0x40
"""STA_UNSYNC."""
_SPARE_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Both clocks at one moment."""

    wall_us: int
    steady_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """What the clocks said at the beginning and at the end, and what is known of them."""

    before: ClockReading
    after: ClockReading
    newest_us: int | None = None
    """The time of the newest record of the store."""
    newest_path: str = ""
    is_synced: bool | None = None
    """Whether something keeps the clock right; None if that cannot be told."""


def clock_checks(facts: ClockFacts) -> Iterator[Check]:
    """Yield whether the clock makes sense, and whether it is kept right."""
    yield _sense(facts)
    if facts.is_synced is None:
        yield info(SYNCED, "it cannot be told whether anything keeps the clock right")
    elif facts.is_synced:
        yield ok(SYNCED, "something keeps the clock right, says the system")
    else:
        yield warn(
            SYNCED,
            "nothing keeps the clock right, says the system",
            "run chrony or systemd-timesyncd, here or on the host whose clock this is",
        )


def _sense(facts: ClockFacts) -> Check:
    now_us = facts.after.wall_us
    found = f"it is {iso_time(now_us).partition('.')[0]}Z"
    remedy = "set the clock; what is delayed or leased goes by it"
    if not EARLIEST_US <= now_us < LATEST_US:
        return fail(CLOCK, found, remedy)
    if facts.after.steady_us < facts.before.steady_us:
        return fail(CLOCK, f"{found}, and the steady clock went back", "another machine, or kernel")
    ahead_us = 0 if facts.newest_us is None else facts.newest_us - now_us
    if ahead_us > BEHIND_US_MAX:
        return fail(
            CLOCK,
            f"{found}, and the newest record is {human_seconds(ahead_us / 1e6)} later: "
            f"{facts.newest_path}",
            f"{remedy}, and would wait until it has caught up",
        )
    step_us = (facts.after.wall_us - facts.before.wall_us) - (
        facts.after.steady_us - facts.before.steady_us
    )
    if abs(step_us) > STEP_US_MAX:
        return warn(
            CLOCK,
            f"{found}; it was moved by {step_us / 1e6:+.1f} s while we looked",
            "let it be slewed, not set",
        )
    return ok(CLOCK, found)


def read_clocks() -> ClockReading:
    """Return what both clocks say now."""
    return ClockReading(wall_us=time.time_ns() // 1000, steady_us=time.monotonic_ns() // 1000)


class _Timex(ctypes.Structure):
    """The beginning of what `adjtimex` fills in; the rest is of no interest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("error_max", ctypes.c_long),
        ("error_estimated", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * _SPARE_BYTES),
    )


def is_clock_synced() -> bool | None:
    """Return whether the kernel knows that its clock is kept right; None if it does not say."""
    timex = _Timex(modes=0)  # 0 only reads.
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else not timex.status & _UNSYNCED
