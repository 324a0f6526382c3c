"""`segue doctor`: whether this machine, and the store, are fit for each other."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Final

import typer

from segue.cli import places
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import Column, Rows, show

_COLUMNS: Final = (Column("check"), Column("verdict"), Column("found"), Column("remedy"))
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_KILLED: Final = 128


def doctor(
    url: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            parser=places.store_url,
            help="A directory, which need not be there yet, or the URL of a server; the current "
            "directory unless given.",
            show_default=False,
        ),
    ] = ".",
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Redis or Valkey server to look at as well.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether this machine and a store are fit for each other. Repairs nothing.

    One line for each check: its name, ok, info, warn or fail, what was found, and what to do. Of a
    directory these are the store, its file system and what is left on it, how long syncs take,
    limits, permissions, the clock; of a server how it is set up; and in any case what is installed.
    What is written is one file of some 256 KiB, for timing, which is removed. No check takes longer
    than 10 s. The exit code is 1 if anything fails; warnings change nothing.

    \b
    Examples:
      segue doctor /var/lib/myapp
      segue doctor --redis redis://localhost
      segue doctor http://localhost:8000 --json
    """
    # Imported here: only who asks a doctor needs all of them.
    from segue.cli.doctor.check import Verdict
    from segue.cli.doctor.looks import all_checks
    from segue.cli.doctor.probe import Probe

    probe = Probe()
    with _ended_in_order():
        try:
            checks = list(all_checks(url, redis_url=redis, probe=probe))
        finally:
            probe.remove()
    rows = [
        (
            check.name,
            check.verdict.value,
            places.without_passwords(check.found),
            None if check.remedy is None else places.without_passwords(check.remedy),
        )
        for check in checks
    ]
    show(Rows(name="checks", columns=_COLUMNS, rows=rows), as_json=as_json)
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(ExitCode.CHECK_FAILED)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have signals that would end us at once end us as Ctrl-C does: nothing is left behind."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(_KILLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are not ours there.
        return
    # What is ignored, as by nohup, stays so.
    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
