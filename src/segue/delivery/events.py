"""What happens to the messages of a queue, as records of its ledger.

Each event is one record: its kind in the low byte of the attr, its fields little-endian in the
payload. Lanes and offsets say which messages; a *run* is several neighbours. The last kinds occur
only in checkpoints, which say the whole state as a list of events.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple

ASIDE: Final = 0xFFFF_FFFF
"""The lane of messages that were pushed with a delay: they wait aside, not in line."""

IN_ASIDE: Final = 1
IN_DEAD: Final = 2
"""Which log a message was moved to."""

REASON_BYTES_MAX: Final = 1024
OWNER_BYTES_MAX: Final = 255
CHECKPOINT: Final = 0x100
"""Set in the attr of the events that make up a checkpoint."""


class Cause(IntEnum):
    """Why a message came back, or was given up."""

    RELEASED = 0
    FAILED = 1
    EXPIRED = 2
    DEAD = 3
    OUTLIVED = 4
    REDRIVEN = 5
    HELD = 6
    """It never left: it waits in its place until it is its group's turn."""


class How(IntEnum):
    """How a message was settled."""

    ACKED = 0
    OUTLIVED = 1
    DROPPED = 3
    LOST = 4
    DAMAGED = 5


class Run(NamedTuple):
    """Neighbours in a lane."""

    lane: int
    first: int
    size: int


class Take(NamedTuple):
    """Neighbours in a lane that are delivered together, for the same time each."""

    lane: int
    first: int
    size: int
    attempt: int
    since: int
    """The attempt after which the deliveries were counted anew."""


class Leased(NamedTuple):
    """Messages were handed out until a deadline."""

    token: int
    deadline_us: int
    owner: bytes
    takes: tuple[Take, ...]


class Settled(NamedTuple):
    """Messages are done with."""

    token: int
    how: int
    runs: tuple[Run, ...]


class Popped(NamedTuple):
    """Messages were handed out for good."""

    takes: tuple[Take, ...]


class Returned(NamedTuple):
    """A lease ended without success."""

    token: int
    cause: int
    not_before_us: int
    reason: bytes
    runs: tuple[Run, ...]


class Extended(NamedTuple):
    """A lease ends later."""

    token: int
    deadline_us: int
    runs: tuple[Run, ...]


class Buried(NamedTuple):
    """A message went to the dead letters."""

    lane: int
    offset: int
    dead_offset: int
    cause: int


class Revived(NamedTuple):
    """A dead letter is to be delivered again."""

    dead_offset: int
    lane: int
    offset: int
    priority: int
    attempt: int


class Discarded(NamedTuple):
    """Dead letters were dropped."""

    first: int
    size: int


class Deferred(NamedTuple):
    """Messages pushed with a delay were seen: offset aside, priority, not before."""

    items: tuple[tuple[int, int, int], ...]
    start: int
    upto: int


class Carried(NamedTuple):
    """A message was moved out of an old segment."""

    lane: int
    offset: int
    at: int


class Passed(NamedTuple):
    """Messages that are settled without having been delivered."""

    lane: int
    first: int
    size: int
    how: int


class Purged(NamedTuple):
    """All that waits before these ends of lanes was dropped."""

    ends: tuple[tuple[int, int], ...]


class Rewound(NamedTuple):
    """A lane is delivered from here on."""

    lane: int
    cursor: int


class Configured(NamedTuple):
    """The queue has these rules."""

    rules: bytes


class Paused(NamedTuple):
    """Delivery stops, or goes on."""

    paused: int


class Opened(NamedTuple):
    """A lane was made."""

    lane: int


class Booted(NamedTuple):
    """The machine was started: nobody holds anything any more."""

    boot: int
    epoch: int


class Keyed(NamedTuple):
    """A deduplication key stands for a message until then."""

    digest: bytes
    until_us: int
    lane: int
    offset: int


class Keying(NamedTuple):
    """Messages with these keys are about to be pushed: digest, lane, and the lane's end before.

    `Keyed` follows for each. If it does not, whoever wrote this was killed, and the messages may
    be there or not. None at all means that this has been looked into.
    """

    intents: tuple[tuple[bytes, int, int], ...]


class Removed(NamedTuple):
    """The queue is to be deleted: nobody may push to it any more."""


class Grouped(NamedTuple):
    """Neighbours in a lane belong to these groups. What was new among them waits for its turn."""

    lane: int
    first: int
    started: int
    """Whether they were delivered and returned, and so come before others of their groups."""
    digests: tuple[bytes, ...]


class Metered(NamedTuple):
    """Messages are about to be delivered: when the next is due by the queue's rate, in ticks."""

    due_ns: int


