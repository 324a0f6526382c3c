"""Topics: what is sent to them, and what they answer."""

from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec

from segue.delivery.message import headers_from
from segue.delivery.topic_record import (
    NO_HEADERS,
    SEQUENCE_MAX,
    Appended,
    Event,
    TopicRecord,
    key_bytes,
    moment_us,
    value_bytes,
)
from segue.errors import InvalidArgument
from segue.stores.http.wire.base import Answer, Count, Integer, Raw, Wire, text_or_bytes
from segue.stores.http.wire.rules import ConfigureTopic
from segue.stores.http.wire.starts import Limit, StartJson, partition_json
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT

ARROW: Final = "application/vnd.apache.arrow.stream"
STATE: Final = b"segue"
"""Under which name the schema of a table that was polled has what else there is to say, as JSON."""
PRODUCER_SECONDS: Final = 30.0
"""How long a name stays taken whose user does not call; clients call several times before."""
PAGE_RECORDS_MAX: Final = 4096

Happening = Literal["revoke", "assign", "lost"]
Sequence = Annotated[int, msgspec.Meta(ge=-1, le=SEQUENCE_MAX)]
"""The highest sequence number there is, -1 if there is none."""


# What is sent --------------------------------------------------------------------------------


class EventJson(Wire):
    """One record to append: one of `value`, `value_base64` and `json`; null is a tombstone."""

    value: str | msgspec.UnsetType | None = msgspec.UNSET
    value_base64: bytes | None = None
    json: Raw = msgspec.Raw(b"")
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, str] | None = None
    timestamp_us: int | None = None
    partition: int | None = None

    def event(self) -> Event:
        """Return the event. Raises InvalidArgument unless its value is said once."""
        json = bytes(self.json)
        given = (self.value is not msgspec.UNSET) + (self.value_base64 is not None) + bool(json)
        if given != 1:
            raise InvalidArgument("a record has one of value, value_base64 and json")
        if self.key is not None and self.key_base64 is not None:
            raise InvalidArgument("a record has one of key and key_base64")
        return Event(
            value=json or self.value_base64 if self.value is msgspec.UNSET else self.value,
            key=self.key if self.key_base64 is None else self.key_base64,
            headers=self.headers,
            timestamp=self.timestamp_us,
            partition=self.partition,
        )


def event_json(event: Event) -> EventJson:
    """Return an event as it is sent. Raises InvalidArgument."""
    said = EventJson(headers=headers_from(event.headers))
    value, key = value_bytes(event.value), key_bytes(event.key)
    if value is None:
        said.value = None
    else:
        text, said.value_base64 = text_or_bytes(value)
        said.value = msgspec.UNSET if text is None else text
    if key is not None:
        said.key, said.key_base64 = text_or_bytes(key)
    if event.timestamp is not None:
        said.timestamp_us = moment_us(event.timestamp, name="timestamp")
    if event.partition is not None:
        said.partition = partition_json(event.partition)
    return said


class Create(Wire):
    """How a topic is to be made."""

    partitions: int | None = None
    rules: ConfigureTopic | None = None


class Grow(Wire):
    """How many partitions there are to be."""

    partitions: int


class Append(Wire):
    """Records to append, all or none if one of them is bad."""

    records: list[EventJson]


class AppendNumbered(Wire):
    """The same with consecutive sequence numbers: those that are there already are passed over."""

    records: list[EventJson]
    first_sequence: int


class Some(Wire):
    """Some partitions; without a list all of them."""

    partitions: list[int] | None = None


class Clean(Some):
    """What may be deleted besides what the rules allow."""

    keep_seconds: float | None = None
    keep_bytes: int | None = None
    lag_max: int | None = None
    dry_run: bool = False


class Bounds(Some):
    """From where to where to read."""

    start: StartJson = "earliest"
    stop: StartJson | None = None
    is_required: bool = False
    """Whether the topic must be there."""


class Read(Some):
    """What to read, one page after the other."""

    start: StartJson = "earliest"
    stop: StartJson | None = None
    max_records: Limit | None = None
    max_bytes: Limit | None = None
    as_tables: bool = False


class Follow(Some, kw_only=True):
    """What comes from some places on, and how long to wait for it."""

    position: dict[int, int]
    wait: float = 0


