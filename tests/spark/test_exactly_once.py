"""Exactly once when a Spark driver is killed with all of its processes.

Each driver is a process of its own. The next one continues from the checkpoint. After the last one
the sink holds what the source holds. `test_kills.py` has more steps, and kills Python alone.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.crash.replay import naming
from tests.spark.copied import Copied, Kind
from tests.spark.deadly_source import Kill

ROWS_PER_RUN: Final = 90
KILLS: Final[tuple[Kill, ...]] = (
    ("after the plan", 3),
    ("before a task", 4),
    ("after a segment is written aside", 1),
    ("after the list", 1),
    ("after an adoption", 2),
    ("after the note", 2),
    ("after the commit", 1),
    ("within a file of offsets", 2),
    ("after a file of offsets", 2),
    ("within a file of commits", 2),
    ("after a file of commits", 2),
)

# No limit for the whole test: every wait for a driver has one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_a_stream_whose_driver_is_killed_copies_each_row_once(scratch: Path, kind: Kind) -> None:
    """The last driver loses a worker in a task, and Spark runs the task again."""
    copied = Copied(scratch, kind=kind)
    for kill in KILLS:
        copied.append(ROWS_PER_RUN)
        code, output = copied.run_driver(kill)
        with naming((kill, output)):
            assert code != 0, "it was not killed"
            copied.check()
    code, output = copied.run_driver(worker_kill=("after a segment is written aside", 1))

    with naming(output):
        assert code == 0
        copied.check_end()
