"""`segue topic ls`, `info` and `files`: which topics there are, how they stand, where they lie."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.holdings import Holdings
from segue.cli.output import Column, Facts, Kind, Rows, Value, show
from segue.cli.store_arguments import (
    StoreArgument,
    StoreDirectoryArgument,
    opened_store,
)
from segue.cli.survey import partition_path
from segue.cli.topic.arguments import (
    PartitionsOption,
    TopicArgument,
    chosen_partitions,
    opened_topic,
)
from segue.cli.topic.create import rules_items
from segue.errors import LogNotFound
from segue.log import Log
from segue.log.record import microseconds

if TYPE_CHECKING:
    from segue.stores.topic_contract import TopicInfo

_PARTITION_COLUMNS: Final = (
    Column("partition", Kind.COUNT),
    Column("first_offset", Kind.COUNT),
    Column("next_offset", Kind.COUNT),
    Column("segments", Kind.COUNT),
    Column("size_bytes", Kind.SIZE),
    Column("oldest", Kind.TIME),
)
_FILE_COLUMNS: Final = (
    Column("partition", Kind.COUNT),
    Column("segment", Kind.COUNT),
    Column("state"),
    Column("first_offset", Kind.COUNT),
    Column("records", Kind.COUNT),
    Column("size_bytes", Kind.SIZE),
    Column("file"),
    Column("also_called"),
)


def ls(url: StoreArgument, as_json: JsonOption = False) -> None:
    """List the topics of a store and how much they hold.

    A topic that cannot be opened is listed with its problem, and the exit code is that of the
    first such problem.

    \b
    Example:
      segue topic ls data
    """
    with opened_store(url) as store:
        holdings = Holdings(store)
        show(holdings.topics(), as_json=as_json)
    raise typer.Exit(holdings.code)


def info(url: StoreArgument, name: TopicArgument, as_json: JsonOption = False) -> None:
    """Show how a topic is made, how its partitions stand, and who reads it.

    The oldest is when the oldest record that is left was appended. How far readers and groups are
    behind, 'segue topic lag' says.

    \b
    Example:
      segue topic info data orders
    """
    with opened_topic(url, name) as topic:
        found = topic.info()
    show(_facts(found), _partitions(found), *_consumers(found), as_json=as_json)


def _facts(info: "TopicInfo") -> Facts:
    return Facts(
        items=[
            (Column("topic"), info.name),
            (Column("records", Kind.COUNT), info.count),
            (Column("size_bytes", Kind.SIZE), info.size_bytes),
            (Column("version", Kind.COUNT), info.version),
            *rules_items(info.rules),
        ]
    )


def _partitions(info: "TopicInfo") -> Rows:
    return Rows(
        name="partitions",
        mark="partition",
        columns=_PARTITION_COLUMNS,
        rows=[
            (
                each.partition,
                each.first_offset,
                each.next_offset,
                each.segments,
                each.size_bytes,
                None if each.oldest is None else microseconds(each.oldest),
            )
            for each in info.partitions
        ],
    )


def _consumers(info: "TopicInfo") -> list[Rows]:
    return [
        Rows(name="readers", mark="reader", columns=[Column("name")], rows=_column(info.readers)),
        Rows(name="groups", mark="group", columns=[Column("name")], rows=_column(info.groups)),
    ]


def _column(values: Sequence[str]) -> list[tuple[Value, ...]]:
    return [(value,) for value in values]


def files(
    path: StoreDirectoryArgument,
    name: TopicArgument,
    *,
    partitions: PartitionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files that hold a topic's records.

    Each with its partition, the number of the segment, whether it is sealed or active, its first
    offset, how many records it holds and what it takes up, and the name that the topic's ancestors
    would have given it. A sealed segment never changes, except by compaction.

    \b
    Example:
      segue topic files data orders --partition 0
    """
    with opened_topic(str(path), name) as topic:
        numbers = chosen_partitions(topic, partitions)
    rows = [
        row
        for number in numbers
        for row in _files(name, number, partition_path(path, name, number))
    ]
    show(Rows(name="files", columns=_FILE_COLUMNS, rows=rows), as_json=as_json)


def _files(name: str, partition: int, place: Path) -> Iterator[tuple[Value, ...]]:
    try:
        log = Log(place, read_only=True)
    except LogNotFound:
        return  # Nobody has opened this partition yet.
    with log:
        for segment in log.segments():
            yield (
                partition,
                segment.id,
                "sealed" if segment.sealed else "active",
                segment.first_offset,
                segment.count,
                segment.size_bytes,
                str(segment.path),
                f"{name}_partition_{partition}_segment_{segment.id}.log",
            )
