"""Producers: appending again what may have been appended before, without ever duplicating it.

The server has the producer, for as long as we call. Every append says its sequence numbers, so that
one whose answer was lost can be repeated, also to a server that was restarted meanwhile.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from segue.delivery.message import Body
from segue.delivery.topic_record import Appended, Event
from segue.errors import ProducerBusy, SessionGone
from segue.log.layout import checked_name
from segue.stores.heartbeat import Pulse
from segue.stores.http.calls import path_of
from segue.stores.http.sense import exactly
from segue.stores.http.topics.session import Handle
from segue.stores.http.wire.starts import partition_json
from segue.stores.http.wire.topics import (
    PRODUCER_SECONDS,
    AppendNumbered,
    LastSequence,
    NumberedPlaces,
    ProducerSession,
    event_json,
)
from segue.stores.producer_base import ProducerBase, checked_sequence, renewal_of
from segue.stores.topic_events import events_from

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

RENEWAL_SECONDS: Final = 5.0
"""How long one renewal is tried: another comes."""
REOPENINGS_MAX: Final = 3
"""How often one append opens the producer anew."""


class HttpProducer(Handle, ProducerBase):
    """A producer with a name."""

    def __init__(self, store: "HttpStore", topic: str, name: str) -> None:
        path = path_of("topics", topic, "producers", checked_name(name), "sessions")
        super().__init__(store, f"producer {name}", path)
        self.name = name
        self._highest: int | None = None
        """The highest sequence number, None if that is to be asked for."""
        self._open()
        self._pulse: Pulse = store.heartbeat.start(renewal_of(self), PRODUCER_SECONDS)
        store.users.add(self)

    def _open(self) -> int:
        """Take the name and return the highest sequence number. Raises ProducerBusy."""
        answer = self._calls.post(self._sessions, None, ProducerSession)
        self._session, self._highest = answer.session, answer.last_sequence
        return answer.last_sequence

    def renew(self) -> None:
        """Keep the name for longer."""
        try:
            self._calls.tell(f"{self._path}/renew", within=RENEWAL_SECONDS)
        except SessionGone:
            return  # The next append asks for the name again, and tells if it cannot have it.

    # Appending -----------------------------------------------------------------------------

    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""
        self._require_open()
        records = [event_json(event) for event in events_from(events)]
        before = None if first_sequence is not None else self.last_sequence()
        first = checked_sequence(first_sequence if before is None else before + 1)
        if not records:
            return []
        body = AppendNumbered(records=records, first_sequence=first)
        answer = self._appended(body, before)
        self._highest = answer.last_sequence
        places = exactly(len(records), answer.places)
        return [None if place is None else place.appended() for place in places]

    def _appended(self, body: AppendNumbered, before: int | None) -> NumberedPlaces:
        """Append, also if the session is gone. `before` is what we began after, if we chose it."""
        ours = 0
        for _ in range(REOPENINGS_MAX):
            self._highest = None  # Not known until it is.
            try:
                return self._calls.post(f"{self._path}/records", body, NumberedPlaces)
            except SessionGone as gone:
                last = self._open()
                # What was appended meanwhile can be ours only if a first try was not answered.
                if gone.was_repeated:
                    ours = len(body.records)
                if before is not None and not before <= last <= before + ours:
                    # Our numbers are somebody else's: what we append under them would be lost.
                    raise ProducerBusy(name=self.name) from None
        raise ProducerBusy(name=self.name)

    # What is there -------------------------------------------------------------------------

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the highest number of a partition, or of all; -1 if there is none."""
        self._require_open()
        if partition is None and self._highest is not None:
            return self._highest
        query = None if partition is None else {"partition": partition_json(partition)}
        try:
            found = self._asked(query)
        except SessionGone:
            self._open()
            found = self._asked(query)
        if partition is None:
            self._highest = found
        return found

    def _asked(self, query: Mapping[str, int] | None) -> int:
        path = f"{self._path}/last-sequence"
        return self._calls.get(path, LastSequence, query=query).last_sequence

    def close(self) -> None:
        """Let others use the name."""
        self._pulse.stop()
        super().close()
