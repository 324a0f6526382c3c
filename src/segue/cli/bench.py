"""`segue bench`: how fast it is here and now, with the conditions."""

import os
import platform
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from segue import __version__
from segue.cli import measure, places
from segue.cli.arguments import JsonOption
from segue.cli.measure import Timing
from segue.cli.output import Column, Facts, Kind, Rows, Value, progress, show
from segue.log import Log
from segue.log.disk import Disk
from segue.log.hot import COMPILED
from segue.log.options import SyncName

SECONDS_DEFAULT: Final = 1.0
PAYLOAD_BYTES_DEFAULT: Final = 256
_COLUMNS: Final = (
    Column("what"),
    Column("sync"),
    Column("records", Kind.COUNT),
    Column("records_per_s", Kind.COUNT),
    Column("bytes_per_s", Kind.SIZE),
    Column("median_us", Kind.COUNT),
    Column("p99_us", Kind.COUNT),
)


def bench(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            parser=places.directory,
            help="Where to write; the system's temporary directory unless given.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, max=60, help="How long each one runs.")
    ] = SECONDS_DEFAULT,
    payload_bytes: Annotated[
        int,
        typer.Option(metavar="BYTES", min=1, max=measure.BATCH_BYTES_MAX, help="Size of a record."),
    ] = PAYLOAD_BYTES_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Measure appending and reading on this machine, in each sync mode.

    Writes into a temporary directory inside DIR and removes it. The times are those of one call:
    of one record, or of one batch. Sync "always" cannot be faster than the device takes syncs,
    which is measured at the same time and printed among the conditions.

    \b
    Example:
      segue bench /var/lib/myapp --seconds 3 --payload-bytes 1024
    """
    import tempfile  # Here, as it takes a while and no other verb needs it.

    with tempfile.TemporaryDirectory(prefix="segue-bench-", dir=directory) as temporary:
        place = Path(temporary)
        conditions = _conditions(place, payload_bytes=payload_bytes, seconds=seconds)
        rows = _measure(place, os.urandom(payload_bytes), seconds)
    show(
        conditions,
        Rows(name="results", mark="result", columns=_COLUMNS, rows=rows),
        as_json=as_json,
    )


def _conditions(place: Path, *, payload_bytes: int, seconds: float) -> Facts:
    return Facts(
        items=(
            (Column("segue"), __version__),
            (Column("compiled"), COMPILED),
            (Column("python"), f"{platform.python_implementation()} {platform.python_version()}"),
            (Column("system"), f"{platform.system()} {platform.release()} {platform.machine()}"),
            (Column("cpu_count", Kind.COUNT), os.cpu_count()),
            (Column("load_average"), round(os.getloadavg()[0], 2)),
            (Column("file_system"), Disk().file_system(place) or None),
            (Column("directory"), str(place.parent)),
            (Column("fdatasync_per_s", Kind.COUNT), measure.syncs_per_s(place, seconds=seconds)),
            (Column("payload_bytes", Kind.SIZE), payload_bytes),
            (Column("batch_records", Kind.COUNT), measure.batch_records(payload_bytes)),
            (Column("seconds"), seconds),
        )
    )


def _measure(place: Path, payload: bytes, seconds: float) -> list[tuple[Value, ...]]:
    modes: tuple[SyncName, ...] = get_args(SyncName)
    rows: list[tuple[Value, ...]] = []

    def note(what: str, sync: str | None, timing: Timing) -> None:
        bytes_per_s = timing.records_per_s * len(payload)
        rows.append(
            (
                what,
                sync,
                timing.records,
                timing.records_per_s,
                bytes_per_s,
                _rounded(timing.median_us),
                _rounded(timing.p99_us),
            )
        )
        advance(1)

    with progress("measuring", 2 * len(modes) + 2) as advance:
        for mode in modes:
            with Log(place / mode, sync=mode) as log:
                note("append", mode, measure.time_appends(log, payload, seconds=seconds))
                note("batch", mode, measure.time_batches(log, payload, seconds=seconds))
                if mode == modes[-1]:
                    note("read", None, measure.time_reads(log, seconds=seconds))
                    if measure.has_columns():
                        note("columns", None, measure.time_columns(log, seconds=seconds))
    return rows


def _rounded(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us, 1)
