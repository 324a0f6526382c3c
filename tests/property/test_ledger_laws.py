"""The ledger: replay equals state, a checkpoint equals replay, and a gap loses no message."""

import itertools
from typing import Final

import pytest
from hypothesis import assume, example, given, note, settings
from hypothesis import strategies as st

from segue import QueueRules
from segue.delivery import events
from segue.delivery.events import ASIDE, Cause, Event, How, Leased, Run, Settled, Take
from segue.delivery.ledger import Ledger
from segue.delivery.life import TRANSITIONS, State
from segue.delivery.lines import Grant, Level, Rest
from segue.delivery.message import Key
from segue.delivery.ranges import OffsetRanges
from tests.property.clerk import Clerk, replayed

STEPS: Final = (
    "push",
    "push aside",
    "push grouped",
    "push grouped aside",
    "meter",
    "lease",
    "pop",
    "put back",
    "ack",
    "release",
    "fail",
    "bury",
    "extend",
    "outlive",
    "drop",
    "revive",
    "discard",
    "purge",
    "key",
    "pause",
    "time",
)
WEIGHTS: Final = {
    "push": 3,
    "push grouped": 4,
    "lease": 4,
    "ack": 3,
    "fail": 3,
    "time": 3,
    "bury": 2,
    "revive": 2,
}
Step = tuple[str, int, int]
DONE: Final = (State.SETTLED, State.DEAD)
SCRIPTS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from([step for step in STEPS for _ in range(WEIGHTS.get(step, 1))]),
        st.integers(min_value=0, max_value=31),
        st.integers(min_value=0, max_value=7),
    ),
    min_size=5,
    max_size=40,
)


def perform(script: list[Step], places: int = 1) -> Clerk:
    """Do what the script says, as a queue with at most two deliveries would."""
    clerk = Clerk()
    rules = QueueRules(max_deliveries=2, group_concurrency=places)
    clerk.write(events.Booted(7, 1))
    clerk.write(events.Configured(rules.to_json().encode()))
    for step, number, amount in script:
        clerk.begin()
        do(clerk, step, number, amount)
    clerk.begin()
    return clerk


def do(clerk: Clerk, step: str, number: int, amount: int) -> None:  # noqa: PLR0912
    held = clerk.held()
    key, grant = held[number % len(held)] if held else (None, None)
    match step:
        case "push":
            clerk.push(number % 3, amount + 1)
        case "push aside":
            clerk.push_aside(number % 4, 10 * amount + 1)
        case "push grouped":
            clerk.push(number % 3, amount % 3 + 1, bytes([number % 2] * 16))
        case "push grouped aside":
            clerk.push_aside(number % 4, 10 * amount + 1, bytes([number % 2] * 16))
        case "meter":
            clerk.write(events.Metered(number))
        case "lease":
            clerk.lease(amount + 1, 10 + number)
        case "pop":
            clerk.pop(amount + 1)
        case "put back":
            clerk.put_back(amount + 1)
        case "outlive":
            clerk.outlive(drop=bool(amount % 2))
        case "drop":
            clerk.drop_oldest()
        case "revive":
            clerk.revive(number)
        case "discard":
            clerk.discard()
        case "purge" if number < 8:
            clerk.purge()
        case "key":
            clerk.key_a_message(number)
        case "pause":
            clerk.write(events.Paused(amount % 2))
        case "time":
            clerk.now_us += 5 * amount
            clerk.ticks_us += 5 * amount
    if key is None or grant is None:
        return
    match step:
        case "ack":
            clerk.ack(key, grant)
        case "release":
            clerk.give_back(key, grant, Cause.RELEASED, 10 * (amount % 3))
        case "fail":
            clerk.give_back(key, grant, Cause.FAILED, 10 * (amount % 4))
        case "bury":
            clerk.give_back(key, grant, Cause.DEAD, 0)
        case "extend":
            clerk.extend(key, grant, 40)


