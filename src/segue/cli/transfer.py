"""`segue import` and `segue export`: queues as JSON, in the words of their ancestors."""

import contextlib
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from segue.cli import stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import (
    Column,
    Facts,
    Json,
    Kind,
    Rows,
    Section,
    json_text,
    progress,
    show,
    show_value,
)
from segue.cli.store_arguments import (
    QueueArgument,
    StoreArgument,
    SyncOption,
    opened_queue,
    opened_store,
)
from segue.errors import InvalidArgument, QueueFull, SegueError
from segue.log.options import Sync

if TYPE_CHECKING:
    from segue.stores.contract import Counts, Item, Queue, Store
    from segue.stores.migration import ImportedState

STANDARD_INPUT: Final = Path("-")


class StateFormat(Enum):
    """How old the reader of an export may be."""

    V3 = "v3"
    V4 = "v4"


def import_(
    url: StoreArgument,
    name: QueueArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The exported state, or - for standard input.", show_default=False
        ),
    ],
    *,
    skip: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Leave out the first N, as an interrupted import pushed them."
        ),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only read and check the file.")
    ] = False,
    sync: SyncOption = Sync.ALWAYS,
    as_json: JsonOption = False,
) -> None:
    """Push everything from an exported state of a queue.

    Reads the formats v3 (queue_0 and metadata) and v4 (queue_0_seg_0 and metadata). Priorities and
    order are kept; items that were out on a lock come first in their priority. The segments are
    trusted: where the metadata says something else, all items are pushed, the mismatch is shown and
    the exit code is 10. A file that is neither v3 nor v4 is refused before anything is pushed.
    Makes the store and the queue if there is none; a new queue takes over the file's segment size.

    Items are pushed in batches, all or nothing each. If something stops it half-way, it says how
    many are in: --skip goes on from there.

    \b
    Examples:
      segue import data mail state.json --dry-run
      segue import data mail state.json
    """
    state = _read(file)
    if dry_run:
        _show_import(state, as_json=as_json)
    else:
        _import(url, name, state, skip=skip, sync=sync, as_json=as_json)
    if state.mismatches:
        raise typer.Exit(ExitCode.MISMATCH)


def export(
    url: StoreArgument,
    name: QueueArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write there, all or nothing.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        StateFormat, typer.Option("--format", help="Which version is to read it.")
    ] = StateFormat.V4,
    as_json: JsonOption = False,
) -> None:
    """Write what waits in a queue as JSON, for import.

    The JSON has metadata, and queue_<priority>_seg_<number> with their items. It takes nothing out
    of the queue. What is leased, delayed or dead is left out, with a warning that says how much
    that is; headers, keys, groups and times to live have no place in it.

    \b
    Examples:
      segue export data mail -o state.json
      segue export data mail | segue import elsewhere mail -
    """
    with opened_queue(url, name) as queue:
        counts = queue.count()
        state = queue.state()
    left_out = _left_out(counts)
    if left_out:
        stderr.warn(f"left out: {left_out}", as_json=as_json)
    if version is StateFormat.V3:
        from segue.stores.migration import old_state

        state = old_state(state)
    if output is None:
        show_value(cast("Json", state), indent=False)
    else:
        _replace(output, json_text(cast("Json", state)) + "\n")
        show(_exported(output, state), as_json=as_json)


# Import --------------------------------------------------------------------------------------


def _read(file: Path) -> "ImportedState":
    from segue.stores.migration import parse_state, read_state

    text = sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()
    return read_state(parse_state(text))


def _import(
    url: str, name: str, state: "ImportedState", *, skip: int, sync: Sync, as_json: bool
) -> None:
    with opened_store(url, create=True, sync=sync) as store:
        queue = _queue_for(store, name, state)
        items = _items(state)[skip:]
        _require_room(queue, len(items))
        pushed = 0
        try:
            with progress("importing", len(items)) as advance:
                for count in _push(queue, items):
                    pushed += count
                    advance(count)
        except (SegueError, OSError, KeyboardInterrupt):
            stderr.warn(
                f"{skip + pushed} of {state.count} items are in: --skip {skip + pushed} goes on",
                as_json=as_json,
            )
            raise
    _show_import(state, pushed=pushed, as_json=as_json)


def _queue_for(store: "Store", name: str, state: "ImportedState") -> "Queue":
    """Return the queue, with the file's segment size if it is new."""
    from segue.delivery.rules import SEGMENT_SIZE_DEFAULT, QueueRules

    is_new = name not in store.queues()
    queue = store.queue(name)
    if is_new and state.segment_size not in {None, SEGMENT_SIZE_DEFAULT}:
        with contextlib.suppress(InvalidArgument):  # More than any segment holds: no matter then.
            if queue.rules == QueueRules():
                queue.configure(QueueRules(segment_items=state.segment_size))
    return queue


def _items(state: "ImportedState") -> list["Item"]:
    from segue.stores.contract import Item
    from segue.stores.migration import body_of

    return [
        Item(body=body_of(item), priority=priority)
        for priority, items in sorted(state.items.items())
        for item in items
    ]


def _require_room(queue: "Queue", count: int) -> None:
    """Raise QueueFull now rather than half-way; where it would drop something, too."""
    rules = queue.rules
    if rules.capacity is None or rules.on_full == "block":
        return
    if queue.count().total + count > rules.capacity:
        raise QueueFull(queue=queue.name, capacity=rules.capacity)


def _push(queue: "Queue", items: list["Item"]) -> Iterator[int]:
    from segue.cli.queue.push import batch_items_max

    most = batch_items_max(queue)
    start = 0
    while start < len(items):
        # One priority at a time: only that is one batch on disk.
        priority = items[start].priority
        stop = start + 1
        while stop < len(items) and stop - start < most and items[stop].priority == priority:
            stop += 1
        yield len(queue.push_many(items[start:stop]))
        start = stop


def _show_import(state: "ImportedState", *, pushed: int = 0, as_json: bool) -> None:
    show(
        Facts(
            items=(
                (Column("format"), state.format),
                (Column("items", Kind.COUNT), state.count),
                (Column("returned", Kind.COUNT), state.returned),
                (Column("pushed", Kind.COUNT), pushed),
            )
        ),
        Rows(
            name="priorities",
            mark="priority",
            columns=(Column("priority", Kind.COUNT), Column("items", Kind.COUNT)),
            rows=[(priority, len(items)) for priority, items in sorted(state.items.items())],
        ),
        Rows(
            name="mismatches",
            mark="mismatch",
            columns=(Column("key"), Column("what"), Column("stated"), Column("found")),
            rows=[(each.key, each.what, each.stated, each.found) for each in state.mismatches],
        ),
        as_json=as_json,
    )


# Export --------------------------------------------------------------------------------------


def _left_out(counts: "Counts") -> str:
    kinds = (("leased", counts.leased), ("delayed", counts.delayed), ("dead", counts.dead))
    return ", ".join(f"{count} {kind}" for kind, count in kinds if count)


def _exported(output: Path, state: dict[str, object]) -> Section:
    count = sum(len(items) for items in state.values() if isinstance(items, list))
    return Facts(items=((Column("file"), str(output)), (Column("items", Kind.COUNT), count)))


def _replace(path: Path, text: str) -> None:
    """Write a file that is whole under its name, or not there; the old one stays until then."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # A pipe or a device cannot be replaced.
        return
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
