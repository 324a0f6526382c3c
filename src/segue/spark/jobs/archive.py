"""The job `archive`: a topic, or what a queue is done with, to Parquet, each record once."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession, functions

from segue.errors import InvalidArgument
from segue.log.layout import checked_name
from segue.log.options import SyncName
from segue.spark.jobs.histories import History, Plan, QueueHistory, TopicHistory, require_there
from segue.spark.jobs.manifests import Archive, ArchiveKind, DataFile, Manifest, Ranges
from segue.spark.jobs.running import spark_directory, spark_errors
from segue.spark.places import absolute, open_place, require_directory
from segue.stores.file.store import FileStore
from segue.stores.opening import directory_of
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.spark.places import AnyStore

READER: Final = "archive"
_DATE: Final = (
    "date_from_unix_date(cast((unix_micros(timestamp) - "
    "pmod(unix_micros(timestamp), 86400000000)) div 86400000000 as int))"
)
"""The day in UTC, whatever the time zone of the session."""
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """What a run archived."""

    kind: ArchiveKind
    name: str
    run: int | None
    """None if there was nothing to archive."""
    ranges: Ranges
    records: int
    size_bytes: int
    """Of the files."""
    files: int
    seconds: float
    freed_segments: int
    freed_bytes: int


def archive(
    spark: SparkSession,
    url: str,
    *,
    topic: str | None = None,
    queue: str | None = None,
    to: str,
    until: datetime | None = None,
    clean: bool = False,
    reader: str = READER,
    skip_trimmed: bool = False,
    sync: SyncName = "always",
) -> ArchiveReport:
    """Archive what came since the last run, to Parquet files in the directory `to`, by date.

    Of a topic that is all there is, or what was appended before `until`; of a queue, what is
    settled. Killed at any moment, the next run goes on so that everything is archived once. The
    place is kept as the topic's `reader`, too, which follows behind the files: retention may
    delete what is archived, and not before; with `clean` it does so at once. `skip_trimmed` goes
    on past what a limit of retention deleted before it was archived.

    Raises LogLocked while another run archives to the same directory, TopicNotFound,
    OffsetTrimmed, InvalidArgument, LogNotFound, CorruptManifest.
    """
    started = time.monotonic()
    kind, name = _what(topic, queue)
    if clean and kind == "queue":
        raise InvalidArgument("a queue deletes what it is done with by its own rules")
    if until is not None and until.tzinfo is None:
        raise InvalidArgument(f"until needs a time zone: {until.isoformat()}")
    place = Archive(directory_of(to), sync=sync != "os")
    if kind == "queue":
        require_directory(url, "archiving a queue")
    root = absolute(url)  # Executors may be at work elsewhere.
    with spark_errors(), open_place(root, sync=sync) as store:
        require_there(store, kind, name)
        with place.alone():
            before = place.manifests(kind, name)
            place.drop_leftovers(len(before))
            with _history(store, kind, name, reader) as history:
                last = before[-1] if before else None
                plan = history.plan(last, until=until, skip_trimmed=skip_trimmed)
                files: Sequence[DataFile] = ()
                if plan.is_needed:
                    files = _add(spark, root, place, history, plan, run=len(before) + 1)
                history.follow(plan.ends)
                freed_segments, freed_bytes = history.clean() if clean else (0, 0)
    return ArchiveReport(
        kind=kind,
        name=name,
        run=len(before) + 1 if plan.is_needed else None,
        ranges=plan.ranges,
        records=sum(file.records for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        files=len(files),
        seconds=time.monotonic() - started,
        freed_segments=freed_segments,
        freed_bytes=freed_bytes,
    )


def _what(topic: str | None, queue: str | None) -> tuple[ArchiveKind, str]:
    if topic is not None and queue is None:
        return "topic", checked_name(topic)
    if queue is not None and topic is None:
        return "queue", checked_name(queue)
    raise InvalidArgument("give a topic or a queue")


@contextmanager
def _history(store: "AnyStore", kind: ArchiveKind, name: str, reader: str) -> Iterator[History]:
    history: History = (
        QueueHistory(store, name)
        if kind == "queue" and isinstance(store, FileStore)
        else TopicHistory(store, name, reader)
    )
    try:
        yield history
    finally:
        history.close()


def _add(
    spark: SparkSession, url: str, place: Archive, history: History, plan: Plan, *, run: int
) -> Sequence[DataFile]:
    """Have a run happen, and return its files."""
    written = place.place_to_write()
    _write(spark, history.rows(spark, url, plan), written)
    history.check(plan)
    files = place.take_in(written, run)
    place.add(
        Manifest(
            run=run,
            kind=history.kind,
            name=history.name,
            ranges=plan.ranges,
            ends=plan.ends,
            pending=plan.pending,
            files=files,
        )
    )
    return files


def _write(spark: SparkSession, rows: DataFrame, to: Path) -> None:
    """Write rows to where nobody looks for them yet."""
    dated = rows.withColumn("date", functions.expr(_DATE))
    with _setting(spark, dict([_TIMESTAMPS])):
        dated.write.partitionBy("date").mode("overwrite").parquet(spark_directory(to))


@contextmanager
def _setting(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for the length of a block."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
