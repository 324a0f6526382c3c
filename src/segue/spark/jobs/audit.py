"""Whether every byte of a store is as it was written, looked at by many tasks at once.

Segments are checked by tasks, whether they fit together by the driver. The records of topics are
read a second time, for what no segment shows alone: a producer's record that is there twice, and
keys whose times go backwards. Nothing is ever changed.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from segue.errors import CorruptManifest, LogNotFound
from segue.log import Log, SegmentAudit, SegmentId
from segue.log.audit import audit_segment
from segue.log.disk import Disk, storage_errors
from segue.log.layout import is_name, segment_id
from segue.spark.jobs.order import disorder_of, order_tasks
from segue.spark.jobs.tasks import packed, rows_of
from segue.spark.places import require_directory
from segue.spark.planning import Task
from segue.spark.schema import arrow_schema
from segue.stores.file.store import LOCKS, QUEUES, RINGS, TOPICS
from segue.stores.file.topics.manifest import FILENAME, read_manifest
from segue.stores.opening import directory_of
from segue.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["topic", "queue", "ring", "lock"]

TASK_BYTES: Final = 64 << 20
TASK_SEGMENTS_MAX: Final = 1000

_KINDS: Final[dict[str, Kind]] = {TOPICS: "topic", QUEUES: "queue", RINGS: "ring", LOCKS: "lock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One thing that is wrong, and where."""

    kind: Kind
    name: str
    path: str
    first_offset: int | None = None
    last_offset: int | None = None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found in one topic, queue, ring or lock."""

    kind: Kind
    name: str
    logs: int = 0
    segments: int = 0
    records: int = 0
    """How many are intact, those among them that were removed on purpose."""
    payload_bytes: int = 0
    corrupt: int = 0
    """How many batches, headers or whole files are damaged."""
    gaps: int = 0
    """How many times offsets are left out between two segments."""
    missing: int = 0
    """How many records are in no segment because of that."""
    duplicates: int = 0
    """How many offsets, or records of a producer, are there once more."""
    disorder: int = 0
    """How many records are older than the one of the same key before them."""

    @property
    def is_damaged(self) -> bool:
        """Whether something was lost, or is there twice."""
        return bool(self.corrupt or self.gaps or self.duplicates)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit found."""

    found: tuple[Audited, ...]
    findings: tuple[AuditFinding, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether anything was lost, or is there twice."""
        return any(each.is_damaged for each in self.found)

    @property
    def is_clean(self) -> bool:
        """Whether nothing at all is amiss, the order of times included."""
        return not self.is_damaged and not any(each.disorder for each in self.found)

    def of(self, kind: Kind, name: str) -> Audited:
        """Return what was found in one of them. Raises KeyError."""
        for each in self.found:
            if (each.kind, each.name) == (kind, name):
                return each
        raise KeyError(f"{kind} {name}")


def audit(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    *,
    topics: Collection[str] | None = None,
    queues: Collection[str] | None = None,
    allow_network: bool = False,
) -> AuditReport:
    """Return how the store is: all of it, or only the topics and queues that are named.

    Raises LogNotFound for what is not there.
    """
    require_directory(os.fspath(url), "an audit")
    root = directory_of(url).absolute()
    if not (root / "segue.toml").exists():
        raise LogNotFound(f"there is no store at {root}")
    named, logs = _chosen(root, topics, queues)
    audits = _audit_segments(spark, logs, allow_network=allow_network)
    found = {(kind, name): Audited(kind=kind, name=name) for kind, name in named}
    findings: list[AuditFinding] = []
    for place in logs:
        found[place.key] = _with_log(
            found[place.key], audits.get(str(place.path), []), findings, place
        )
    tasks: list[Task] = []
    for kind, name in [key for key in found if key[0] == "topic"]:
        try:
            if read_manifest(root / TOPICS / name, Disk()) is None:
                raise CorruptManifest(path=root / TOPICS / name / FILENAME, reason="it is missing")
            tasks += order_tasks(str(root), name, allow_network=allow_network)
        except CorruptManifest as error:
            findings.append(
                AuditFinding(kind=kind, name=name, path=str(error.path), problem=error.reason)
            )
            found[kind, name] = replace(found[kind, name], corrupt=found[kind, name].corrupt + 1)
    for name, (duplicates, disorder) in disorder_of(spark, tasks).items():
        before = found["topic", name]
        found["topic", name] = replace(
            before, duplicates=before.duplicates + duplicates, disorder=disorder
        )
    return AuditReport(found=tuple(found.values()), findings=tuple(findings))


# Which logs there are --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogPlace:
    kind: Kind
    name: str
    path: Path
    segments: tuple[tuple[SegmentId, int], ...]
    """Their ids and sizes."""

    @property
    def key(self) -> tuple[Kind, str]:
        return self.kind, self.name


def _chosen(
    root: Path, topics: Collection[str] | None, queues: Collection[str] | None
) -> tuple[list[tuple[Kind, str]], list[_LogPlace]]:
    """Return what is to be looked at, and the logs of it."""
    chosen: list[tuple[Kind, str]] = []
    logs: list[_LogPlace] = []
    for directory, kind in _KINDS.items():
        wanted = {TOPICS: topics, QUEUES: queues}.get(directory)
        if wanted is None and (topics is not None or queues is not None):
            continue
        with storage_errors(f"listing {root / directory}"):
            names = [name for name in sorted(Disk().names(root / directory)) if is_name(name)]
        for name in wanted or ():
            if name not in names:
                raise LogNotFound(f"there is no {kind} {name} in {root}")
        for name in names if wanted is None else sorted(set(wanted)):
            below = list(_logs_below(kind, name, root / directory / name))
            # What was removed, or never used, may leave a directory behind.
            if below or wanted is not None or _has_manifest(root / directory / name):
                chosen.append((kind, name))
                logs += below
    return chosen, logs


def _has_manifest(path: Path) -> bool:
    return (path / FILENAME).exists()


def _logs_below(kind: Kind, name: str, path: Path) -> Iterator[_LogPlace]:
    with storage_errors(f"listing {path}"):
        for directory, below, files in os.walk(path):
            below.sort()
            ids = sorted(id_ for file in files if (id_ := segment_id(file)) is not None)
            if ids:
                # What lies in a log and is no log: readers, and what a repair set aside.
                below.clear()
                place = Path(directory)
                sizes = tuple((id_, _size_of(place / f"{id_:09d}.q")) for id_ in ids)
                yield _LogPlace(kind=kind, name=name, path=place, segments=sizes)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # Just deleted: the task finds nothing either.
        return 0


# Segments --------------------------------------------------------------------------------------

_RANGE: Final = StructType(
    [StructField("first", LongType(), False), StructField("last", LongType(), False)]
)
_SEGMENT: Final = StructType(
    [
        StructField("log", StringType(), False),
        StructField("path", StringType(), False),
        StructField("id", LongType(), False),
        StructField("first_offset", LongType()),
        StructField("end_offset", LongType()),
        StructField("records", LongType(), False),
        StructField("payload_bytes", LongType(), False),
        StructField("problem", StringType()),
        StructField("damaged", ArrayType(_RANGE, False), False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segments:
    """Segments of one log that a task checks."""

    log: str
    ids: list[SegmentId]
    allow_network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """What a task found."""

    path: str
    id: int
    first_offset: int | None
    end_offset: int | None
    records: int
    payload_bytes: int
    problem: str | None
    damaged: list[tuple[int, int]]


def _audit_segments(
    spark: "SparkSession", logs: Sequence[_LogPlace], *, allow_network: bool
) -> dict[str, list[_Segment]]:
    """Return what is in the segments of each log, by its path, in order."""
    weighed = [((str(log.path), id_), size) for log in logs for id_, size in log.segments]
    work = []
    for group in packed(weighed, TASK_BYTES, TASK_SEGMENTS_MAX):
        by_log: dict[str, list[SegmentId]] = {}
        for path, id_ in group:
            by_log.setdefault(path, []).append(id_)
        work.append(
            [
                _Segments(log=path, ids=ids, allow_network=allow_network)
                for path, ids in by_log.items()
            ]
        )
    found: dict[str, list[_Segment]] = {}
    if work:
        for row in rows_of(spark, work, _check, _SEGMENT).toLocalIterator():
            fields = row.asDict()
            fields["damaged"] = [(each.first, each.last) for each in fields["damaged"]]
            found.setdefault(fields.pop("log"), []).append(_Segment(**fields))
    for segments in found.values():
        segments.sort(key=lambda segment: segment.id)
    return found


def _check(work: list[_Segments]) -> Iterator[pa.RecordBatch]:
    """Yield what is in some segments: this is what a task does."""
    disk = Disk()
    for each in work:
        rows = []
        with Log(each.log, read_only=True, allow_network=each.allow_network) as log:
            for id_ in each.ids:
                found = audit_segment(log._horizon, id_, disk, None)
                if found is not None:
                    rows.append(_row(each.log, found))
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(_SEGMENT))


def _row(log: str, audit: SegmentAudit) -> dict[str, object]:
    return {
        "log": log,
        "path": str(audit.path),
        "id": audit.id,
        "first_offset": audit.first_offset,
        "end_offset": audit.end_offset,
        "records": audit.records,
        "payload_bytes": audit.payload_bytes,
        "problem": audit.problem,
        "damaged": [
            {"first": each.first_offset, "last": each.last_offset} for each in audit.damaged
        ],
    }


def _with_log(
    before: Audited, segments: list[_Segment], findings: list[AuditFinding], place: _LogPlace
) -> Audited:
    """Return what was found with one more log, whose segments must follow on one another."""
    corrupt = gaps = missing = duplicates = 0
    expected: int | None = None

    def note(segment: _Segment, problem: str, first: int | None, last: int | None) -> None:
        findings.append(
            AuditFinding(
                kind=place.kind,
                name=place.name,
                path=segment.path,
                first_offset=first,
                last_offset=last,
                problem=problem,
            )
        )

    for segment in segments:
        for first, last in segment.damaged:
            corrupt += 1
            note(segment, "checksum does not match", first, last)
        if segment.problem is not None:
            corrupt += 1
            note(segment, segment.problem, None, None)
        start = segment.first_offset
        if expected is not None and start is not None and start != expected:
            if start > expected:
                gaps += 1
                missing += start - expected
                note(segment, "records before it are missing", expected, start - 1)
            else:
                stop = min(expected, segment.end_offset or start)
                duplicates += stop - start
                note(segment, "offsets of the segment before it", start, stop - 1)
        expected = segment.end_offset
    return replace(
        before,
        logs=before.logs + 1,
        segments=before.segments + len(segments),
        records=before.records + sum(segment.records for segment in segments),
        payload_bytes=before.payload_bytes + sum(segment.payload_bytes for segment in segments),
        corrupt=before.corrupt + corrupt,
        gaps=before.gaps + gaps,
        missing=before.missing + missing,
        duplicates=before.duplicates + duplicates,
    )
