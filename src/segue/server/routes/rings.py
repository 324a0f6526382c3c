"""Rings: entries in and out, transactions, and how a ring stands.

A transaction is held here between the requests of its steps. One whose lock was broken can commit
nothing, so a ring has at most one: the next that takes the ring ends the one before.
"""

from collections.abc import Callable
from typing import Final, TypeVar, cast

from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    InvalidName,
    LockBusy,
    NotReplicated,
    RecordTooLarge,
    RingExists,
    RingFull,
    RingNotFound,
    SessionGone,
    TransactionAborted,
)
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.server.sessions import Session
from segue.stores.contract import Entry, Ring, Transaction
from segue.stores.http.wire.about import Names
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.rings import (
    AddGroup,
    Begin,
    Begun,
    Dequeue,
    Enqueue,
    EntryJson,
    OutcomeJson,
    Place,
    RingJson,
    Shape,
    StepBody,
    Take,
)

SESSION: Final = "transaction"
SESSION_SECONDS_MIN: Final = 2 * 3_600.0
"""How long a transaction without a step is kept: its lock may be over for as long as nobody else
wants the ring, and it may still commit."""

T = TypeVar("T")


def ring_of(call: Call) -> Ring:
    """Return the ring that the path names. Raises RingNotFound."""
    return call.store.ring(call.names[0], mode="open")


async def in_turn(call: Call, step: Callable[[], T], wait: float) -> T:
    """Make a step, again and again while a transaction holds the ring. Raises LockBusy."""

    def busy_or_done() -> T | LockBusy:
        try:
            return step()
        except LockBusy as error:
            return error

    found = await call.desk.waiting.ask_again(
        call, busy_or_done, wait, lambda found: isinstance(found, LockBusy)
    )
    if isinstance(found, LockBusy):
        raise found
    return found


# Rings -----------------------------------------------------------------------------------------


def names(call: Call) -> Names:
    """List rings."""
    return Names(names=[name for name in call.store.rings() if call.grant.covers(name)])


def create(call: Call) -> RingJson:
    """Make a ring."""
    body = call.body(Shape)
    ring = call.store.ring(
        call.names[0],
        capacity=body.capacity,
        entries_per_segment=body.entries_per_segment,
        mode="create",
    )
    return RingJson.of(ring.info())


def open_or_create(call: Call) -> RingJson:
    """Make a ring if there is none."""
    body = call.body(Shape)
    ring = call.store.ring(
        call.names[0], capacity=body.capacity, entries_per_segment=body.entries_per_segment
    )
    return RingJson.of(ring.info())


def info(call: Call) -> RingJson:
    """Tell how a ring stands."""
    return RingJson.of(ring_of(call).info())


def entry(call: Call) -> EntryJson | None:
    """Show one entry."""
    word = call.names[1]
    try:
        offset = int(word)
    except ValueError:
        raise InvalidArgument(f"an offset is a whole number: {word[:40]!r}") from None
    return entry_json(ring_of(call).get(offset))


def outcome(call: Call) -> OutcomeJson | None:
    """Tell what a recent transaction committed."""
    found = ring_of(call).outcome(call.names[1])
    return None if found is None else OutcomeJson.of(found)


def add_group(call: Call) -> None:
    """Let another group read on its own."""
    ring_of(call).add_group(call.names[1], start=call.body(AddGroup).start)


def remove_group(call: Call) -> Removed:
    """Forget a group."""
    return Removed(removed=ring_of(call).remove_group(call.names[1]))


# Steps -----------------------------------------------------------------------------------------


async def enqueue(call: Call) -> Place:
    """Add an entry."""
    body = call.body(Enqueue)
    data = body.data()

    def add() -> int:
        return ring_of(call).enqueue(
            data, body.txn_id, overwrite_if_full=body.overwrite_if_full, wait=0
        )

    return Place(offset=await in_turn(call, add, body.wait))


async def dequeue(call: Call) -> EntryJson | None:
    """Take the head entry of a group."""
    body = call.body(Dequeue)
    found = await in_turn(
        call, lambda: ring_of(call).dequeue(body.txn_id, group=body.group, wait=0), body.wait
    )
    return entry_json(found)


def entry_json(found: Entry | None) -> EntryJson | None:
    """Return what was found as it is sent."""
    return None if found is None else EntryJson.of(found)


# Transactions ----------------------------------------------------------------------------------


async def begin(call: Call) -> Begun:
    """Take a ring for a transaction."""
    body = call.body(Begin)

    def hold() -> Session[Transaction]:
        held = ring_of(call).transaction(body.txn_id, ttl=body.ttl, wait=0)
        try:
            end_broken(call, held.token)
            length = max(body.ttl, SESSION_SECONDS_MIN)
            return call.desk.sessions.open(
                SESSION, call.names[0], held, held.abort, length, token=call.grant.id
            )
        except BaseException:
            held.abort()
            raise

    session = await in_turn(call, hold, body.wait)
    held = session.held
    return Begun(session=session.id, txn_id=held.txn_id, token=held.token)


def end_broken(call: Call, token: int) -> None:
    """Hold no transaction any longer that lost the ring to who has `token`."""
    for each in call.desk.sessions.of(SESSION, call.names[0]):
        if cast("Session[Transaction]", each).held.token < token:
            call.desk.sessions.end(each)


def step_enqueue(call: Call) -> Place:
    """Add an entry, once the transaction is committed."""
    body = call.body(StepBody)
    session = session_of(call)
    with session.lock:
        offset = session.held.enqueue(body.data(), overwrite_if_full=body.overwrite_if_full)
    return Place(offset=offset)


