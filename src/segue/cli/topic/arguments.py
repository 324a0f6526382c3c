"""Arguments that the verbs on topics share, and how those verbs get at a topic."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import typer

from segue.cli import parsing
from segue.cli.store_arguments import allow_many_files, opened_store
from segue.errors import AccessDenied, TopicNotFound
from segue.log.options import Sync

if TYPE_CHECKING:
    from segue.stores.contract import Store
    from segue.stores.topic_contract import Topic

Start = Literal["earliest", "latest"] | int | dict[int, int] | datetime
Place = Start | Literal["resume"]

PLACES: Final = (
    "earliest, latest, an offset, PARTITION:OFFSET,..., an ISO 8601 time, or how long ago as in 10m"
)

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False)
]
PartitionsOption = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="N",
        min=0,
        help="Only this partition; may be repeated.",
        show_default=False,
    ),
]
RollOption = Annotated[
    bool,
    typer.Option("--roll", help="Begin new segments first: what takes records is not touched."),
]

_BY_PARTITION: Final = re.compile(r"\d+:\d+(?:,\d+:\d+)*", re.ASCII)
_AGO: Final = re.compile(r"[\d.]+ ?(?:ms|s|m|h|d)", re.ASCII)

_Place = TypeVar("_Place", Start, Place)


@contextmanager
def opened_topic(
    url: str, name: str, *, create: bool = False, sync: Sync = Sync.ALWAYS
) -> Iterator["Topic"]:
    """Yield a topic of the store at `url`. Only `create` makes either: a typo makes nothing."""
    allow_many_files()
    with opened_store(url, create=create, sync=sync) as store:
        yield store.topic(name) if create else existing_topic(store, name)


def existing_topic(store: "Store", name: str) -> "Topic":
    """Return a topic that is there. Raises TopicNotFound, CorruptManifest."""
    topic = store.topic(name)
    try:
        is_listed = name in store.topics()
    except AccessDenied:
        return topic  # Who may append or read on need not be one who may look at lists.
    # Asked for its partitions, one that has lost its manifest says so.
    if not is_listed and topic.partitions:
        raise TopicNotFound(name=name)
    return topic


def chosen_partitions(topic: "Topic", partitions: Sequence[int] | None) -> list[int]:
    """Return the partitions that are meant, all of them if none is said. Raises BadParameter."""
    count = topic.partitions
    if partitions is None:
        return list(range(count))
    if max(partitions) >= count:
        raise typer.BadParameter(
            f"topic {topic.name} has no partition {max(partitions)}, only {count}",
            param_hint="--partition",
        )
    return sorted(set(partitions))


def place_from(text: str, hint: str) -> Place:
    """Return the place that a word stands for. Raises BadParameter."""
    return "resume" if text == "resume" else start_from(text, hint)


def start_from(text: str, hint: str) -> Start:
    """Return the place that a word stands for, other than where a reader is."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        if _BY_PARTITION.fullmatch(text):
            pairs = [pair.partition(":") for pair in text.split(",")]
            return {int(partition): int(offset) for partition, _, offset in pairs}
        if _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=parsing.duration(text))
        # In UTC from here on, where a time beyond what a clock can show is found out.
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(f"{text!r} is none of {PLACES}", param_hint=hint) from None


def checked_place(place: _Place, partitions: Sequence[int], hint: str) -> _Place:
    """Return `place` if it can be meant. Raises BadParameter for one offset in many partitions."""
    if isinstance(place, int) and len(partitions) != 1:
        raise typer.BadParameter(
            f"offset {place} is of one partition: give --partition, or one each as in 0:{place}",
            param_hint=hint,
        )
    return place


def offsets_of(
    topic: "Topic",
    start: Start,
    partitions: Sequence[int],
    *,
    others: Mapping[int, int],
    hint: str,
) -> dict[int, int]:
    """Return the offset that `start` stands for in each of `partitions`.

    Where it names only some of them, the rest is at `others`. Raises BadParameter,
    InvalidArgument, OffsetTrimmed, OffsetNotWritten.
    """
    checked_place(start, partitions, hint)
    if isinstance(start, int):
        start = {partitions[0]: start}
    found = topic.offsets(start)
    is_meant = start if isinstance(start, dict) else found
    return {
        partition: found[partition] if partition in is_meant else others[partition]
        for partition in partitions
    }
