"""Exactly once over Redis when a Spark driver is killed with all of its processes."""

from pathlib import Path
from typing import Final

import pytest

from tests.crash.replay import naming
from tests.spark.copied import Copied
from tests.spark.deadly_source import Kill
from tests.spark.redis_support import fresh_url

ROWS_PER_RUN: Final = 90
KILLS: Final[tuple[Kill, ...]] = (
    ("after a block is put aside", 6),
    ("after the list", 1),
    ("after an adoption", 3),
    ("before the finish", 2),
)

# No limit for the whole test: every wait for a driver has one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


def test_a_stream_whose_driver_is_killed_copies_each_row_once(tmp_path: Path) -> None:
    """The next driver continues from the checkpoint."""
    copied = Copied(tmp_path, url=fresh_url())
    for kill in KILLS:
        copied.append(ROWS_PER_RUN)
        code, output = copied.run_driver(kill)
        with naming((kill, output)):
            assert code != 0
            copied.check()
    code, output = copied.run_driver()

    with naming(output):
        assert code == 0
        copied.check_end()
