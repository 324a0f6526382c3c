"""One Spark session for nearly all tests here: starting one takes longer than most of them.

Those that start Spark in processes of their own run beside them (`--dist loadgroup`).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segue.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OWN_PROCESSES = {
    "test_cluster",
    "test_connect",
    "test_demo",
    "test_exactly_once",
    "test_redis_exactly_once",
    "test_spark_examples",
}


@pytest.hookimpl(tryfirst=True)  # xdist looks at groups in a hook of the same name.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all that share the session in one process."""
    for item in items:
        if "spark" in item.path.parts and item.path.stem not in OWN_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("session"))


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """Have whatever starts Spark here start it in half the time: none of them runs for long.

    Java compiles once and not twice, and Python as python/sitecustomize.py says. Spark's Python
    also finds what is imported as `tests.…`. What docs/spark.md says is run without this.
    """
    paths = (Path(__file__).parent / "python", Path.cwd())
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)), prepend=os.pathsep)
        environ.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
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
