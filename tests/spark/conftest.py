"""The Spark session that nearly all tests here share: starting one takes longer than most of them.

Tests that start Spark themselves run beside them (`Scheduling` in tests/conftest.py).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segue.spark.session import session
from tests.spark.deadly_source import KILL_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package", autouse=True)
def _quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make every start of Spark take half of its usual CPU time.

    Java compiles once and not twice, and Python starts as python/sitecustomize.py says. Spark's
    Python also finds what is imported as `tests.…`, and the file that plans kills.
    """
    paths = (Path(__file__).parent / "python", Path.cwd())
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)), prepend=os.pathsep)
        environ.setenv(KILL_FILE, str(tmp_path_factory.mktemp("kills") / "plan"))
        environ.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session, on two cores; it leaves nothing behind."""
    root = tmp_path_factory.mktemp("spark")
    if "PYTEST_XDIST_WORKER" in os.environ:  # Then the directory above is that of all processes.
        (tmp_path_factory.getbasetemp().parent / "there-is-a-session").touch(exist_ok=False)
    spark = session(
        "segue-tests",
        "local[2]",
        config={
            "spark.local.dir": str(root / "local"),
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture
def store_path(scratch: Path) -> Path:
    """A path for a store, which nobody has made yet."""
    return scratch / "store"
