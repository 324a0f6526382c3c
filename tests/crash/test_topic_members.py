"""Members of a group that are killed or stopped: the others take over, and nothing is lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from segue import Event, Topic, TopicRecord
from segue.errors import ProducerBusy
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.shared_clock import SharedClock
from tests.crash.stopping import stop, wait_until_blocked_by_lock
from tests.crash.topic_members import (
    BUSY,
    CLOCK,
    GROUP,
    LONG_SECONDS,
    LOST,
    PARTITIONS,
    READY,
    SAVED,
    ask,
    be_member,
    be_producer,
    hold_the_turn,
    numbers_of,
    open_topic,
    places_of,
    poll_until,
)

ALL: Final = set(range(PARTITIONS))
RECORDS: Final = 10
"""In each partition, to begin with."""
COMMITTED: Final = 4


def fill(topic: Topic, count: int = RECORDS) -> None:
    """Append so many records to each partition."""
    topic.append_many(
        [Event(value=b"x", partition=partition) for partition in ALL for _ in range(count)]
    )


def everything(first: int, stop: int) -> list[tuple[int, int]]:
    """Return the places of all records with these offsets."""
    return [(partition, offset) for partition in sorted(ALL) for offset in range(first, stop)]


def places(records: list[TopicRecord]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


@contextmanager
def topic_at(root: Path, partitions: int = PARTITIONS) -> Iterator[Topic]:
    """Have a topic with some records."""
    store, topic = open_topic(root, partitions)
    with store:
        fill(topic)
        yield topic


def expire_members(root: Path) -> None:
    """Let the time to live of every member pass. Those that still run renew it."""
    SharedClock(root / CLOCK).advance(seconds=LONG_SECONDS + 1)


@contextmanager
def stopped(child: Child) -> Iterator[None]:
    """Have a process stopped, and go on in the end whatever happens."""
    stop(child.pid)
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGCONT)


def started(child: Child) -> Child:
    """Return a member that has joined."""
    assert child.read() == READY
    return child


def commit_some(child: Child) -> None:
    """Have a member commit the first records of every partition."""
    assert ask(child, f"commit {COMMITTED} {' '.join(map(str, sorted(ALL)))}") == SAVED


def committed(topic: Topic) -> dict[int, int]:
    return {lag.partition: lag.committed for lag in topic.group(GROUP).lag()}


def test_a_killed_member_s_partitions_are_taken_over_at_once(
    scratch: Path, forks: ForkServer
) -> None:
    """Long before its ttl: what it had committed is not read again, what it had not is."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        assert places_of(ask(child, "join 4")) == everything(0, RECORDS)
        commit_some(child)
        tokens = numbers_of(ask(child, "tokens"))
        child.kill()
        assert child.join() == KILLED
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            found = poll_until(member, lambda: member.assignment.keys() == ALL)
            member.commit()

            assert places(found) == everything(COMMITTED, RECORDS)
            assert min(member.assignment.values()) > max(tokens.values())
            assert committed(topic) == dict.fromkeys(ALL, RECORDS)


