"""The job `replay`: Parquet, JSON and CSV files to a topic or queue."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from segue.errors import InvalidArgument, SegueError
from segue.log.layout import checked_name
from segue.log.options import SyncName
from segue.spark.jobs.histories import QUEUE_SCHEMA, TOPIC_SCHEMA, require_there
from segue.spark.jobs.manifests import Archive
from segue.spark.jobs.running import spark_errors, spark_files
from segue.spark.options import write_options
from segue.spark.places import absolute, is_server, open_place
from segue.spark.sink.rows import COLUMNS
from segue.spark.sink.writers import committer, named_write
from segue.stores.opening import directory_of
from segue.values import dataclass

FileFormat = Literal["parquet", "json", "csv"]
_FORMATS: Final[Mapping[str, FileFormat]] = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
}
_SUFFIX: Final = re.compile(
    r".*\.(parquet|json|jsonl|ndjson|csv)(?:\.(?:gz|bz2|zst|lz4|snappy|deflate))?"
)
_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a run wrote."""

    kind: Literal["topic", "queue"]
    name: str
    records: int
    is_new: bool
    """False if a run of this name has written before: nothing happened."""
    columns: Mapping[str, str]
    """What was made of the files: for each column of the records, which column or expression."""
    seconds: float


def replay(
    spark: SparkSession,
    source: str,
    *,
    url: str,
    topic: str | None = None,
    queue: str | None = None,
    format: FileFormat | None = None,  # noqa: A002 - as Spark has it
    columns: Mapping[str, str] | None = None,
    by_key: bool = False,
    limit: int | None = None,
    write_id: str | None = None,
    sync: SyncName = "always",
) -> ReplayReport:
    """Write the rows of files to a topic or queue that is there, all of them or none.

    `source` is a file or directory; of an archive, what its manifests list. If there is a column
    `value`, it is written with what there is of key, headers, partition and timestamp, or of key,
    headers, priority and delay for a queue; other columns are left out. If there is none, the
    whole row becomes JSON in the value. `columns` says otherwise: for a column of the records
    which column of the files, as in {"key": "customer"}. `by_key` leaves partitions out.

    Each run writes all of it again, unless it has a `write_id`: then only the first that succeeds
    does.

    Raises FileNotFoundError, InvalidArgument, TopicNotFound, LogNotFound.
    """
    started = time.monotonic()
    kind, name = _target(topic, queue)
    if limit is not None and limit < 0:
        raise InvalidArgument(f"limit must not be negative: {limit}")
    root = absolute(url)  # Executors may be at work elsewhere.
    with open_place(root, sync=sync) as store:
        require_there(store, kind, name)
    options = {"url": root, kind: name}
    if not is_server(root):
        options["sync"] = sync
    if write_id is not None:
        options["writeId"] = write_id
    with spark_errors():
        rows = _rows_of(spark, source, format)
        chosen = _chosen(rows, kind, columns or {}, by_key=by_key)
        if write_id is not None and _is_done(options, write_id):
            records = None
        else:
            records = _write(rows if limit is None else rows.limit(limit), chosen, options)
    return ReplayReport(
        kind=kind,
        name=name,
        records=records or 0,
        is_new=records is not None,
        columns={target: said for target, (said, _) in chosen.items()},
        seconds=time.monotonic() - started,
    )


def _target(topic: str | None, queue: str | None) -> tuple[Literal["topic", "queue"], str]:
    if topic is not None and queue is None:
        return "topic", checked_name(topic)
    if queue is not None and topic is None:
        return "queue", checked_name(queue)
    raise InvalidArgument("give a topic or a queue")


# Files -----------------------------------------------------------------------------------------


def _rows_of(spark: SparkSession, source: str, format_: FileFormat | None) -> DataFrame:
    path = directory_of(source)
    if not path.exists():
        raise FileNotFoundError(2, "no such file or directory", str(path))
    archive = Archive(path)
    if archive.exists() and format_ in {None, "parquet"}:
        return _archived_rows(spark, archive)
    format_ = format_ or _guessed(path)
    try:
        with spark_errors():
            return _read(spark, path, format_)
    except SegueError as error:
        raise InvalidArgument(f"{path} cannot be read as {format_}: {error}") from error


