"""Groups: who shares the partitions, who lost one, and where the group stands."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest

from segue import Group, Member, Store, Topic
from segue.errors import (
    GroupBusy,
    InvalidArgument,
    OffsetNotWritten,
    OffsetTrimmed,
    PartitionLost,
    StoreClosed,
)
from segue.testing import ManualClock
from tests.contract.queue_support import meanwhile
from tests.contract.topic_support import (
    USUAL,
    committed,
    fill,
    fill_segments,
    kill,
    places,
    values,
)
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS, wait_until

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITIONS = 4
TTL_SECONDS = 30


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with four partitions and two records in each."""
    topic = store.topic("orders", partitions=PARTITIONS, rules=USUAL)
    for partition in range(PARTITIONS):
        fill(topic, 2, partition=partition)
    return topic


@pytest.fixture
def group(topic: Topic) -> Group:
    return topic.group("workers")


@pytest.fixture
def there(group: Group, other: Store) -> Group:
    """The same group in another process."""
    return other.topic("orders").group("workers")


def join(group: Group) -> Member:
    return group.join(ttl=TTL_SECONDS)


def settle(*members: Member) -> None:
    """Let every member give up what it should, and then take what it should."""
    for _ in range(2):
        for member in members:
            member.poll(1)


def shares(*members: Member) -> list[list[int]]:
    return [list(member.assignment) for member in members]


def fall_silent(clock: ManualClock, *alive: Member) -> None:
    """Let all but some members be taken for dead."""
    for _ in range(4):
        clock.advance(seconds=TTL_SECONDS / 3)
        for member in alive:
            member.show_up()


# Sharing -----------------------------------------------------------------------------------


def test_one_member_has_all_partitions(group: Group, topic: Topic) -> None:
    """And gets every record, in the order of each partition."""
    with join(group) as member:
        found = places(member.poll())

        assert list(member.assignment) == [0, 1, 2, 3]
        assert found == sorted(found)
        assert len(found) == 8
        assert member.position == dict.fromkeys(range(4), 2)
        assert member.poll() == []
    assert topic.groups() == ["workers"]


def test_members_share_the_partitions(group: Group, there: Group) -> None:
    """Evenly, none held twice and none left out."""
    one, two, three = join(group), join(there), join(group)
    settle(one, two, three)
    found = shares(one, two, three)

    assert sorted(map(len, found)) == [1, 1, 2]
    assert sorted(chain(*found)) == [0, 1, 2, 3]


def test_a_partition_is_given_up_before_it_is_taken(group: Group, there: Group) -> None:
    """Who joins waits until who has it lets go, which is when that one polls."""
    one = join(group)
    two = join(there)
    before = shares(one, two)
    two.poll(1)
    still = shares(one, two)
    one.poll(1)
    between = shares(one, two)
    two.poll(1)

    assert before == still == [[0, 1, 2, 3], []]
    assert [len(each) for each in between] == [2, 0]
    assert shares(one, two) == [[0, 1], [2, 3]]


def test_who_keeps_a_partition_is_not_disturbed(group: Group, there: Group) -> None:
    """Neither its token nor its place changes when others come and go."""
    one = join(group)
    one.poll()
    before = dict(one.assignment)
    two = join(there)
    settle(one, two)
    kept = {partition: one.assignment[partition] for partition in one.assignment}
    two.close()
    one.poll(1)

    assert kept == {partition: before[partition] for partition in (0, 1)}
    assert {partition: one.assignment[partition] for partition in (0, 1)} == kept
    assert one.assignment[2] > max(before.values())
    assert {partition: one.position[partition] for partition in (0, 1)} == {0: 2, 1: 2}


