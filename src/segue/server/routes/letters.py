"""Dead letters: listing them, bringing them back, dropping them."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, cast

import msgspec

from segue.delivery.message import DeadLetter
from segue.delivery.reasons import pattern_of
from segue.errors import InvalidArgument, InvalidName
from segue.server.asgi import Gone
from segue.server.call import Call
from segue.server.letter_index import OTHER, LetterGroup
from segue.server.letter_index import shown as reason_shown
from segue.server.refusal import Refused
from segue.server.routes.queues import require_body_bytes
from segue.server.routing import Role, Route, Stream
from segue.server.streams import NDJSON, lines_of
from segue.stores.http.wire.letter_groups import (
    LetterExample,
    LetterGroupJson,
    LetterGroupsJson,
)
from segue.stores.http.wire.queues import (
    LetterName,
    LetterPage,
    Letters,
    Number,
    Redrive,
    Redriven,
    letter_json,
)
from segue.stores.letters import DeadLetters, in_batches
from segue.stores.portions import Page as PageOf
from segue.stores.queue_base import QueueBase

LETTERS_MAX: Final = 1_000
"""How many dead letters one page shows."""
LOOKED_AT_MAX: Final = 5_000
"""How many one request looks at for those that fit."""
PAGE_SECONDS: Final = 0.1
"""How long it looks for them, where not all fit."""
GROUPS_SHOWN_MAX: Final = 100
"""How many groups are shown; all others are the last of them."""
LOOK_SECONDS: Final = 0.2
"""How often a slow redrive looks whether anybody still wants it."""


class Page(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to list."""

    limit: int = 100
    after: int = -1
    """The number of the one before."""
    cause: str | None = None
    """Only those that died of this."""
    pattern: str | None = None
    """Only those whose reason is of this pattern, as the groups tell it."""
    body_bytes: int | None = None
    """How much of each body to tell; all of it unless that is said."""