def _read(spark: SparkSession, path: Path, format_: FileFormat) -> DataFrame:
    place = spark_files(path)
    # What cannot be read is an error, rather than a row of nulls.
    if format_ == "csv":
        return spark.read.csv(place, header=True, mode="FAILFAST", multiLine=True, escape='"')
    if format_ == "json":
        return spark.read.json(place, mode="FAILFAST", multiLine=_is_one_document(path))
    return spark.read.parquet(place)


def _archived_rows(spark: SparkSession, archive: Archive) -> DataFrame:
    manifests = archive.manifests()
    schema = TOPIC_SCHEMA if manifests[0].kind == "topic" else QUEUE_SCHEMA
    paths = archive.paths(manifests)
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


def _guessed(path: Path) -> FileFormat:
    """Return the format that names tell. Raises InvalidArgument."""
    files = [path] if path.is_file() else _files_in(path)
    found = {
        _FORMATS[match[1]] for file in files if (match := _SUFFIX.fullmatch(file.name.lower()))
    }
    if len(found) != 1:
        raise InvalidArgument(
            f"cannot tell from its name what is in {path}: give the format, "
            f"parquet, json or csv{', one at a time' if found else ''}"
        )
    return found.pop()


def _files_in(directory: Path) -> Sequence[Path]:
    return [
        file
        for file in directory.rglob("*")
        if file.is_file() and not any(part[0] in "._" for part in file.relative_to(directory).parts)
    ]


def _is_one_document(path: Path) -> bool:
    """Tell whether a file holds one list, rather than an object on each line."""
    if not path.is_file() or not path.name.lower().endswith("json"):
        return False
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).lstrip().startswith(b"[")


# Columns ---------------------------------------------------------------------------------------


def _chosen(
    rows: DataFrame,
    kind: Literal["topic", "queue"],
    columns: Mapping[str, str],
    *,
    by_key: bool,
) -> dict[str, tuple[str, Column]]:
    """Return what each column of the records is made of. Raises InvalidArgument."""
    targets = COLUMNS[kind]
    for target, name in columns.items():
        if target not in targets:
            raise InvalidArgument(f"a {kind} has no {target}; it has {', '.join(targets)}")
        if name not in rows.columns:
            raise InvalidArgument(
                f"there is no column {name}; there are {', '.join(rows.columns) or 'none'}"
            )
    has_value = "value" in rows.columns or "value" in columns
    chosen: dict[str, tuple[str, Column]] = {}
    for target in targets:
        name = columns.get(target, target if has_value and target in rows.columns else "")
        if name and not (by_key and target == "partition"):
            chosen[target] = name, _fitting(rows, name, target, kind)
    if not has_value:
        row = functions.struct(*[functions.col(_quoted(name)) for name in rows.columns])
        chosen["value"] = "to_json(struct(*))", functions.to_json(row)
    return chosen


def _fitting(rows: DataFrame, name: str, target: str, kind: Literal["topic", "queue"]) -> Column:
    """Return a column of the files as the sink takes it."""
    column = functions.col(_quoted(name))
    type_ = rows.schema[name].dataType
    if target == "headers":
        return _headers(column, type_) if isinstance(type_, StructType) else column
    if target in {"value", "key"}:
        if isinstance(type_, StructType | MapType | ArrayType):
            return functions.to_json(column)
        if isinstance(type_, StringType) or (isinstance(type_, BinaryType) and kind == "topic"):
            return column
        if isinstance(type_, BinaryType) and target == "value":
            return column
        return column.cast("string")
    return column.cast(_TYPES[target])


_TYPES: Final = {
    "partition": "int",
    "timestamp": "timestamp",
    "priority": "int",
    "delay": "double",
}


def _headers(column: Column, type_: StructType) -> Column:
    """Return an object of JSON as the headers that it has."""
    pairs = [
        each for name in type_.names for each in (functions.lit(name), column[name].cast("string"))
    ]
    return functions.map_filter(functions.create_map(*pairs), lambda _, value: value.isNotNull())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# Writing ---------------------------------------------------------------------------------------


def _is_done(options: Mapping[str, str], write_id: str) -> bool:
    return committer(write_options(options)).is_done(named_write(write_id))


def _write(
    rows: DataFrame, chosen: Mapping[str, tuple[str, Column]], options: Mapping[str, str]
) -> int:
    """Write rows and return how many they were."""
    counted = Observation()
    written = rows.select(*(column.alias(target) for target, (_, column) in chosen.items()))
    written = written.observe(counted, functions.count(functions.lit(1)).alias("records"))
    written.write.format("segue").options(**options).mode("append").save()
    return int(counted.get["records"])
