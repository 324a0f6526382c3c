"""States that queues of old were exported as, of any size, into a queue.

    v3   {"queue_0": [...], "metadata": {...}}
    v4   {"queue_0_seg_0": [...], "queue_0_seg_1": [...], "metadata": {...}}

`stores/migration.py` says what they mean; here is how a file that fits in nobody's memory is read.
The driver looks where items lie and reads the metadata, tasks parse the items: once to see whether
all of them are JSON, before anything is written, and once to write them. One item must fit in the
memory of a task, and the file must be where all of them can read it, uncompressed.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from segue.delivery.rules import SEGMENT_SIZE_DEFAULT, QueueRules
from segue.errors import InvalidArgument, QueueFull
from segue.spark.jobs.state_scan import Member, Outline, outline_of
from segue.spark.jobs.tasks import packed, rows_of
from segue.spark.options import WriteOptions
from segue.spark.places import place_options
from segue.spark.schema import arrow_schema
from segue.spark.sink.writers import committer, named_write
from segue.stores import migration, opening
from segue.stores.migration import (
    METADATA,
    Format,
    Mismatch,
    UnknownState,
    body_of,
    parse_state,
)
from segue.stores.opening import directory_of
from segue.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES: Final = 32 << 20
TASK_PIECES_MAX: Final = 10_000
BATCH_ROWS: Final = 10_000

_MESSAGE: Final = StructType(
    [StructField("value", BinaryType()), StructField("priority", IntegerType())]
)
_CHECKED: Final = StructType(
    [StructField("start", LongType()), StructField("problem", StringType())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateReport:
    """What was in a state, and what became of it."""

    format: Format
    items: Mapping[int, int]
    """How many there are, by priority."""
    returned: int
    """How many of them were out on a lock; they come first in their priority."""
    mismatches: tuple[Mismatch, ...]
    """Where the metadata says something else; all items count all the same."""
    pushed: int
    write_id: str
    """By which the same state is known again."""
    is_repeated: bool = False
    """Whether it had been pushed before, and was not pushed once more."""

    @property
    def count(self) -> int:
        """How many items there are."""
        return sum(self.items.values())


def migrate(
    spark: "SparkSession",
    source: str | os.PathLike[str],
    url: str | os.PathLike[str],
    queue: str,
    *,
    write_id: str | None = None,
    dry_run: bool = False,
    allow_network: bool = False,
) -> MigrateReport:
    """Push everything from an exported state, all of it or nothing, and say what there was.

    Priorities and order are kept. The same content is pushed once, however often it is tried,
    unless another `write_id` is given. Makes the store and the queue if there is none; a new queue
    takes over the segment size. Raises UnknownState before anything is written, QueueFull.
    """
    path = directory_of(source).absolute()
    outline = outline_of(path)
    state = _state_of(path, outline)
    tasks = _tasks(path, state)
    _require_json(spark, tasks)
    write_id = write_id or f"migrate {outline.digest}"
    options = WriteOptions(
        url=os.fspath(url), kind="queue", name=queue, allows_network=allow_network
    )
    is_repeated = committer(options).is_done(named_write(write_id))
    pushed = 0
    if not dry_run and not is_repeated:
        _prepare(options, state)
        (
            rows_of(spark, tasks, _messages, _MESSAGE)
            .write.format("segue")
            .mode("append")
            .options(**place_options(os.fspath(url), allow_network=allow_network))
            .option("queue", queue)
            .option("writeId", write_id)
            .save()
        )
        pushed = state.count
    return MigrateReport(
        format=state.format,
        items=state.counts(),
        returned=sum(len(values) for values in state.returned.values()),
        mismatches=state.mismatches,
        pushed=pushed,
        write_id=write_id,
        is_repeated=is_repeated,
    )


# What there is ---------------------------------------------------------------------------------


class _Counted(migration.Found):
    """What the keys of a state hold, as numbers of items: `range` is as long as the list."""

    def items(self, priority: int) -> list[object]:
        counts = [len(self.lists.get(priority, ()))]
        counts += [len(each) for each in self.segments.get(priority, {}).values()]
        return _so_many(sum(counts))


def _so_many(count: int) -> list[object]:
    return cast("list[object]", range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    format: Format
    segment_size: int | None
    returned: Mapping[int, Sequence[object]]
    members: Mapping[int, list[Member]]
    """The lists of each priority, in the order of their items."""
    mismatches: tuple[Mismatch, ...]

    @property
    def count(self) -> int:
        return sum(self.counts().values())

    def counts(self) -> dict[int, int]:
        counted = {
            priority: len(self.returned.get(priority, ())) + _count(self.members.get(priority, []))
            for priority in sorted({*self.returned, *self.members})
        }
        return {priority: count for priority, count in counted.items() if count}


def _count(members: Sequence[Member]) -> int:
    return sum(piece.count for member in members for piece in member.pieces)


def _state_of(path: Path, outline: Outline) -> _State:
    """Return what the file says, as `read_state` would. Raises UnknownState."""
    found = _Counted()
    numbered: dict[int, list[tuple[int, Member]]] = {}
    metadata: object = None
    seen = set()
    for member in outline.members:
        name = member.name
        if match := migration.SEGMENT.fullmatch(name) or migration.LIST.fullmatch(name):
            if name in seen:
                raise UnknownState(f"{name} is there twice")
            seen.add(name)
            priority = migration.priority_from_name(name, match[1])
            _require_list(path, member)
            items = _so_many(_count([member]))
            if match.re is migration.SEGMENT:
                number = int(match[2])
                found.segments.setdefault(priority, {})[number] = items
            else:
                # A list of the old format is older than any segment.
                number = -1
                found.lists[priority] = items
            numbered.setdefault(priority, []).append((number, member))
        elif name == METADATA:
            metadata = parse_state(_bytes_at(path, member.start, member.stop))
        else:
            parse_state(_bytes_at(path, member.start, member.stop))
            found.unknown.append(name)
    if not found.lists and not found.segments and not migration.has_queues(metadata):
        raise UnknownState(
            "not the state of a queue: it has neither queue_<priority> nor "
            "queue_<priority>_seg_<number> nor metadata with queues"
        )
    return _State(
        format="v3" if found.lists and not found.segments else "v4",
        segment_size=migration.segment_size_in(metadata),
        returned=migration.locked_items(metadata),
        members={
            priority: [member for _, member in sorted(members, key=lambda each: each[0])]
            for priority, members in sorted(numbered.items())
        },
        mismatches=tuple(migration.mismatches_of(found, metadata)),
    )


def _require_list(path: Path, member: Member) -> None:
    if not member.is_list and _bytes_at(path, member.start, member.stop) != b"null":
        raise UnknownState(f"{member.name} is no list of items")


def _bytes_at(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _prepare(options: WriteOptions, state: _State) -> None:
    """Have a queue that the items fit in; a new one with the state's segment size."""
    with opening.open(options.url, allow_network=options.allows_network) as store:
        is_new = options.name not in store.queues()
        queue = store.queue(options.name)
        if is_new and state.segment_size not in {None, SEGMENT_SIZE_DEFAULT}:
            with contextlib.suppress(InvalidArgument):  # More than any segment holds: no matter.
                if queue.rules == QueueRules():
                    queue.configure(QueueRules(segment_items=state.segment_size))
        capacity = queue.rules.capacity
        if capacity is not None and queue.count().total + state.count > capacity:
            raise QueueFull(queue=options.name, capacity=capacity)


