"""What a look comes to: a verdict, what was found, and what to do about it."""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from segue.values import dataclass


class Verdict(Enum):
    """How something stands."""

    OK = "ok"
    INFO = "info"
    """Neither good nor bad."""
    WARN = "warn"
    """It works, and somebody should know."""
    FAIL = "fail"
    """Segue does not work like this, or cannot keep what it promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the answer."""

    name: str
    verdict: Verdict
    found: str
    remedy: str | None = None
    """What to do, where there is something to do."""


_SEVERITY: Final = {Verdict.OK: 0, Verdict.INFO: 1, Verdict.WARN: 2, Verdict.FAIL: 3}


def ok(name: str, found: str) -> Check:
    """Return what is in order."""
    return Check(name=name, verdict=Verdict.OK, found=found)


def info(name: str, found: str, remedy: str | None = None) -> Check:
    """Return what is good to know."""
    return Check(name=name, verdict=Verdict.INFO, found=found, remedy=remedy)


def warn(name: str, found: str, remedy: str) -> Check:
    """Return what works, and may not stay as it is."""
    return Check(name=name, verdict=Verdict.WARN, found=found, remedy=remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """Return what does not work, or breaks a promise."""
    return Check(name=name, verdict=Verdict.FAIL, found=found, remedy=remedy)


def worst(checks: Iterable[Check]) -> Check:
    """Return the gravest of several, the first of those that are equally grave."""
    return max(checks, key=lambda check: _SEVERITY[check.verdict])
