"""Who of a group has which partition: fair, fenced, and moved no more than need be."""

from itertools import combinations, permutations, product

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segue.delivery.group import GroupState, Holding, shares
from tests.property.topic_model import SETTLING_ROUNDS

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
TTL_US = 100


def held_counts(members: list[str], holdings: dict[int, Holding], partitions: int) -> list[int]:
    return [
        sum(
            holding.member == member and partition < partitions
            for partition, holding in holdings.items()
        )
        for member in members
    ]


def most_kept(counts: list[int], partitions: int) -> int:
    """Return how many partitions can stay where they are if the rest is shared fairly."""
    least, extra = divmod(partitions, len(counts))
    return max(
        sum(min(count, least + (place in lucky)) for place, count in enumerate(counts))
        for lucky in combinations(range(len(counts)), extra)
    )


def check_shares(partitions: int, members: list[str], holdings: dict[int, Holding]) -> None:
    found = shares(partitions, members, holdings)
    sizes = [len(found[member]) for member in members]
    kept = sum(
        partition in found[holding.member]
        for partition, holding in holdings.items()
        if holding.member in found and partition < partitions
    )

    assert list(found) == members
    assert sorted(number for share in found.values() for number in share) == list(range(partitions))
    assert max(sizes) - min(sizes) <= 1
    assert kept == most_kept(held_counts(members, holdings, partitions), partitions)


@given(
    partitions=st.integers(min_value=1, max_value=9),
    members=st.lists(NAMES, unique=True, min_size=1),
    held=st.dictionaries(st.integers(min_value=0, max_value=9), NAMES),
)
@example(partitions=1, members=["a", "b", "c"], held={0: "c"})
@example(partitions=4, members=["a", "b"], held={0: "b", 1: "b", 2: "b", 3: "b"})
def test_shares_are_fair_and_move_as_little_as_possible(
    partitions: int, members: list[str], held: dict[int, str]
) -> None:
    """Every partition is somebody's, nobody has two more than another, the most stay."""
    holdings = {
        partition: Holding(member, 7) for partition, member in held.items() if member in members
    }
    check_shares(partitions, members, holdings)


def test_nobody_shares_nothing() -> None:
    """A group without members has no shares to give."""
    assert shares(4, [], {}) == {}


def test_two_polls_of_everybody_are_enough() -> None:
    """In the first one gives up what it has too much, in the second all of it is taken."""
    for count, partitions in product(range(2, 5), range(1, 9)):
        names = [f"m{number}" for number in range(count)]
        for order in permutations(names):
            state = GroupState(boot=1)
            for name in names:
                state.join(name, owner=name, deadline_us=1)
                state.take(name, partitions if name == "m0" else 0)
            for name in order * 2:
                state.let_go(name, state.held_by(name).keys() - state.share_of(name, partitions))
                state.take(name, partitions)
            assert len(state.holdings) == partitions, (partitions, order)


