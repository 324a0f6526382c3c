"""`segue topic append`: lines of standard input into a topic."""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.lines import batches
from segue.cli.output import Column, Facts, Kind, Rows, Value, progress, show
from segue.cli.payloads import NEWLINE, NUL
from segue.cli.store_arguments import StoreArgument, SyncOption, body_from
from segue.cli.topic.arguments import TopicArgument, opened_topic
from segue.cli.topic.events import EventReader, JsonLines, LineFormat, PlainLines
from segue.errors import InvalidArgument
from segue.log.options import Sync

if TYPE_CHECKING:
    from segue.delivery.topic_record import Appended, Event
    from segue.stores.topic_contract import Topic

BATCH_LINES_DEFAULT: Final = 1000
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is read of a line before it counts as one that never ends."""

AppendMany = Callable[[list["Event"], int], Sequence["Appended | None"]]
"""Appends events, the first of which is in the line with this number, from 0."""


class _Summary:
    """Says what was appended, whatever the end is."""

    def __init__(self) -> None:
        self._skipped = 0
        self._partitions: dict[int, list[int]] = {}
        """First offset, last offset and how many, by partition."""

    def add(self, places: Sequence["Appended | None"]) -> None:
        for place in places:
            if place is None:
                self._skipped += 1
                continue
            found = self._partitions.setdefault(place.partition, [place.offset, 0, 0])
            found[1] = place.offset
            found[2] += 1

    def show(self, *, as_json: bool) -> None:
        rows = [(number, *found) for number, found in sorted(self._partitions.items())]
        facts: list[tuple[Column, Value]] = [
            (Column("appended", Kind.COUNT), sum(found[2] for found in self._partitions.values())),
            (Column("skipped", Kind.COUNT), self._skipped),
        ]
        columns = [
            Column(key, Kind.COUNT)
            for key in ("partition", "first_offset", "last_offset", "records")
        ]
        show(
            Facts(items=facts),
            Rows(name="partitions", mark="partition", columns=columns, rows=rows),
            as_json=as_json,
        )


def append(
    url: StoreArgument,
    name: TopicArgument,
    *,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", "-k", metavar="KEY", help="The key of all records.", show_default=False
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help="What stands between key and value in a line.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="May be repeated.", show_default=False
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", metavar="N", min=0, help="Where to append.", show_default=False
        ),
    ] = None,
    form: Annotated[
        LineFormat, typer.Option("--format", help="How lines are read.")
    ] = LineFormat.LINES,
    repartition: Annotated[
        bool,
        typer.Option("--repartition", help="Do not go by the partitions that JSON lines name."),
    ] = False,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", "-Z", help="An empty value is a tombstone.")
    ] = False,
    producer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Append no line that was appended under this name before.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Append at most N lines at once.")
    ] = BATCH_LINES_DEFAULT,
    null: Annotated[bool, typer.Option("--null", "-0", help="Lines end with NUL.")] = False,
    sync: SyncOption = Sync.ALWAYS,
    as_json: JsonOption = False,
) -> None:
    """Append each line of standard input as a record.

    Makes the store and the topic, with one partition, if there is none. Records with a key go
    where their key belongs, others to one partition for a while and then to the next. A line never
    waits for others that may come later. A line that cannot be appended ends it, once all lines
    before it are in, with its number.

    With --format json a line is an object as 'segue topic cat --json' prints them: value or
    value_base64 (null is a tombstone), and if they are there key or key_base64, headers,
    timestamp (ISO 8601, or microseconds since 1970) and partition. Nothing else in it counts.

    With --producer the number of a line is its sequence number: run again with the same input
    after whatever happened, it appends only what is missing. Use a name for one input only.

    Prints how many records were appended and how many were there already, then for each partition
    its number, the first offset, the last one and how many.

    \b
    Examples:
      printf 'ada:1\\nbob:2\\n' | segue topic append data orders -K :
      segue topic append data orders --producer import-17 --format json < orders.jsonl
      segue topic cat data orders | segue topic append data copy
    """
    headers = parsing.headers(header)
    reader: EventReader
    if form is LineFormat.JSON:
        for option, given in (("--key", key), ("--key-separator", separator), ("-Z", tombstones)):
            if given:
                raise typer.BadParameter("JSON lines say that themselves", param_hint=option)
        reader = JsonLines(headers=headers, partition=partition, repartition=repartition)
    else:
        if separator == "":
            raise typer.BadParameter("must not be empty", param_hint="--key-separator")
        reader = PlainLines(
            key=None if key is None else body_from(key),
            separator=None if separator is None else body_from(separator),
            headers=headers,
            partition=partition,
            tombstones=tombstones,
        )
    with opened_topic(url, name, create=True, sync=sync) as topic:
        summary = _Summary()
        try:
            with _appender(topic, producer) as append_many:
                number = 0
                for lines in _batches(NUL if null else NEWLINE, batch):
                    _append(lines, number, reader, append_many, summary)
                    number += len(lines)
        finally:
            summary.show(as_json=as_json)


@contextmanager
def _appender(topic: "Topic", producer: str | None) -> Iterator[AppendMany]:
    if producer is None:
        yield lambda events, number: topic.append_many(events)
        return
    with topic.producer(producer) as handle:
        yield lambda events, number: handle.append_many(events, first_sequence=number)


def _batches(separator: bytes, lines_max: int) -> Iterator[list[bytes]]:
    """Yield the lines of standard input in batches, with a bar if it is known how many bytes."""
    fd = sys.stdin.fileno()
    found = os.fstat(fd)
    total = found.st_size if stat.S_ISREG(found.st_mode) else 0
    with progress("appending", total) as advance:
        for batch in batches(fd, separator, lines_max=lines_max, batch_bytes_max=LINE_BYTES_MAX):
            yield batch
            advance(sum(map(len, batch)) + len(batch))


def _append(
    lines: list[bytes],
    number: int,
    reader: EventReader,
    append_many: AppendMany,
    summary: _Summary,
) -> None:
    """Append lines, those before the first bad one. Raises InvalidArgument with its number."""
    events: list[Event] = []
    problem: InvalidArgument | None = None
    try:
        for line in lines:
            events.append(reader.event(line))
    except InvalidArgument as error:
        problem = error
    if events:
        try:
            summary.add(append_many(events, number))
        except InvalidArgument:
            # None of them was appended, and it takes one at a time to find out which is bad.
            for place, event in enumerate(events):
                try:
                    summary.add(append_many([event], number + place))
                except InvalidArgument as error:
                    raise InvalidArgument(f"line {number + place + 1}: {error}") from error
            raise
    if problem is not None:
        raise InvalidArgument(f"line {number + len(events) + 1}: {problem}") from problem