class Parked(NamedTuple):
    """A message waits."""

    lane: int
    offset: int
    priority: int
    attempt: int
    since: int
    not_before_us: int
    cause: int
    reason: bytes


class Placed(NamedTuple):
    """A message lies elsewhere."""

    lane: int
    offset: int
    where: int
    at: int


class Kept(NamedTuple):
    """These are dead letters."""

    first: int
    size: int


class Counted(NamedTuple):
    """What has been counted so far."""

    totals: bytes
    aside_next: int


class Ended(NamedTuple):
    """The checkpoint is complete, if it has so many events."""

    size: int


Event = (
    Leased
    | Settled
    | Popped
    | Returned
    | Extended
    | Buried
    | Revived
    | Discarded
    | Deferred
    | Carried
    | Passed
    | Purged
    | Rewound
    | Configured
    | Paused
    | Opened
    | Booted
    | Keyed
    | Keying
    | Removed
    | Grouped
    | Metered
    | Parked
    | Placed
    | Kept
    | Counted
    | Ended
)

_RUN = struct.Struct("<IQI")
_TAKE = struct.Struct("<IQIII")
_PAIR = struct.Struct("<IQ")
_DEFERRED = struct.Struct("<QIq")
_LEASED = struct.Struct("<QqB")
_SETTLED = struct.Struct("<QB")
_RETURNED = struct.Struct("<QBqH")
_EXTENDED = struct.Struct("<Qq")
_PARKED = struct.Struct("<IQIIIqBH")
_U64 = struct.Struct("<Q")
_EXTENT = struct.Struct("<QQ")
_INTENT = struct.Struct("<16sIQ")
_GROUPED = struct.Struct("<IQB")
_DIGEST = struct.Struct("<16s")

pack_run = _RUN.pack
pack_take = _TAKE.pack


def pack_lease(token: int, deadline_us: int, owner: bytes, lane: int, offset: int) -> bytes:
    """Return the payload of a lease of one message that is new."""
    length = len(owner)
    return _leased_one(length).pack(token, deadline_us, length, owner, lane, offset, 1, 1, 0)


@cache
def _leased_one(owner_bytes: int) -> struct.Struct:
    return struct.Struct(f"<QqB{owner_bytes}sIQIII")


pack_settlement = struct.Struct("<QBIQI").pack
"""Returns the payload of a settlement of one run: token, how, lane, first offset, size."""


def _runs(runs: tuple[Run, ...]) -> bytes:
    return b"".join([pack_run(*run) for run in runs])


def _takes(takes: tuple[Take, ...]) -> bytes:
    return b"".join([pack_take(*take) for take in takes])


def _read_runs(payload: bytes, start: int) -> tuple[Run, ...]:
    return tuple(Run._make(run) for run in _RUN.iter_unpack(payload[start:]))


def _read_takes(payload: bytes, start: int) -> tuple[Take, ...]:
    return tuple(Take._make(take) for take in _TAKE.iter_unpack(payload[start:]))


def _encode_leased(event: Leased) -> bytes:
    token, deadline_us, owner, takes = event
    return _LEASED.pack(token, deadline_us, len(owner)) + owner + _takes(takes)


def _decode_leased(payload: bytes) -> Leased:
    token, deadline_us, length = _LEASED.unpack_from(payload)
    start = _LEASED.size + length
    return Leased(token, deadline_us, payload[_LEASED.size : start], _read_takes(payload, start))


def _encode_settled(event: Settled) -> bytes:
    token, how, runs = event
    return _SETTLED.pack(token, how) + _runs(runs)


def _decode_settled(payload: bytes) -> Settled:
    token, how = _SETTLED.unpack_from(payload)
    return Settled(token, how, _read_runs(payload, _SETTLED.size))


def _encode_returned(event: Returned) -> bytes:
    token, cause, not_before_us, reason, runs = event
    return _RETURNED.pack(token, cause, not_before_us, len(reason)) + reason + _runs(runs)


def _decode_returned(payload: bytes) -> Returned:
    token, cause, not_before_us, length = _RETURNED.unpack_from(payload)
    start = _RETURNED.size + length
    reason = payload[_RETURNED.size : start]
    return Returned(token, cause, not_before_us, reason, _read_runs(payload, start))


def _encode_extended(event: Extended) -> bytes:
    return _EXTENDED.pack(event.token, event.deadline_us) + _runs(event.runs)


def _decode_extended(payload: bytes) -> Extended:
    token, deadline_us = _EXTENDED.unpack_from(payload)
    return Extended(token, deadline_us, _read_runs(payload, _EXTENDED.size))