class GroupMachine(RuleBasedStateMachine):
    """Members come, poll, fall silent and go, in any order, while partitions are added."""

    def __init__(self) -> None:
        super().__init__()
        self.state = GroupState(boot=1)
        self.partitions = 3
        self.now_us = 0
        self.boot = 1
        self.token = 0
        """The highest that was ever given."""
        self.generation = 0
        self.known: dict[int, Holding] = {}
        """Who had what before the last step."""
        self.deadlines: dict[str, int] = {}

    def living(self) -> list[str]:
        return list(self.state.members)

    # Steps ---------------------------------------------------------------------------------

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        if name not in self.state.members:
            self.deadlines[name] = self.now_us + TTL_US
            self.state.join(name, owner=name.upper(), deadline_us=self.deadlines[name])
            assert self.state.held_by(name) == {}

    def settle(self, name: str) -> dict[int, int]:
        """Do what a member does when it polls: give up, then take."""
        state = self.state
        self.deadlines[name] = self.now_us + TTL_US
        state.show_up(name, deadline_us=self.deadlines[name])
        held = state.held_by(name)
        surplus = held.keys() - state.share_of(name, self.partitions)
        state.let_go(name, surplus)
        taken = state.take(name, self.partitions)
        for partition, token in taken.items():
            assert token > self.token
            assert state.holds(name, partition, token)
        self.token = max([self.token, *taken.values()])
        after = state.held_by(name)
        assert after.items() >= {p: t for p, t in held.items() if p not in surplus}.items()
        return after

    @precondition(lambda self: self.state.members)
    @rule(number=st.integers(min_value=0, max_value=9))
    def poll(self, number: int) -> None:
        living = self.living()
        self.settle(living[number % len(living)])

    @precondition(lambda self: self.state.members)
    @rule(number=st.integers(min_value=0, max_value=9))
    def leave(self, number: int) -> None:
        name = self.living()[number % len(self.state.members)]
        self.state.leave(name)
        assert self.state.held_by(name) == {}

    @rule(us=st.sampled_from([1, TTL_US // 2, TTL_US]), gone=st.sets(NAMES, max_size=1))
    def let_time_pass(self, us: int, gone: set[str]) -> None:
        """Whoever did not show up in time is dropped, and so is whoever is known to be gone."""
        self.now_us += us
        before = self.living()
        dead = self.state.drop_dead(boot=self.boot, now_us=self.now_us, gone=gone)
        assert dead == [
            name for name in before if self.deadlines[name] <= self.now_us or name in gone
        ]
        assert self.living() == [name for name in before if name not in dead]

    @rule()
    def restart(self) -> None:
        """Nobody outlives the machine."""
        self.boot += 1
        before = self.living()
        assert self.state.drop_dead(boot=self.boot, now_us=0) == before
        assert (self.state.members, self.state.holdings) == ({}, {})
        self.now_us = 0

    @precondition(lambda self: self.partitions < 9)
    @rule()
    def grow(self) -> None:
        self.partitions += 1

    @rule()
    def keep_and_read_again(self) -> None:
        """The state is all there is to know, and the order of members is part of it."""
        again = GroupState.from_dict(self.state.to_dict())
        assert again == self.state
        assert list(again.members) == self.living()
        self.state = again

    @precondition(lambda self: self.state.members)
    @rule(order=st.permutations(range(5)))
    def everybody_settles(self, order: list[int]) -> None:
        """In whatever order: first they give up, then they take."""
        living = self.living()
        ordered = [living[place] for place in order if place < len(living)]
        for _ in range(SETTLING_ROUNDS):
            for name in ordered:
                self.settle(name)
        held = [self.state.held_by(name) for name in living]
        before = dict(self.state.holdings)
        generation = self.state.generation
        for name in ordered:
            self.settle(name)

        assert sorted(p for share in held for p in share) == list(range(self.partitions))
        assert max(map(len, held)) - min(map(len, held)) <= 1
        assert (self.state.holdings, self.state.generation) == (before, generation)

    # What always holds ---------------------------------------------------------------------

    @invariant()
    def only_members_hold(self) -> None:
        assert {holding.member for holding in self.state.holdings.values()} <= set(self.living())
        by_member = [self.state.held_by(name) for name in self.living()]
        held = [partition for share in by_member for partition in share]
        assert sorted(held) == sorted(self.state.holdings)

    @invariant()
    def generations_and_tokens_only_grow(self) -> None:
        state = self.state
        assert state.generation >= self.generation
        self.generation = state.generation
        for partition, holding in state.holdings.items():
            assert 0 < holding.token <= state.generation
            before = self.known.get(partition)
            if before is not None and before != holding:
                assert holding.token > before.token
        self.known.update(state.holdings)

    @invariant()
    def the_lost_are_fenced(self) -> None:
        for partition, known in self.known.items():
            is_held = self.state.holds(known.member, partition, known.token)
            assert is_held == (self.state.holdings.get(partition) == known)

    @precondition(lambda self: self.state.members)
    @invariant()
    def shares_are_fair(self) -> None:
        check_shares(self.partitions, self.living(), self.state.holdings)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=settings().max_examples)
