"""Values as text: exact for programs, rounded for people, and harmless to a terminal."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE_STEP: Final = 1024
_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))


def iso_time(time_us: int) -> str:
    """Return a time in UTC, to the microsecond; if no calendar has it, its microseconds."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return str(time_us)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def human_time(time_us: int) -> str:
    """Return a time in the local time zone, to the second; if no calendar has it, as it is."""
    try:
        moment = (_EPOCH + timedelta(microseconds=time_us)).astimezone()
    except (OverflowError, ValueError):
        return str(time_us)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def human_size(size_bytes: float) -> str:
    """Return a size in the unit people would choose."""
    if size_bytes < _SIZE_STEP:
        return f"{size_bytes:.0f} B"
    place = -1
    while size_bytes >= _SIZE_STEP and place + 1 < len(_SIZE_UNITS):
        size_bytes /= _SIZE_STEP
        place += 1
    return f"{size_bytes:,.1f} {_SIZE_UNITS[place]}"


def human_seconds(seconds: float) -> str:
    """Return a duration in the unit people would choose."""
    for unit_seconds, unit in _TIME_UNITS:
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:,.1f} {unit}"
    return f"{seconds:.1f} s"


def visible(text: str) -> str:
    """Return `text` with what would end a line or field, or steer a terminal, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
