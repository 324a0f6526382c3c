"""Tasks as a table: what their events say, a row for each task."""

from pathlib import Path

from pyspark.sql import SparkSession

from segue.spark import tasks
from segue.tasks import App
from segue.testing.tasks import TaskBench
from tests.spark.http_support import served_directory


def _work_off(path: Path) -> dict[str, str]:
    app = App(path)

    @app.task
    def double(number: int) -> dict[str, int]:
        return {"is": number * 2}

    @app.task(retries=1)
    def fail(why: str) -> None:
        raise ValueError(why)

    with TaskBench(app, path) as bench:
        ids = {"double": double.enqueue(21).id, "fail": fail.enqueue('with "quotes"').id}
        bench.run_all()
    return ids


def test_a_task_is_one_row_with_what_became_of_it(spark: SparkSession, store_path: Path) -> None:
    """The last event of a task says how it stands; results and arguments are JSON."""
    ids = _work_off(store_path)

    rows = {row["id"]: row for row in tasks(spark, str(store_path)).collect()}

    assert rows.keys() == set(ids.values())
    done, dead = rows[ids["double"]], rows[ids["fail"]]
    assert (done["task"], done["state"], done["queue"]) == ("double", "completed", "default")
    assert (done["result"], done["args"]) == ('{"is":42}', '{"number":21}')
    assert (dead["state"], dead["attempt"]) == ("dead_letter", 2)
    assert dead["error"] == 'ValueError: with "quotes"'
    assert done["started"] >= done["pushed"]


def test_tasks_of_a_server_are_the_same_table(spark: SparkSession, store_path: Path) -> None:
    """The URL of a server is not taken for a path."""
    ids = _work_off(store_path)
    with served_directory(store_path) as url:
        rows = tasks(spark, url).collect()

    assert {row["id"]: row["state"] for row in rows} == {
        ids["double"]: "completed",
        ids["fail"]: "dead_letter",
    }


def test_every_event_can_be_had(spark: SparkSession, store_path: Path) -> None:
    """A task that was tried again has an event for each try."""
    ids = _work_off(store_path)

    events = tasks(spark, str(store_path), events=True).where(f"id = '{ids['fail']}'")

    assert [row["state"] for row in events.orderBy("offset").collect()] == [
        "retrying",
        "dead_letter",
    ]