def test_as_few_partitions_as_possible_change_hands(group: Group, there: Group) -> None:
    """A third member takes one, a second that leaves gives two."""
    one, two = join(group), join(there)
    settle(one, two)
    before = [dict(one.assignment), dict(two.assignment)]
    three = join(group)
    settle(one, two, three)
    moved = [
        partition
        for holder, member in zip(before, (one, two), strict=True)
        for partition in holder
        if member.assignment.get(partition) != holder[partition]
    ]

    assert len(moved) == 1
    assert list(three.assignment) == moved


def test_more_members_than_partitions_are_in_reserve(group: Group, there: Group) -> None:
    """They get nothing until somebody leaves."""
    members = [join((group, there)[number % 2]) for number in range(6)]
    settle(*members)
    sizes = [len(each) for each in shares(*members)]
    busy = next(member for member in members if member.assignment)
    (partition,) = busy.assignment
    busy.close()
    rest = [member for member in members if member is not busy]
    settle(*rest)

    assert sorted(sizes) == [0, 0, 1, 1, 1, 1]
    assert sum(partition in member.assignment for member in rest) == 1


def test_every_record_goes_to_one_member(group: Group, there: Group, topic: Topic) -> None:
    """All of them are delivered, none of them twice, while nobody comes or goes."""
    one, two = join(group), join(there)
    settle_at_the_start(one, two)
    for partition in range(PARTITIONS):
        fill(topic, 10, partition=partition, first=2)
    found = [places(one.poll()), places(two.poll())]

    assert sorted(found[0] + found[1]) == [(p, n) for p in range(4) for n in range(2, 12)]
    assert {partition for partition, _ in found[0]} == set(one.assignment)


def settle_at_the_start(*members: Member) -> None:
    """Let the members share, and go on after what was there before."""
    settle(*members)
    for member in members:
        member.seek(dict.fromkeys(member.assignment, 2))


def test_groups_are_independent(topic: Topic) -> None:
    """Each gets every record, and commits for itself."""
    with join(topic.group("a")) as one, join(topic.group("b")) as two:
        found = [len(one.poll()), len(two.poll())]
        one.commit()

    assert found == [8, 8]
    assert committed(topic.group("a").lag()) == dict.fromkeys(range(4), 2)
    assert committed(topic.group("b").lag()) == dict.fromkeys(range(4), 0)
    assert topic.groups() == ["a", "b"]


def test_tokens_grow_for_ever(
    world: World, topic: Topic, group: Group, there: Group, clock: ManualClock
) -> None:
    """Over leaving, expiry, reset, removal and restarts of the machine."""
    tokens = []

    def note(member: Member) -> None:
        tokens.append(member.assignment[0])

    with join(group) as member:
        note(member)
    with join(there) as member:
        note(member)
        member.poll()
        clock.advance(seconds=TTL_SECONDS + 1)
        with join(group) as late:
            note(late)
    group.reset("latest")
    with join(group) as member:
        note(member)
    topic.remove_group("workers")
    with join(there) as member:
        note(member)
    world.restart()
    group = world.open().topic("orders").group("workers")
    with join(group) as member:
        note(member)

    assert tokens[0] > 0
    assert tokens == sorted(set(tokens))


# Committing --------------------------------------------------------------------------------


def test_whoever_reads_on_begins_where_was_committed(group: Group, there: Group) -> None:
    """Not where somebody had read to."""
    with join(group) as member:
        member.poll()
        member.commit({0: 2, 1: 1, 2: 0})
    with join(there) as member:
        assert member.position == {0: 2, 1: 1, 2: 0, 3: 0}
        assert sorted(places(member.poll())) == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_leaving_does_not_commit(group: Group) -> None:
    """What was polled may not have been done."""
    with join(group) as member:
        member.poll()

    assert [lag.records for lag in group.lag()] == [2, 2, 2, 2]
    for call in (member.poll, member.commit, member.show_up, lambda: member.seek({0: 0})):
        with pytest.raises(StoreClosed):
            call()


