"""`segue queue rules`: how a queue behaves."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Value, show
from segue.cli.store_arguments import QueueArgument, StoreArgument, opened_store
from segue.delivery.rules import QueueRules


def _option(metavar: str, description: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        metavar=metavar, help=description, show_default=False
    )
    return option


def rules(
    url: StoreArgument,
    name: QueueArgument,
    *,
    lease_ttl: Annotated[str | None, _option("DURATION", "How long a lease lasts.")] = None,
    max_leases: Annotated[
        str | None, _option("N|none", "How many may be out at once; 1 is strict mode.")
    ] = None,
    max_deliveries: Annotated[
        str | None, _option("N|none", "Failed or expired deliveries until a message is dead.")
    ] = None,
    backoff_base: Annotated[
        str | None, _option("DURATION", "How long a failed message waits at first.")
    ] = None,
    backoff_cap: Annotated[str | None, _option("DURATION", "How long it waits at most.")] = None,
    backoff_jitter: Annotated[
        str | None, _option("0..1", "Which part of that is left to chance.")
    ] = None,
    capacity: Annotated[str | None, _option("N|none", "How many messages it takes.")] = None,
    on_full: Annotated[
        str | None, _option("refuse|block|drop_oldest", "What a push meets when it is full.")
    ] = None,
    on_expiry: Annotated[
        str | None, _option("dead|drop", "Where a message goes whose time to live is over.")
    ] = None,
    dedup_window: Annotated[
        str | None, _option("DURATION", "How long a key is remembered.")
    ] = None,
    keep_seconds: Annotated[
        str | None, _option("DURATION|none", "How long settled messages stay readable.")
    ] = None,
    keep_bytes: Annotated[
        str | None, _option("SIZE|none", "How much of settled messages stays readable.")
    ] = None,
    segment_items: Annotated[
        str | None, _option("N|none", "Messages per segment, on disk and in 'state'.")
    ] = None,
    group_concurrency: Annotated[
        str | None, _option("N", "How many messages of one group may be out at once.")
    ] = None,
    rate: Annotated[
        str | None, _option("N|none", "How many messages a second are delivered.")
    ] = None,
    rate_burst: Annotated[
        str | None, _option("N", "How many of them at once, after a rest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rules of a queue, or change some of them.

    They hold for everybody who uses the queue, from then on, also before its first message; a
    queue that nobody has used yet has the usual ones. 'none' takes a limit away.

    \b
    Examples:
      segue queue rules data mail
      segue queue rules data mail --capacity 10000 --on-full drop_oldest --keep-seconds 7d
      segue queue rules data mail --rate 50 --rate-burst 100
    """
    texts = {
        "lease_ttl": lease_ttl,
        "max_leases": max_leases,
        "max_deliveries": max_deliveries,
        "backoff_base": backoff_base,
        "backoff_cap": backoff_cap,
        "backoff_jitter": backoff_jitter,
        "capacity": capacity,
        "on_full": on_full,
        "on_expiry": on_expiry,
        "dedup_window": dedup_window,
        "keep_seconds": keep_seconds,
        "keep_bytes": keep_bytes,
        "segment_items": segment_items,
        "group_concurrency": group_concurrency,
        "rate": rate,
        "rate_burst": rate_burst,
    }
    changes = {field: _parsed(field, text) for field, text in texts.items() if text is not None}
    _changed(QueueRules(), changes)  # What nobody would take makes no queue.
    with opened_store(url, create=bool(changes)) as store:
        # Not asked for by name first: rules may be there before the first message is.
        queue = store.queue(name)
        current = queue.rules
        if changes:
            current = _changed(current, changes)
            queue.configure(current)
    show(
        Facts(
            items=[
                (Column(field, _KINDS[_PARSERS[field]]), value)
                for field, value in asdict(current).items()
            ]
        ),
        as_json=as_json,
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is no whole number")
    return int(text)


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None


_PARSERS: Final[dict[str, Callable[[str], Value]]] = {
    "lease_ttl": parsing.duration,
    "max_leases": _number,
    "max_deliveries": _number,
    "backoff_base": parsing.duration,
    "backoff_cap": parsing.duration,
    "backoff_jitter": _fraction,
    "capacity": _number,
    "on_full": str,
    "on_expiry": str,
    "dedup_window": parsing.duration,
    "keep_seconds": parsing.duration,
    "keep_bytes": parsing.size,
    "segment_items": _number,
    "group_concurrency": _number,
    "rate": _fraction,
    "rate_burst": _number,
}
_KINDS: Final[dict[Callable[[str], Value], Kind]] = {
    parsing.duration: Kind.SECONDS,
    parsing.size: Kind.SIZE,
    _number: Kind.COUNT,
    _fraction: Kind.TEXT,
    str: Kind.TEXT,
}
_OPTIONAL: Final = {
    "max_leases",
    "max_deliveries",
    "capacity",
    "keep_seconds",
    "keep_bytes",
    "segment_items",
    "rate",
}


def _parsed(field: str, text: str) -> Value:
    if text == parsing.NONE and field in _OPTIONAL:
        return None
    try:
        return _PARSERS[field](text)
    except typer.BadParameter as error:
        error.param_hint = "--" + field.replace("_", "-")
        raise


def _changed(rules: QueueRules, changes: dict[str, Value]) -> QueueRules:
    """Return rules with changes, checked. Raises InvalidArgument."""
    return type(rules).from_json(json.dumps({**asdict(rules), **changes}))
