"""`segue topic clean` and `compact`: what a topic does not keep."""

from typing import Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Rows, Value, progress, show
from segue.cli.store_arguments import StoreArgument, YesOption, ask_first, require_yes
from segue.cli.topic.arguments import (
    PartitionsOption,
    RollOption,
    TopicArgument,
    chosen_partitions,
    opened_topic,
)

GROUP_MARK: Final = "group."
"""What the place of a group is called in a partition, before its name."""


def clean(
    url: StoreArgument,
    name: TopicArgument,
    *,
    keep: Annotated[
        float | None,
        typer.Option(
            "--keep",
            metavar="DURATION",
            parser=parsing.duration,
            help="Delete segments whose last record is older.",
            show_default=False,
        ),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=parsing.size,
            help="Delete what a partition takes up beyond this.",
            show_default=False,
        ),
    ] = None,
    lag_max: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Wait no longer for who is further behind than this.",
            show_default=False,
        ),
    ] = None,
    partitions: PartitionsOption = None,
    roll: RollOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; print what would go.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the segments that may go, by the topic's rules or by stricter limits given here.

    Without limits that is what every reader and group has left behind, and nothing while there is
    none of them. Never a segment that takes records.

    Limits given here delete what readers may still want: it asks first, and without a terminal
    --yes is needed. Whoever loses something by a limit is told by OffsetTrimmed.

    Prints how many segments are gone and how many bytes that freed, a line for each of them
    (partition, segment), and what holds the rest back: for each partition the reader or group that
    stands furthest back.

    \b
    Examples:
      segue topic clean data orders
      segue topic clean data orders --keep 1d --dry-run
      segue topic clean data orders --keep 1d --yes
    """
    if (keep, keep_bytes, lag_max) != (None, None, None) and not dry_run:
        require_yes(yes, as_json=as_json)
        ask_first(f"Delete what readers of {name} may still want?", yes=yes)
    deleted: list[tuple[Value, ...]] = []
    held: list[tuple[Value, ...]] = []
    freed_bytes = 0
    with opened_topic(url, name) as topic:
        chosen = chosen_partitions(topic, partitions)
        with progress(f"cleaning {name}", len(chosen)) as advance:
            for partition in chosen:
                if roll and not dry_run:
                    topic.roll(partitions=[partition])
                report = topic.clean(
                    keep_seconds=keep,
                    keep_bytes=keep_bytes,
                    lag_max=lag_max,
                    partitions=[partition],
                    dry_run=dry_run,
                )
                freed_bytes += report.freed_bytes
                deleted += [
                    (number, segment)
                    for number, segments in report.deleted.items()
                    for segment in segments
                ]
                held += [(number, *_who(mark)) for number, mark in report.held_by.items()]
                advance(1)
    columns = (Column("partition", Kind.COUNT), Column("who"), Column("name"))
    show(
        Facts(
            items=[
                (Column("segments", Kind.COUNT), len(deleted)),
                (Column("freed_bytes", Kind.SIZE), freed_bytes),
            ]
        ),
        _segments("deleted", deleted),
        Rows(name="held_by", mark="held_by", columns=columns, rows=held),
        as_json=as_json,
    )


def compact(
    url: StoreArgument,
    name: TopicArgument,
    *,
    partitions: PartitionsOption = None,
    roll: RollOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep of every key only its newest record.

    Offsets stay as they are, records without a key stay, and tombstones go once they are older
    than the rule --tombstones of 'segue topic create' says. What is in the segment that takes
    records is not touched. Who is reading reads on undisturbed. Interrupted at any moment, it
    leaves each segment as it was or as it is to be.

    Prints how many records were removed, how many bytes that freed, and a line for each segment
    that was written anew (partition, segment).

    \b
    Example:
      segue topic compact data customers --roll
    """
    removed, freed_bytes = 0, 0
    written: list[tuple[Value, ...]] = []
    with opened_topic(url, name) as topic:
        chosen = chosen_partitions(topic, partitions)
        with progress(f"compacting {name}", len(chosen)) as advance:
            for partition in chosen:
                if roll:
                    topic.roll(partitions=[partition])
                report = topic.compact(partitions=[partition])
                removed += report.removed_records
                freed_bytes += report.freed_bytes
                written += [
                    (number, segment)
                    for number, segments in report.segments.items()
                    for segment in segments
                ]
                advance(1)
    show(
        Facts(
            items=[
                (Column("removed_records", Kind.COUNT), removed),
                (Column("freed_bytes", Kind.SIZE), freed_bytes),
            ]
        ),
        _segments("compacted", written),
        as_json=as_json,
    )


def _who(mark: str) -> tuple[str, str]:
    """Return whether a place is a reader's or a group's, and whose."""
    if mark.startswith(GROUP_MARK):
        return "group", mark.removeprefix(GROUP_MARK)
    return "reader", mark


def _segments(name: str, rows: list[tuple[Value, ...]]) -> Rows:
    columns = (Column("partition", Kind.COUNT), Column("segment", Kind.COUNT))
    return Rows(name=name, mark=name, columns=columns, rows=rows)
