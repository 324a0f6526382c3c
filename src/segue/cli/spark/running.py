"""The Spark session that a verb runs its job in, and what people see of it meanwhile."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.output import progress
from segue.errors import SegueError
from segue.extras import extra

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOG_LEVEL: Final = "spark.log.level"
POLL_SECONDS: Final = 0.2
BAR_STEPS: Final = 1000
LAST_STEP: Final = BAR_STEPS - 1
"""As far as tasks move the bar: what comes after them is work, too."""
STDERR: Final = 2
_REPEATED_BY_ERRORS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""What these log is what the error says, with its whole stack."""

MasterOption = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="Where Spark runs: here, or spark://HOST:PORT."),
]
MASTER_DEFAULT: Final = "local[*]"
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="A setting of Spark; may be repeated.",
        show_default=False,
    ),
]


@contextmanager
def spark_session(
    master: str, config: Sequence[str] | None, *, doing: str = "working"
) -> Iterator["SparkSession"]:
    """Yield a session that ends with the block; one that was there before is used and stays.

    On a terminal a bar shows how many tasks are done. Spark's own log is shown only if --config
    sets its level. Raises SegueError for what goes wrong in Spark, of the class it had there.
    """
    given = _settings(config)
    with extra("spark", needed_by="Spark"):
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        from segue.spark.jobs.running import spark_errors
        from segue.spark.session import session

        for name in _REPEATED_BY_ERRORS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
        with spark_errors():
            running = SparkSession.getActiveSession()
            if running is not None:
                with _shown(running, doing):
                    yield session(config=given)
                return
            spark = _started(master, given)
            try:
                with _shown(spark, doing):
                    yield spark
            finally:
                spark.stop()


def _settings(config: Sequence[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in config or ()]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise typer.BadParameter(f"{key!r} is not KEY=VALUE", param_hint="--config")
    return {key: value for key, _, value in pairs}


def _started(master: str, given: Mapping[str, str]) -> "SparkSession":
    from segue.spark.session import session

    ours = {
        LOG_LEVEL: "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if LOG_LEVEL in given:
        return session("segue", master, config={**ours, **given})
    with tempfile.TemporaryFile() as log, _stderr_to(log):
        return session("segue", master, config={**ours, **given})


@contextmanager
def _stderr_to(log: IO[bytes]) -> Iterator[None]:
    """Have whoever is started meanwhile say elsewhere what a command has no use for.

    Spark's JVM tells every failed task there, with its whole stack, and what it is started with.
    """
    sys.stderr.flush()
    kept = os.dup(STDERR)
    os.dup2(log.fileno(), STDERR)
    try:
        yield
    except Exception as error:
        log.seek(0)
        said = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        if isinstance(error, SegueError) or not said:
            raise
        raise SegueError(f"Spark did not start: {said[-1].strip()}") from error
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


@contextmanager
def _shown(spark: "SparkSession", doing: str) -> Iterator[None]:
    """Show how many of the tasks are done that are known of so far."""
    with progress(doing, BAR_STEPS) as advance:
        if not sys.stderr.isatty():
            yield
            return
        context = spark.sparkContext
        before = set(context.statusTracker().getJobIdsForGroup())
        is_over = Event()

        def watch() -> None:
            shown = 0
            while not is_over.wait(POLL_SECONDS):
                now = _steps_done(context, before)
                if now > shown:
                    advance(now - shown)
                    shown = now

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _steps_done(context: "SparkContext", before: set[int]) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup()) - before]
    stages = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    tasks = sum(stage.numTasks for stage in stages if stage is not None)
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return LAST_STEP * done // tasks if tasks else 0