def answers(ledger: Ledger, clerk: Clerk) -> dict[str, object]:
    """Return all that anybody ever asks a ledger."""
    ledger.promote(clerk.now_us)
    ledger.forget_keys(clerk.now_us)
    grants = ledger.grants_by_deadline(1_000)
    return {
        "counts": (ledger.ready, ledger.delayed, ledger.leased, len(ledger.dead)),
        "waiting": list(ledger.waiting(clerk.end_of)),
        "states": {key: ledger.state_of(key, clerk.end_of(key.lane)) for key in clerk.messages()},
        "leases": sorted(
            (grant.lane, offset, grant.token, grant.deadline_us, grant.attempt, grant.since)
            for grant in grants
            for offset in ledger.held(grant)
        ),
        "first to end": getattr(ledger.first_ending(), "deadline_us", None),
        "rests": {
            key: (rest.priority, rest.attempt, rest.since, rest.cause, rest.reason)
            for key in clerk.messages()
            if isinstance(rest := ledger.find(key), Rest)
        },
        "ready": {priority: level.ready_count for priority, level in ledger.levels.items()},
        "floors": {priority: ledger.floor(priority) for priority in ledger.order},
        "aside": (ledger.has_aside, ledger.aside_next, ledger.aside_floor()),
        "missing aside": ledger.aside_missing.runs(),
        "dead": (ledger.dead.runs(), ledger.dead_floor(clerk.dead_end)),
        "places": ledger.places,
        "keys": (ledger.keys, ledger.keying),
        "groups": {
            digest: (group.members, group.leased, group.started)
            for digest, group in ledger.groups.by_digest.items()
        },
        "due": ledger.due_ns,
        "rules": (ledger.rules, ledger.is_configured, ledger.paused, ledger.boot, ledger.epoch),
        "totals": {name: total for name, total in ledger.totals.items() if total},
    }


def recount(ledger: Ledger) -> dict[str, int]:
    """Count anew what the ledger has counted on the way."""
    items = [*ledger.aside.values()]
    for level in ledger.levels.values():
        items += level.items.values()
    grants = [item for item in items if isinstance(item, Grant)]
    rests = [item for item in items if isinstance(item, Rest)]
    return {
        "leased": len(grants),
        "grants": len({id(grant) for grant in grants}),
        "ready": sum(rest.is_ready for rest in rests),
        "delayed": sum(not rest.is_ready for rest in rests),
    }


def expect_a_true_count(ledger: Ledger) -> None:
    counted = {
        "leased": ledger.leased,
        "grants": ledger.grants,
        "ready": ledger.ready,
        "delayed": ledger.delayed,
    }
    assert counted == recount(ledger)
    assert ledger.ready == sum(level.ready_count for level in ledger.levels.values())
    expect_true_groups(ledger)
    assert len(ledger.dead) == len(list(ledger.dead))


def expect_true_groups(ledger: Ledger) -> None:
    groups = ledger.groups
    assert sum(group.members for group in groups.by_digest.values()) == len(groups.of)
    assert {id(group) for group in groups.of.values()} == set(map(id, groups.by_digest.values()))
    rests = held = 0
    for key, group in groups.of.items():
        found = ledger.find(key)
        assert found is not None
        assert (key in group.leased) == isinstance(found, Grant)
        rests += isinstance(found, Rest)
        held += isinstance(found, Rest) and found.is_held
    for group in groups.by_digest.values():
        assert group.leased <= group.started <= set(groups.of)
    assert ledger.held_back == held <= rests


# Replay ------------------------------------------------------------------------------------


@given(SCRIPTS)
def test_every_change_is_in_the_table(script: list[Step]) -> None:
    """The life of a message is the table in life.py and nothing else."""
    for before, happening, after in perform(script).changes:
        assert after in TRANSITIONS.get((before, happening), ()), (before, happening, after)


@given(SCRIPTS)
def test_replay_equals_state(script: list[Step]) -> None:
    """Whoever reads the same events knows the same, and what is counted is there."""
    clerk = perform(script)
    again = replayed(clerk.written)

    assert answers(again, clerk) == answers(clerk.ledger, clerk)
    expect_a_true_count(again)
    expect_a_true_count(clerk.ledger)


@given(SCRIPTS, SCRIPTS)
def test_a_checkpoint_equals_replay(script: list[Step], following: list[Step]) -> None:
    """Its events, applied to an empty ledger, give the same answers now and ever after."""
    clerk = perform(script)
    copy = replayed(clerk.ledger.checkpoint())
    assert answers(copy, clerk) == answers(clerk.ledger, clerk)
    expect_a_true_count(copy)
    done = len(clerk.written)
    for step, number, amount in following:
        clerk.begin()
        do(clerk, step, number, amount)
        # What is due becomes ready with the clock, not with an event.
        copy.promote(clerk.now_us)
    for event in clerk.written[done:]:
        copy.apply(event)

    assert answers(copy, clerk) == answers(clerk.ledger, clerk)