def test_what_was_committed_outlasts_restarts(world: World, group: Group) -> None:
    """As it does the members."""
    member = join(group)
    member.poll()
    member.commit()
    world.restart()
    group = world.open().topic("orders").group("workers")

    assert committed(group.lag()) == dict.fromkeys(range(4), 2)


def test_a_lost_partition_cannot_be_committed(group: Group, there: Group) -> None:
    """The error names it, and the others are saved all the same."""
    one = join(group)
    one.poll()
    two = join(there)
    settle(one, two)
    with pytest.raises(PartitionLost) as refusal:
        one.commit({0: 1, 2: 2, 1: 2, 3: 1})

    assert (refusal.value.group, refusal.value.partitions) == ("workers", (2, 3))
    assert committed(group.lag()) == {0: 1, 1: 2, 2: 0, 3: 0}


def test_what_never_was_ours_cannot_be_committed(group: Group) -> None:
    """A partition that is not there among them."""
    with join(group) as member, pytest.raises(PartitionLost) as refusal:
        member.commit({0: 1, 7: 0})

    assert refusal.value.partitions == (7,)
    assert committed(group.lag())[0] == 1


def test_what_was_never_written_cannot_be_committed(group: Group) -> None:
    """Offsets are those of the partition."""
    with join(group) as member, pytest.raises(OffsetNotWritten) as refusal:
        member.commit({1: 3})

    assert (refusal.value.partition, refusal.value.offset, refusal.value.latest) == (1, 3, 2)


def test_going_back_is_committed_too(group: Group) -> None:
    """`seek` goes on elsewhere, and a commit makes it the group's place."""
    with join(group) as member:
        member.poll()
        member.commit()
        member.seek({0: 0, 1: 1})
        found = sorted(places(member.poll()))
        member.seek({0: 0})
        member.commit()

    assert found == [(0, 0), (0, 1), (1, 1)]
    assert committed(group.lag()) == {0: 0, 1: 2, 2: 2, 3: 2}


def test_only_what_is_ours_can_be_sought_in(group: Group, there: Group) -> None:
    """And only where there is something; nothing moves otherwise."""
    one, two = join(group), join(there)
    settle(one, two)
    before = dict(one.position)
    with pytest.raises(PartitionLost) as refusal:
        one.seek({0: 0, 3: 0})
    with pytest.raises(OffsetNotWritten) as out_of_range:
        one.seek({0: 0, 1: 9})

    assert refusal.value.partitions == (3,)
    assert out_of_range.value.partition == 1
    assert one.position == before


# Dying -------------------------------------------------------------------------------------


def test_who_falls_silent_loses_what_it_had(group: Group, there: Group, clock: ManualClock) -> None:
    """To the others, when its time is over; and then it cannot commit."""
    one, two = join(group), join(there)
    settle(one, two)
    two.poll()
    fall_silent(clock, one)
    one.poll()
    taken = list(one.assignment)
    with pytest.raises(PartitionLost) as refusal:
        two.commit()
    with pytest.raises(PartitionLost):
        two.show_up()

    assert taken == [0, 1, 2, 3]
    assert refusal.value.partitions == (2, 3)
    assert committed(group.lag()) == dict.fromkeys(range(4), 0)


def test_who_comes_back_joins_anew(group: Group, there: Group, clock: ManualClock) -> None:
    """With its next poll, and gets its share with new tokens."""
    one, two = join(group), join(there)
    settle(one, two)
    two.seek({2: 0, 3: 0})
    two.poll()
    two.commit({2: 1})
    before = max(two.assignment.values())
    fall_silent(clock, one)
    one.poll()
    two.poll()
    settle(one, two)

    assert sorted([*one.assignment, *two.assignment]) == [0, 1, 2, 3]
    assert len(two.assignment) == 2
    assert min(two.assignment.values()) > before


