"""The examples for Spark run, and print what they should."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

import segue
from tests.spark.processes import SPARK_LIMIT_SECONDS

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
# No limit for a whole test: every run has one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]
# One after the other in one Java: starting it takes longer than an example.
RUN_ALL: Final = (
    "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')\n"
)
PRINTED: Final = """\
first try: 40 orders in 1 batches, failed: a price is no number
mended:    60 orders in 2 batches, done
later:     50 orders in 2 batches, done
150 rows of 150 orders; without a price: [60]
hour b'00:00' b'{"start":"2026-01-31T00:00:00.000Z","amount":75.0}'
hour b'01:00' b'{"start":"2026-01-31T01:00:00.000Z","amount":20.0}'
greet ada at order b'3'
greet bob at order b'3'
"""


def run(*command: str, cwd: Path) -> str:
    """Run a program as somebody would who has installed Segue, and return what it prints."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "yes",  # Any port for Spark Connect, and not always the same one.
    }
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SPARK_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_the_streams_print_each_row_once(tmp_path: Path) -> None:
    """To Parquet across a failure; sums of closed hours; a rule that remembers."""
    paths = [str(EXAMPLES / name) for name in ("spark_to_parquet.py", "spark_windows.py")]

    assert run(sys.executable, "-c", RUN_ALL, *paths, cwd=tmp_path) == PRINTED


def test_the_pipeline_fills_its_tables_and_its_topic(tmp_path: Path) -> None:
    """A declarative pipeline has topics as sources and as sinks."""
    pipeline = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "spark_pipeline", pipeline)
    spec = pipeline / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/srv/orders", str(pipeline)))
    with segue.open(pipeline / "data") as store:
        store.topic("large", partitions=1)
        orders = [("ada", 10), ("bob", 25), ("ada", 30)]
        store.topic("orders", partitions=2).append_many(
            [f'{{"customer": "{customer}", "amount": {amount}}}' for customer, amount in orders]
        )
    run("spark-pipelines", "run", cwd=pipeline)

    tables = pipeline / "spark-warehouse"
    assert sorted(row["amount"] for row in pq.read_table(tables / "orders").to_pylist()) == [
        10,
        25,
        30,
    ]
    totals = {
        row["customer"]: row["amount"] for row in pq.read_table(tables / "totals").to_pylist()
    }
    assert totals == {"ada": 40, "bob": 25}
    with segue.open(pipeline / "data") as store:
        assert sorted(record.key or b"" for record in store.topic("large").records()) == [
            b"ada",
            b"bob",
        ]
