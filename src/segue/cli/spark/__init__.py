"""`segue spark`: jobs over a store that run on Spark, one verb each.

running.py    the session a job runs in, its progress, and what becomes of Spark's errors
archive.py    a topic, or what a queue is done with, to Parquet
replay.py     files to a topic or queue
audit.py      every segment checked, gaps and duplicates counted
report.py     throughput, waiting and failures over time, as Parquet and a page
triage.py     dead letters by their causes
migrate.py    state exports of earlier versions to queues
"""

from collections.abc import Callable
from typing import Final

import typer

from segue.cli.spark.archive import archive
from segue.cli.spark.audit import audit
from segue.cli.spark.migrate import migrate
from segue.cli.spark.replay import replay
from segue.cli.spark.report import report
from segue.cli.spark.triage import triage

_VERBS: Final[tuple[Callable[..., None], ...]] = (
    *(archive, replay, audit, report, triage, migrate),
)


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in _VERBS:
        group.command()(verb)