class Behind(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From where on."""

    after: int = -1


def letters_of(call: Call) -> DeadLetters:
    """Return the dead letters of the queue that is meant."""
    return cast("QueueBase", call.queue).letters


def page(call: Call) -> LetterPage:
    """List dead letters."""
    asked = call.query(Page)
    if not 1 <= asked.limit <= LETTERS_MAX:
        raise InvalidArgument(f"limit must be from 1 to {LETTERS_MAX}: {asked.limit}")
    require_body_bytes(asked.body_bytes)
    chosen = Letters(cause=asked.cause, pattern=asked.pattern)
    walk = _Walk(
        _like(call, chosen, after=asked.after),
        partial(_fits, asked=chosen),
        seconds=PAGE_SECONDS if _is_choosy(chosen) else math.inf,
    )
    shown = PageOf[DeadLetter](asked.limit)
    shown.fill(walk)
    return LetterPage(
        letters=[letter_json(letter, body_bytes=asked.body_bytes) for letter in shown.found],
        next=walk.next_after(shown.found),
    )


class _Walk:
    """Letters that fit, of those that one request looks at, and where the next goes on."""

    def __init__(
        self, letters: Iterator[DeadLetter], fits: Callable[[DeadLetter], bool], *, seconds: float
    ) -> None:
        self._letters = letters
        self._fits = fits
        self._seconds = seconds
        self._looked_at: int | None = None
        self._given: int | None = None
        self._is_over = False

    def __iter__(self) -> Iterator[DeadLetter]:
        deadline = time.monotonic() + self._seconds
        for looked, letter in enumerate(self._letters, 1):
            self._looked_at = letter.number
            if self._fits(letter):
                self._given = letter.number
                yield letter
            if looked >= LOOKED_AT_MAX or time.monotonic() > deadline:
                return
        self._is_over = True

    def next_after(self, shown: list[DeadLetter]) -> int | None:
        """Return the number to go on after; None if there is no more."""
        last = shown[-1].number if shown else None
        if self._given != last:
            return last  # There was no room for the one behind it.
        return None if self._is_over else self._looked_at


def _like(
    call: Call, asked: Letters, *, after: int = -1, is_act: bool = False
) -> Iterator[DeadLetter]:
    """Return the letters to look at for those that are meant: no fewer, and not many more."""
    letters = letters_of(call)
    if not _is_choosy(asked):
        return letters.behind(after)
    if not call.queue.count().dead:
        return iter(())
    return call.desk.letter_groups.like(
        call.names[0],
        letters,
        cause=asked.cause,
        pattern=asked.pattern,
        after=after,
        is_act=is_act,
    )


def _is_choosy(asked: Letters) -> bool:
    """Tell whether those that are meant can be found by their groups."""
    return asked.cause is not None or asked.pattern is not None


def groups(call: Call) -> LetterGroupsJson:
    """Tell what dead letters died of."""
    total = call.queue.count().dead
    known = call.desk.letter_groups
    look = known.look(call.names[0]) if total else known.nothing()
    told = [group for group in look.groups if not group.is_other]
    others = [*told[GROUPS_SHOWN_MAX - 1 :], *(group for group in look.groups if group.is_other)]
    if len(others) == 1 and not others[0].is_other:
        others = []  # There is room for it.
    shown = told[: GROUPS_SHOWN_MAX - bool(others)]
    return LetterGroupsJson(
        groups=[_group_json(group) for group in [*shown, *_together(others)]],
        counted=sum(group.count for group in look.groups),
        total=total,
        is_complete=look.is_complete,
        as_of_us=look.as_of_us,
    )


def _together(groups: list[LetterGroup]) -> list[LetterGroup]:
    """Return one group for many, none for none."""
    if not groups:
        return []
    causes = {group.cause for group in groups}
    last = max(groups, key=lambda group: group.last_us)
    return [
        LetterGroup(
            cause=last.cause if len(causes) == 1 else "",
            pattern=OTHER,
            count=sum(group.count for group in groups),
            first_us=min(group.first_us for group in groups),
            last_us=last.last_us,
            example=last.example,
        )
    ]


def _group_json(group: LetterGroup) -> LetterGroupJson:
    example = group.example
    return LetterGroupJson(
        cause=group.cause,
        pattern=group.pattern,
        count=group.count,
        first_us=group.first_us,
        last_us=group.last_us,
        example=LetterExample(number=0, id="", reason="")  # It left while we looked.
        if example is None
        else LetterExample(number=example.number, id=example.id, reason=reason_shown(example)),
    )


def all_of_them(call: Call) -> Stream:
    """Tell of all dead letters, a line each."""
    found = letters_of(call).behind(call.query(Behind).after)
    return Stream(media_type=NDJSON, pieces=lines_of(map(letter_json, found)))


async def redrive(call: Call) -> Redriven:
    """Bring dead letters back, for as long as whoever asked is there to hear of it."""
    body = call.body(Redrive)
    if body.letters is not None:
        return await call.in_thread(partial(_redrive_named, call, body, body.letters))
    among = await call.in_thread(partial(_like, call, body, is_act=True))
    batches = letters_of(call).batches(partial(_fits, asked=body), body.limit, body.rate, among)
    matched = redriven = 0
    try:
        while (step := await call.in_thread(partial(next, batches, None))) is not None:
            pause_seconds, batch = step
            if not body.dry_run:
                await _pause(call, pause_seconds)
                redriven += await call.in_thread(partial(letters_of(call).revive, batch))
            matched += len(batch)
    except (Gone, Refused):
        if not redriven:
            raise
        # Not an error: that would say that nothing was done.
        return Redriven(matched=matched, redriven=redriven, dry_run=False, stopped=True)
    return Redriven(matched=matched, redriven=redriven, dry_run=body.dry_run)


def _redrive_named(call: Call, body: Redrive, names: list[LetterName]) -> Redriven:
    matched = redriven = 0
    for found in in_batches(_named(letters_of(call), names)):
        matched += len(found)
        redriven += 0 if body.dry_run else letters_of(call).revive(found)
    return Redriven(matched=matched, redriven=redriven, dry_run=body.dry_run)


async def _pause(call: Call, seconds: float) -> None:
    """Wait. Raises Gone if whoever asked leaves, Refused if the server or the token ends."""
    call.require_grant()
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if call.desk.waiting.is_closed:
            raise Refused(503, "ending", "the server ends; some letters are back already", retry=1)
        if call.is_gone():
            raise Gone
        await asyncio.sleep(min(left, LOOK_SECONDS))
        call.require_grant()


def discard(call: Call) -> Number:
    """Drop dead letters for good."""
    body = call.body(Letters)
    letters = letters_of(call)
    if body.letters is not None:
        return Number(count=sum(map(letters.drop, in_batches(_named(letters, body.letters)))))
    if body.cause is None and body.reason is None and body.pattern is None:
        return Number(count=call.queue.discard(limit=body.limit))
    among = _like(call, body, is_act=True)
    return Number(count=letters.discard(partial(_fits, asked=body), body.limit, among))


def _fits(letter: DeadLetter, *, asked: Letters) -> bool:
    return (
        (asked.cause is None or letter.cause == asked.cause)
        and (asked.reason is None or asked.reason in letter.reason)
        and (asked.pattern is None or pattern_of(letter.reason) == asked.pattern)
    )


def _named(letters: DeadLetters, names: list[LetterName]) -> Iterator[DeadLetter]:
    """Yield those that are still there."""
    if len(names) > LETTERS_MAX:
        raise InvalidArgument(f"at most {LETTERS_MAX} letters can be named at once")
    wanted = {(name.number, name.id) for name in names}
    for found in letters.at(sorted({number for number, _ in wanted})):
        if (found.number, found.message.id) in wanted:
            yield found


_LETTERS: Final = "/queues/{queue}/dead-letters"
_ASKING: Final = (InvalidArgument, InvalidName)

ROUTES: Final = (
    Route(
        method="GET",
        path=_LETTERS,
        summary="List dead letters, oldest first",
        role=Role.READ,
        about="dead letters",
        handle=page,
        query=Page,
        answer=LetterPage,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_LETTERS}/groups",
        summary="Tell what dead letters died of, most of them first",
        role=Role.READ,
        about="dead letters",
        handle=groups,
        answer=LetterGroupsJson,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_LETTERS}/all",
        summary="Tell of all dead letters, a line each",
        role=Role.READ,
        about="dead letters",
        handle=all_of_them,
        query=Behind,
        gives=(NDJSON,),
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_LETTERS}/redrive",
        summary="Bring dead letters back to the front of their priority",
        role=Role.ADMIN,
        about="dead letters",
        handle_async=redrive,
        body=Redrive,
        answer=Redriven,
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_LETTERS}/discard",
        summary="Drop dead letters for good",
        role=Role.ADMIN,
        about="dead letters",
        handle=discard,
        body=Letters,
        answer=Number,
        errors=_ASKING,
    ),
)
