"""Whether a sync can be what it says: it takes a device time to keep something.

One thing can be shown by measuring: that a sync came back sooner than any device could have kept
it. That one which took its time was honest cannot: only a power cut shows that.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

from segue.cli.doctor.check import Check, fail, ok, warn
from segue.cli.doctor.file_system import IN_MEMORY
from segue.cli.doctor.mounts import Mount
from segue.values import dataclass

NAME: Final = "sync"
POSSIBLE_US_MIN: Final = 20.0
"""An append with its sync takes a write and a commit of the journal, one after the other: nothing
that keeps data without power was measured to do both in less."""
TURNING_US_MIN: Final = 1_000.0
"""What a disk that turns takes at least: the fastest ones take 2 ms for half a turn."""
SLOW_US: Final = 50_000.0
"""Twenty syncs a second."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.EROFS})
_NO_BARRIERS: Final = frozenset({"barrier=0", "nobarrier"})
_IGNORING: Final = "eatmydata"
"""A library that makes syncs do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the system says of the device below; None where it says nothing."""

    turns: bool | None = None
    write_cache: str | None = None
    """Such as "write back": the device keeps writes in memory until it is told to flush."""
    is_virtual: bool = False
    """Whether a hypervisor is between us and the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFacts:
    """What was measured, and on what."""

    took_us: tuple[float, ...]
    kind: str
    """Of the file system."""
    options: frozenset[str] = frozenset()
    device: Device = Device()
    preload: str = ""
    """What LD_PRELOAD says."""


def sync_check(facts: SyncFacts) -> Check:
    """Return whether syncs took as long as they must."""
    if not facts.took_us:
        return warn(NAME, "nothing was measured", "ask again")
    middle_us = median(facts.took_us)
    found = (
        f"an append with its sync takes {_time(middle_us)}, at most {_time(max(facts.took_us))} "
        f"in {len(facts.took_us)} tries"
    )
    if facts.kind in IN_MEMORY:
        return fail(NAME, f"{found}: memory, of which a sync keeps nothing", "a disk")
    if _IGNORING in facts.preload:
        return fail(NAME, f"{found}: {_IGNORING} makes syncs do nothing", "unset LD_PRELOAD")
    if middle_us < POSSIBLE_US_MIN:
        return warn(
            NAME,
            f"{found}: sooner than any device keeps something without power",
            "look for what answers in its place: a library, a volatile overlay, a hypervisor "
            "with cache=unsafe; test it with a power cut",
        )
    device = facts.device
    if device.turns and not device.is_virtual and middle_us < TURNING_US_MIN:
        return warn(
            NAME,
            f"{found}: sooner than a disk turns, so a cache has answered",
            "see that the cache has a battery, or turn it off (hdparm -W 0)",
        )
    if facts.options & _NO_BARRIERS:
        return warn(
            NAME,
            f"{found}, but the file system is mounted without barriers",
            "mount it with barriers, unless the cache below has a battery",
        )
    if middle_us > SLOW_US:
        return warn(
            NAME,
            f"{found}: slow, about {1e6 / middle_us:.0f} a second",
            "a faster device, push_many, or sync='interval'",
        )
    return ok(NAME, f"{found}: {_what_that_says(device)}")


def not_measured(reason: str, number: int | None) -> Check:
    """Return that there are no times, and why; `number` is that of the system's error."""
    found = f"not measured: {reason}"
    if number in _FULL:
        return fail(NAME, found, "make space")
    if number in _FORBIDDEN:
        return warn(NAME, found, "ask for a directory, as who will write to it")
    return fail(NAME, found, "look at the device: the system's log says more")


def _what_that_says(device: Device) -> str:
    if device.is_virtual:
        return "plausible; what the host does with it cannot be seen from in here"
    if device.write_cache == "write through":
        return "plausible; the device says that it has no cache to flush"
    return "plausible; whether the device is honest only a power cut shows"


def _time(time_us: float) -> str:
    if time_us < 1_000:  # noqa: PLR2004 - a millisecond
        return f"{time_us:.1f} µs" if time_us < 10 else f"{time_us:.0f} µs"  # noqa: PLR2004 - two digits
    return f"{time_us / 1000:.1f} ms"


def look_at_device(mount: Mount | None, environ: Mapping[str, str] = os.environ) -> SyncFacts:
    """Return all but the times."""
    if mount is None:
        return SyncFacts(took_us=(), kind="", preload=environ.get("LD_PRELOAD", ""))
    queue = _queue_of(mount.device)
    turns = _word(queue / "rotational") if queue is not None else None
    return SyncFacts(
        took_us=(),
        kind=mount.kind,
        options=mount.options,
        device=Device(
            turns=None if turns is None else turns == "1",
            write_cache=_word(queue / "write_cache") if queue is not None else None,
            is_virtual="hypervisor" in (_word(Path("/proc/cpuinfo")) or "").split()
            or "virtio" in str(queue),
        ),
        preload=environ.get("LD_PRELOAD", ""),
    )


def _queue_of(device: tuple[int, int]) -> Path | None:
    """Return where the system tells of a device; a partition's is that of its disk."""
    place = Path(f"/sys/dev/block/{device[0]}:{device[1]}")
    if not place.exists():
        return None
    own = place.resolve() / "queue"
    return own if own.exists() else own.parent.parent / "queue"


def _word(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
