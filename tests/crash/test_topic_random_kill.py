"""Four producers and four consumers on one topic, killed at random and started again.

`topic_flow.py` says what they do. Kills are due when so much has been appended and committed, not
by the clock: so they are spread over the whole run on any machine. In the end everything that was
to be appended is in the log and in the consumers' sink, once and in order.
"""

import contextlib
import logging
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from segue import Log, Topic
from tests.crash.channel import Report
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.topic_flow import (
    DONE,
    GROUP,
    TOPIC,
    Flow,
    Sink,
    check_complete,
    consume,
    produce,
    row_of,
)
from tests.waiting import LIMIT_SECONDS, random_pause

logger = logging.getLogger(__name__)

PRODUCERS: Final = tuple(f"producer{number}" for number in range(4))
CONSUMERS: Final = tuple(f"consumer{number}" for number in range(4))
RECORDS: Final = 100_000 if TORTURE else 25_000
SYNCED_RECORDS: Final = 20_000 if TORTURE else 8_000
STOPPED_RECORDS: Final = 12_000 if TORTURE else 6_000
ROUNDS: Final = 3 if TORTURE else 1
"""How often each flows, each time into another topic."""
RECORDS_PER_KILL: Final = 1_000
AGAIN: Final = 0.3
"""How often the one who was just started is killed again, while it opens what it needs."""
OPENING_SECONDS_MAX: Final = 0.05
LOOK_SECONDS_MAX: Final = 0.004


