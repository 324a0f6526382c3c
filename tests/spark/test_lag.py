"""Lag: how far streams are behind, in records, bytes and seconds."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

import segue
from segue.spark.lag import LagListener, PartitionLag, StreamLag, lag_behind
from segue.testing import ManualClock
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def clock_() -> ManualClock:
    return ManualClock()


@pytest.fixture
def topic(scratch: Path, clock_: ManualClock) -> Iterator[segue.Topic]:
    """A topic with four records of three bytes in one partition, a second apart, one elsewhere."""
    from segue.stores.opening import open_directory

    with open_directory(scratch / "store", sync="os", clock=clock_, ticks=clock_.ticks) as store:
        topic = store.topic("orders", partitions=3)
        for _ in range(4):
            topic.append(b"abc", partition=0)
            clock_.advance(seconds=1)
        topic.append(b"x", partition=1)
        yield topic


def progress(offsets: object, *, name: str | None = "copy", batch: int = 7) -> QueryProgressEvent:
    """Return what Spark reports of a batch, as far as it matters here."""
    sources = [SimpleNamespace(endOffset=offsets)]
    told = SimpleNamespace(name=name, id="an-id", batchId=batch, sources=sources)
    return cast("QueryProgressEvent", SimpleNamespace(progress=told))


def test_lag_is_what_lies_beyond_the_offsets(
    topic: segue.Topic, scratch: Path, clock_: ManualClock
) -> None:
    """In records, bytes, and how long the oldest has been waiting."""
    found = lag_behind(str(scratch / "store"), {"orders": {"0": 1, "1": 1, "2": 0}}, clock=clock_)

    assert found[0] == PartitionLag(
        topic="orders", partition=0, offset=1, records=3, size_bytes=9, seconds=3.0
    )
    assert (found[1].records, found[1].size_bytes, found[1].seconds) == (0, 0, 0.0)


def test_what_is_not_in_the_store_is_left_out(topic: segue.Topic, scratch: Path) -> None:
    """Other topics, other partitions, and strands of queues."""
    url = str(scratch / "store")

    assert lag_behind(url, {"bills": {"0": 1}, "orders": {"7": 0, "later": 2}}) == []


def test_a_stream_is_as_late_as_its_latest_partition() -> None:
    """Records and bytes add up, seconds do not."""
    one = PartitionLag(topic="a", partition=0, offset=0, records=2, size_bytes=20, seconds=5.0)
    other = PartitionLag(topic="a", partition=1, offset=0, records=1, size_bytes=3, seconds=9.0)
    lag = StreamLag(query="q", batch=1, partitions=(one, other))

    assert (lag.records, lag.size_bytes, lag.seconds) == (3, 23, 9.0)
    assert StreamLag(query="q", batch=1, partitions=()).seconds == 0.0


class TestListener:
    def test_every_batch_gives_a_figure(self, topic: segue.Topic, scratch: Path) -> None:
        """By the name of the query, or its id; whoever asked is told."""
        told: list[StreamLag] = []
        listener = LagListener(str(scratch / "store"), told.append)
        listener.onQueryProgress(progress('{"orders": {"0": 2}}'))
        listener.onQueryProgress(progress({"orders": {"0": 4}}, name=None, batch=8))

        assert listener.lags["copy"].records == 2
        assert listener.lags["an-id"].records == 0
        assert [(each.query, each.batch) for each in told] == [("copy", 7), ("an-id", 8)]

    @pytest.mark.parametrize(
        "offsets", [None, "", "no json", "17", '{"0": 5}', '{"orders": {"0": "x"}}', json.dumps([])]
    )
    def test_offsets_of_other_sources_are_passed_over(
        self, topic: segue.Topic, scratch: Path, offsets: object
    ) -> None:
        """A listener hears of every query of its session."""
        listener = LagListener(str(scratch / "store"))
        listener.onQueryProgress(progress(offsets))

        assert listener.lags == {}

    def test_what_the_callback_raises_harms_nobody(
        self, topic: segue.Topic, scratch: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged, and the figure is kept."""

        def fail(_: StreamLag) -> None:
            raise ValueError("no")

        listener = LagListener(str(scratch / "store"), fail)
        listener.onQueryProgress(progress('{"orders": {"0": 2}}'))

        assert listener.lags["copy"].records == 2
        assert "on_lag failed" in caplog.text


def test_a_listener_follows_a_query(
    spark: "SparkSession", topic: segue.Topic, scratch: Path
) -> None:
    """Batch by batch it is less behind, and at the end not at all."""
    told: list[StreamLag] = []
    listener = LagListener(str(scratch / "store"), told.append)
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("segue")
            .schema("offset BIGINT")
            .options(url=str(scratch / "store"), topic="orders", reader="copy", sync="os")
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="3")
            .load()
            .writeStream.format("noop")
            .queryName("copy")
            .option("checkpointLocation", str(scratch / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SPARK_LIMIT_SECONDS)
        wait_until(lambda: told and told[-1].records == 0, "no lag")

        records = [each.records for each in told]
        assert records == sorted(records, reverse=True)
        assert records[0] > 0
        assert listener.lags["copy"].seconds == 0.0
    finally:
        spark.streams.removeListener(listener)