@given(SCRIPTS)
def test_a_checkpoint_of_a_checkpoint_is_the_same(script: list[Step]) -> None:
    """It may be written as often as one likes."""
    clerk = perform(script)
    once = replayed(clerk.ledger.checkpoint())
    twice = replayed(once.checkpoint())

    assert answers(twice, clerk) == answers(once, clerk)


@given(SCRIPTS, st.integers(min_value=1, max_value=9))
def test_taking_and_putting_back_changes_nothing(script: list[Step], count: int) -> None:
    """An answer that came to nothing leaves no trace."""
    clerk = perform(script)
    before = answers(clerk.ledger, clerk)
    taken = clerk.ledger.take(count, clerk.end_of)
    clerk.ledger.put_back(taken)

    assert sum(take.size for take in taken) <= count
    assert answers(clerk.ledger, clerk) == before


# Groups ------------------------------------------------------------------------------------


def work_off(clerk: Clerk, places: int) -> list[Key]:
    """Deliver and settle all there is, as time goes on; return it in the order of deliveries."""
    done: list[Key] = []
    while True:
        clerk.now_us += 1_000
        clerk.ticks_us += 1_000
        clerk.begin()
        taken = clerk.lease(3, 10)
        keys = [Key(lane, first + n) for lane, first, size, *_ in taken for n in range(size)]
        for group in clerk.ledger.groups.by_digest.values():
            assert len(group.leased) <= places
        if not keys:
            return done
        for key in keys:
            found = clerk.ledger.find(key)
            assert isinstance(found, Grant)
            clerk.ack(key, found)
        done += keys


@given(SCRIPTS, st.integers(min_value=1, max_value=3))
def test_groups_come_in_order_and_nobody_is_stuck(script: list[Step], places: int) -> None:
    """Whatever has happened before: in the end all there is has come, or died of an old lease."""
    clerk = perform(script, places)
    clerk.write(events.Paused(0))
    waiting = [key for key in clerk.messages() if clerk.state_of(key) not in DONE]
    new = {key for key in waiting if clerk.ledger.find(key) is None}
    done = work_off(clerk, places)

    dead = [key for key in waiting if clerk.state_of(key) is State.DEAD]
    assert sorted(done + dead) == sorted(waiting)
    assert not clerk.ledger.groups.by_digest
    assert clerk.ledger.held_back == 0
    lanes: dict[tuple[bytes, int], list[int]] = {}
    for key in done:
        if key in new and key in clerk.groups and key.lane != ASIDE:
            lanes.setdefault((clerk.groups[key], key.lane), []).append(key.offset)
    assert all(offsets == sorted(offsets) for offsets in lanes.values())


@given(SCRIPTS, st.integers(min_value=0, max_value=10_000))
def test_nobody_is_stuck_when_an_event_is_missing(script: list[Step], number: int) -> None:
    """Nor is any group: who has a place is there to be settled."""
    clerk = perform(script)
    written = list(clerk.written)
    missing = written.pop(number % len(written))
    note(f"missing {missing}")
    assume(not isinstance(missing, events.Deferred | events.Opened | events.Configured))
    clerk.ledger = replayed(written)
    clerk.dead = {}
    clerk.ledger.apply(events.Paused(0))
    work_off(clerk, 100)

    assert not clerk.ledger.groups.by_digest
    assert all(clerk.state_of(key) in DONE for key in clerk.messages())
    expect_a_true_count(clerk.ledger)


# Gaps --------------------------------------------------------------------------------------


def test_a_settlement_whose_lease_is_missing_settles_only_its_own() -> None:
    """Of ten that were leased one is acked; without the lease the others are still there."""
    ledger = replayed([events.Opened(0), Settled(9, How.ACKED, (Run(0, 5, 1),))])
    states = [ledger.state_of(Key(0, offset), 10) for offset in range(10)]

    assert states == [State.READY] * 5 + [State.SETTLED] + [State.READY] * 4


def test_a_death_whose_lease_is_missing_takes_only_its_own() -> None:
    """The same for a dead letter."""
    ledger = replayed([events.Opened(0), events.Buried(0, 5, 0, Cause.DEAD)])
    states = [ledger.state_of(Key(0, offset), 10) for offset in range(10)]

    assert states == [State.READY] * 5 + [State.SETTLED] + [State.READY] * 4


