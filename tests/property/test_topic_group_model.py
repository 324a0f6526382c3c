"""A group never passes over a record and never lets a late member undo another's work.

Several members in two processes join, poll, commit, fall silent, crash and leave in any order,
while time passes by ticks, records come and partitions are added.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from segue import Group, Member, Store, Topic, TopicRules
from segue.errors import GroupBusy, PartitionLost
from segue.stores.file.topics import member as member_module
from tests.contract.topic_support import kill
from tests.contract.worlds import FileWorld
from tests.property.topic_model import SETTLING_ROUNDS

HANDLES = st.integers(min_value=0, max_value=1)
NUMBERS = st.integers(min_value=0, max_value=255)
TTL_SECONDS = 10
TTL_US = TTL_SECONDS * 1_000_000
PARTITIONS_MAX = 5
MEMBERS_MAX = 4
RULES = TopicRules(segment_bytes=1 << 16)


@dataclass(eq=False)
class Fellow:
    """A member, and what we know of it without asking the group."""

    member: Member
    handle: int
    seen_us: int
    """When it was last heard of while it was alive, in ticks."""
    reading: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: the token it has it by, and the offset that comes next."""


class GroupStoreMachine(RuleBasedStateMachine):
    """One group of one topic through two handles, which crash."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        base = shared_memory if shared_memory.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="segue-group-", dir=base))
        self.patch = pytest.MonkeyPatch()
        # Every poll looks whether others have died, and not only every so often in real time.
        self.patch.setattr(member_module, "LOOK_SECONDS", 0, raising=False)
        self.world = FileWorld(self.scratch / "data", sync="os")
        self.clock = self.world.clock
        self.stores: list[Store] = [self.world.open() for _ in range(2)]
        self.handles: list[Topic] = [
            store.topic("orders", partitions=3, rules=RULES) for store in self.stores
        ]
        self.fellows: list[Fellow] = []
        self.ends = [0, 0, 0]
        self.delivered: list[set[int]] = [set(), set(), set()]
        self.committed = [0, 0, 0]
        self.commit_tokens = [0, 0, 0]
        """The token of the last commit that counted, by partition."""
        self.exists = False

    def group(self, handle: int) -> Group:
        return self.handles[handle].group("workers")

    def now_us(self) -> int:
        return self.clock.ticks()

    @initialize(handles=st.lists(HANDLES, max_size=3), numbers=st.lists(NUMBERS, max_size=20))
    def begin(self, handles: list[int], numbers: list[int]) -> None:
        """Have something to read, and somebody who does."""
        if numbers:
            self.append(0, numbers)
        for handle in handles:
            self.join(handle)

    # Records and time ----------------------------------------------------------------------

    @rule(handle=HANDLES, numbers=st.lists(NUMBERS, min_size=1, max_size=8))
    def append(self, handle: int, numbers: list[int]) -> None:
        for number in numbers:
            partition = number % len(self.ends)
            place = self.handles[handle].append(b"%d" % number, partition=partition)
            assert place == (partition, self.ends[partition])
            self.ends[partition] += 1

    @rule(seconds=st.sampled_from([1, 3, 4, 9, 10, 25]), alive=st.sets(NUMBERS, max_size=2))
    def let_time_pass(self, seconds: int, alive: set[int]) -> None:
        """Some show up half-way, and the others fall silent."""
        self.clock.advance(seconds=seconds / 2)
        for number in sorted(alive):
            if self.fellows:
                self.show_up(number)
        self.clock.advance(seconds=seconds / 2)

    @rule(seconds=st.integers(min_value=-100_000, max_value=100_000))
    def set_the_clock(self, seconds: int) -> None:
        """Members do not care."""
        self.clock.step(seconds=seconds)

    @precondition(lambda self: len(self.ends) < PARTITIONS_MAX)
    @rule(handle=HANDLES)
    def grow(self, handle: int) -> None:
        self.handles[handle].grow(len(self.ends) + 1)
        self.ends.append(0)
        self.delivered.append(set())
        self.committed.append(0)
        self.commit_tokens.append(0)

    # Members -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.fellows) < MEMBERS_MAX)
    @rule(handle=HANDLES)
    def join(self, handle: int) -> None:
        member = self.group(handle).join(ttl=TTL_SECONDS)
        self.exists = True
        fellow = Fellow(member=member, handle=handle, seen_us=self.now_us())
        self.fellows.append(fellow)
        self.take_in(fellow)

    def take_in(self, fellow: Fellow) -> None:
        """Learn what a member has: what it got it begins where the group stands."""
        assignment = dict(fellow.member.assignment)
        before = fellow.reading
        fellow.reading = {}
        for partition, token in assignment.items():
            known = before.get(partition)
            if known is not None and known[0] == token:
                fellow.reading[partition] = known
            else:
                assert token > self.commit_tokens[partition]
                fellow.reading[partition] = (token, self.committed[partition])

    def pick(self, number: int) -> Fellow:
        return self.fellows[number % len(self.fellows)]

    @precondition(lambda self: self.fellows)
    @rule(
        steps=st.lists(
            st.tuples(NUMBERS, st.integers(min_value=0, max_value=9), st.booleans()),
            min_size=1,
            max_size=8,
        )
    )
    def work(self, steps: list[tuple[int, int, bool]]) -> None:
        """Let members poll or not, and commit or not."""
        for number, count, commit in steps:
            fellow = self.pick(number)
            if count:
                self.poll(fellow, count)
            if commit:
                self.commit(fellow)

    def poll(self, fellow: Fellow, count: int) -> None:
        before = fellow.member.assignment.items() if self.is_dead(fellow) else set()
        records = fellow.member.poll(count)
        assert before.isdisjoint(fellow.member.assignment.items())  # Who was dead joins anew.
        fellow.seen_us = self.now_us()
        self.take_in(fellow)
        for record in records:
            token, expected = fellow.reading[record.partition]
            assert record.offset == expected
            fellow.reading[record.partition] = (token, expected + 1)
            self.delivered[record.partition].add(record.offset)
        assert fellow.member.position == {
            partition: place for partition, (_, place) in fellow.reading.items()
        }

    def is_dead(self, fellow: Fellow) -> bool:
        return self.now_us() >= fellow.seen_us + TTL_US

    def commit(self, fellow: Fellow) -> None:
        """Save where a member is: for what it has, and for nothing else."""
        if self.is_dead(fellow) and fellow.reading:
            with pytest.raises(PartitionLost) as refusal:
                fellow.member.commit()
            assert refusal.value.partitions == tuple(sorted(fellow.reading))
            return
        fellow.member.commit()
        if not self.is_dead(fellow):
            fellow.seen_us = self.now_us()
        for partition, (token, place) in fellow.reading.items():
            self.expect_commit(partition, token, place)

    def expect_commit(self, partition: int, token: int, place: int) -> None:
        """A commit that counts is of the latest who has the partition, and passes over nothing."""
        assert token >= self.commit_tokens[partition]
        assert place >= self.committed[partition]
        passed = set(range(self.committed[partition], place))
        assert passed <= self.delivered[partition]
        self.commit_tokens[partition] = token
        self.committed[partition] = place

    @precondition(lambda self: self.fellows)
    @rule(number=NUMBERS)
    def show_up(self, number: int) -> None:
        fellow = self.pick(number)
        if self.is_dead(fellow):
            with pytest.raises(PartitionLost):
                fellow.member.show_up()
        else:
            fellow.member.show_up()
            fellow.seen_us = self.now_us()

    @precondition(lambda self: self.fellows)
    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        fellow = self.pick(number)
        self.fellows.remove(fellow)
        fellow.member.close()

    @rule(handle=HANDLES, how=st.sampled_from(["crash", "restart"]))
    def crash(self, handle: int, how: str) -> None:
        lost = [handle] if how == "crash" else [0, 1]
        for number in lost:
            dead = [fellow for fellow in self.fellows if fellow.handle == number]
            self.fellows = [fellow for fellow in self.fellows if fellow.handle != number]
            kill(self.world, self.stores[number], *[fellow.member for fellow in dead])
        if how == "restart":
            self.world.restart()
        for number in lost:
            self.stores[number] = self.world.open()
            self.handles[number] = self.stores[number].topic("orders")

    @rule(handle=HANDLES)
    def reset(self, handle: int) -> None:
        """Only a group without living members can be moved; nothing is passed over by it."""
        if not self.exists:
            return
        if all(self.is_dead(fellow) for fellow in self.fellows):
            self.group(handle).reset("earliest")
            info = self.handles[handle].info()
            self.committed = [each.first_offset for each in info.partitions]
        else:
            with pytest.raises(GroupBusy):
                self.group(handle).reset("earliest")

    @precondition(lambda self: self.fellows)
    @rule(order=st.permutations(range(MEMBERS_MAX)))
    def everybody_settles(self, order: list[int]) -> None:
        """If all have polled, every partition is somebody's, and all is fair."""
        for _ in range(SETTLING_ROUNDS + 1):  # Once more for those who have to come back first.
            for place in order:
                if place < len(self.fellows):
                    self.poll(self.fellows[place], 1)
        held = [list(fellow.member.assignment) for fellow in self.fellows]
        assert sorted(number for each in held for number in each) == list(range(len(self.ends)))
        assert max(map(len, held)) - min(map(len, held)) <= 1
        for fellow in self.fellows:
            self.commit(fellow)

    # What always holds ---------------------------------------------------------------------

    @invariant()
    def the_group_stands_where_it_was_committed(self) -> None:
        if self.exists:
            for handle in (0, 1):
                lags = self.group(handle).lag()
                assert [lag.committed for lag in lags] == self.committed
                assert [lag.next_offset for lag in lags] == self.ends

    @invariant()
    def nobody_shares_a_token(self) -> None:
        """Two may believe to have a partition, but never by the same token."""
        seen: set[tuple[int, int]] = set()
        for fellow in self.fellows:
            for held in fellow.member.assignment.items():
                assert held not in seen
                seen.add(held)

    @invariant()
    def nothing_that_is_wanted_is_deleted(self) -> None:
        self.handles[0].roll()
        self.handles[1].clean()
        for each in self.handles[0].info().partitions:
            assert each.first_offset <= (self.committed[each.partition] if self.exists else 0)

    def teardown(self) -> None:
        try:
            for fellow in self.fellows:
                fellow.member.close()
            self.world.end()
        finally:
            self.patch.undo()
            shutil.rmtree(self.scratch)


TestGroupStoreMachine = GroupStoreMachine.TestCase
TestGroupStoreMachine.settings = settings(max_examples=max(20, settings().max_examples // 3))
