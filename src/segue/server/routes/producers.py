"""Producers: appending so that repeating an append never duplicates."""

from typing import Final

import msgspec

from segue.errors import InvalidArgument, InvalidName, ProducerBusy, RecordTooLarge, SessionGone
from segue.server import holding
from segue.server.call import Call
from segue.server.holding import Held, held_for, hold
from segue.server.routes.topics import ASKING, TOPIC, topic_of
from segue.server.routing import Role, Route
from segue.server.tracing import with_trace
from segue.stores.http.wire.topics import (
    PRODUCER_SECONDS,
    AppendNumbered,
    LastSequence,
    NumberedPlaces,
    Place,
    ProducerSession,
)
from segue.stores.topic_contract import Producer


class Which(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of which partition; if it is not said, of all."""

    partition: int | None = None


class HeldProducer(Held):
    """A producer that is open."""

    kind = "producer"

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer.name, producer.close)
        self.producer = producer


def open_(call: Call) -> ProducerSession:
    """Open a producer."""
    call.desk.sessions.sweep()  # Somebody who is gone may have the name.
    producer = topic_of(call).producer(call.names[1])
    try:
        last = producer.last_sequence()
    except BaseException:
        producer.close()
        raise
    session = hold(call, HeldProducer(producer), PRODUCER_SECONDS)
    return ProducerSession(session=session, last_sequence=last)


def append(call: Call) -> NumberedPlaces:
    """Append those records that are not there already."""
    body = call.body(AppendNumbered)
    events = [said.event() for said in with_trace(body.records, call.headers)]
    held = held_for(call, HeldProducer)
    with held.turn():
        found = held.producer.append_many(events, first_sequence=body.first_sequence)
        last = held.producer.last_sequence()
    places = [
        None if each is None else Place(partition=each.partition, offset=each.offset)
        for each in found
    ]
    return NumberedPlaces(places=places, last_sequence=last)


def last_sequence(call: Call) -> LastSequence:
    """Tell the highest sequence number."""
    held = held_for(call, HeldProducer)
    with held.turn():
        return LastSequence(last_sequence=held.producer.last_sequence(call.query(Which).partition))


def renew(call: Call) -> None:
    """Keep the name for longer."""
    held_for(call, HeldProducer)


def close(call: Call) -> None:
    """Let others use the name."""
    holding.end(call, HeldProducer)


_SESSIONS: Final = f"{TOPIC}/producers/{{producer}}/sessions"
_SESSION: Final = f"{_SESSIONS}/{{session}}"

ROUTES: Final = (
    Route(
        method="POST",
        path=_SESSIONS,
        summary="Open a producer: its name is taken from then on",
        role=Role.PRODUCE,
        about="producers",
        handle=open_,
        answer=ProducerSession,
        errors=(*ASKING, ProducerBusy),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/records",
        summary="Append records with consecutive sequence numbers, those that are not there yet",
        role=Role.PRODUCE,
        about="producers",
        handle=append,
        body=AppendNumbered,
        answer=NumberedPlaces,
        errors=(InvalidArgument, InvalidName, RecordTooLarge, ProducerBusy, SessionGone),
    ),
    Route(
        method="GET",
        path=f"{_SESSION}/last-sequence",
        summary="Tell the highest sequence number",
        role=Role.PRODUCE,
        about="producers",
        handle=last_sequence,
        query=Which,
        answer=LastSequence,
        errors=(*ASKING, SessionGone),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/renew",
        summary="Keep the name for longer",
        role=Role.PRODUCE,
        about="producers",
        handle=renew,
        errors=(*ASKING, SessionGone),
    ),
    Route(
        method="DELETE",
        path=_SESSION,
        summary="Let others use the name",
        role=Role.PRODUCE,
        about="producers",
        handle=close,
        errors=ASKING,
    ),
)