@settings(max_examples=2 * settings().max_examples)
@given(SCRIPTS, st.integers(min_value=0, max_value=10_000))
@example(
    [("push", 0, 7), ("lease", 0, 7), ("ack", 5, 0)],
    3,
)
def test_a_missing_event_loses_no_message(script: list[Step], number: int) -> None:
    """C6: what it would have settled is delivered again; nothing else changes for the worse."""
    clerk = perform(script)
    written = list(clerk.written)
    missing = written.pop(number % len(written))
    note(f"missing {missing}")
    # Where a message lies, and that it waits aside, is said once: the store looks after that.
    assume(not isinstance(missing, events.Deferred | events.Opened))
    ledger = replayed(written)
    expect_a_true_count(ledger)
    gone = set(itertools.chain.from_iterable(keys_settled_by(event) for event in written))
    for key in clerk.messages():
        state = ledger.state_of(key, clerk.end_of(key.lane))
        assert state is not State.SETTLED or key in gone, key


def keys_settled_by(event: Event) -> list[Key]:
    """Return the messages that an event ends, or moves to the dead letters."""
    match event:
        case Settled(_, _, runs):
            return [Key(lane, first + place) for lane, first, size in runs for place in range(size)]
        case events.Popped(takes):
            return [Key(take.lane, take.first + n) for take in takes for n in range(take.size)]
        case events.Passed(lane, first, size, _):
            return [Key(lane, first + place) for place in range(size)]
        case events.Buried(lane, offset, _, _):
            return [Key(lane, offset)]
        case events.Purged(ends):
            return [Key(lane, offset) for lane, end in ends for offset in range(end)]
    return []


# Anything ----------------------------------------------------------------------------------

LANES = st.sampled_from([0, 1, 5, ASIDE])
OFFSETS = st.integers(min_value=0, max_value=12)
SIZES = st.integers(min_value=1, max_value=4)
TOKENS = st.integers(min_value=0, max_value=5)
TIMES = st.integers(min_value=0, max_value=30)
RUNS = st.lists(st.builds(Run, LANES, OFFSETS, SIZES), max_size=3).map(tuple)
TAKES = st.lists(st.builds(Take, LANES, OFFSETS, SIZES, SIZES, SIZES), max_size=3).map(tuple)
CAUSES = st.integers(min_value=0, max_value=9)
WORDS = st.sampled_from([b"", b"why", b"\xff", b"{}", b"[]", b"null", b'{"acked": 3}', b'{"x'])

HAPPENINGS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Leased, TOKENS, TIMES, WORDS, TAKES),
    st.builds(Settled, TOKENS, CAUSES, RUNS),
    st.builds(events.Popped, TAKES),
    st.builds(events.Returned, TOKENS, CAUSES, TIMES, WORDS, RUNS),
    st.builds(events.Extended, TOKENS, TIMES, RUNS),
    st.builds(events.Buried, LANES, OFFSETS, OFFSETS, CAUSES),
    st.builds(events.Revived, OFFSETS, LANES, OFFSETS, SIZES, SIZES),
    st.builds(events.Discarded, OFFSETS, SIZES),
    st.builds(
        lambda offsets, priority, time: events.Deferred(
            tuple((offset, priority, time) for offset in sorted(offsets)),
            min(offsets),
            max(offsets) + 1,
        ),
        st.sets(OFFSETS, min_size=1, max_size=3),
        SIZES,
        TIMES,
    ),
    st.builds(events.Carried, LANES, OFFSETS, OFFSETS),
    st.builds(events.Passed, LANES, OFFSETS, SIZES, CAUSES),
    st.builds(events.Purged, st.lists(st.tuples(LANES, OFFSETS), max_size=3).map(tuple)),
    st.builds(events.Rewound, LANES, OFFSETS),
    st.builds(events.Configured, WORDS),
    st.builds(events.Paused, SIZES),
    st.builds(events.Opened, LANES),
    st.builds(events.Booted, TOKENS, TOKENS),
    st.builds(events.Keyed, st.just(b"k" * 16), TIMES, LANES, OFFSETS),
    st.builds(events.Keying, st.lists(st.tuples(st.just(b"k" * 16), LANES, OFFSETS)).map(tuple)),
    st.builds(events.Removed),
    st.builds(
        events.Grouped,
        LANES,
        OFFSETS,
        st.integers(min_value=0, max_value=1),
        st.lists(st.sampled_from([b"a" * 16, b"b" * 16]), max_size=3).map(tuple),
    ),
    st.builds(events.Metered, TIMES),
)
OF_CHECKPOINTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(events.Parked, LANES, OFFSETS, SIZES, SIZES, SIZES, TIMES, CAUSES, WORDS),
    st.builds(events.Placed, LANES, OFFSETS, SIZES, OFFSETS),
    st.builds(events.Kept, OFFSETS, SIZES),
    st.builds(events.Counted, WORDS, OFFSETS),
    st.builds(events.Ended, SIZES),
)