def step_dequeue(call: Call) -> EntryJson | None:
    """Take an entry, once the transaction is committed."""
    session = session_of(call)
    with session.lock:
        return entry_json(session.held.dequeue(group=call.body(Take).group))


def commit(call: Call) -> None:
    """Make all steps happen at once."""
    session = session_of(call)
    with session.lock:
        try:
            session.held.commit()
        except (TransactionAborted, NotReplicated):  # It is over, one way or the other.
            end(call, session)
            raise
        end(call, session)


def abort(call: Call) -> None:
    """Let go of the ring."""
    session = session_of(call)
    with session.lock:
        end(call, session)


def session_of(call: Call) -> Session[Transaction]:
    """Return the transaction that the path names. Raises SessionGone."""
    ring, id_ = call.names
    return cast("Session[Transaction]", call.desk.sessions.get(SESSION, ring, id_))


def end(call: Call, session: Session[Transaction]) -> None:
    """Hold a transaction no longer; one that is open is aborted."""
    call.desk.sessions.end(cast("Session[object]", session))


_RING: Final = "/rings/{ring}"
_TRANSACTION: Final = f"{_RING}/transactions/{{session}}"
_ASKING: Final = (InvalidArgument, InvalidName, RingNotFound)
_STEPPING: Final = (InvalidArgument, SessionGone, TransactionAborted)

ROUTES: Final = (
    Route(
        method="GET",
        path="/rings",
        summary="List the rings there are",
        role=Role.READ,
        about="rings",
        handle=names,
        answer=Names,
    ),
    Route(
        method="POST",
        path=_RING,
        summary="Make a ring; there must be none of that name",
        role=Role.PRODUCE,
        about="rings",
        handle=create,
        body=Shape,
        answer=RingJson,
        errors=(InvalidArgument, InvalidName, RingExists),
    ),
    Route(
        method="PUT",
        path=_RING,
        summary="Make a ring if there is none; one that exists keeps its shape",
        role=Role.PRODUCE,
        about="rings",
        handle=open_or_create,
        body=Shape,
        answer=RingJson,
        errors=(InvalidArgument, InvalidName),
    ),
    Route(
        method="GET",
        path=_RING,
        summary="Tell how a ring stands",
        role=Role.READ,
        about="rings",
        handle=info,
        answer=RingJson,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_RING}/entries/{{offset}}",
        summary="Show one entry; 204 if it is not, or no longer, there",
        role=Role.READ,
        about="rings",
        handle=entry,
        answer=EntryJson,
        errors=_ASKING,
        statuses=(204,),
    ),
    Route(
        method="GET",
        path=f"{_RING}/outcomes/{{txn_id}}",
        summary="Tell what a recent transaction committed; 204 if it is not known to have",
        role=Role.READ,
        about="rings",
        handle=outcome,
        answer=OutcomeJson,
        errors=_ASKING,
        statuses=(204,),
    ),
    Route(
        method="PUT",
        path=f"{_RING}/groups/{{group}}",
        summary="Let another group of consumers read on its own",
        role=Role.CONSUME,
        about="rings",
        handle=add_group,
        body=AddGroup,
        errors=_ASKING,
    ),
    Route(
        method="DELETE",
        path=f"{_RING}/groups/{{group}}",
        summary="Forget a group, so that it holds nothing back",
        role=Role.CONSUME,
        about="rings",
        handle=remove_group,
        answer=Removed,
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_RING}/enqueue",
        summary="Add an entry, waiting while a transaction holds the ring",
        role=Role.PRODUCE,
        about="rings",
        handle_async=enqueue,
        body=Enqueue,
        answer=Place,
        errors=(*_ASKING, RecordTooLarge, RingFull, LockBusy),
    ),
    Route(
        method="POST",
        path=f"{_RING}/dequeue",
        summary="Take the head entry of a group; 204 if there is none",
        role=Role.CONSUME,
        about="rings",
        handle_async=dequeue,
        body=Dequeue,
        answer=EntryJson,
        errors=(*_ASKING, LockBusy),
        statuses=(204,),
    ),
    Route(
        method="POST",
        path=f"{_RING}/transactions",
        summary="Begin a transaction: take the ring for a time",
        role=Role.CONSUME,
        about="rings",
        handle_async=begin,
        body=Begin,
        answer=Begun,
        errors=(*_ASKING, LockBusy),
    ),
    Route(
        method="POST",
        path=f"{_TRANSACTION}/enqueue",
        summary="Add an entry, once the transaction is committed",
        role=Role.PRODUCE,
        about="rings",
        handle=step_enqueue,
        body=StepBody,
        answer=Place,
        errors=(*_STEPPING, RecordTooLarge, BatchTooLarge, RingFull),
    ),
    Route(
        method="POST",
        path=f"{_TRANSACTION}/dequeue",
        summary="Take an entry, once the transaction is committed; 204 if there is none",
        role=Role.CONSUME,
        about="rings",
        handle=step_dequeue,
        body=Take,
        answer=EntryJson,
        errors=_STEPPING,
        statuses=(204,),
    ),
    Route(
        method="POST",
        path=f"{_TRANSACTION}/commit",
        summary="Make all steps happen at once, or none",
        role=Role.CONSUME,
        about="rings",
        handle=commit,
        errors=_STEPPING,
    ),
    Route(
        method="POST",
        path=f"{_TRANSACTION}/abort",
        summary="Let go of the ring; nothing has happened",
        role=Role.CONSUME,
        about="rings",
        handle=abort,
        errors=_STEPPING,
    ),
)
