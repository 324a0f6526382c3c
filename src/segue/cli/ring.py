"""`segue ring`: bounded buffers."""

import sys
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption, OffsetsOption
from segue.cli.exits import Empty, NotFound
from segue.cli.holdings import Holdings
from segue.cli.output import (
    Column,
    Facts,
    Json,
    Kind,
    Rows,
    is_terminal,
    show,
    show_json,
    show_line,
)
from segue.cli.payloads import NEWLINE, NUL, bytes_json, bytes_output, json_line
from segue.cli.store_arguments import (
    CountOption,
    NullOption,
    StoreArgument,
    body_from,
    opened_store,
)
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segue.stores.contract import Entry, Ring, RingInfo

TRANSACTION_SECONDS: Final = 5.0
"""How long others wait for several entries that were begun and not finished."""
ENTRY_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is read of standard input before it counts as something that never ends."""

RingArgument = Annotated[
    str, typer.Argument(metavar="RING", help="The name of the ring.", show_default=False)
]
TransactionOption = Annotated[
    str | None,
    typer.Option(
        "--txn", metavar="ID", help="The transaction's id, for 'outcome'.", show_default=False
    ),
]
GroupOption = Annotated[str, typer.Option(metavar="NAME", help="The group of consumers.")]
BusyOption = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        parser=parsing.waiting_time,
        help="How long to wait while a transaction holds the ring, or 'forever'.",
    ),
]


class Start(Enum):
    """Where a new group begins."""

    HEAD = "head"
    TAIL = "tail"


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    group.command("ls")(ls)
    for verb in (create, enqueue, dequeue, get, info, outcome, groups):
        group.command()(verb)


def ls(url: StoreArgument, as_json: JsonOption = False) -> None:
    """List the rings of a store and how many entries they hold.

    \b
    Example:
      segue ring ls data
    """
    with opened_store(url) as store:
        holdings = Holdings(store)
        show(holdings.rings(), as_json=as_json)
    raise typer.Exit(holdings.code)


def create(
    url: StoreArgument,
    name: RingArgument,
    *,
    capacity: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many entries it holds, at the least.")
    ],
    entries_per_segment: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Entries per segment.", show_default=False),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="It is no error if it is there, of the same size.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a ring, and the store if there is none. The capacity is rounded up to whole segments.

    \b
    Example:
      segue ring create data bus --capacity 1000 --entries-per-segment 100
    """
    with opened_store(url, create=True) as store:
        ring = store.ring(
            name,
            capacity=capacity,
            entries_per_segment=entries_per_segment,
            mode="open_or_create" if exist_ok else "create",
        )
        made = ring.info()
    show(
        Facts(
            items=(
                (Column("ring"), name),
                (Column("capacity", Kind.COUNT), made.capacity),
                (Column("entries_per_segment", Kind.COUNT), made.entries_per_segment),
            )
        ),
        as_json=as_json,
    )


def enqueue(
    url: StoreArgument,
    name: RingArgument,
    bodies: Annotated[
        list[str],
        typer.Argument(
            metavar="BODY...",
            help="The entries, or a single - for all of standard input as one.",
            show_default=False,
        ),
    ],
    *,
    overwrite_if_full: Annotated[
        bool, typer.Option("--overwrite-if-full", help="Let the oldest entries make way.")
    ] = False,
    txn: TransactionOption = None,
    wait: BusyOption = 0.3,
    as_json: JsonOption = False,
) -> None:
    """Add entries and print their offsets. Several are one transaction: all of them or none.

    Exit code 8 says that the ring is full, 75 that others held it for as long as we waited.

    \b
    Example:
      segue ring enqueue data bus 'The school is closed for summer.' --txn 100
    """
    entries = _bodies(bodies)
    with opened_store(url) as store:
        ring = store.ring(name, mode="open")
        if len(entries) == 1:
            offsets = [
                ring.enqueue(
                    entries[0],
                    txn,
                    overwrite_if_full=overwrite_if_full,
                    wait=parsing.wait_from(wait),
                )
            ]
        else:
            with ring.transaction(
                txn, ttl=TRANSACTION_SECONDS, wait=parsing.wait_from(wait)
            ) as steps:
                offsets = [
                    steps.enqueue(entry, overwrite_if_full=overwrite_if_full) for entry in entries
                ]
    if as_json:
        show_json({"ring": name, "offsets": [*offsets]})
    else:
        for offset in offsets:
            show_line(f"added at offset {offset:,}" if is_terminal() else str(offset))


