"""Appending a thousand at a time: without waiting for the device, and waiting for it."""

from pathlib import Path
from typing import Final

from benchmarks.databases import Lmdb, Sqlite
from benchmarks.lineup import Batching, Entry, opened
from benchmarks.race import Contestant, Figure, Job, race, race_call_by_call
from benchmarks.report import Section, Target
from benchmarks.session import PAYLOAD_SIZES_BYTES, SLICE_BYTES_MAX, Session
from benchmarks.stores import BATCH_RECORDS, Payloads, RawFile, SegueLog

SEGUE: Final = "Segue exclusive"
LMDB: Final = "LMDB nosync writemap"
LMDB_WRITE: Final = "LMDB nosync"
RAW_BATCH: Final = "raw write of a whole batch"
RAW_SMALL: Final = "raw write of one record, x 1000"
LMDB_FACTOR: Final = 1.5
RAW_FACTOR: Final = 0.8
RAW_FILE_BYTES: Final = 32 * 1024 * 1024

UNSYNCED: Final[tuple[Entry[Batching], ...]] = (
    Entry(name=SEGUE, open=SegueLog),
    Entry(name="Segue shared", open=lambda path: SegueLog(path, exclusive=False)),
    Entry(
        name=LMDB,
        open=lambda path: Lmdb(path, durable=False),
        how="putmulti(append=True), map_async",
    ),
    Entry(
        name=LMDB_WRITE,
        open=lambda path: Lmdb(path, durable=False, writemap=False),
        how="putmulti(append=True), without writemap",
    ),
    Entry(
        name="SQLite WAL OFF",
        open=lambda path: Sqlite(path, durable=False),
        how="executemany, locking_mode=EXCLUSIVE",
    ),
)


class RawBatches:
    """The bare file as a contestant: one write and one sync stand for one batch."""

    def __init__(self, path: Path, *, whole: bool) -> None:
        self._file = RawFile(path, size_bytes=RAW_FILE_BYTES)
        self._whole = whole

    def batches(self, batch: list[bytes], count: int) -> Job:
        return self._file.writes(b"".join(batch) if self._whole else batch[0], count)

    def preload(self, batch: list[bytes], count: int) -> None:
        """A file written ahead has no backlog."""

    def close(self) -> None:
        self._file.close()


SYNCED: Final[tuple[Entry[Batching], ...]] = (
    Entry(name=SEGUE, open=lambda path: SegueLog(path, sync="always")),
    Entry(
        name=RAW_BATCH,
        open=lambda path: RawBatches(path, whole=True),
        how="pwrite + fdatasync, written ahead: the same bytes as a batch",
    ),
    Entry(
        name=RAW_SMALL,
        open=lambda path: RawBatches(path, whole=False),
        how="pwrite + fdatasync, written ahead: as if bytes were free",
    ),
    Entry(
        name="LMDB sync", open=lambda path: Lmdb(path, durable=True), how="putmulti(append=True)"
    ),
    Entry(
        name="SQLite WAL FULL",
        open=lambda path: Sqlite(path, durable=True),
        how="executemany, locking_mode=EXCLUSIVE",
    ),
)


def run(session: Session) -> None:
    """Race for each payload size, on an empty log and on a backlog, unsynced and synced."""
    for payload_bytes in PAYLOAD_SIZES_BYTES:
        payloads = Payloads(payload_bytes)
        for backlog_records in session.backlogs(payload_bytes):
            for synced in (False, True):
                section = _race(session, payloads, backlog_records, synced=synced)
                session.report.add(section)


def _race(session: Session, payloads: Payloads, backlog_records: int, *, synced: bool) -> Section:
    pace = session.effort.batch_pace
    with (
        session.place() as place,
        opened(
            SYNCED if synced else UNSYNCED,
            place,
            batch=payloads.batch,
            backlog_records=backlog_records,
        ) as (present, absent),
    ):
        minute = session.minute()
        contestants = [_contestant(entry, store, payloads) for entry, store in present]
        figures = (race_call_by_call if synced else race)(contestants, pace)
    turn = "batch by batch" if synced else f"slices of {pace.slice_seconds} s"
    title = f"{payloads.size_bytes} bytes x {BATCH_RECORDS}, backlog {backlog_records:,}"
    section = Section(
        benchmark="batch",
        title=f'{title}, sync="{"always" if synced else "os"}"',
        setting=f"append_many, {turn} in turn, {pace.rounds} rounds",
        minute=minute,
        figures=[*figures, *absent],
        baselines=(RAW_BATCH, RAW_SMALL) if synced else (LMDB, LMDB_WRITE),
    )
    return section.aiming_at(_synced_targets(section) if synced else _unsynced_targets(section))


def _contestant(entry: Entry[Batching], store: Batching, payloads: Payloads) -> Contestant:
    return Contestant(
        name=entry.name,
        prepare=lambda count: store.batches(payloads.batch, count),
        records_per_operation=BATCH_RECORDS,
        count_max=max(1, SLICE_BYTES_MAX // (payloads.size_bytes * BATCH_RECORDS)),
        note=store.note if isinstance(store, SegueLog) else lambda: entry.how,
    )


def _unsynced_targets(section: Section) -> list[Target]:
    rivals = [figure for name in (LMDB, LMDB_WRITE) if (figure := section.figure(name))]
    if not rivals:
        return []
    best = max(rivals, key=lambda figure: figure.median)
    return [
        _target(section, best, f"against LMDB's best batch ({best.note})", required=LMDB_FACTOR)
    ]


def _synced_targets(section: Section) -> list[Target]:
    raw = section.figure(RAW_BATCH)
    assert raw is not None
    return [_target(section, raw, f"against {RAW_BATCH} + fdatasync", required=RAW_FACTOR)]


def _target(section: Section, baseline: Figure, what: str, *, required: float) -> Target:
    mine = section.figure(SEGUE)
    assert mine is not None
    return Target(what=f"{section.title}: {what}", measured=mine.ratio(baseline), required=required)