def test_who_comes_back_goes_on_from_what_was_committed(group: Group, clock: ManualClock) -> None:
    """Also if nobody took over: by then anybody might have."""
    member = join(group)
    member.poll()
    member.commit({0: 1, 1: 2, 2: 0, 3: 2})
    clock.advance(seconds=TTL_SECONDS + 1)
    with pytest.raises(PartitionLost):
        member.commit()
    found = sorted(places(member.poll()))

    assert found == [(0, 1), (2, 0), (2, 1)]
    member.commit()


def test_the_next_poll_of_who_expired_joins_the_group_anew(
    group: Group, clock: ManualClock
) -> None:
    """It returns nothing that cannot be committed."""
    member = join(group)
    member.poll(2)
    clock.advance(seconds=TTL_SECONDS + 1)
    before = dict(member.assignment)
    member.poll(2)
    member.commit()

    assert min(member.assignment.values()) > max(before.values())


def test_the_dead_are_not_shown(group: Group, clock: ManualClock) -> None:
    """Nobody is left to be taken for dead whose time is over."""
    silent, member = join(group), join(group)
    clock.advance(seconds=TTL_SECONDS / 2)
    member.show_up()
    clock.advance(seconds=TTL_SECONDS / 2)

    assert [info.seconds_left for info in group.info().members] == [TTL_SECONDS / 2]
    silent.close()


def test_nobody_dies_who_shows_up(group: Group, there: Group, clock: ManualClock) -> None:
    """By polling, by committing or by saying so."""
    members = [join(group), join(there), join(group)]
    settle(*members)
    before = [dict(member.assignment) for member in members]
    for _ in range(6):
        clock.advance(seconds=TTL_SECONDS / 2)
        members[0].poll()
        members[1].commit()
        members[2].show_up()

    assert [dict(member.assignment) for member in members] == before
    assert len(group.info().members) == 3


@pytest.mark.parametrize("how", ["poll", "commit"])
def test_nobody_dies_who_calls_within_its_ttl(
    group: Group, there: Group, clock: ManualClock, how: str
) -> None:
    """The time counts from the last call, whenever that was."""
    one, two = join(group), join(there)
    settle(one, two)
    clock.advance(seconds=TTL_SECONDS / 3 - 1)
    one.poll() if how == "poll" else one.commit()
    clock.advance(seconds=TTL_SECONDS - 1)
    one.commit()

    assert list(one.assignment) == [0, 1]


def test_setting_the_wall_clock_kills_nobody(
    group: Group, there: Group, clock: ManualClock
) -> None:
    """Ticks count, as for leases and locks."""
    one, two = join(group), join(there)
    settle(one, two)
    clock.step(seconds=86_400)
    settle(one, two)
    clock.step(seconds=-200_000)
    two.commit()

    assert shares(one, two) == [[0, 1], [2, 3]]


def test_the_partitions_of_the_dead_are_free_at_once(
    world: World, store: Store, group: Group, there: Group, clock: ManualClock
) -> None:
    """A process that ended is not waited for: the system knows."""
    dead = join(group)
    alive = join(there)
    settle(dead, alive)
    dead.poll()
    kill(world, store, dead)
    clock.advance(seconds=TTL_SECONDS / 2)
    found = places(alive.poll())

    assert list(alive.assignment) == [0, 1, 2, 3]
    assert {partition for partition, _ in found} >= {0, 1}
    assert len(there.info().members) == 1


def test_members_do_not_outlast_the_machine(world: World, group: Group) -> None:
    """Their ticks mean nothing any more."""
    join(group)
    world.clock.advance(seconds=1)
    world.restart(leases_last=TTL_SECONDS)
    topic = world.open().topic("orders")
    member = topic.group("workers").join()

    assert list(member.assignment) == [0, 1, 2, 3]
    assert len(topic.group("workers").info().members) == 1


def test_who_leaves_is_replaced_at_once(group: Group, there: Group) -> None:
    """No time has to pass."""
    one, two = join(group), join(there)
    settle(one, two)
    two.close()
    one.poll(1)

    assert list(one.assignment) == [0, 1, 2, 3]
    assert [info.partitions for info in group.info().members] == [[0, 1, 2, 3]]


