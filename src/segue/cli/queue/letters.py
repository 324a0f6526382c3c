"""`segue queue dead`, `redrive` and `discard`: what is done about dead letters."""

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.messages import message_json, preview
from segue.cli.output import Column, Facts, Kind, Rows, progress, show
from segue.cli.payloads import bytes_output, json_line
from segue.cli.store_arguments import (
    PriorityOption,
    QueueArgument,
    StoreArgument,
    YesOption,
    ask_first,
    opened_queue,
    require_yes,
)
from segue.cli.text import iso_time
from segue.delivery.reasons import pattern_of

if TYPE_CHECKING:
    from segue.delivery.message import DeadLetter
    from segue.stores.contract import Queue

_COLUMNS: Final = (
    Column("id"),
    Column("cause"),
    Column("reason"),
    Column("deliveries", Kind.COUNT),
    Column("died", Kind.TIME),
    Column("body"),
)

CauseOption = Annotated[
    str | None,
    typer.Option(
        metavar="CAUSE",
        help="Only those that died of it: failed, expired, dead, outlived.",
        show_default=False,
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason-contains",
        metavar="TEXT",
        help="Only those whose reason has this in it.",
        show_default=False,
    ),
]
PatternOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Only those whose reason is of this pattern, as a server's groups tell it.",
        show_default=False,
    ),
]
LettersOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=0, help="At most so many.", show_default=False),
]


class _Choice:
    """Which dead letters are meant, and a count of those looked at."""

    def __init__(
        self,
        *,
        cause: str | None,
        reason: str | None,
        pattern: str | None,
        priority: int | None,
        looked: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._cause = cause
        self._reason = reason
        self._pattern = pattern
        self._priority = priority
        self._looked = looked

    def __call__(self, letter: "DeadLetter") -> bool:
        self._looked(1)
        return (
            (self._cause is None or letter.cause == self._cause)
            and (self._reason is None or self._reason in letter.reason)
            and (self._pattern is None or self._pattern == pattern_of(letter.reason))
            and (self._priority is None or letter.message.priority == self._priority)
        )


def dead(
    url: StoreArgument,
    name: QueueArgument,
    *,
    cause: CauseOption = None,
    reason: ReasonOption = None,
    pattern: PatternOption = None,
    priority: PriorityOption = None,
    limit: LettersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters, oldest first, and why they died.

    A terminal gets the beginning of each body, a pipe and --json all of it; --json prints an
    object per letter.

    \b
    Example:
      segue queue dead data mail --reason-contains address --limit 20
    """
    choice = _Choice(cause=cause, reason=reason, pattern=pattern, priority=priority)
    with opened_queue(url, name) as queue:
        letters = islice(filter(choice, queue.dead_letters()), limit)
        if as_json:
            with bytes_output() as out:
                for letter in letters:
                    out.write(
                        json_line(
                            {
                                **message_json(letter.message),
                                "cause": letter.cause,
                                "reason": letter.reason,
                                "deliveries": letter.deliveries,
                                "died": iso_time(letter.died_us),
                            }
                        )
                    )
            return
        rows = [
            (
                letter.message.id,
                letter.cause,
                letter.reason or None,
                letter.deliveries,
                letter.died_us,
                preview(letter.message.body),
            )
            for letter in letters
        ]
    show(Rows(name="dead letters", columns=_COLUMNS, rows=rows), as_json=False)


def redrive(
    url: StoreArgument,
    name: QueueArgument,
    *,
    cause: CauseOption = None,
    reason: ReasonOption = None,
    pattern: PatternOption = None,
    priority: PriorityOption = None,
    limit: LettersOption = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="At most so many a second.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count those that would be brought back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring dead letters back to be delivered again.

    They come to the front of their priority, with all the deliveries that the rules allow anew.

    \b
    Example:
      segue queue redrive data mail --reason-contains 'server is down' --rate 100
    """
    with opened_queue(url, name) as queue, progress("redriving", queue.count().dead) as advance:
        report = queue.redrive(
            where=_Choice(
                cause=cause, reason=reason, pattern=pattern, priority=priority, looked=advance
            ),
            limit=limit,
            rate=rate,
            dry_run=dry_run,
        )
    show(
        Facts(
            items=(
                (Column("matched", Kind.COUNT), report.matched),
                (Column("redriven", Kind.COUNT), report.redriven),
            )
        ),
        as_json=as_json,
    )


def discard(
    url: StoreArgument,
    name: QueueArgument,
    *,
    cause: CauseOption = None,
    reason: ReasonOption = None,
    pattern: PatternOption = None,
    priority: PriorityOption = None,
    limit: LettersOption = None,
    yes: YesOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count those that would be dropped.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good.

    Asks before anything is dropped; without a terminal --yes or --dry-run is needed.

    \b
    Example:
      segue queue discard data mail --cause outlived --yes
    """
    if not dry_run:
        require_yes(yes, as_json=as_json)
    choice = _Choice(cause=cause, reason=reason, pattern=pattern, priority=priority)
    with opened_queue(url, name) as queue:
        matched = queue.redrive(where=choice, limit=limit, dry_run=True).matched
        discarded = 0
        if matched and not dry_run:
            ask_first(f"Drop {matched:,} dead letters of {name} for good?", yes=yes)
            discarded = _discard(queue, choice, limit, matched)
    show(
        Facts(
            items=(
                (Column("matched", Kind.COUNT), matched),
                (Column("discarded", Kind.COUNT), discarded),
            )
        ),
        as_json=as_json,
    )


def _discard(
    queue: "Queue", choice: Callable[["DeadLetter"], bool], limit: int | None, total: int
) -> int:
    with progress("discarding", total) as advance:

        def chosen(letter: "DeadLetter") -> bool:
            is_chosen = choice(letter)
            advance(is_chosen)
            return is_chosen

        return queue.discard(where=chosen, limit=limit)