def test_one_who_waits_takes_over_from_one_who_is_killed_while_it_waits(
    scratch: Path, forks: ForkServer
) -> None:
    """The survivor keeps what it had, with the tokens it had, and goes on in it undisturbed."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            half = places_of(ask(child, "join 2"))
            mine = poll_until(member, lambda: len(member.assignment) == 2)
            kept = dict(member.assignment)
            child.kill()
            child.join()
            rest = poll_until(member, lambda: member.assignment.keys() == ALL)

            assert kept.items() <= dict(member.assignment).items()
            assert places(mine + rest) == everything(0, RECORDS)
            assert set(half) >= set(places(rest))


def test_a_stopped_member_loses_its_partitions_when_its_ttl_is_over(
    scratch: Path, forks: ForkServer
) -> None:
    """When it goes on its commits are refused, nothing moves back, and by polling it joins anew."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        ask(child, "join 4")
        commit_some(child)
        tokens = numbers_of(ask(child, "tokens"))
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            with stopped(child):
                expire_members(scratch)
                found = poll_until(member, lambda: member.assignment.keys() == ALL)
                member.commit()
            refused = [ask(child, order) for order in ("commit 0 1", "show_up", "commit 10 0 1")]

            assert places(found) == everything(COMMITTED, RECORDS)
            assert refused == [[LOST, "1"], [LOST, "0", "1", "2", "3"], [LOST, "0", "1"]]
            assert committed(topic) == dict.fromkeys(ALL, RECORDS)
            assert min(member.assignment.values()) > max(tokens.values())

            assert ask(child, "poll") == []
            poll_until(member, lambda: len(member.assignment) == 2)
            ask(child, "join 2")
            theirs = numbers_of(ask(child, "tokens"))
            fill(topic, 1)
            news = places(poll_until(member, lambda: True)) + places_of(ask(child, "poll"))

            assert sorted(news) == everything(RECORDS, RECORDS + 1)
            assert theirs.keys() | member.assignment.keys() == ALL
            assert ask(child, "commit") == SAVED
            member.commit()
            assert committed(topic) == dict.fromkeys(ALL, RECORDS + 1)


def test_a_stopped_member_keeps_its_partitions_while_its_ttl_lasts(
    scratch: Path, forks: ForkServer
) -> None:
    """A member that joins meanwhile gets none of its partitions, until the last moment."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        ask(child, "join 4")
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            with stopped(child):
                SharedClock(scratch / CLOCK).advance(seconds=LONG_SECONDS / 2)
                found = [record for _ in range(3) for record in member.poll(timeout=0)]

            assert (found, member.assignment) == ([], {})
            assert ask(child, "commit") == SAVED
            assert committed(topic) == dict.fromkeys(ALL, RECORDS)


def test_a_stopped_member_that_is_killed_is_taken_over_at_once(
    scratch: Path, forks: ForkServer
) -> None:
    """Death is seen whatever the process was doing."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        os.kill(child.pid, signal.SIGSTOP)
        child.kill()
        child.join()
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            assert member.assignment.keys() == ALL


def test_a_member_stopped_twice_comes_back_twice(scratch: Path, forks: ForkServer) -> None:
    """Each time with new tokens; each time what it committed before counts."""
    with topic_at(scratch) as topic, forks.start(be_member, scratch, LONG_SECONDS) as child:
        started(child)
        highest = 0
        for round_ in range(2):
            ask(child, "join 4")
            tokens = numbers_of(ask(child, "tokens"))
            assert min(tokens.values()) > highest
            with topic.group(GROUP).join(ttl=LONG_SECONDS) as member, stopped(child):
                expire_members(scratch)
                found = poll_until(member, lambda: member.assignment.keys() == ALL)
                member.commit()
                highest = max(member.assignment.values())
                assert places(found) == everything(round_ * RECORDS, round_ * RECORDS + RECORDS)
            reply = ask(child, "commit")
            assert reply == [LOST, *map(str, sorted(ALL))]
            fill(topic)


def test_a_killed_member_is_seen_though_the_one_next_to_it_is_busy(
    scratch: Path, forks: ForkServer
) -> None:
    """Who takes long between two polls does not keep the others from what a dead one had."""
    with (
        topic_at(scratch, partitions=6) as topic,
        topic.group(GROUP).join(ttl=LONG_SECONDS) as member,
        forks.start(be_member, scratch, LONG_SECONDS) as busy,
    ):
        started(busy)
        with forks.start(be_member, scratch, LONG_SECONDS) as doomed:
            started(doomed)
            for child in (busy, doomed):
                child.tell("join 2")
            poll_until(member, lambda: len(member.assignment) == 2)
            for child in (busy, doomed):
                child.read()
            stop(busy.pid)
            doomed.kill()
            doomed.join()
        poll_until(member, lambda: len(member.assignment) == 3)

        assert len(topic.group(GROUP).info().members) == 2


