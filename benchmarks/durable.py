"""Appending one by one, each on the device before the call returns: sync "always"."""

from typing import Final

from benchmarks.databases import Lmdb, Sqlite
from benchmarks.lineup import Appending, Entry, opened
from benchmarks.race import Contestant, race, race_call_by_call
from benchmarks.report import Section, Target
from benchmarks.session import PAYLOAD_SIZES_BYTES, Session
from benchmarks.stores import Payloads, RawFile, SegueLog

RAW: Final = "raw pwrite + fdatasync"
SEGUE: Final = "Segue exclusive"
ONE_THREAD: Final = "Segue, 1 thread"
THREADS: Final = 32
MANY_THREADS: Final = f"Segue, {THREADS} threads"
RAW_FACTOR: Final = 0.85
THREADS_FACTOR: Final = 5.0
RAW_FILE_BYTES: Final = 16 * 1024 * 1024

STORES: Final[tuple[Entry[Appending], ...]] = (
    Entry(name=SEGUE, open=lambda path: SegueLog(path, sync="always")),
    Entry(name="Segue shared", open=lambda path: SegueLog(path, sync="always", exclusive=False)),
)
PEERS: Final[tuple[Entry[Appending], ...]] = (
    Entry(
        name="SQLite WAL FULL",
        open=lambda path: Sqlite(path, durable=True),
        how="one INSERT per transaction, locking_mode=EXCLUSIVE",
    ),
    Entry(
        name="LMDB sync",
        open=lambda path: Lmdb(path, durable=True),
        how="one put(append=True) per transaction",
    ),
)


def run(session: Session) -> None:
    """Race against the bare file, against the peers, and 32 threads against one."""
    for payload_bytes in PAYLOAD_SIZES_BYTES:
        payloads = Payloads(payload_bytes)
        for backlog_records in session.backlogs(payload_bytes):
            session.report.add(_against_raw(session, payloads, backlog_records))
            session.report.add(_against_peers(session, payloads, backlog_records))
        session.report.add(_threads(session, payloads))


def _against_raw(session: Session, payloads: Payloads, backlog_records: int) -> Section:
    """Nobody else takes part: a peer's sync would leave its traces in the next one's."""
    pace = session.effort.pace
    with (
        session.place() as place,
        opened(STORES, place, batch=payloads.batch, backlog_records=backlog_records) as (
            present,
            _,
        ),
    ):
        raw = RawFile(place / "raw", size_bytes=RAW_FILE_BYTES)
        try:
            minute = session.minute()
            contestants = [
                Contestant(
                    name=RAW,
                    prepare=lambda count: raw.writes(payloads.batch[0], count),
                    note=lambda: "the same payload into a file written ahead",
                ),
                *(_contestant(entry, store, payloads) for entry, store in present),
            ]
            figures = race_call_by_call(contestants, pace)
        finally:
            raw.close()
    section = Section(
        benchmark="durable",
        title=f"{payloads.size_bytes} bytes one by one, backlog {backlog_records:,}",
        setting=f'sync="always", call by call in turn, {pace.rounds} rounds',
        minute=minute,
        figures=figures,
        baselines=(RAW,),
    )
    raw_figure, mine, *_ = figures
    return section.aiming_at(
        [
            Target(
                what=f"{section.title}, durable: against {RAW}",
                measured=mine.ratio(raw_figure),
                required=RAW_FACTOR,
            )
        ]
    )


def _against_peers(session: Session, payloads: Payloads, backlog_records: int) -> Section:
    pace = session.effort.pace
    with (
        session.place() as place,
        opened(
            [STORES[0], *PEERS], place, batch=payloads.batch, backlog_records=backlog_records
        ) as (present, absent),
    ):
        minute = session.minute()
        contestants = [_contestant(entry, store, payloads) for entry, store in present]
        figures = race_call_by_call(contestants, pace)
    mine, *rivals = figures
    section = Section(
        benchmark="durable",
        title=f"{payloads.size_bytes} bytes against peers, backlog {backlog_records:,}",
        setting=f'sync="always", call by call in turn, {pace.rounds} rounds',
        minute=minute,
        figures=[*figures, *absent],
        baselines=tuple(figure.name for figure in rivals),
    )
    return section.aiming_at(
        [
            Target(
                what=f"{section.title}, durable: against {rival.name}",
                measured=mine.ratio(rival),
                required=1.0,
            )
            for rival in rivals
        ]
    )


def _threads(session: Session, payloads: Payloads) -> Section:
    pace = session.effort.pace
    with session.place() as place:
        stores = [SegueLog(place / name, sync="always") for name in ("one", "many")]
        one, many = stores
        try:
            minute = session.minute()
            figures = race(
                [
                    Contestant(
                        name=ONE_THREAD, prepare=lambda count: one.singles(payloads.take(count))
                    ),
                    Contestant(
                        name=MANY_THREADS,
                        prepare=lambda count: many.singles_by_threads(
                            payloads.take(count), threads=THREADS
                        ),
                        count_min=THREADS,
                    ),
                ],
                pace,
            )
        finally:
            for store in stores:
                store.close()
    section = Section(
        benchmark="durable",
        title=f"{payloads.size_bytes} bytes by {THREADS} threads",
        setting=f'sync="always", slices of {pace.slice_seconds} s in turn, {pace.rounds} rounds',
        minute=minute,
        figures=figures,
        baselines=(ONE_THREAD,),
    )
    alone, together = figures
    return section.aiming_at(
        [
            Target(
                what=f"{section.title}, durable: against one thread",
                measured=together.ratio(alone),
                required=THREADS_FACTOR,
            )
        ]
    )


def _contestant(entry: Entry[Appending], store: Appending, payloads: Payloads) -> Contestant:
    return Contestant(
        name=entry.name,
        prepare=lambda count: store.singles(payloads.take(count)),
        note=store.note if isinstance(store, SegueLog) else lambda: entry.how,
    )