class Run:
    """One topic and those who use it."""

    def __init__(self, flow: Flow, forks: ForkServer) -> None:
        self._flow = flow
        self._forks = forks
        self._chance = random.Random(f"{flow.seed} {flow.sync}")
        self._starts = 0
        self.blows = 0
        """How often somebody was killed or stopped."""
        self.children: dict[str, Child] = {}
        self._stopped: dict[str, float] = {}
        """Until when."""

    def start(self, name: str) -> None:
        self._starts += 1
        if name in PRODUCERS:
            self.children[name] = self._forks.start(produce, self._flow, name)
        else:
            unique = f"{name}.{self._starts}"
            self.children[name] = self._forks.start(consume, self._flow, unique)

    def play(self, topic: Topic) -> None:
        """Kill one after the other until all is appended and consumed."""
        total = self._flow.per_producer * len(PRODUCERS)
        due = sorted(self._chance.sample(range(2 * total), 2 * total // RECORDS_PER_KILL))
        for name in (*PRODUCERS, *CONSUMERS):
            self.start(name)
        for progress in self._progress(topic, 2 * total):
            self._note_ends()
            self._continue(until=time.monotonic())
            while due and due[0] <= progress and self.children:
                due.pop(0)
                if self._chance.random() < self._flow.stops:
                    self._stop_one()
                else:
                    self._kill_one()
        self._continue(until=math.inf)
        for name in CONSUMERS:
            self.children[name].tell(DONE)
        for name, child in self.children.items():  # Also producers that found nothing to do.
            assert (name, child.read_rest()) == (name, [DONE])
            assert child.join() == 0

    def _progress(self, topic: Topic, total: int) -> Iterator[int]:
        """Yield how many records were appended and committed, together, until all were."""
        before, moved_at = -1, time.monotonic()
        while before < total:
            lag = topic.group(GROUP).lag()
            progress = sum(each.next_offset + each.committed for each in lag)
            if progress != before:
                before, moved_at = progress, time.monotonic()
            assert time.monotonic() < moved_at + LIMIT_SECONDS, (
                f"stuck: {topic.group(GROUP).info()}"
            )
            yield progress
            random_pause(self._chance, LOOK_SECONDS_MAX)

    def _stop_one(self) -> None:
        """Stop one for long enough to be taken for dead, or not."""
        name = self._chance.choice(list(self.children))
        os.kill(self.children[name].pid, signal.SIGSTOP)
        self.blows += 1
        seconds = self._chance.uniform(0, 2 * self._flow.ttl_seconds)
        self._stopped[name] = time.monotonic() + seconds

    def _continue(self, *, until: float) -> None:
        """Let those go on whose time it is."""
        for name in [name for name, due in self._stopped.items() if due <= until]:
            del self._stopped[name]
            os.kill(self.children[name].pid, signal.SIGCONT)

    def _kill_one(self) -> None:
        name = self._chance.choice(list(self.children))
        self._end(name)
        self.start(name)
        while self._chance.random() < AGAIN:
            random_pause(self._chance, OPENING_SECONDS_MAX)
            self._end(name)
            self.start(name)

    def _end(self, name: str) -> None:
        """Kill one; or, if it comes too late for that, see that it ended well."""
        self._stopped.pop(name, None)
        child = self.children.pop(name)
        with child:
            child.kill()
            code = child.join()
            self.blows += code == KILLED
            assert code in {0, KILLED}, told_by(name, child.read_rest())

    def _note_ends(self) -> None:
        """Look after those who ended by themselves: only a producer may, when all is appended."""
        for name, child in list(self.children.items()):
            if child.has_report():
                self._stopped.pop(name, None)
                with self.children.pop(name):
                    reports = child.read_rest()
                    assert child.join() == 0, told_by(name, reports)
                    assert (name in PRODUCERS, reports) == (True, [DONE])

    def close(self) -> None:
        """End whoever is left."""
        for child in self.children.values():
            child.close()
        self.children.clear()


def told_by(name: str, reports: list[Report]) -> str:
    """Return what a child said of its end."""
    return "\n".join([name, *(str(report[-1]) for report in reports if isinstance(report, list))])


def run(flow: Flow, forks: ForkServer) -> None:
    """Let everything flow, with kills, until the group has it all."""
    flow.create()
    with flow.open() as store:
        topic = store.topic(TOPIC)
        running = Run(flow, forks)
        try:
            running.play(topic)
        finally:
            running.close()
        sink = Sink(flow.sink)
        with contextlib.closing(sink):
            rows, claims = sink.rows(), sink.claims()
        logger.info("flowed records=%d blows=%d claims=%d", len(rows), running.blows, claims)
        check_complete(flow, list(PRODUCERS), rows)
        check_topic(topic, flow, rows)
        assert running.blows >= flow.per_producer * len(PRODUCERS) // RECORDS_PER_KILL
        assert claims > flow.partitions
    check_logs(flow.root)


def check_topic(topic: Topic, flow: Flow, rows: list[tuple[int, int, str, str | None]]) -> None:
    """Assert that the log holds what the sink does, and that nobody and nothing is left over."""
    info = topic.group(GROUP).info()
    assert info.members == []
    assert [lag.records for lag in info.lag] == [0] * flow.partitions
    found = [
        row_of(record)
        for partition in range(flow.partitions)
        for record in topic.records(partitions=[partition])
    ]
    if flow.clean:
        assert topic.clean().count >= 0
        assert set(found) <= set(rows)
        assert sum(each.first_offset for each in topic.info().partitions) > 0
    else:
        assert found == rows
    for name in PRODUCERS:
        with topic.producer(name) as producer:
            assert producer.last_sequence() == flow.per_producer - 1
            first, events = next(flow.batches(name, producer.last_sequence()))
            assert set(producer.append_many(events, first_sequence=first)) == {None}


def check_logs(root: Path) -> None:
    """Assert that every partition is intact."""
    for path in sorted({path.parent for path in root.rglob("*.q")}):
        assert "quarantine" not in path.parts
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == []


def run_each(flow: Flow, forks: ForkServer) -> None:
    """Run as often as is due, each time from scratch."""
    for round_ in range(ROUNDS):
        root = flow.root / str(round_)
        root.mkdir()
        with naming_seed(flow.seed), naming(f"round {round_}"):
            run(replace(flow, root=root, seed=flow.seed + round_), forks)
        shutil.rmtree(root)


def test_whoever_is_killed_every_record_is_appended_and_consumed_exactly_once(
    scratch: Path, forks: ForkServer
) -> None:
    """0 missing, 0 duplicate, order per key, offsets dense, and nothing gets stuck."""
    per_producer = RECORDS // len(PRODUCERS)
    flow = Flow(root=scratch, sync="os", seed=new_seed(), per_producer=per_producer, batch=100)
    run_each(flow, forks)


def test_so_it_is_where_all_is_synced_and_what_was_consumed_is_deleted_on_the_way(
    scratch: Path, forks: ForkServer
) -> None:
    """Retention takes nothing that a member, living or killed, still has to read."""
    flow = Flow(
        root=scratch,
        sync="always",
        seed=new_seed(),
        per_producer=SYNCED_RECORDS // len(PRODUCERS),
        batch=30,
        clean=True,
    )
    run_each(flow, forks)


def test_so_it_is_where_some_are_stopped_and_come_back_when_others_have_their_partitions(
    scratch: Path, forks: ForkServer
) -> None:
    """Neither the group nor, by its tokens, the sink takes anything from who was taken for dead."""
    flow = Flow(
        root=scratch,
        sync="os",
        seed=new_seed(),
        per_producer=STOPPED_RECORDS // len(PRODUCERS),
        batch=20,
        ttl_seconds=0.4,
        stops=0.6,
    )
    run_each(flow, forks)
