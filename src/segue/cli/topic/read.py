"""`segue topic cat` and `tail`: the records that are there, and those that come."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.following import FETCH_RECORDS_MAX, Limit, arriving
from segue.cli.parsing import duration
from segue.cli.store_arguments import StoreArgument, body_from
from segue.cli.topic.arguments import (
    PLACES,
    PartitionsOption,
    Start,
    TopicArgument,
    checked_place,
    chosen_partitions,
    offsets_of,
    opened_topic,
    place_from,
    start_from,
)
from segue.cli.topic.records import VALUE, RecordWriter, encoder_from, record_writer
from segue.cli.topic.sources import Following, Named, PastGaps, Shared, Source, Stored

if TYPE_CHECKING:
    from segue.stores.topic_contract import Topic

RECORDS_DEFAULT: Final = 10

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help=f"Where to begin: {PLACES}; 'resume' is where the reader or group is.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", "-k", metavar="KEY", help="Only records with this key.", show_default=False
    ),
]
ReaderOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Read on as this named reader, and commit what was printed.",
        show_default=False,
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Join this group for a share of the partitions, and commit what was printed.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="value, raw (values with nothing in between), json, or a template: '%p %o %k %s\\n'.",
    ),
]
NullOption = Annotated[bool, typer.Option("--null", "-0", help="End each value with NUL.")]
SkipOption = Annotated[
    bool,
    typer.Option("--skip-trimmed", help="Go on past what retention has deleted, with a warning."),
]


def cat(
    url: StoreArgument,
    name: TopicArgument,
    *,
    start: FromOption = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="PLACE",
            help="Where to end, said as --from is: the first record left out.",
            show_default="the end as it is now",
        ),
    ] = None,
    partitions: PartitionsOption = None,
    key: KeyOption = None,
    reader: ReaderOption = None,
    group: GroupOption = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=0, help="End after N records.", show_default=False
        ),
    ] = None,
    form: FormatOption = VALUE,
    null: NullOption = False,
    skip_trimmed: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the records that are there, of all partitions in the order of their timestamps.

    The records of one partition stay in their own order. Places in time go by when a record was
    appended; a time without a zone is local.

    With --reader it begins where that reader was, or at the earliest record, and commits what has
    been handed to the output: after a crash a record is printed again rather than lost. With
    --group the same goes for the partitions that are free or become so.

    In a template %s is the value, %k the key, %h headers, %p partition, %o offset, %T timestamp in
    milliseconds, %t topic, %S and %K how many bytes value and key have, -1 if there is none.

    \b
    Examples:
      segue topic cat data orders --from 10m --json | jq .value
      segue topic cat data orders --key ada --format '%o %s\\n'
      segue topic cat data orders --json | segue topic append data copy --format json
    """
    asked = _Asked(start, partitions=partitions, reader=reader, group=group)
    stop = None if until is None else start_from(until, "--until")
    if stop is not None and group is not None:
        raise typer.BadParameter("a group reads all there is", param_hint="--until")
    encode = encoder_from(form, topic=name, null=null, as_json=as_json)
    with (
        opened_topic(url, name) as topic,
        record_writer(encode) as writer,
        asked.stored(topic, stop, as_json=as_json) as source,
    ):
        _print(
            PastGaps(source, as_json=as_json) if skip_trimmed else source,
            writer,
            key=key,
            limit=limit,
            timeout_seconds=0,
        )


