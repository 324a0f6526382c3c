"""One Spark session for all tests of this directory: starting one takes longer than any of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segue.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session, on two cores; it leaves nothing behind."""
    root = tmp_path_factory.mktemp("spark")
    spark = session(
        "segue-tests",
        "local[2]",
        config={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
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
