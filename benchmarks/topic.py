"""A topic: producing and consuming, beside servers of streams; and what keeping it in order takes.

Segue is embedded: it works in this process. Valkey and NATS JetStream are servers: each call of
theirs goes through a client library and a socket of the loopback, to a process that may use
another core. So the figures say what a program gets from each, and not who writes faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.lineup import Entry, opened
from benchmarks.race import Contestant, Figure, Job, race
from benchmarks.report import Section
from benchmarks.session import SLICE_BYTES_MAX, Session
from benchmarks.stores import BATCH_RECORDS, Payloads
from benchmarks.topic_peers import JetStream, ValkeyStream
from benchmarks.topic_stores import KEY_BYTES, SegueTopic, Streaming, Way
from benchmarks.topic_upkeep import cleaning, compacting, rebalancing

EXCLUSIVE: Final = "Segue exclusive (embedded)"
SHARED: Final = "Segue shared (embedded)"
PARTITIONS: Final = 12
PARTITIONED: Final = f"Segue, {PARTITIONS} partitions (embedded)"
VALKEY: Final = "Valkey (socket)"
JETSTREAM: Final = "JetStream (socket)"
BASELINES: Final = (EXCLUSIVE, VALKEY, JETSTREAM)
PAYLOAD_BYTES: Final = 100
RECORD_BYTES: Final = KEY_BYTES + PAYLOAD_BYTES
BATCH_SIZES: Final = (1, 100, BATCH_RECORDS)
DURABLE_RECORDS_MAX: Final = 20_000
"""What is there to be read where each message is synced: more would take minutes to bring in."""


def run(session: Session) -> None:
    """Race without and with sync, then measure groups, retention and compaction."""
    for durable in (False, True):
        race_streams(session, durable=durable)
    session.report.add(rebalancing(session))
    for section in cleaning(session):
        session.report.add(section)
    session.report.add(compacting(session))


def race_streams(session: Session, *, durable: bool) -> None:
    """Race consumers, then producers; those whose server cannot be had are said to be absent."""
    payloads = Payloads(PAYLOAD_BYTES)
    records = session.effort.topic_records
    records = min(records, DURABLE_RECORDS_MAX) if durable else records
    with (
        session.place() as place,
        opened(_entries(durable=durable), place, batch=payloads.batch, backlog_records=records) as (
            present,
            absent,
        ),
    ):
        races = _Races(
            session=session, present=present, absent=absent, records=records, durable=durable
        )
        # Reading comes first, while all hold the same.
        if not durable:
            races.consume("one after another", lambda stream: stream.plain())
            races.consume("as Arrow tables", lambda stream: stream.arrow())
        races.consume("place saved after each thousand", lambda stream: stream.saving())
        for size in BATCH_SIZES:
            races.produce(payloads, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Races:
    """Races among those who are present."""

    session: Session
    present: list[tuple[Entry[Streaming], Streaming]]
    absent: list[Figure]
    records: int
    durable: bool

    def consume(self, how: str, ways_of: Callable[[Streaming], list[Way]]) -> None:
        """Read what was preloaded, each in all of its ways; the first ones are compared with."""
        batches = self.records // BATCH_RECORDS
        contestants: list[Contestant] = []
        baselines: list[str] = []
        for entry, stream in self.present:
            ways = ways_of(stream)
            contestants += [
                Contestant(
                    name=f"{entry.name} {way.name}",
                    prepare=way.prepare,
                    records_per_operation=BATCH_RECORDS,
                    count_min=batches if way.whole else 1,
                    count_max=batches,
                    note=partial(str, entry.how),
                )
                for way in ways
            ]
            if entry.name in BASELINES:
                baselines.append(f"{entry.name} {ways[0].name}")
        title = f"consume {self.records:,} records, {how}"
        self._race(title, contestants, baselines, f"polls, reads and fetches of {BATCH_RECORDS}")

    def produce(self, payloads: Payloads, size: int) -> None:
        """Append one by one or in batches, behind what was preloaded."""

        def producing(stream: Streaming, count: int) -> Job:
            if size == 1:
                return stream.produce(payloads.take(count))
            return stream.produce_batches(payloads.take(size), count)

        contestants = [
            Contestant(
                name=entry.name,
                prepare=partial(producing, stream),
                records_per_operation=size,
                count_max=SLICE_BYTES_MAX // (size * RECORD_BYTES),
                note=partial(str, entry.how),
            )
            for entry, stream in self.present
        ]
        if size == 1:
            self._race("produce one by one", contestants, BASELINES, "each waits for its answer")
        else:
            how = "append_many, a pipeline of XADD, as many in flight"
            self._race(f"produce by {size}", contestants, BASELINES, how)

    def _race(
        self, title: str, contestants: list[Contestant], baselines: Sequence[str], how: str
    ) -> None:
        pace = self.session.effort.pace
        minute = self.session.minute()
        figures = race(contestants, pace)
        self.session.report.add(
            Section(
                benchmark="topic",
                title=f'{title}, sync="{"always" if self.durable else "os"}"',
                setting=(
                    f"keys of {KEY_BYTES} and values of {PAYLOAD_BYTES} bytes, {how}, "
                    f"slices of {pace.slice_seconds} s in turn, {pace.rounds} rounds; embedded: "
                    "in this process, socket: a client and a server on the loopback"
                ),
                minute=minute,
                figures=[*map(_with_bytes, figures), *self.absent],
                baselines=baselines,
            )
        )


def _with_bytes(figure: Figure) -> Figure:
    rate = figure.median * RECORD_BYTES / 1e6
    return replace(figure, note=f"{rate:.3g} MB/s; {figure.note}".removesuffix("; "))


def _entries(*, durable: bool) -> list[Entry[Streaming]]:
    return [
        Entry(name=EXCLUSIVE, open=partial(SegueTopic, durable=durable, exclusive=True)),
        Entry(name=SHARED, open=partial(SegueTopic, durable=durable, exclusive=False)),
        Entry(
            name=PARTITIONED,
            open=partial(SegueTopic, durable=durable, exclusive=True, partitions=PARTITIONS),
            how="exclusive",
        ),
        Entry(
            name=VALKEY,
            open=partial(ValkeyStream, durable=durable),
            how="redis-py; appendfsync "
            + ("always: a sync per turn of its loop" if durable else "no"),
        ),
        Entry(
            name=JETSTREAM,
            open=partial(JetStream, durable=durable),
            how="nats-py; files, sync_interval "
            + ("always: a sync per message" if durable else "2m"),
        ),
    ]
