"""Spark Connect: what can be done through it is what can be done without it."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

import segue
from segue import Event
from tests.conftest import TORTURE
from tests.spark.connect_driver import OFFSETS_PER_BATCH, QUEUE, SOURCE, STREAMED, WRITTEN
from tests.spark.processes import run

ROWS: Final = 40

# No limit for the whole test: the wait for the driver has one.
pytestmark = pytest.mark.timeout(0)


def run_driver(root: Path, *arguments: str) -> str:
    """Run a driver, with its Spark Connect server, and return its output."""
    # Any port is fine; without this it is always the same one, which may be in use. Not "1", which
    # is for those who build Spark.
    environment = {**os.environ, "SPARK_TESTING": "yes"}
    command = (sys.executable, "-m", "tests.spark.connect_driver", *arguments)
    code, text = run(root / "driver.log", command, environment)
    assert code == 0, text[-4000:]
    return text


@pytest.fixture
def store(store_path: Path) -> Iterator[segue.Store]:
    """A store with a topic and a queue to read, and topics to write."""
    with segue.open(store_path, sync="os") as store:
        for name in (SOURCE, WRITTEN, STREAMED):
            store.topic(name, partitions=2)
        events = [Event(value=f'{{"n": {number}}}', key=f"{number}") for number in range(ROWS)]
        store.topic(SOURCE).append_many(events)
        store.queue(QUEUE).push(b"first")
        yield store


def test_spark_connect_reads_writes_and_streams(
    store: segue.Store, store_path: Path, scratch: Path
) -> None:
    """Batches, streams, views and listeners, and each row once.

    The long run also has a function for each batch, which starts one more Python process.
    """
    text = run_driver(scratch, str(store_path), str(scratch))

    last = next(line for line in text.splitlines() if line.startswith('{"session"'))
    found = cast("dict[str, Any]", json.loads(last))
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["sum"] == sum(range(ROWS))
    assert found["messages"] == ["first"]
    assert found["view"] == ROWS
    assert sum(found["batches"]) == ROWS
    assert max(found["batches"]) <= OFFSETS_PER_BATCH
    assert found["lag"] == 0
    assert "tpoic; there are " in found["refusal"]
    assert found["context"] == "JVM_ATTRIBUTE_NOT_SUPPORTED"
    expected = Counter(record.value for record in store.topic(SOURCE).records())
    for name in (WRITTEN, STREAMED):
        assert Counter(record.value for record in store.topic(name).records()) == expected, name
    pushed = Counter(message.body for message in store.queue(QUEUE).peek(2 * ROWS))
    assert pushed == (expected if TORTURE else Counter()) + Counter([b"first"])
    assert store.topic(SOURCE).readers().keys() == {"connect", *(["each"] if TORTURE else [])}
