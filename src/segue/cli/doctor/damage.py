"""Whether anything is known to be damaged, by what can be seen without reading the records."""

from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.doctor.logs import Logs

NAME: Final = "damage"


def damage_check(logs: Logs, *, path: str) -> Check:
    """Return what is known to be damaged; the bytes of records are for `segue verify`."""
    if logs.newer:
        return fail(NAME, _some(logs.newer), "a newer Segue: pip install -U")
    if logs.problems:
        return fail(
            NAME,
            _some(logs.problems),
            f"segue verify {path}, then segue repair of the log that is named",
        )
    if logs.stopped:
        return fail(
            NAME,
            f"a write failed: {_some(logs.stopped)}",
            "end every process that has it open; the next one to open it recovers it",
        )
    if not logs.count:
        return info(NAME, "no logs to look at")
    known = f"headers of {_counted(logs.segments, 'segment')} in {_counted(logs.count, 'log')}"
    if logs.is_partial:
        known += ", not of all there are,"
    if logs.quarantined:
        return warn(
            NAME,
            f"{known} are in order; {_counted(logs.quarantined, 'file')} in quarantine from before",
            "what recovery or repair has set aside: look at it, then delete it",
        )
    return ok(NAME, f"{known} are in order; 'segue verify' reads every byte")


def _some(problems: list[str]) -> str:
    more = len(problems) - 1
    return problems[0] + (f"; and {more:,} more" if more else "")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