def end_of(_: int) -> int:
    return 13


@pytest.mark.parametrize(
    "written",
    [
        # The death of an outlived message is missing; then it is redriven, then delivered as new.
        [events.Revived(0, 0, 0, 0, 1), Leased(1, 9, b"", (Take(0, 0, 1, 1, 0),))],
        # That it waits aside is missing; it was leased when the store looks again and says so.
        [Leased(1, 9, b"", (Take(ASIDE, 0, 1, 1, 0),)), events.Deferred(((0, 1, 5),), 0, 1)],
        # That the lane was rewound is missing; what is leased then lies around the cursor.
        [
            events.Passed(0, 0, 2, How.DROPPED),
            Leased(1, 9, b"", (Take(0, 0, 4, 1, 0),)),
            Leased(2, 9, b"", (Take(0, 4, 1, 1, 0),)),
            Leased(3, 9, b"", (Take(0, 2, 1, 2, 0),)),
        ],
    ],
    ids=["death", "aside", "rewound"],
)
def test_what_is_counted_is_there_whatever_is_missing(written: list[Event]) -> None:
    """A count that is wrong once is wrong for ever: nobody counts anew."""
    ledger = replayed(written)
    for ticks_us in (20, 40):
        for grant in ledger.overdue(ticks_us):
            runs = tuple(Run(grant.lane, offset, 1) for offset in ledger.held(grant))
            ledger.apply(events.Returned(grant.token, Cause.EXPIRED, 0, b"", runs))

    expect_a_true_count(ledger)
    assert ledger.leased == 0


@given(st.lists(HAPPENINGS, max_size=25), TIMES)
def test_events_in_any_order_are_taken_in(written: list[Event], now: int) -> None:
    """Applying never fails, nor does asking, whatever was lost or came twice."""
    ledger = Ledger()
    for event in written:
        ledger.apply(event)
        ledger.promote(now)
        for grant in ledger.overdue(now):
            ledger.held(grant)
        ledger.put_back(ledger.take(3, end_of))

        assert min(ledger.leased, ledger.ready, ledger.delayed, ledger.grants) >= 0


@given(st.lists(HAPPENINGS | OF_CHECKPOINTS, max_size=25), TIMES)
def test_not_even_a_checkpoint_of_nonsense_fails(written: list[Event], now: int) -> None:
    """Nor does any answer after it."""
    ledger = replayed(written)
    ledger.promote(now)
    ledger.overdue(now)
    ledger.take(5, end_of)
    list(ledger.waiting(end_of))
    for priority in ledger.order:
        ledger.floor(priority)
        ledger.outstanding_before(priority, 5)
    ledger.aside_floor()
    ledger.dead_floor(20)
    list(ledger.checkpoint())

    assert min(ledger.leased, ledger.ready, ledger.delayed, ledger.grants) >= 0
    assert all(isinstance(level, Level) for level in ledger.levels.values())


# Sets of offsets ---------------------------------------------------------------------------

SPANS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(min_value=0, max_value=40),
        st.integers(min_value=-2, max_value=12),
    ),
    max_size=30,
)


@given(SPANS)
def test_ranges_are_a_set_of_offsets(spans: list[tuple[bool, int, int]]) -> None:
    """Whatever is added and removed, in runs that touch, overlap, repeat or are empty."""
    ranges = OffsetRanges()
    expected: set[int] = set()
    for is_added, start, size in spans:
        if is_added:
            ranges.add(start, start + size)
            expected |= set(range(start, start + size))
        else:
            ranges.remove(start, start + size)
            expected -= set(range(start, start + size))
        runs = ranges.runs()

        assert list(ranges) == sorted(expected)
        assert len(ranges) == len(expected)
        assert ranges.first == min(expected, default=None)
        assert all((offset in ranges) == (offset in expected) for offset in range(-1, 60))
        assert all(start < stop for start, stop in runs)
        assert all(one[1] < two[0] for one, two in itertools.pairwise(runs))
