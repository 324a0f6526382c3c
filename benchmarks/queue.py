"""A work queue: pushing, and taking and settling, one by one and by the hundred."""

from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.lineup import Entry, opened
from benchmarks.queue_peers import (
    BATCH_MESSAGES,
    HueyQueue,
    LiteQueueQueue,
    LmdbQueue,
    PersistAckQueue,
    Queueing,
    SegueQueue,
    SqliteQueue,
)
from benchmarks.race import Contestant, Figure, Job, NotRun, not_run, race
from benchmarks.report import Section, Target
from benchmarks.session import Session
from benchmarks.stores import Payloads

EXCLUSIVE: Final = "Segue exclusive"
SHARED: Final = "Segue shared"
LMDB: Final = "LMDB"
PAYLOAD_BYTES: Final = 100
BACKLOG_SMALL: Final = 10_000
PAIRS_PER_SECOND: Final = 100_000
BATCH_PAIRS_PER_SECOND: Final = 500_000
BACKLOG_FACTOR: Final = 0.9
COUNT_MAX: Final = 100_000

Prepare = Callable[[Queueing, Payloads, int], Job]


def _push(queue: Queueing, payloads: Payloads, count: int) -> Job:
    return queue.push(payloads.take(count))


def _pairs(queue: Queueing, payloads: Payloads, count: int) -> Job:
    queue.preload(payloads.take(BATCH_MESSAGES), count + BATCH_MESSAGES)  # What it will take.
    return queue.pairs(count)


def _push_batches(queue: Queueing, payloads: Payloads, count: int) -> Job:
    return queue.push_batches(payloads.take(BATCH_MESSAGES), count)


def _pair_batches(queue: Queueing, payloads: Payloads, count: int) -> Job:
    job = queue.pair_batches(count)
    queue.preload(payloads.take(BATCH_MESSAGES), (count + 1) * BATCH_MESSAGES)
    return job


RACES: Final[dict[str, tuple[Prepare, int]]] = {
    "push one by one": (_push, 1),
    "lease and ack one by one": (_pairs, 1),
    f"push by {BATCH_MESSAGES}": (_push_batches, BATCH_MESSAGES),
    f"lease and ack by {BATCH_MESSAGES}": (_pair_batches, BATCH_MESSAGES),
}


def run(session: Session) -> None:
    """Race without and with sync, on both backlogs."""
    backlogs = (BACKLOG_SMALL, max(session.effort.backlog_records, 2 * BACKLOG_SMALL))
    for durable in (False, True):
        sections: dict[int, list[Section]] = {}
        for backlog in backlogs:
            sections[backlog] = _race(session, durable=durable, backlog=backlog)
        for small, large in zip(*sections.values(), strict=True):
            section = large.aiming_at(_targets(small, large, durable=durable))
            session.report.add(small)
            session.report.add(section)


def _race(session: Session, *, durable: bool, backlog: int) -> list[Section]:
    payloads = Payloads(PAYLOAD_BYTES)
    found: list[Section] = []
    with (
        session.place() as place,
        opened(_entries(durable=durable), place, batch=payloads.batch, backlog_records=backlog) as (
            present,
            absent,
        ),
    ):
        for title, (prepare, size) in RACES.items():
            minute = session.minute()
            contestants: list[Contestant] = []
            others: list[Figure] = list(absent)
            for entry, queue in present:
                try:
                    prepare(queue, payloads, 1)()
                except NotRun as reason:
                    others.append(not_run(entry.name, reason))
                    continue
                contestants.append(
                    Contestant(
                        name=entry.name,
                        prepare=partial(prepare, queue, payloads),
                        records_per_operation=size,
                        count_max=COUNT_MAX // size,
                        note=partial(str, entry.how),
                    )
                )
            figures = [*race(contestants, session.effort.pace), *others]
            mode = "always" if durable else "os"
            found.append(
                Section(
                    benchmark="queue",
                    title=f'{title}, {backlog:,} waiting, sync="{mode}"',
                    setting=f"{PAYLOAD_BYTES} bytes, slices of "
                    f"{session.effort.pace.slice_seconds} s in turn, "
                    f"{session.effort.pace.rounds} rounds",
                    minute=minute,
                    figures=figures,
                    unit="messages/s",
                    baselines=(EXCLUSIVE, LMDB),
                )
            )
    return found


def _entries(*, durable: bool) -> list[Entry[Queueing]]:
    return [
        Entry(name=EXCLUSIVE, open=partial(SegueQueue, durable=durable, exclusive=True)),
        Entry(name=SHARED, open=partial(SegueQueue, durable=durable, exclusive=False)),
        Entry(
            name=LMDB,
            open=partial(LmdbQueue, durable=durable),
            how="two tables, one transaction for each step",
        ),
        Entry(
            name="SQLite",
            open=partial(SqliteQueue, durable=durable),
            how="UPDATE … RETURNING, DELETE, locking_mode=EXCLUSIVE",
        ),
        Entry(name="huey", open=partial(HueyQueue, durable=durable), how="no lease: dequeue"),
        Entry(name="persist-queue", open=partial(PersistAckQueue, durable=durable), how="get, ack"),
        Entry(name="litequeue", open=partial(LiteQueueQueue, durable=durable), how="pop, done"),
    ]


def _targets(small: Section, large: Section, *, durable: bool) -> list[Target]:
    targets: list[Target] = []
    for section in (small, large):
        mine = section.figure(EXCLUSIVE)
        assert mine is not None
        peers = [
            figure
            for figure in section.figures
            if figure.samples and figure.name not in (EXCLUSIVE, SHARED)
        ]
        fastest = max(peers, key=lambda figure: figure.median)
        targets.append(
            Target(
                what=f"{section.title}: against the fastest peer, {fastest.name}",
                measured=mine.ratio(fastest),
                required=1,
            )
        )
    mine_small, mine_large = small.figure(EXCLUSIVE), large.figure(EXCLUSIVE)
    assert mine_small is not None
    assert mine_large is not None
    targets.append(
        Target(
            what=f"{large.title}: against {BACKLOG_SMALL:,} waiting",
            measured=mine_large.median / mine_small.median,
            required=BACKLOG_FACTOR,
        )
    )
    if not durable and "lease" in large.title:
        required = BATCH_PAIRS_PER_SECOND if " by 100" in large.title else PAIRS_PER_SECOND
        targets.append(
            Target(what=large.title, measured=mine_large.median, required=required, unit="pairs/s")
        )
    return targets