def test_who_joined_and_died_moves_nothing(group: Group, there: Group, clock: ManualClock) -> None:
    """As few partitions as possible change hands: none, where nobody is there to take them."""
    one = join(group)
    one.poll(1)
    before = dict(one.assignment)
    there.join(ttl=1)
    clock.advance(seconds=2)
    one.poll(1)

    assert dict(one.assignment) == before


# Being told --------------------------------------------------------------------------------


def test_members_are_told_what_they_get_and_give_up(group: Group, there: Group) -> None:
    """What is given up can still be committed when it is told."""
    told: list[tuple[str, list[int]]] = []
    held: list[Member] = []

    def give_up(partitions: list[int]) -> None:
        told.append(("revoke", partitions))
        held[0].commit(dict.fromkeys(partitions, 1))

    one = group.join(
        on_assign=lambda partitions: told.append(("assign", partitions)), on_revoke=give_up
    )
    held.append(one)
    one.poll()
    two = there.join(on_assign=lambda partitions: told.append(("assign two", partitions)))
    settle(one, two)
    two.close()
    one.poll(1)

    assert told == [
        ("assign", [0, 1, 2, 3]),
        ("revoke", [2, 3]),
        ("assign two", [2, 3]),
        ("assign", [2, 3]),
    ]
    assert committed(group.lag()) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_members_are_told_what_they_lost(group: Group, clock: ManualClock) -> None:
    """When it is too late for a commit; what comes back comes as new."""
    told: list[tuple[str, list[int]]] = []
    member = group.join(
        ttl=TTL_SECONDS,
        on_assign=lambda partitions: told.append(("assign", partitions)),
        on_revoke=lambda partitions: told.append(("revoke", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )
    member.poll()
    clock.advance(seconds=TTL_SECONDS + 1)
    member.poll()

    assert told == [
        ("assign", [0, 1, 2, 3]),
        ("lost", [0, 1, 2, 3]),
        ("assign", [0, 1, 2, 3]),
    ]


def test_a_callback_that_fails_gives_up_nothing(group: Group, there: Group) -> None:
    """What could not be committed is still ours, and is asked for again."""
    calls: list[list[int]] = []

    def fail_once(partitions: list[int]) -> None:
        calls.append(partitions)
        if len(calls) == 1:
            raise ZeroDivisionError

    one = group.join(on_revoke=fail_once)
    two = join(there)
    with pytest.raises(ZeroDivisionError):
        one.poll()
    before = shares(one, two)
    settle(one, two)

    assert before == [[0, 1, 2, 3], []]
    assert shares(one, two) == [[0, 1], [2, 3]]
    assert calls == [[2, 3], [2, 3]]


# Beginning ---------------------------------------------------------------------------------


def test_a_new_group_begins_where_it_is_told(topic: Topic, clock: ManualClock) -> None:
    """By every start; one that exists goes on where it is."""
    clock.advance(seconds=5)
    now = EPOCH + timedelta(microseconds=clock())
    fill(topic, 1, partition=1, first=2)
    found = {}
    for name, start in (
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("now", now),
        ("offsets", {0: 1, 3: 2}),
    ):
        for again in (start, "earliest"):
            with topic.group(name).join(start=again) as member:  # type: ignore[arg-type]
                found[name] = dict(member.position)

    assert found == {
        "earliest": {0: 0, 1: 0, 2: 0, 3: 0},
        "latest": {0: 2, 1: 3, 2: 2, 3: 2},
        "now": {0: 2, 1: 2, 2: 2, 3: 2},
        "offsets": {0: 1, 1: 0, 2: 0, 3: 2},
    }


def test_a_group_exists_from_its_first_member_on(topic: Topic, other: Store) -> None:
    """Asking for it makes nothing; its first member holds what it wants."""
    group = topic.group("workers")
    before = (topic.groups(), group.lag(), list(group.info().members))
    fill_segments(topic, 3)
    join(group).close()

    assert before == ([], [], [])
    assert other.topic("orders").groups() == ["workers"]
    assert topic.clean().count == 0
    assert "workers" in topic.clean().held_by[0]


@pytest.mark.parametrize("ttl", [0, -1, 0.05, "30", True, float("inf")])
def test_a_member_lives_a_tenth_of_a_second_at_least(group: Group, ttl: float) -> None:
    """A time that nobody can mean is refused."""
    with pytest.raises(InvalidArgument):
        group.join(ttl=ttl)

    assert group.info().members == []


def test_a_group_can_begin_elsewhere(group: Group, there: Group, clock: ManualClock) -> None:
    """By every start, as long as nobody is in it."""
    clock.advance(seconds=5)
    found = []
    for start in ("latest", "earliest", {0: 1, 1: 2}, EPOCH + timedelta(microseconds=clock())):
        there.reset(start)
        found.append(committed(group.lag()))

    assert found == [
        dict.fromkeys(range(4), 2),
        dict.fromkeys(range(4), 0),
        {0: 1, 1: 2, 2: 0, 3: 0},
        dict.fromkeys(range(4), 2),
    ]


def test_a_busy_group_is_left_alone(
    topic: Topic, group: Group, there: Group, clock: ManualClock
) -> None:
    """Its place is moved, and it is removed, only when nobody is in it, or all are dead."""
    member, second = join(group), join(there)
    member.poll()
    member.commit({0: 1})
    calls: list[Callable[[], object]] = [
        lambda: there.reset("latest"),
        lambda: topic.remove_group("workers"),
    ]
    for call in calls:
        with pytest.raises(GroupBusy) as refusal:
            call()
        assert (refusal.value.name, refusal.value.members) == ("workers", 2)
    before = committed(group.lag())
    second.close()
    clock.advance(seconds=TTL_SECONDS + 1)
    there.reset("latest")

    assert before == {0: 1, 1: 0, 2: 0, 3: 0}
    assert committed(group.lag()) == dict.fromkeys(range(4), 2)
    assert topic.remove_group("workers")


def test_a_group_that_was_removed_holds_nothing(topic: Topic, group: Group) -> None:
    """And begins anew when somebody joins it."""
    fill_segments(topic, 2)
    with join(group) as member:
        member.poll()
        member.commit()
    answers = [topic.remove_group("workers"), topic.remove_group("workers")]
    lag, names = group.lag(), topic.groups()

    assert (answers, lag, names) == ([True, False], [], [])
    with join(group) as member:
        assert member.position == dict.fromkeys(range(4), 0)
    assert topic.groups() == ["workers"]


def test_a_start_that_fails_makes_no_group(topic: Topic) -> None:
    """Nothing is held for somebody who is not there."""
    with pytest.raises(OffsetNotWritten):
        topic.group("workers").join(start={0: 0, 1: 99})

    assert topic.groups() == []
    assert topic.clean().held_by == {}


# Growing and lagging -----------------------------------------------------------------------


def test_new_partitions_are_shared_too(group: Group, there: Group, topic: Topic) -> None:
    """Members take them with their next poll; what they have they keep."""
    one, two = join(group), join(there)
    settle(one, two)
    before = [dict(one.assignment), dict(two.assignment)]
    topic.grow(6)
    fill(topic, 2, partition=4)
    fill(topic, 2, partition=5)
    found = []
    for _ in range(2):
        for member in (one, two):
            found += places(member.poll())
    after = [dict(one.assignment), dict(two.assignment)]

    assert sorted(map(len, after)) == [3, 3]
    assert sorted([*after[0], *after[1]]) == [0, 1, 2, 3, 4, 5]
    assert all(before[each].items() <= after[each].items() for each in range(2))
    assert {(4, 0), (4, 1), (5, 0), (5, 1)} <= set(found)


def test_a_group_can_be_looked_at(group: Group, there: Group, clock: ManualClock) -> None:
    """Who is in it, what each has, and how far it is behind."""
    one = group.join(ttl=60, owner="ann")
    two = there.join(ttl=90, owner="bob")
    settle(one, two)
    one.commit({0: 1})
    clock.advance(seconds=10)
    info = there.info()

    assert info.name == "workers"
    assert [(each.owner, each.partitions) for each in info.members] == [
        ("ann", [0, 1]),
        ("bob", [2, 3]),
    ]
    assert [each.seconds_left for each in info.members] == [50.0, 80.0]
    assert len({each.member for each in info.members}) == 2
    assert info.generation >= max(two.assignment.values())
    assert [(each.partition, each.records, each.seconds) for each in info.lag] == [
        (0, 1, 10.0),
        (1, 2, 10.0),
        (2, 2, 10.0),
        (3, 2, 10.0),
    ]
    assert list(info.lag) == group.lag()


def test_what_a_group_has_not_committed_is_kept(topic: Topic, group: Group) -> None:
    """As for readers: without a limit nothing of it is deleted."""
    fill_segments(topic, 2, 2, partition=1)
    with join(group) as member:
        member.poll()
        assert topic.clean().count == 0
        member.commit({1: 5})
        member.seek(dict.fromkeys(range(4), 0))

    assert topic.clean().deleted == {1: [0]}


def test_a_group_that_was_overtaken_is_told(topic: Topic, group: Group) -> None:
    """By OffsetTrimmed with the partition; `seek` goes past the gap, and work goes on."""
    topic.roll()
    join(group).close()
    fill(topic, 1, partition=2, first=2)
    topic.clean(keep_bytes=0, partitions=[2])
    member = join(group)
    found, gaps = [], []
    for _ in range(8):
        try:
            found += places(member.poll(2))
        except OffsetTrimmed as gap:
            gaps.append((gap.partition, gap.offset, gap.earliest, gap.latest))
            member.seek({2: gap.earliest})
    member.commit()

    assert gaps == [(2, 0, 2, 3)]
    assert sorted(found) == [*[(p, n) for p in (0, 1) for n in range(2)], (2, 2), (3, 0), (3, 1)]
    assert [lag.records for lag in group.lag()] == [0, 0, 0, 0]


# Waiting -----------------------------------------------------------------------------------


def test_a_member_that_waits_is_woken_by_an_append(
    group: Group, topic: Topic, other: Store
) -> None:
    """From another process, to any of its partitions."""
    with join(group) as member:
        member.poll()
        with meanwhile(lambda: member.poll(timeout=LIMIT_SECONDS)) as outcome:
            other.topic("orders").append(b"x", partition=3)

        assert places(outcome.result()) == [(3, 2)]


def test_a_member_that_waits_takes_over_from_who_leaves(group: Group, there: Group) -> None:
    """Without being asked again."""
    one, two = join(group), join(there)
    settle(one, two)
    one.poll()
    one.commit()
    with meanwhile(lambda: one.poll(timeout=LIMIT_SECONDS)) as outcome:
        two.close()

    assert sorted(places(outcome.result())) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert list(one.assignment) == [0, 1, 2, 3]


def test_a_member_that_waits_gives_up_what_others_should_have(
    topic: Topic, group: Group, there: Group
) -> None:
    """Who joins does not wait for the next record."""
    one = join(group)
    one.poll()
    with meanwhile(lambda: one.poll(timeout=LIMIT_SECONDS)) as outcome:
        two = join(there)

        def has_its_share() -> bool:
            two.poll(1)
            return len(two.assignment) == 2

        wait_until(has_its_share)
        fill(topic, 1, first=2)

    assert values(outcome.result()) == [b"0/2"]
    assert list(one.assignment) == [0, 1]
