"""What counts as a priority: 0 is served first, and a few numbers have names."""

from typing import Final, Literal

from segue.errors import InvalidArgument

PriorityName = Literal["critical", "high", "normal", "low"]
Priority = int | PriorityName

NAMES: Final[dict[str, int]] = {"critical": 0, "high": 1, "normal": 2, "low": 3}
PRIORITY_MAX: Final = (1 << 31) - 1


def priority_from(priority: Priority) -> int:
    """Return `priority` as a number. Raises InvalidArgument for anything but one ≥ 0 or a name."""
    if type(priority) is int and 0 <= priority <= PRIORITY_MAX:
        return priority
    if isinstance(priority, str) and priority in NAMES:
        return NAMES[priority]
    names = ", ".join(NAMES)
    raise InvalidArgument(
        f"priority must be a whole number from 0 to {PRIORITY_MAX} or one of {names}: {priority!r}"
    )
