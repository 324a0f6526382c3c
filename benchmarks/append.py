"""Appending one by one without waiting for the device: sync "os", against all peers."""

from typing import Final

from benchmarks.children import SegueProcesses
from benchmarks.lineup import Appending, Entry, opened
from benchmarks.peers import LMDB_NOSYNC, UNSYNCED_PEERS
from benchmarks.race import Contestant, race
from benchmarks.report import Section, Target
from benchmarks.session import PAYLOAD_SIZES_BYTES, SLICE_BYTES_MAX, Session
from benchmarks.stores import Payloads, SegueLog

EXCLUSIVE: Final = "Segue exclusive"
SHARED: Final = "Segue shared"
PROCESSES: Final = 2
SHARED_BY_PROCESSES: Final = f"Segue shared, {PROCESSES} processes"
LMDB_FACTOR: Final = 1.5
SHARED_FACTOR: Final = 0.5


def run(session: Session) -> None:
    """Race for each payload size, on an empty log and on a backlog."""
    for payload_bytes in PAYLOAD_SIZES_BYTES:
        for backlog_records in session.backlogs(payload_bytes):
            section = _race(session, payload_bytes=payload_bytes, backlog_records=backlog_records)
            session.report.add(section)


def _race(session: Session, *, payload_bytes: int, backlog_records: int) -> Section:
    payloads = Payloads(payload_bytes)
    entries: list[Entry[Appending]] = [
        Entry(name=EXCLUSIVE, open=SegueLog),
        Entry(name=SHARED, open=lambda path: SegueLog(path, exclusive=False)),
        Entry(
            name=SHARED_BY_PROCESSES,
            open=lambda path: SegueProcesses(
                path, processes=PROCESSES, payload_bytes=payload_bytes
            ),
        ),
        *UNSYNCED_PEERS,
    ]
    with (
        session.place() as place,
        opened(entries, place, batch=payloads.batch, backlog_records=backlog_records) as (
            present,
            absent,
        ),
    ):
        minute = session.minute()
        contestants = [_contestant(entry, store, payloads) for entry, store in present]
        figures = [*race(contestants, session.effort.pace), *absent]
    pace = session.effort.pace
    section = Section(
        benchmark="append",
        title=f"{payload_bytes} bytes one by one, backlog {backlog_records:,}",
        setting=f'sync="os", slices of {pace.slice_seconds} s in turn, {pace.rounds} rounds',
        minute=minute,
        figures=figures,
        baselines=(EXCLUSIVE, LMDB_NOSYNC),
    )
    return section.aiming_at(_targets(section))


def _contestant(entry: Entry[Appending], store: Appending, payloads: Payloads) -> Contestant:
    return Contestant(
        name=entry.name,
        prepare=lambda count: store.singles(payloads.take(count)),
        count_max=SLICE_BYTES_MAX // payloads.size_bytes,
        note=store.note if isinstance(store, SegueLog | SegueProcesses) else lambda: entry.how,
    )


def _targets(section: Section) -> list[Target]:
    mine = section.figure(EXCLUSIVE)
    shared = section.figure(SHARED)
    assert mine is not None
    assert shared is not None
    targets = [
        Target(
            what=f"{section.title}: shared against exclusive",
            measured=shared.ratio(mine),
            required=SHARED_FACTOR,
        )
    ]
    peers = [peer for entry in UNSYNCED_PEERS if (peer := section.figure(entry.name)) is not None]
    if peers:
        closest = min(peers, key=mine.ratio)
        targets.append(
            Target(
                what=f"{section.title}: exclusive against the fastest peer, {closest.name}",
                measured=mine.ratio(closest),
                required=1.0,
            )
        )
    lmdb = section.figure(LMDB_NOSYNC)
    if lmdb is not None:
        targets.append(
            Target(
                what=f"{section.title}: exclusive against {LMDB_NOSYNC}",
                measured=mine.ratio(lmdb),
                required=LMDB_FACTOR,
            )
        )
    return targets