class OpenReader(Some):
    """A reader to open."""

    start: StartJson = "resume"


class Poll(Wire):
    """How many records to read, and how long to wait for one."""

    max_records: Limit = POLL_RECORDS_DEFAULT
    max_bytes: Limit | None = None
    wait: float = 0
    moves: dict[int, int] | None = None
    """Where to go on, where that is not where the last answer ended."""


class PollMember(Poll):
    """The same for a member of a group."""

    tokens: dict[int, int] | None = None
    """Of the partitions in `moves`: where one has another by now, it stays where it is."""
    approved: list[int] | None = None
    """What may be given up: whoever had to be told was told."""


class Seek(Wire):
    """Where to go on."""

    start: StartJson


class Offsets(Wire):
    """Offsets by partition."""

    offsets: dict[int, int]


class Join(Wire):
    """A member to be."""

    start: StartJson = "earliest"
    ttl: float = 60
    owner: str | None = None
    wants: list[Happening] = msgspec.field(default_factory=list)
    """What it is to be told of, before that happens or right after."""


class Reset(Wire):
    """Where a group is to begin."""

    start: StartJson


# What is answered ----------------------------------------------------------------------------


class PartitionCount(Answer):
    """How many partitions there are."""

    partitions: Count


class Place(Answer):
    """Where a record went."""

    partition: Count
    offset: Count

    def appended(self) -> Appended:
        """Return the answer as a value."""
        return Appended(self.partition, self.offset)


class Places(Answer):
    """Where records went."""

    places: list[Place]


class NumberedPlaces(Answer):
    """Where records went, null for those that were there already, and the highest number."""

    places: list[Place | None]
    last_sequence: Sequence


class LastSequence(Answer):
    """The highest sequence number, -1 if there is none."""

    last_sequence: Sequence


class RecordJson(Answer, omit_defaults=True):
    """A record. One without value is a tombstone."""

    partition: Count
    offset: Count
    timestamp_us: Integer
    key: str | None = None
    key_base64: bytes | None = None
    value: str | None = None
    value_base64: bytes | None = None
    headers: dict[str, str] | None = None

    def record(self) -> TopicRecord:
        """Return the record."""
        return TopicRecord(
            self.partition,
            self.offset,
            self.key_base64 if self.key is None else self.key.encode(),
            self.value_base64 if self.value is None else self.value.encode(),
            NO_HEADERS if self.headers is None else MappingProxyType(self.headers),
            self.timestamp_us,
        )


def record_json(record: TopicRecord) -> RecordJson:
    """Return a record as it is sent."""
    said = RecordJson(
        partition=record.partition, offset=record.offset, timestamp_us=record.timestamp_us
    )
    if record.key is not None:
        said.key, said.key_base64 = text_or_bytes(record.key)
    if record.value is not None:
        said.value, said.value_base64 = text_or_bytes(record.value)
    if record.headers:
        said.headers = dict(record.headers)
    return said


class Span(Answer):
    """What `Bounds` stand for: offsets by partition."""

    start: dict[int, Count]
    stop: dict[int, Count]


class Page(Answer):
    """Some records of what is read."""

    records: list[RecordJson]
    is_last: bool


class Opened(Answer):
    """The first records of what is read; null if there are no more."""

    session: str | None
    records: list[RecordJson]


class Followed(Answer):
    """What came, and where to go on."""

    records: list[RecordJson]
    position: dict[int, Count]


class Session(Answer):
    """What the server holds for a client from now on."""

    session: str


class ProducerSession(Session):
    """A producer's."""

    last_sequence: Sequence


class Position(Answer):
    """The offset of the next record, by partition."""

    position: dict[int, Count]


class ReaderSession(Session):
    """A reader's."""

    position: dict[int, Count]


class Told(Answer):
    """What a member has to be told of."""

    what: Happening
    partitions: list[int]


class Polled(Answer, omit_defaults=True):
    """What was polled, and how a reader or member stands after it."""

    position: dict[int, Count]
    records: list[RecordJson] = msgspec.field(default_factory=list)
    assignment: dict[int, int] | None = None
    """A member's partitions, each with its fencing token."""
    events: list[Told] = msgspec.field(default_factory=list)
    """What is to be told before the poll goes on: then nothing was polled yet."""


class MemberSession(Session):
    """A member's."""

    state: Polled