def tail(
    url: StoreArgument,
    name: TopicArgument,
    *,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            metavar="N",
            min=0,
            help="Begin with the last N records.",
            show_default=str(RECORDS_DEFAULT),
        ),
    ] = None,
    start: FromOption = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for records to come.")
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration,
            help="End when no record comes for so long.",
            show_default=False,
        ),
    ] = None,
    partitions: PartitionsOption = None,
    key: KeyOption = None,
    reader: ReaderOption = None,
    group: GroupOption = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="End after N records.", show_default=False),
    ] = None,
    form: FormatOption = VALUE,
    null: NullOption = False,
    skip_trimmed: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the last records, then those that come.

    Until Ctrl-C, which is the usual end and gives exit code 130; --timeout, --limit and --no-follow
    end with 0. Instead of the last records it may begin with --from, and with --reader or --group
    it begins where that was, or at the earliest record, and commits what has been handed to the
    output. --from moves a reader; of a group it says where a new one begins.

    Several that tail with the same --group share the partitions; when one ends, the others take
    over. FORMAT is as in 'segue topic cat'.

    \b
    Examples:
      segue topic tail data orders -f --key ada
      segue topic tail data orders --from 2026-01-31T08:00 --format '%T %k %s\\n'
      segue topic tail data orders --group billing --json
    """
    asked = _Asked(start, partitions=partitions, reader=reader, group=group)
    if count is not None and (asked.is_named or start is not None):
        raise typer.BadParameter("it begins elsewhere already", param_hint="-n")
    encode = encoder_from(form, topic=name, null=null, as_json=as_json)
    with (
        opened_topic(url, name) as topic,
        record_writer(encode) as writer,
        asked.following(topic, count, as_json=as_json) as source,
    ):
        _print(
            PastGaps(source, as_json=as_json) if skip_trimmed else source,
            writer,
            key=key,
            limit=limit,
            timeout_seconds=timeout if follow else 0,
        )


class _Asked:
    """Which records were asked for, and on whose behalf."""

    def __init__(
        self,
        start: str | None,
        *,
        partitions: list[int] | None,
        reader: str | None,
        group: str | None,
    ) -> None:
        """Raises BadParameter for what does not go together."""
        self._partitions = partitions
        self._reader = reader
        self._group = group
        self._start = None if start is None else place_from(start, "--from")
        if reader is not None and group is not None:
            raise typer.BadParameter("it is a reader or a group", param_hint="--group")
        if group is not None and partitions is not None:
            raise typer.BadParameter("a group shares all partitions", param_hint="--partition")
        if self._start == "resume" and not self.is_named:
            raise typer.BadParameter(
                "only a --reader or --group has a place to resume from", param_hint="--from"
            )

    @property
    def is_named(self) -> bool:
        """Whether there is a saved place."""
        return self._reader is not None or self._group is not None

    @contextmanager
    def stored(self, topic: "Topic", stop: Start | None, *, as_json: bool) -> Iterator[Source]:
        """Yield where to get what is there."""
        if self._group is not None:
            with self.following(topic, None, as_json=as_json) as source:
                yield source
            return
        chosen = chosen_partitions(topic, self._partitions)
        ends = topic.offsets("latest")
        stops = offsets_of(topic, stop or "latest", chosen, others=ends, hint="--until")
        if self._reader is None:
            yield Stored(topic, self._unnamed_start(topic, chosen), stops)
            return
        place = checked_place(self._start or "resume", chosen, "--from")
        with topic.reader(self._reader, place, partitions=self._partitions) as reader:
            yield Stored(topic, reader.position, stops, reader=reader)

    @contextmanager
    def following(self, topic: "Topic", last: int | None, *, as_json: bool) -> Iterator[Source]:
        """Yield where to get what comes, from the `last` records on unless said otherwise."""
        chosen = chosen_partitions(topic, self._partitions)
        place = checked_place(self._start or "resume", chosen, "--from")
        if self._group is not None:
            begin = "earliest" if place == "resume" else place
            with topic.group(self._group).join(start=begin) as member:
                yield Shared(member, as_json=as_json)
        elif self._reader is not None:
            with topic.reader(self._reader, place, partitions=self._partitions) as reader:
                yield Named(reader)
        elif self._start is not None:
            yield Following(topic, self._unnamed_start(topic, chosen), self._partitions)
        else:
            last = RECORDS_DEFAULT if last is None else last
            first, ends = topic.offsets("earliest"), topic.offsets("latest")
            begin = {number: max(first[number], ends[number] - last) for number in chosen}
            yield Following(topic, begin, self._partitions, last=last)

    def _unnamed_start(self, topic: "Topic", chosen: list[int]) -> dict[int, int]:
        start = self._start or "earliest"
        assert start != "resume"  # Refused at the beginning.
        first = topic.offsets("earliest")
        return offsets_of(topic, start, chosen, others=first, hint="--from")


def _print(
    source: Source,
    writer: RecordWriter,
    *,
    key: str | None,
    limit: int | None,
    timeout_seconds: float | None,
) -> None:
    """Print what comes until nothing comes any more, and commit what was handed on."""
    wanted = Limit(limit)
    only = None if key is None else body_from(key)
    passed = 0
    for records in arriving(source.fetch, wanted, timeout_seconds=timeout_seconds):
        printed = 0
        for record in records:
            if only is None or record.key == only:
                writer.write(record)
                printed += 1
        writer.flush()
        wanted.took(printed)
        passed += len(records)
        # Where one record in a million is wanted, not after each that is not.
        if printed or passed >= FETCH_RECORDS_MAX:
            source.commit()
            passed = 0
    source.commit()