def _encode_deferred(event: Deferred) -> bytes:
    items = b"".join(_DEFERRED.pack(*item) for item in event.items)
    return _EXTENT.pack(event.start, event.upto) + items


def _decode_deferred(payload: bytes) -> Deferred:
    start, upto = _EXTENT.unpack_from(payload)
    return Deferred(tuple(_DEFERRED.iter_unpack(payload[_EXTENT.size :])), start, upto)


def _encode_purged(event: Purged) -> bytes:
    return b"".join(_PAIR.pack(*end) for end in event.ends)


def _encode_keying(event: Keying) -> bytes:
    return b"".join(_INTENT.pack(*intent) for intent in event.intents)


def _encode_grouped(event: Grouped) -> bytes:
    return _GROUPED.pack(*event[:-1]) + b"".join(_DIGEST.pack(each) for each in event.digests)


def _decode_grouped(payload: bytes) -> Grouped:
    digests = tuple(digest for (digest,) in _DIGEST.iter_unpack(payload[_GROUPED.size :]))
    lane, first, started = _GROUPED.unpack_from(payload)
    return Grouped(lane, first, started, digests)


def _encode_parked(event: Parked) -> bytes:
    return _PARKED.pack(*event[:-1], len(event.reason)) + event.reason


def _decode_parked(payload: bytes) -> Parked:
    *fields, length = _PARKED.unpack_from(payload)
    return Parked._make((*fields, payload[_PARKED.size : _PARKED.size + length]))


def _encode_counted(event: Counted) -> bytes:
    return _U64.pack(event.aside_next) + event.totals


def _plain(kind: type[Event], layout: str) -> "_Codec":
    """Return the codec of an event that is a few numbers."""
    packer = struct.Struct(layout)
    make: Callable[..., Event] = kind
    return lambda event: packer.pack(*event), lambda payload: make(*packer.unpack(payload))


_Codec = tuple[Callable[..., bytes], Callable[[bytes], Event]]

_CODECS: Final[dict[int, tuple[type[Event], _Codec]]] = {
    1: (Leased, (_encode_leased, _decode_leased)),
    2: (Settled, (_encode_settled, _decode_settled)),
    3: (Popped, (lambda event: _takes(event.takes), lambda data: Popped(_read_takes(data, 0)))),
    4: (Returned, (_encode_returned, _decode_returned)),
    5: (Extended, (_encode_extended, _decode_extended)),
    6: (Buried, _plain(Buried, "<IQQB")),
    7: (Revived, _plain(Revived, "<QIQII")),
    8: (Discarded, _plain(Discarded, "<QQ")),
    9: (Deferred, (_encode_deferred, _decode_deferred)),
    10: (Carried, _plain(Carried, "<IQQ")),
    11: (Passed, _plain(Passed, "<IQIB")),
    12: (Purged, (_encode_purged, lambda data: Purged(tuple(_PAIR.iter_unpack(data))))),
    13: (Rewound, _plain(Rewound, "<IQ")),
    14: (Configured, (lambda event: event.rules, Configured)),
    15: (Paused, _plain(Paused, "<B")),
    16: (Opened, _plain(Opened, "<I")),
    17: (Booted, _plain(Booted, "<QI")),
    18: (Keyed, _plain(Keyed, "<16sqIQ")),
    19: (Removed, (lambda _: b"", lambda _: Removed())),
    20: (Keying, (_encode_keying, lambda data: Keying(tuple(_INTENT.iter_unpack(data))))),
    21: (Grouped, (_encode_grouped, _decode_grouped)),
    22: (Metered, _plain(Metered, "<q")),
    32: (Parked, (_encode_parked, _decode_parked)),
    33: (Placed, _plain(Placed, "<IQBQ")),
    34: (Kept, _plain(Kept, "<QQ")),
    35: (Counted, (_encode_counted, lambda data: Counted(data[8:], *_U64.unpack_from(data)))),
    36: (Ended, _plain(Ended, "<Q")),
}
_ENCODERS: Final = {kind: (number, codec[0]) for number, (kind, codec) in _CODECS.items()}
_DECODERS: Final = {number: codec[1] for number, (_, codec) in _CODECS.items()}

LEASED: Final = 1
SETTLED: Final = 2


def encode(event: Event) -> tuple[bytes, int]:
    """Return the payload and the attr of an event's record."""
    number, encoder = _ENCODERS[type(event)]
    return encoder(event), number


def decode(payload: bytes, attr: int) -> Event | None:
    """Return the event a record holds, or None if this version knows no such event."""
    decoder = _DECODERS.get(attr & 0xFF)
    if decoder is None:
        return None
    try:
        return decoder(payload)
    except (struct.error, ValueError, TypeError):
        return None