# What tasks do ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Items of one priority: in the file, or at hand."""

    priority: int
    start: int = 0
    stop: int = 0
    count: int
    bodies: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one task parses, in order."""

    path: str
    size_bytes: int
    modified_ns: int
    items: list[_Items]


def _tasks(path: Path, state: _State) -> list[_Part]:
    """Return the items in the order they are to be pushed: tasks are adopted in their order."""
    weighed: list[tuple[_Items, int]] = []
    for priority in sorted({*state.returned, *state.members}):
        bodies = tuple(body_of(item) for item in state.returned.get(priority, ()))
        if bodies:
            at_hand = _Items(priority=priority, count=len(bodies), bodies=bodies)
            weighed.append((at_hand, sum(map(len, bodies))))
        weighed += [
            (
                _Items(priority=priority, start=piece.start, stop=piece.stop, count=piece.count),
                piece.stop - piece.start,
            )
            for member in state.members.get(priority, ())
            for piece in member.pieces
        ]
    status = path.stat()
    return [
        _Part(
            path=str(path),
            size_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            items=items,
        )
        for items in packed(weighed, TASK_BYTES, TASK_PIECES_MAX)
    ]


def _require_json(spark: "SparkSession", tasks: Sequence[_Part]) -> None:
    """Raise UnknownState for the first items that are none."""
    found = rows_of(spark, tasks, _problems, _CHECKED).orderBy("start").head()
    if found is not None:
        raise UnknownState(f"{found['problem']} (in the items from byte {found['start']} on)")


def _problems(part: _Part) -> Iterator[pa.RecordBatch]:
    """Yield what is wrong with the items of a task."""
    for items in part.items:
        try:
            _parsed(part, items)
        except UnknownState as error:
            row = {"start": items.start, "problem": str(error)}
            yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(_CHECKED))


def _messages(part: _Part) -> Iterator[pa.RecordBatch]:
    """Yield the items of a task as messages."""
    schema = arrow_schema(_MESSAGE)
    for items in part.items:
        bodies = items.bodies or [body_of(item) for item in _parsed(part, items)]
        for start in range(0, len(bodies), BATCH_ROWS):
            values = pa.array(bodies[start : start + BATCH_ROWS], pa.binary())
            priorities = pa.repeat(pa.scalar(items.priority, pa.int32()), len(values))
            yield pa.RecordBatch.from_arrays([values, priorities], schema=schema)


def _parsed(part: _Part, items: _Items) -> list[object]:
    if items.bodies:
        return []
    path = Path(part.path)
    status = path.stat()
    if (status.st_size, status.st_mtime_ns) != (part.size_bytes, part.modified_ns):
        raise UnknownState(f"{path} was changed while it was read")
    parsed = parse_state(b"[" + _bytes_at(path, items.start, items.stop) + b"]")
    if not isinstance(parsed, list) or len(parsed) != items.count:
        raise UnknownState("not the state of a queue: it is no JSON: an item is missing")
    return parsed
