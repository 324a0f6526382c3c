"""Exactly once under fire: drivers, their Java and their Python workers are killed, step by step.

Each driver is a real process with a session of its own. It is killed with all it has started, the
next one goes on from the checkpoint, and after the last one the sink holds what the source does.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import pytest

import segue
from segue import Event
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming
from tests.spark.deadly_source import ALONE, CALL, COUNTER, STEP, kill_session, session_pids
from tests.spark.stream_driver import READER, SINK, SOURCE

ROWS_PER_RUN: Final = 150 if TORTURE else 90
PARTITIONS: Final = 2
TASK_ROWS: Final = (7, 25, 12)
"""How many rows a task has, in turn: a batch that is repeated is cut in another way."""
DRIVER_SECONDS_MAX: Final = 600 if TORTURE else 200
ROWS_MAX: Final = 10_000

Kind = Literal["topic", "queue"]
Kill = tuple[str, int]
"""The step and the call of it."""

SOME: Final[tuple[Kill, ...]] = (
    ("after an adoption", 3),
    ("after the commit", 2),
)
ALL: Final[tuple[Kill, ...]] = (
    *(("before the end of a batch is chosen", call) for call in (1, 3)),
    *(("before the plan", call) for call in (1, 2)),
    *(("after the plan", call) for call in (1, 3)),
    *(("before a task", call) for call in (1, 4)),
    *(("before a segment is written aside", call) for call in (2, 5)),
    *(("after a segment is written aside", call) for call in (1, 6)),
    *(("after a task", call) for call in (1, 5)),
    *(("before the commit", call) for call in (1, 3)),
    *(("before the list", call) for call in (1, 2)),
    *(("after the list", call) for call in (1, 3)),
    *(("before an adoption", call) for call in (1, 4)),
    *(("after an adoption", call) for call in (1, 2, 5)),
    *(("before the note", call) for call in (1, 2)),
    *(("after the note", call) for call in (1, 2)),
    *(("before the segments are dropped", call) for call in (1, 2)),
    *(("after the segments are dropped", call) for call in (1, 2)),
    *(("after the commit", call) for call in (1, 3)),
    *(("before the reader's commit", call) for call in (1, 2)),
    *(("after the reader's commit", call) for call in (1, 2)),
    *((f"{when} a file of offsets", 2) for when in ("within", "after")),
    *((f"{when} a file of commits", 2) for when in ("within", "after")),
)


class World:
    """A store, a checkpoint and the drivers that use them one after the other."""

    def __init__(self, root: Path, kind: Kind) -> None:
        self.root = root
        self.kind = kind
        self._runs = 0
        self._rows = 0
        with segue.open(root / "store", sync="os") as store:
            store.topic(SOURCE, partitions=PARTITIONS)
            if kind == "topic":
                store.topic(SINK, partitions=PARTITIONS)
            else:
                store.queue(SINK)

    def append(self, count: int) -> None:
        """Let the source have more rows; each is there twice."""
        with segue.open(self.root / "store", sync="os") as store:
            numbers = range(self._rows, self._rows + count)
            store.topic(SOURCE).append_many(
                [
                    Event(value=f"{number // 2}", key=f"{number % 7}" if number % 3 else None)
                    for number in numbers
                ]
            )
        self._rows += count

    def run(self, kill: Kill | None = None, *, alone: bool = False) -> int:
        """Run a driver to its end, or to its death; return its exit code."""
        self._runs += 1
        step, call = kill or ("", 0)
        environment = {
            **os.environ,
            STEP: step,
            CALL: str(call),
            COUNTER: str(self.root / f"{self._runs}.calls"),
            ALONE: "yes" if alone else "",
        }
        task_rows = TASK_ROWS[self._runs % len(TASK_ROWS)]
        command = (sys.executable, "-m", "tests.spark.stream_driver")
        with (self.root / f"{self._runs}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, str(self.root), self.kind, str(task_rows)],
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                return process.wait(DRIVER_SECONDS_MAX)
            finally:
                while session_pids(process.pid):
                    kill_session(process.pid)
                process.wait()

    @property
    def calls(self) -> int:
        """How often the last driver came to its step."""
        path = self.root / f"{self._runs}.calls"
        return path.stat().st_size if path.exists() else 0

    @property
    def log(self) -> str:
        """What the last driver said."""
        return (self.root / f"{self._runs}.log").read_text(errors="replace")[-4000:]

    def source(self) -> Counter[bytes]:
        """Return what the source holds."""
        with segue.open(self.root / "store", sync="os") as store:
            return Counter(_values(store.topic(SOURCE).records()))

    def sink(self) -> Counter[bytes]:
        """Return what the sink holds."""
        with segue.open(self.root / "store", sync="os") as store:
            if self.kind == "topic":
                return Counter(_values(store.topic(SINK).records()))
            return Counter(message.body for message in store.queue(SINK).peek(ROWS_MAX))

    def check(self) -> None:
        """Assert what holds at any time."""
        extra = self.sink() - self.source()
        assert not extra, f"{extra.total()} rows too many"
        self._check_reader()

    def check_end(self) -> None:
        """Assert what holds when all is done."""
        self.check()
        assert self.sink() == self.source()
        check_logs(self.root / "store")
        staged = self.root / "store" / "staging" / f"{self.kind}.{SINK}"
        left = [path.name for path in staged.iterdir() if not path.name.endswith(".tmp")]
        assert sorted(Path(name).suffix or name for name in left) == [".done", "lock"], left

    def _check_reader(self) -> None:
        """The reader's place is never ahead of what the checkpoint says is committed."""
        committed = committed_offsets(self.root / "checkpoint")
        with segue.open(self.root / "store", sync="os") as store:
            places = store.topic(SOURCE).readers().get(READER, [])
        for lag in places:
            assert lag.committed <= committed.get(lag.partition, 0), (places, committed)


def _values(records: Iterable[segue.TopicRecord]) -> Iterator[bytes]:
    for record in records:
        assert record.value is not None
        yield record.value


def committed_offsets(checkpoint: Path) -> dict[int, int]:
    """Return where the last batch ends of which the checkpoint says that it is committed."""
    batches = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdecimal()]
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
    offsets = json.loads(lines[2])[SOURCE]
    return {int(partition): int(offset) for partition, offset in offsets.items()}


@pytest.mark.parametrize("kind", ["topic", "queue"] if TORTURE else ["topic"])
def test_a_stream_whose_driver_is_killed_at_any_step_copies_each_row_once(
    scratch: Path, kind: Kind
) -> None:
    """At last source and sink hold the same rows, and the reader was never ahead of Spark.

    The last driver loses a worker in a task, and Spark tries the task again.
    """
    world = World(scratch, kind)
    for kill in ALL if TORTURE else SOME:
        world.append(ROWS_PER_RUN)
        with naming(kill):
            code = world.run(kill)
            with naming(world.log):
                assert code != 0, f"it was not killed, but came to the step {world.calls} times"
            world.check()
    code = world.run(("after a segment is written aside", 1), alone=True)

    with naming(world.log):
        assert code == 0
    assert world.calls > 1, "no task was tried again"
    world.check_end()
