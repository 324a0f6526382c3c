"""Events of the ledger are read as they were written, and nothing else is read as one."""

from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from segue.delivery import events
from segue.delivery.events import (
    CHECKPOINT,
    LEASED,
    OWNER_BYTES_MAX,
    REASON_BYTES_MAX,
    SETTLED,
    Event,
    Run,
    Take,
    decode,
    encode,
    pack_lease,
    pack_settlement,
)

U8 = st.integers(min_value=0, max_value=(1 << 8) - 1)
U32 = st.integers(min_value=0, max_value=(1 << 32) - 1)
U64 = st.integers(min_value=0, max_value=(1 << 64) - 1)
I64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
OWNERS = st.binary(max_size=OWNER_BYTES_MAX)
REASONS = st.binary(max_size=40) | st.just(b"x" * REASON_BYTES_MAX)
RUNS = st.lists(st.builds(Run, U32, U64, U32), max_size=4).map(tuple)
TAKES = st.lists(st.builds(Take, U32, U64, U32, U32, U32), max_size=4).map(tuple)

EVENTS: Final[dict[type[Event], st.SearchStrategy[Event]]] = {
    events.Leased: st.builds(events.Leased, U64, I64, OWNERS, TAKES),
    events.Settled: st.builds(events.Settled, U64, U8, RUNS),
    events.Popped: st.builds(events.Popped, TAKES),
    events.Returned: st.builds(events.Returned, U64, U8, I64, REASONS, RUNS),
    events.Extended: st.builds(events.Extended, U64, I64, RUNS),
    events.Buried: st.builds(events.Buried, U32, U64, U64, U8),
    events.Revived: st.builds(events.Revived, U64, U32, U64, U32, U32),
    events.Discarded: st.builds(events.Discarded, U64, U64),
    events.Deferred: st.builds(
        events.Deferred, st.lists(st.tuples(U64, U32, I64), max_size=4).map(tuple), U64, U64
    ),
    events.Carried: st.builds(events.Carried, U32, U64, U64),
    events.Passed: st.builds(events.Passed, U32, U64, U32, U8),
    events.Purged: st.builds(events.Purged, st.lists(st.tuples(U32, U64), max_size=4).map(tuple)),
    events.Rewound: st.builds(events.Rewound, U32, U64),
    events.Configured: st.builds(events.Configured, st.binary(max_size=40)),
    events.Paused: st.builds(events.Paused, U8),
    events.Opened: st.builds(events.Opened, U32),
    events.Booted: st.builds(events.Booted, U64, U32),
    events.Keyed: st.builds(events.Keyed, st.binary(min_size=16, max_size=16), I64, U32, U64),
    events.Keying: st.builds(
        events.Keying,
        st.lists(st.tuples(st.binary(min_size=16, max_size=16), U32, U64), max_size=4).map(tuple),
    ),
    events.Removed: st.builds(events.Removed),
    events.Grouped: st.builds(
        events.Grouped,
        U32,
        U64,
        U8,
        st.lists(st.binary(min_size=16, max_size=16), max_size=4).map(tuple),
    ),
    events.Metered: st.builds(events.Metered, I64),
    events.Parked: st.builds(events.Parked, U32, U64, U32, U32, U32, I64, U8, REASONS),
    events.Placed: st.builds(events.Placed, U32, U64, U8, U64),
    events.Kept: st.builds(events.Kept, U64, U64),
    events.Counted: st.builds(events.Counted, st.binary(max_size=40), U64),
    events.Ended: st.builds(events.Ended, U64),
}
ANY_EVENT: st.SearchStrategy[Event] = st.one_of(*EVENTS.values())


def test_every_event_is_tested() -> None:
    """A new kind of event needs a line here."""
    assert set(EVENTS) == set(Event.__args__)


@given(st.lists(ANY_EVENT, min_size=5, max_size=20))
def test_an_event_is_read_as_it_was_written(written: list[Event]) -> None:
    """Whatever it says; also where it is part of a checkpoint."""
    for event in written:
        payload, attr = encode(event)

        assert decode(payload, attr) == event
        assert type(decode(payload, attr | CHECKPOINT)) is type(event)


@given(st.lists(ANY_EVENT, max_size=20))
def test_kinds_are_told_apart_by_their_number(written: list[Event]) -> None:
    """Two kinds never share one, and one kind never has two."""
    numbers = {(type(event), encode(event)[1]) for event in written}

    assert len({kind for kind, _ in numbers}) == len({number for _, number in numbers})
    assert all(0 < number < CHECKPOINT for _, number in numbers)


@given(st.binary(max_size=80), st.integers(min_value=0, max_value=(1 << 64) - 1))
@example(b"", 35)
@example(b"\xff" * 30, 1)
@example(b"\xff" * 17, 4)
def test_garbage_is_no_event_or_some_event(payload: bytes, attr: int) -> None:
    """Reading never fails: what makes no sense says nothing."""
    decode(payload, attr)


@given(ANY_EVENT, st.integers(min_value=0, max_value=100))
def test_half_an_event_does_no_harm(event: Event, cut: int) -> None:
    """Reading a part of what was written never fails."""
    payload, attr = encode(event)
    decode(payload[: cut % (len(payload) + 1)], attr)


@given(U64, I64, OWNERS, U32, U64)
def test_the_quick_way_to_write_a_lease_writes_the_same(
    token: int, deadline_us: int, owner: bytes, lane: int, offset: int
) -> None:
    """The commonest event has a packer of its own."""
    event = events.Leased(token, deadline_us, owner, (Take(lane, offset, 1, 1, 0),))

    assert encode(event) == (pack_lease(token, deadline_us, owner, lane, offset), LEASED)


@given(U64, U32, U64)
def test_the_quick_way_to_write_an_ack_writes_the_same(token: int, lane: int, offset: int) -> None:
    """And so has the second."""
    event = events.Settled(token, events.How.ACKED, (Run(lane, offset, 1),))

    assert encode(event) == (pack_settlement(token, 0, lane, offset, 1), SETTLED)
