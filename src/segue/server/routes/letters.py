"""Dead letters: listing them, bringing them back, dropping them."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final, cast

import msgspec

from segue.delivery.message import DeadLetter
from segue.errors import InvalidArgument, InvalidName
from segue.server.asgi import Gone
from segue.server.call import Call
from segue.server.refusal import Refused
from segue.server.routing import Role, Route, Stream
from segue.server.streams import NDJSON, lines_of
from segue.stores.http.wire.queues import (
    LetterName,
    LetterPage,
    Letters,
    Number,
    Redrive,
    Redriven,
    letter_json,
)
from segue.stores.letters import DeadLetters
from segue.stores.portions import Page as PageOf
from segue.stores.queue_base import QueueBase

LETTERS_MAX: Final = 1_000
"""How many dead letters one page shows."""
LOOK_SECONDS: Final = 0.2
"""How often a slow redrive looks whether anybody still wants it."""


class Page(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to list."""

    limit: int = 100
    after: int = -1
    """The number of the one before."""


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
    shown = PageOf[DeadLetter](asked.limit)
    shown.fill(letters_of(call).behind(asked.after))
    return LetterPage(letters=[letter_json(letter) for letter in shown.found])


def all_of_them(call: Call) -> Stream:
    """Tell of all dead letters, a line each."""
    found = letters_of(call).behind(call.query(Behind).after)
    return Stream(media_type=NDJSON, pieces=lines_of(map(letter_json, found)))


async def redrive(call: Call) -> Redriven:
    """Bring dead letters back, for as long as whoever asked is there to hear of it."""
    body = call.body(Redrive)
    if body.letters is not None:
        return await call.in_thread(partial(_redrive_named, call, body, body.letters))
    batches = letters_of(call).batches(partial(_fits, asked=body), body.limit, body.rate)
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
    found = list(_named(letters_of(call), names))
    redriven = 0 if body.dry_run else letters_of(call).revive(found)
    return Redriven(matched=len(found), redriven=redriven, dry_run=body.dry_run)


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
    if body.letters is not None:
        found = list(_named(letters_of(call), body.letters))
        return Number(count=letters_of(call).drop(found))
    if body.cause is None and body.reason is None:
        return Number(count=call.queue.discard(limit=body.limit))
    return Number(count=call.queue.discard(where=partial(_fits, asked=body), limit=body.limit))


def _fits(letter: DeadLetter, *, asked: Letters) -> bool:
    return (asked.cause is None or letter.cause == asked.cause) and (
        asked.reason is None or asked.reason in letter.reason
    )


def _named(letters: DeadLetters, names: list[LetterName]) -> Iterator[DeadLetter]:
    """Yield those that are still there."""
    if len(names) > LETTERS_MAX:
        raise InvalidArgument(f"at most {LETTERS_MAX} letters can be named at once")
    for name in names:
        found = next(letters.behind(name.number - 1), None)
        if found is not None and (found.number, found.message.id) == (name.number, name.id):
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
