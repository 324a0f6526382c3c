"""The rules of topics, groups and partitions, without any disk."""

import pytest

from segue import TopicRules
from segue.delivery.group import GroupState, Holding, MemberState
from segue.delivery.partitioning import STICKY_RECORDS, StickyTurn
from segue.delivery.topic_record import TopicRecord, adoption_digest, producer_number
from segue.errors import InvalidArgument

# Rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"keep_seconds": -1},
        {"keep_seconds": "60"},
        {"keep_seconds": True},
        {"keep_seconds": float("nan")},
        {"keep_seconds": float("inf")},
        {"keep_bytes": -1},
        {"keep_bytes": 1.5},
        {"keep_bytes": True},
        {"lag_max": -1},
        {"lag_max": "1"},
        {"segment_bytes": 12_287},
        {"segment_bytes": (1 << 30) + 1},
        {"segment_bytes": 65_536.0},
        {"segment_seconds": 0},
        {"segment_seconds": -1},
        {"tombstone_seconds": -1},
        {"tombstone_seconds": None},
        {"clean_on_roll": 1},
        {"clean_on_roll": "yes"},
    ],
    ids=str,
)
def test_a_rule_that_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    """Before anybody has it."""
    with pytest.raises(InvalidArgument):
        TopicRules(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"keep_seconds": 0},
        {"keep_bytes": 0},
        {"lag_max": 0},
        {"segment_bytes": 12_288},
        {"segment_bytes": 1 << 30},
        {"segment_seconds": 0.5},
        {"tombstone_seconds": 0},
        {"clean_on_roll": False},
    ],
    ids=str,
)
def test_rules_are_kept_as_they_are(values: dict[str, object]) -> None:
    """Also by a version that knows more of them."""
    rules = TopicRules(**values)  # type: ignore[arg-type]

    assert TopicRules.from_dict(rules.to_dict()) == rules
    assert TopicRules.from_dict({**rules.to_dict(), "colour": "blue"}) == rules
    assert TopicRules.from_dict(values) == rules


@pytest.mark.parametrize(
    ("values", "cleans"),
    [
        ({}, False),
        ({"keep_seconds": 1}, True),
        ({"keep_bytes": 0}, True),
        ({"lag_max": 0}, True),
        ({"clean_on_roll": True}, True),
        ({"keep_bytes": 0, "clean_on_roll": False}, False),
        ({"tombstone_seconds": 0, "segment_seconds": 5}, False),
    ],
    ids=str,
)
def test_a_topic_cleans_itself_if_it_has_a_limit(values: dict[str, object], cleans: bool) -> None:
    """Unless it is said otherwise."""
    assert TopicRules(**values).cleans_on_roll is cleans  # type: ignore[arg-type]


# Partitions --------------------------------------------------------------------------------


def test_turns_are_as_long_as_they_are_said_to_be() -> None:
    """One partition after the other, from a random one on."""
    turn = StickyTurn()
    found = [turn.take(3) for _ in range(6 * STICKY_RECORDS)]

    for place in range(6):
        ours = found[place * STICKY_RECORDS : (place + 1) * STICKY_RECORDS]
        assert set(ours) == {(found[0] + place) % 3}


def test_producers_do_not_all_begin_with_the_same_partition() -> None:
    """A hundred short-lived ones must not fill one partition."""
    assert len({StickyTurn().take(16) for _ in range(200)}) > 4


def test_names_and_keys_stand_for_the_same_numbers_for_ever() -> None:
    """They are on disk."""
    assert producer_number("importer") == 0x5C5AA5B58EA99E92
    assert adoption_digest("job").hex() == "084edffcadb9344536f3759cbdf80e9d"


def test_a_record_tells_its_time() -> None:
    """In UTC, from microseconds."""
    record = TopicRecord(0, 0, None, b"", {}, 1_700_000_000_000_001)

    assert record.timestamp.isoformat() == "2023-11-14T22:13:20.000001+00:00"


# Groups ------------------------------------------------------------------------------------


def group() -> GroupState:
    state = GroupState(boot=1)
    state.join("a", owner="ann", deadline_us=10)
    state.join("b", owner="bob", deadline_us=20)
    return state


def test_a_group_is_shared_in_the_order_members_came() -> None:
    """What is free goes to who should have it, under a token each time something is taken."""
    state = group()
    first, second = state.take("a", 5), state.take("b", 5)

    assert (sorted(first), sorted(second)) == ([0, 1, 2], [3, 4])
    assert set(first.values()) == {3}
    assert set(second.values()) == {4}
    assert state.take("a", 5) == {}
    assert state.generation == 4


def test_what_is_let_go_is_only_what_one_has() -> None:
    """Nobody can free what another holds."""
    state = group()
    state.take("a", 2)
    generation = state.generation
    state.let_go("b", [0, 1])
    unchanged = (dict(state.holdings), state.generation)
    state.let_go("a", [0, 7])

    assert unchanged == ({0: Holding("a", 3)}, generation)
    assert (state.holdings, state.generation) == ({}, generation + 1)


def test_who_is_late_is_dropped_with_all_it_has() -> None:
    """At its deadline, and not before."""
    state = group()
    state.take("a", 2)
    before = state.drop_dead(boot=1, now_us=9)
    at = state.drop_dead(boot=1, now_us=10)

    assert (before, at) == ([], ["a"])
    assert state.holdings == {}
    assert list(state.members) == ["b"]


def test_after_a_restart_everybody_is_dropped() -> None:
    """Deadlines count in ticks of another boot; the generation goes on, further if it must."""
    state = group()
    generation = state.generation
    dropped = state.drop_dead(boot=2, now_us=0, generation_min=1_000)

    assert dropped == ["a", "b"]
    assert (state.boot, state.members) == (2, {})
    assert state.generation >= max(1_000, generation)


@pytest.mark.parametrize(
    "changes",
    [
        {"boot": -1},
        {"boot": "1"},
        {"boot": None},
        {"generation": 1.5},
        {"generation": -1},
        {"generation": 1 << 64},
        {"members": None},
        {"members": 5},
        {"members": [["a"]]},
        {"members": [["../a", 1, "ann"]]},
        {"members": [["a", -1, "ann"]]},
        {"members": []},
        {"holdings": []},
        {"holdings": {"x": ["a", 1]}},
        {"holdings": {"-1": ["a", 1]}},
        {"holdings": {"0": ["a"]}},
        {"holdings": {"0": ["nobody", 1]}},
        {"holdings": {"0": ["a", "1"]}},
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    """It may come from anywhere, and what it names become names of files."""
    state = group()
    state.take("a", 2)
    with pytest.raises(ValueError, match=r"."):
        GroupState.from_dict({**state.to_dict(), **changes})


def test_a_state_is_kept_as_it_is() -> None:
    """With the order of its members."""
    state = group()
    state.take("b", 3)
    again = GroupState.from_dict(state.to_dict())

    assert again == state
    assert list(again.members.items()) == [
        ("a", MemberState(10, "ann")),
        ("b", MemberState(20, "bob")),
    ]
