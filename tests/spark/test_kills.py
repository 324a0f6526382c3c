"""Exactly once when Python processes of Spark are killed, at every step of reading and writing.

The query fails and the next one continues from the checkpoint, all in the shared session. Drivers
that are killed are in `test_exactly_once.py`, except for one here.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import TORTURE
from tests.crash.replay import naming
from tests.spark.copied import Copied, Kind
from tests.spark.deadly_source import Kill
from tests.spark.redis_support import fresh_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_RUN: Final = 90 if TORTURE else 45
"""More than a batch has, so that every query of the short run has two batches."""
SOME: Final[tuple[Kill, ...]] = (
    ("after a segment is written aside", 3),
    ("after the list", 1),
    ("after an adoption", 2),
    ("after the commit", 2),
    ("after the reader's commit", 1),
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
)
REDIS: Final[tuple[Kill, ...]] = (
    *(("after a block is put aside", call) for call in (1, 6)),
    *((f"{when} the list", call) for when in ("before", "after") for call in (1, 2)),
    *((f"{when} an adoption", call) for when in ("before", "after") for call in (1, 2, 5)),
    *((f"{when} the note", call) for when in ("before", "after") for call in (1, 2)),
    *((f"{when} the finish", call) for when in ("before", "after") for call in (1, 2)),
    *(("after the commit", call) for call in (1, 2)),
)

# No limit for the whole test: every wait for a query has one.
pytestmark = pytest.mark.timeout(0)


def kill_and_continue(copied: Copied, spark: "SparkSession", kills: tuple[Kill, ...]) -> None:
    """Kill one query after the other, then let the last one finish."""
    for kill in kills:
        copied.append(ROWS_PER_RUN)
        with naming(kill):
            assert not copied.run_here(spark, kill), "it was not killed"
            copied.check()
    assert copied.run_here(spark)
    copied.check_end()


@pytest.mark.parametrize("kind", ["topic", pytest.param("queue", marks=pytest.mark.long)])
def test_a_stream_whose_python_is_killed_at_any_step_copies_each_row_once(
    spark: "SparkSession", scratch: Path, kind: Kind
) -> None:
    """The reader is never ahead of what the checkpoint has committed."""
    kill_and_continue(Copied(scratch, kind=kind), spark, ALL if TORTURE else SOME)


def test_a_stream_continues_after_its_driver_was_killed(
    spark: "SparkSession", scratch: Path
) -> None:
    """It dies with its JVM in the middle of a commit. Before, it lost a worker in a task."""
    copied = Copied(scratch)
    copied.append(ROWS_PER_RUN)
    code, output = copied.run_driver(
        ("after an adoption", 3), worker_kill=("after a segment is written aside", 1)
    )
    with naming(output):
        assert code != 0, "it was not killed"
        copied.check()
    assert copied.sink(), "the kill came before anything was written"
    assert copied.run_here(spark)
    copied.check_end()


@pytest.mark.long
def test_a_stream_over_redis_whose_python_is_killed_copies_each_row_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Every step of staging and committing on the server."""
    kill_and_continue(Copied(tmp_path, url=fresh_url()), spark, REDIS)
