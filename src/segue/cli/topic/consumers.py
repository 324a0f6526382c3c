"""`segue topic readers`, `groups`, `lag` and `seek`: who reads a topic, from where, how late."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode, NotFound
from segue.cli.output import Column, Kind, Rows, Value, show
from segue.cli.store_arguments import StoreArgument
from segue.cli.topic.arguments import (
    PLACES,
    PartitionsOption,
    TopicArgument,
    chosen_partitions,
    offsets_of,
    opened_topic,
    start_from,
)
from segue.errors import CorruptPosition

if TYPE_CHECKING:
    from segue.stores.topic_contract import GroupInfo, Lag, Topic

_LAG_COLUMNS: Final = (
    Column("records", Kind.COUNT),
    Column("size_bytes", Kind.SIZE),
    Column("seconds", Kind.SECONDS),
    Column("trimmed", Kind.COUNT),
)

RemoveOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Forget it first.", show_default=False)
]


def readers(
    url: StoreArgument,
    name: TopicArgument,
    *,
    remove: RemoveOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the named readers and how far each is behind.

    By what they committed, over all partitions: records and bytes still to be read, for how long
    the oldest of them has been waiting, and how many of them are gone by a limit of retention. A
    reader that is no longer used holds back all that it has not read: --remove forgets it.

    \b
    Examples:
      segue topic readers data orders
      segue topic readers data orders --remove audit
    """
    with opened_topic(url, name) as topic:
        if remove is not None and not topic.remove_reader(remove):
            raise NotFound(f"topic {name} has no reader {remove}")
        found = topic.readers()
    rows = [(reader, *_total(lag)) for reader, lag in found.items()]
    columns = (Column("reader"), *_LAG_COLUMNS)
    show(Rows(name="readers", columns=columns, rows=rows), as_json=as_json)


