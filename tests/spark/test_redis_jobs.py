"""Jobs over a server: those that go by the source and the sink work, the others say so."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import segue
from segue import Event, QueueRules
from segue.errors import InvalidArgument
from segue.spark import table, tasks
from segue.spark.jobs.archive import archive
from segue.spark.jobs.audit import audit
from segue.spark.jobs.migrate import migrate
from segue.spark.jobs.replay import replay
from segue.spark.jobs.report import report
from segue.spark.jobs.triage import dead_letter_groups, redrive
from segue.tasks import App, Worker
from tests.spark.redis_support import fresh_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_topic_is_archived_shown_as_one_table_and_replayed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Run after run, each record once; `table` has archived and live records together."""
    url, to = fresh_url(), str(tmp_path / "archive")
    with segue.open(url) as store:
        topic = store.topic("orders", partitions=2)
        topic.append_many([Event(value=b"%d" % n, key=f"k{n}") for n in range(100)])
        first = archive(spark, url, topic="orders", to=to, sync="os")
        topic.append_many([Event(value=b"%d" % n, key=f"k{n}") for n in range(100, 150)])
        rows = table(spark, url, "orders", archive=to, columns=["value"]).collect()
        second = archive(spark, url, topic="orders", to=to, sync="os")
        store.topic("again", partitions=2)
        for _ in range(2):
            replayed = replay(spark, to, url=url, topic="again", write_id="once")

        assert (first.records, second.records) == (100, 50)
        assert sorted(int(bytes(row.value)) for row in rows) == list(range(150))
        assert not replayed.is_new
        assert sorted(int(record.value or b"") for record in store.topic("again").records()) == (
            list(range(150))
        )


@pytest.mark.long
def test_dead_letters_are_sorted_out_and_tasks_are_a_table(spark: "SparkSession") -> None:
    """Triage reads letters from the server and redrives them there."""
    url = fresh_url()
    with segue.open(url) as store:
        queue = store.queue("mail", QueueRules(max_deliveries=1))
        for number in range(3):
            queue.push(b"%d" % number)
            queue.lease().fail(f"no answer within {number} s")
        (group,) = dead_letter_groups(spark, url, "mail").collect()
        redriven = redrive(spark, url, "mail", f"group = '{group['group']}'")

        assert group["count"] == 3
        assert redriven.redriven == 3
        assert queue.count().ready == 3
    app = App(url)

    @app.task
    def double(number: int) -> int:
        return number * 2

    double.enqueue(21)
    Worker(app, burst=True).run()
    (row,) = tasks(spark, url).collect()
    assert (row["task"], row["state"], row["result"]) == ("double", "completed", "42")


@pytest.mark.long
def test_an_exported_state_is_migrated_once(spark: "SparkSession", tmp_path: Path) -> None:
    """Into a store that the job makes."""
    state = {
        "queue_0_seg_0": ["a", "b"],
        "metadata": {"queues": {"queue_0": {"metadata": {"count": 2}}}},
    }
    path = tmp_path / "v3.json"
    path.write_text(json.dumps(state))
    url = fresh_url()
    reports = [migrate(spark, path, url, "old") for _ in range(2)]

    assert [each.is_repeated for each in reports] == [False, True]
    with segue.open(url) as store:
        assert [message.body for message in store.queue("old").peek(9)] == [b"a", b"b"]


def test_jobs_that_read_files_refuse_a_server(spark: "SparkSession", tmp_path: Path) -> None:
    """In one sentence, without its password."""
    url = "redis://user:hidden@localhost:1"
    for refused in (
        lambda: audit(spark, url),
        lambda: report(spark, url, to=tmp_path / "report"),
        lambda: archive(spark, url, queue="jobs", to=str(tmp_path / "archive")),
    ):
        with pytest.raises(InvalidArgument, match="needs a store in a directory") as caught:
            refused()
        assert "hidden" not in str(caught.value)