def test_when_all_members_are_killed_the_next_one_has_everything(
    scratch: Path, forks: ForkServer
) -> None:
    """From where each partition was committed, by whoever had it."""
    with topic_at(scratch) as topic:
        children: list[Child] = []
        try:
            for _ in range(3):
                children.append(started(forks.start(be_member, scratch, LONG_SECONDS)))
            for share, child in zip((2, 1, 1), children, strict=True):
                child.tell(f"join {share}")  # Who came first keeps more.
            for child in children:
                child.read()
            shares = [numbers_of(ask(child, "tokens")).keys() for child in children]
            for number, child in enumerate(children):
                mine = " ".join(map(str, sorted(shares[number])))
                assert ask(child, f"commit {number + 1} {mine}") == SAVED
            for child in children:
                os.kill(child.pid, signal.SIGSTOP)
            for child in children:
                child.kill()
        finally:
            for child in children:
                child.close()
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            found = poll_until(member, lambda: member.assignment.keys() == ALL)
        firsts = {
            partition: min(o for p, o in places(found) if p == partition) for partition in ALL
        }

        assert set().union(*shares) == ALL
        assert firsts == {
            partition: number + 1 for number, share in enumerate(shares) for partition in share
        }


def test_a_process_killed_in_a_turn_of_its_group_keeps_nobody_out(
    scratch: Path, forks: ForkServer
) -> None:
    """The lock goes with it, and its partitions do, too."""
    with topic_at(scratch) as topic, forks.start(hold_the_turn, scratch) as child:
        assert child.read() == READY
        with forks.start(be_member, scratch, LONG_SECONDS) as waiter:
            wait_until_blocked_by_lock(waiter.pid)
            assert not waiter.has_report()
            child.kill()
            child.join()
            started(waiter)
            ask(waiter, "join 4")

            assert numbers_of(ask(waiter, "tokens")).keys() == ALL
            assert len(topic.group(GROUP).info().members) == 1


def test_what_a_living_member_commits_as_it_gives_up_is_not_read_again(
    scratch: Path, forks: ForkServer
) -> None:
    """Nobody dies: then partitions change hands without a single record read twice."""
    with (
        topic_at(scratch) as topic,
        forks.start(be_member, scratch, LONG_SECONDS, commits=True) as child,
    ):
        started(child)
        ask(child, "join 4")
        with topic.group(GROUP).join(ttl=LONG_SECONDS) as member:
            fill(topic, 1)
            child.tell("join 2")
            mine = poll_until(member, lambda: len(member.assignment) == 2)
            theirs = child.read()
            news = places(mine) + places_of(theirs)

            assert sorted(news) == everything(RECORDS, RECORDS + 1)
            assert ask(child, "close") == SAVED
            last = poll_until(member, lambda: member.assignment.keys() == ALL)
            kept = numbers_of(theirs).keys()
            assert {record.partition for record in last} <= set(kept)


def test_a_producer_s_name_is_free_once_its_user_is_killed_and_not_while_it_is_stopped(
    scratch: Path, forks: ForkServer
) -> None:
    """One at a time, so that sequence numbers mean something; the next goes on after the last."""
    with topic_at(scratch) as topic, forks.start(be_producer, scratch, "p") as child:
        assert child.read() == -1
        assert ask(child, "first") == 0
        with stopped(child):
            with pytest.raises(ProducerBusy):
                topic.producer("p")
            with forks.start(be_producer, scratch, "p") as other:
                assert other.read() == BUSY
                assert other.join() == 0
        assert ask(child, "second") == 1
        child.kill()
        child.join()
        with topic.producer("p") as producer:
            assert producer.last_sequence() == 1
            assert producer.append("second", partition=0, sequence=1) is None
            producer.append("third", partition=0)
        values = [record.value for record in topic.records(partitions=[0])]
        assert values[RECORDS:] == [b"first", b"second", b"third"]
