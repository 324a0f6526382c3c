"""`segue topic create`: how many partitions a topic has, and how it keeps what it holds."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing, stderr
from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Value, show
from segue.cli.store_arguments import StoreArgument, opened_store
from segue.cli.topic.arguments import TopicArgument
from segue.delivery.topic_rules import PARTITIONS_DEFAULT, PARTITIONS_MAX, TopicRules
from segue.errors import CorruptManifest

if TYPE_CHECKING:
    from segue.stores.contract import Store
    from segue.stores.topic_contract import Topic


def _option(name: str, metavar: str, description: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        name, metavar=metavar, help=description, show_default=False
    )
    return option


def create(
    url: StoreArgument,
    name: TopicArgument,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=PARTITIONS_MAX,
            help="How many partitions it has; a new one has one unless told.",
            show_default=False,
        ),
    ] = None,
    grow: Annotated[
        bool, typer.Option("--grow", help="Add partitions to a topic that has fewer.")
    ] = False,
    keep_seconds: Annotated[
        str | None,
        _option("--keep", "DURATION|none", "Delete segments whose last record is older."),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        _option("--keep-bytes", "SIZE|none", "Delete what a partition takes up beyond this."),
    ] = None,
    lag_max: Annotated[
        str | None,
        _option("--lag-max", "N|none", "Wait no longer for who is further behind than this."),
    ] = None,
    segment_bytes: Annotated[
        str | None, _option("--segment-bytes", "SIZE|none", "How large a segment is.")
    ] = None,
    segment_seconds: Annotated[
        str | None,
        _option("--segment-age", "DURATION|none", "Begin a new segment after so long."),
    ] = None,
    tombstone_seconds: Annotated[
        str | None,
        _option("--tombstones", "DURATION", "How long compaction keeps a tombstone."),
    ] = None,
    clean_on_roll: Annotated[
        bool | None,
        typer.Option(
            "--clean-on-roll/--no-clean-on-roll",
            help="Clean a partition when it begins a segment; by default if there is a limit.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a topic, or change the rules of one that is there, and show how it is made.

    Makes the store, too, if there is none. Rules hold for everybody who uses the topic; 'none'
    takes one away. Without --keep, --keep-bytes and --lag-max nothing is deleted that a reader
    or group has not left behind, and nothing at all while there is none of them.

    Partitions are never removed, and added only with --grow: from then on keys go to other
    partitions than before, so the records of one key are no longer all in one partition.

    A topic whose manifest is missing gets a new one; say all that it had.

    \b
    Examples:
      segue topic create data orders --partitions 12 --keep 7d --keep-bytes 1G
      segue topic create data orders --keep none
      segue topic create data orders --partitions 24 --grow
    """
    texts = {
        "keep_seconds": keep_seconds,
        "keep_bytes": keep_bytes,
        "lag_max": lag_max,
        "segment_bytes": segment_bytes,
        "segment_seconds": segment_seconds,
        "tombstone_seconds": tombstone_seconds,
    }
    changes = {field: _parsed(field, text) for field, text in texts.items() if text is not None}
    if clean_on_roll is not None:
        changes["clean_on_roll"] = clean_on_roll
    _changed(TopicRules(), changes)  # What nobody would take makes no topic.
    with opened_store(url, create=True) as store:
        topic = _established(store, name, partitions, changes)
        if partitions is not None and partitions != topic.partitions:
            _grow(topic, partitions, grow=grow, as_json=as_json)
        if changes:
            topic.configure(_changed(topic.rules, changes))
        show(
            Facts(
                items=[
                    (Column("topic"), name),
                    (Column("partitions", Kind.COUNT), topic.partitions),
                    *rules_items(topic.rules),
                ]
            ),
            as_json=as_json,
        )


def rules_items(rules: TopicRules) -> list[tuple[Column, Value]]:
    """Return rules as facts to show."""
    return [(Column(name, _KINDS[name]), value) for name, value in asdict(rules).items()]


def _established(
    store: "Store", name: str, partitions: int | None, changes: dict[str, Value]
) -> "Topic":
    """Return the topic, made if it is not there."""
    topic = store.topic(name)
    try:
        # Asked for its partitions, one that has lost its manifest says so.
        is_there = topic.partitions > 0 and name in store.topics()
    except CorruptManifest as error:
        if error.path.exists():
            reason = f"{error.reason}; move it away, then say all that it said"
            raise CorruptManifest(path=error.path, reason=reason) from error
        if partitions is None:
            raise
        is_there = False
    if is_there:
        return topic
    wanted = PARTITIONS_DEFAULT if partitions is None else partitions
    return store.topic(name, partitions=wanted, rules=_changed(TopicRules(), changes))


def _grow(topic: "Topic", partitions: int, *, grow: bool, as_json: bool) -> None:
    before = topic.partitions
    if partitions > before and not grow:
        raise typer.BadParameter(
            f"{topic.name} has {before} partitions; --grow adds some, and then keys go to other "
            "partitions than before",
            param_hint="--partitions",
        )
    topic.grow(partitions)  # Raises InvalidArgument for fewer.
    stderr.warn(
        f"{topic.name} has {partitions} partitions instead of {before}: from now on keys go to "
        "other partitions than before",
        as_json=as_json,
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is no whole number")
    return int(text)


_PARSERS: Final[dict[str, tuple[str, Callable[[str], Value]]]] = {
    "keep_seconds": ("--keep", parsing.duration),
    "keep_bytes": ("--keep-bytes", parsing.size),
    "lag_max": ("--lag-max", _number),
    "segment_bytes": ("--segment-bytes", parsing.size),
    "segment_seconds": ("--segment-age", parsing.duration),
    "tombstone_seconds": ("--tombstones", parsing.duration),
}
_KINDS: Final = {
    "keep_seconds": Kind.SECONDS,
    "keep_bytes": Kind.SIZE,
    "lag_max": Kind.COUNT,
    "clean_on_roll": Kind.TEXT,
    "segment_bytes": Kind.SIZE,
    "segment_seconds": Kind.SECONDS,
    "tombstone_seconds": Kind.SECONDS,
}
_ALWAYS_SAID: Final = "tombstone_seconds"


def _parsed(field: str, text: str) -> Value:
    option, parse = _PARSERS[field]
    if text == parsing.NONE and field != _ALWAYS_SAID:
        return None
    try:
        return parse(text)
    except typer.BadParameter as error:
        error.param_hint = option
        raise


def _changed(rules: TopicRules, changes: dict[str, Value]) -> TopicRules:
    """Return rules with changes, checked. Raises InvalidArgument."""
    return TopicRules.from_dict({**rules.to_dict(), **changes})