def groups(
    url: StoreArgument,
    name: TopicArgument,
    *,
    remove: RemoveOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the groups, how far each is behind, and their members.

    Of a group: its generation, which grows whenever partitions change hands, its members, and its
    lag as in 'segue topic readers'. Of a member: who it is, its partitions, and how many seconds
    are left until it is taken for dead unless it shows up. --remove forgets a group that has no
    members; exit code 4 says that it has.

    \b
    Examples:
      segue topic groups data orders
      segue topic groups data orders --remove billing
    """
    with opened_topic(url, name) as topic:
        if remove is not None and not topic.remove_group(remove):
            raise NotFound(f"topic {name} has no group {remove}")
        found = [topic.group(group).info() for group in topic.groups()]
    show(_groups(found), _members(found), as_json=as_json)


def _groups(groups: Sequence["GroupInfo"]) -> Rows:
    return Rows(
        name="groups",
        mark="group",
        columns=(
            Column("group"),
            Column("generation", Kind.COUNT),
            Column("members", Kind.COUNT),
            *_LAG_COLUMNS,
        ),
        rows=[
            (group.name, group.generation, len(group.members), *_total(group.lag))
            for group in groups
        ],
    )


def _members(groups: Sequence["GroupInfo"]) -> Rows:
    return Rows(
        name="members",
        mark="member",
        columns=(
            Column("group"),
            Column("member"),
            Column("owner"),
            Column("partitions"),
            Column("seconds_left", Kind.SECONDS),
        ),
        rows=[
            (
                group.name,
                member.member,
                member.owner,
                ",".join(map(str, member.partitions)) or None,
                member.seconds_left,
            )
            for group in groups
            for member in group.members
        ],
    )


def _total(lag: Sequence["Lag"]) -> tuple[Value, ...]:
    return (
        sum(each.records for each in lag),
        sum(each.size_bytes for each in lag),
        max((each.seconds for each in lag), default=0.0),
        sum(each.trimmed for each in lag),
    )


def lag(
    url: StoreArgument,
    name: TopicArgument,
    *,
    reader: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one; may be repeated.", show_default=False),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one; may be repeated.", show_default=False),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Exit code 11 if anyone is further behind, over all partitions.",
            show_default=False,
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="Exit code 11 if any record has been waiting longer.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far readers and groups are behind, partition by partition.

    By what they committed: the offset of the next record they want, the offset the next record of
    the partition gets, and how many records and bytes lie in between, for how long the oldest of
    them has been waiting, and how many of them are gone by a limit of retention.

    For monitoring, --max-records and --max-seconds end it with exit code 11 if anyone is further
    behind than that.

    \b
    Examples:
      segue topic lag data orders --group billing
      segue topic lag data orders --max-seconds 5m > lag.txt || alert 'orders are late' < lag.txt
    """
    with opened_topic(url, name) as topic:
        found = _lags(topic, reader, group)
    columns = (
        Column("who"),
        Column("name"),
        Column("partition", Kind.COUNT),
        Column("committed", Kind.COUNT),
        Column("next_offset", Kind.COUNT),
        *_LAG_COLUMNS,
    )
    rows: list[tuple[Value, ...]] = [
        (
            *who,
            each.partition,
            each.committed,
            each.next_offset,
            each.records,
            each.size_bytes,
            each.seconds,
            each.trimmed,
        )
        for who, lag in found.items()
        for each in lag
    ]
    show(Rows(name="lag", columns=columns, rows=rows), as_json=as_json)
    is_late = any(
        (max_records is not None and sum(each.records for each in lag) > max_records)
        or (max_seconds is not None and any(each.seconds > max_seconds for each in lag))
        for lag in found.values()
    )
    if is_late:
        raise typer.Exit(ExitCode.LAGGING)


def _lags(
    topic: "Topic", readers: list[str] | None, groups: list[str] | None
) -> dict[tuple[str, str], Sequence["Lag"]]:
    """Return the lag of those who were asked for, or of all. Raises NotFound."""
    if readers is None and groups is None:
        wanted_groups: Sequence[str] = topic.groups()
        wanted_readers = None
    else:
        wanted_groups, wanted_readers = groups or [], readers or []
    for group in wanted_groups:
        _require_group(topic, group)
    found: Mapping[str, Sequence[Lag]] = {}
    if wanted_readers is None or wanted_readers:
        found = topic.readers()
    for reader in wanted_readers or ():
        if reader not in found:
            raise NotFound(f"topic {topic.name} has no reader {reader}")
    return {
        **{
            ("reader", reader): lag
            for reader, lag in found.items()
            if wanted_readers is None or reader in wanted_readers
        },
        **{("group", group): topic.group(group).lag() for group in wanted_groups},
    }


def _require_group(topic: "Topic", name: str) -> None:
    if name not in topic.groups():
        raise NotFound(f"topic {topic.name} has no group {name}")


def seek(
    url: StoreArgument,
    name: TopicArgument,
    *,
    place: Annotated[
        str,
        typer.Option("--to", metavar="PLACE", help=f"Where to go: {PLACES}.", show_default=False),
    ],
    reader: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move this reader.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move this group.", show_default=False)
    ] = None,
    partitions: PartitionsOption = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the reader or group if there is none.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show where it would go.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move the place from which a reader or group reads on.

    Partitions that are not named, by --partition or in PLACE, stay where they are. Shows for each
    partition where it was, where it is now, and how many records that is forward.

    A group must have no members: exit code 4 says that it has some; stop them first. A reader that
    somebody has open does not notice, and moves the place again when it commits.

    A damaged place is replaced, if all partitions are moved.

    \b
    Examples:
      segue topic seek data orders --group billing --to 2026-01-31T08:00:00Z --dry-run
      segue topic seek data orders --reader audit --to earliest
      segue topic seek data orders --reader audit --to 0:100,3:250
    """
    if (reader is None) == (group is None):
        raise typer.BadParameter("give a --reader or a --group", param_hint="--reader")
    start = start_from(place, "--to")
    if isinstance(start, dict):
        if partitions is not None:
            raise typer.BadParameter("PLACE names them already", param_hint="--partition")
        partitions = list(start)
    with opened_topic(url, name) as topic:
        everything = chosen_partitions(topic, None)
        named = None if partitions is None else chosen_partitions(topic, partitions)
        if create or _is_there(topic, reader, group):
            before = _places(topic, reader, group, may_be_damaged=named in (None, everything))
        else:
            raise NotFound(f"topic {name} has no {_called(reader, group)}")
        # A reader may have a place in some partitions only.
        chosen = named or sorted(before) or everything
        after = offsets_of(topic, start, chosen, others={}, hint="--to")
        if dry_run:
            _warn_of_members(topic, group, as_json=as_json)
        elif reader is not None:
            topic.reader(reader, after, partitions=chosen).close()
        elif group is not None:
            topic.group(group).reset({**_still_there(topic, before), **after})
    columns = [Column(key, Kind.COUNT) for key in ("partition", "committed", "offset", "forward")]
    rows: list[tuple[Value, ...]] = [
        (number, was, offset, None if was is None else offset - was)
        for number, offset in after.items()
        for was in [before.get(number)]
    ]
    show(Rows(name="places", columns=columns, rows=rows), as_json=as_json)


def _is_there(topic: "Topic", reader: str | None, group: str | None) -> bool:
    return reader in topic.info().readers if group is None else group in topic.groups()


def _called(reader: str | None, group: str | None) -> str:
    return f"reader {reader}" if group is None else f"group {group}"


def _places(
    topic: "Topic", reader: str | None, group: str | None, *, may_be_damaged: bool
) -> dict[int, int]:
    """Return where a reader or group is, by partition; nothing if it is not known."""
    try:
        by_name = {} if group is not None else topic.readers()
        found = by_name.get(reader or "", []) if group is None else topic.group(group).lag()
    except CorruptPosition:
        if not may_be_damaged:
            raise
        return {}
    return {each.partition: each.committed for each in found}


def _still_there(topic: "Topic", places: Mapping[int, int]) -> dict[int, int]:
    """Return the places that a group keeps, or the earliest where it has none any more."""
    first = topic.offsets("earliest")
    return {partition: max(offset, places.get(partition, 0)) for partition, offset in first.items()}


def _warn_of_members(topic: "Topic", group: str | None, *, as_json: bool) -> None:
    count = 0 if group is None else len(topic.group(group).info().members)
    if count:
        stderr.warn(f"group {group} has {count} members; stop them first", as_json=as_json)
