"""Reading everything as columns and one by one, and records at random; the page cache is warm."""

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.databases import Lmdb, Sqlite
from benchmarks.race import Contestant, Figure, Job, not_run, race
from benchmarks.report import Section, Target
from benchmarks.session import PAYLOAD_SIZES_BYTES, Session
from benchmarks.stores import Payloads, SegueLog

COLUMNS_OF_SINGLES: Final = "Segue columns, appended singly"
COLUMNS_OF_BATCHES: Final = "Segue columns, appended by 1000"
RECORDS_OF_SINGLES: Final = "Segue records, appended singly"
RECORDS_OF_BATCHES: Final = "Segue records, appended by 1000"
LMDB_CURSOR: Final = "LMDB cursor"
COLUMNS_PER_S: Final = 20_000_000
COLUMNS_TARGET_PAYLOAD_BYTES: Final = 100
RECORDS_PER_S: Final = 1_000_000
RECORDS_BYTES_MAX: Final = 512 * 1024 * 1024
"""How much is read of larger payloads; fewer records then."""
SLICES_MAX: Final = 20
"""A slice reads at least one part in so many: a few records would cost a whole check ahead."""
OFFSET_SEED: Final = 3


class Shelf:
    """The same records in two logs, appended in different ways, and in the peers."""

    def __init__(self, place: Path, payloads: Payloads, count: int, stack: ExitStack) -> None:
        self.count = count
        self.singly = SegueLog(place / "singly")
        stack.callback(self.singly.close)
        self.singly.singles(payloads.take(count))()
        self.batched = SegueLog(place / "batched")
        stack.callback(self.batched.close)
        self.batched.preload(payloads.batch, count)
        self.sqlite = Sqlite(place / "sqlite", durable=False)
        stack.callback(self.sqlite.close)
        self.sqlite.preload(payloads.batch, count)
        self.lmdb: Lmdb | None = None
        try:
            self.lmdb = Lmdb(place / "lmdb", durable=False)
        except ModuleNotFoundError:
            return
        stack.callback(self.lmdb.close)
        self.lmdb.preload(payloads.batch, count)


def run(session: Session) -> None:
    """Race readers over the same records, for each payload size."""
    for payload_bytes in PAYLOAD_SIZES_BYTES:
        count = min(session.effort.read_records, RECORDS_BYTES_MAX // payload_bytes)
        count -= count % 1000
        with session.place() as place, ExitStack() as stack:
            shelf = Shelf(place, Payloads(payload_bytes), count, stack)
            session.report.add(_in_order(session, shelf, payload_bytes))
            session.report.add(_at_random(session, shelf, payload_bytes))


def _in_order(session: Session, shelf: Shelf, payload_bytes: int) -> Section:
    pace = session.effort.pace
    singly, batched, lmdb = shelf.singly, shelf.batched, shelf.lmdb
    readers = [
        (COLUMNS_OF_SINGLES, singly.columns, "checked, one thread"),
        (COLUMNS_OF_BATCHES, batched.columns, "checked, one thread"),
        (RECORDS_OF_SINGLES, singly.records, "checked, for record in log.records()"),
        (RECORDS_OF_BATCHES, batched.records, "checked, for record in log.records()"),
        ("SQLite SELECT", shelf.sqlite.records, "not checked, ORDER BY id"),
    ]
    if lmdb is not None:
        readers.append((LMDB_CURSOR, lmdb.records, "not checked, iternext()"))
    minute = session.minute()
    figures: list[Figure] = race(
        [
            Contestant(
                name=name,
                prepare=prepare,
                # A segment is checked as a whole: columns of less than all would count it twice.
                count_min=shelf.count if "columns" in name else shelf.count // SLICES_MAX,
                count_max=shelf.count,
                note=_says(how),
            )
            for name, prepare, how in readers
        ],
        pace,
    )
    if lmdb is None:
        figures.append(not_run(LMDB_CURSOR, "lmdb is not installed"))
    section = Section(
        benchmark="read",
        title=f"{payload_bytes} bytes in order, {shelf.count:,} records",
        setting=_setting(session, shelf),
        minute=minute,
        figures=figures,
        baselines=(COLUMNS_OF_BATCHES, LMDB_CURSOR),
    )
    return section.aiming_at(_targets(section, payload_bytes))


def _targets(section: Section, payload_bytes: int) -> list[Target]:
    required = {RECORDS_OF_SINGLES: RECORDS_PER_S, RECORDS_OF_BATCHES: RECORDS_PER_S}
    if payload_bytes == COLUMNS_TARGET_PAYLOAD_BYTES:
        required |= {COLUMNS_OF_SINGLES: COLUMNS_PER_S, COLUMNS_OF_BATCHES: COLUMNS_PER_S}
    return [
        Target(
            what=f"{payload_bytes} bytes: {figure.name}",
            measured=figure.median,
            required=required[figure.name],
            unit="records/s",
        )
        for figure in section.figures
        if figure.name in required
    ]


def _at_random(session: Session, shelf: Shelf, payload_bytes: int) -> Section:
    pace = session.effort.pace
    draw = random.Random(OFFSET_SEED)
    offsets = [draw.randrange(shelf.count) for _ in range(session.effort.random_reads)]
    readers = [
        ("Segue read(offset)", shelf.batched.reads, "checked"),
        ("SQLite SELECT by id", shelf.sqlite.reads, "not checked"),
    ]
    if shelf.lmdb is not None:
        readers.append(("LMDB get(key)", shelf.lmdb.reads, "not checked, one transaction"))
    minute = session.minute()
    figures = race(
        [
            Contestant(
                name=name,
                prepare=_reads_of(offsets, reads),
                count_max=len(offsets),
                note=_says(how),
            )
            for name, reads, how in readers
        ],
        pace,
    )
    return Section(
        benchmark="read",
        title=f"{payload_bytes} bytes at random, {shelf.count:,} records",
        setting=_setting(session, shelf),
        minute=minute,
        figures=figures,
        baselines=[figure.name for figure in figures[1:]],
    )


def _setting(session: Session, shelf: Shelf) -> str:
    pace = session.effort.pace
    return (
        f"slices of {pace.slice_seconds} s in turn, {pace.rounds} rounds, cached, "
        f"{shelf.singly.note()}"
    )


def _reads_of(offsets: list[int], reads: Callable[[Sequence[int]], Job]) -> Callable[[int], Job]:
    return lambda count: reads(offsets[:count])


def _says(how: str) -> Callable[[], str]:
    return lambda: how