def dequeue(
    url: StoreArgument,
    name: RingArgument,
    *,
    count: CountOption = 1,
    group: GroupOption = "default",
    txn: TransactionOption = None,
    wait: BusyOption = 0.3,
    offsets: OffsetsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take a group's oldest entries and print them, one per line. Several are one transaction.

    They are printed once they are taken for good. Exit code 7 says that there is none.

    \b
    Example:
      segue ring dequeue data bus --group audit -n 10
    """
    with opened_store(url) as store:
        ring = store.ring(name, mode="open")
        if count == 1:
            entry = ring.dequeue(txn, group=group, wait=parsing.wait_from(wait))
            taken = [] if entry is None else [entry]
        else:
            taken = _dequeue_many(ring, count, group, txn, parsing.wait_from(wait))
    if not taken:
        raise Empty(f"ring {name} has no entry for group {group} now")
    _show_entries(taken, offsets=offsets, null=null, as_json=as_json)


def get(
    url: StoreArgument,
    name: RingArgument,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, show_default=False)],
    *,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the entry at an offset without taking it.

    Exit code 3 says that there is none, or none any longer.

    \b
    Example:
      segue ring get data bus 17
    """
    with opened_store(url) as store:
        entry = store.ring(name, mode="open").get(offset)
    if entry is None:
        raise NotFound(f"ring {name} has no entry at offset {offset}")
    _show_entries([entry], offsets=False, null=null, as_json=as_json)


def info(url: StoreArgument, name: RingArgument, as_json: JsonOption = False) -> None:
    """Show how a ring stands and who holds it.

    Its size, head and tail, and where its groups are. --json says some of it in two spellings:
    head_offset and head-offset, tail_offset and tail-offset, capacity and max-size.

    \b
    Example:
      segue ring info data bus
    """
    with opened_store(url) as store:
        found = store.ring(name, mode="open").info()
    facts = Facts(
        items=(
            (Column("ring"), found.name),
            (Column("count", Kind.COUNT), found.count),
            (Column("capacity", Kind.COUNT), found.capacity),
            (Column("entries_per_segment", Kind.COUNT), found.entries_per_segment),
            (Column("head_offset", Kind.COUNT), found.head_offset),
            (Column("tail_offset", Kind.COUNT), found.tail_offset),
            (Column("locked_by"), found.locked_by),
            (Column("token", Kind.COUNT), found.token),
        )
    )
    spelled = Facts(
        items=(
            (Column("head-offset", Kind.COUNT), found.head_offset),
            (Column("tail-offset", Kind.COUNT), found.tail_offset),
            (Column("max-size", Kind.COUNT), found.capacity),
        )
    )
    sections = [facts, spelled] if as_json else [facts]
    show(*sections, _groups(found), as_json=as_json)


def outcome(
    url: StoreArgument,
    name: RingArgument,
    txn: Annotated[
        str, typer.Argument(metavar="ID", help="The transaction's id.", show_default=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what a recent transaction committed.

    That is the way to find out after a crash. Exit code 3 says that it is not known to have
    committed anything.

    \b
    Example:
      segue ring outcome data bus 100
    """
    with opened_store(url) as store:
        found = store.ring(name, mode="open").outcome(txn)
    if found is None:
        raise NotFound(f"ring {name} knows of no transaction {txn} that committed")
    show(
        Facts(items=((Column("txn_id"), found.txn_id), (Column("token", Kind.COUNT), found.token))),
        _ranges("enqueued", [(None, found.enqueued)] if found.enqueued else []),
        _ranges("dequeued", list(found.dequeued.items())),
        as_json=as_json,
    )


def groups(
    url: StoreArgument,
    name: RingArgument,
    *,
    add: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add a group of consumers.", show_default=False),
    ] = None,
    start: Annotated[
        Start, typer.Option("--from", help="Where the new group begins: with the oldest or next.")
    ] = Start.HEAD,
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Forget a group, so that nothing waits for it.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List, add or remove groups of consumers.

    Shows where each stands and how many entries it has not taken. An entry stays until every group
    has taken it.

    \b
    Examples:
      segue ring groups data bus
      segue ring groups data bus --add audit --from tail
    """
    with opened_store(url) as store:
        ring = store.ring(name, mode="open")
        if add is not None:
            ring.add_group(add, start=start.value)
        if remove is not None and not ring.remove_group(remove):
            raise NotFound(f"ring {name} has no group {remove}")
        found = ring.info()
    show(_groups(found), as_json=as_json)


def _bodies(words: list[str]) -> list[bytes]:
    if words != ["-"]:
        return [body_from(word) for word in words]
    return [sys.stdin.buffer.read(ENTRY_BYTES_MAX)]


def _dequeue_many(
    ring: "Ring", count: int, group: str, txn: str | None, wait: float | None
) -> list["Entry"]:
    with ring.transaction(txn, ttl=TRANSACTION_SECONDS, wait=wait) as steps:

        def entries() -> "Iterator[Entry]":
            while (entry := steps.dequeue(group=group)) is not None:
                yield entry

        return list(islice(entries(), count))


def _show_entries(entries: list["Entry"], *, offsets: bool, null: bool, as_json: bool) -> None:
    separator = NUL if null else NEWLINE
    with bytes_output() as out:
        for entry in entries:
            if as_json:
                document: dict[str, Json] = {
                    "offset": entry.offset,
                    "time": iso_time(entry.time_us),
                    **bytes_json("body", entry.body),
                }
                out.write(json_line(document))
            else:
                before = b"%d\t" % entry.offset if offsets else b""
                out.write(before + entry.body + separator)


def _groups(info: "RingInfo") -> Rows:
    return Rows(
        name="groups",
        mark="group",
        columns=(
            Column("group"),
            Column("head_offset", Kind.COUNT),
            Column("waiting", Kind.COUNT),
        ),
        rows=[
            (group, head, max(0, info.tail_offset - head))
            for group, head in sorted(info.groups.items())
        ],
    )


def _ranges(name: str, found: list[tuple[str | None, range]]) -> Rows:
    return Rows(
        name=name,
        mark=name,
        columns=(
            Column("group"),
            Column("first_offset", Kind.COUNT),
            Column("last_offset", Kind.COUNT),
        ),
        rows=[(group, offsets[0], offsets[-1]) for group, offsets in found if offsets],
    )
