"""What single members and producers of a topic do in tests that tell them step by step."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import segue
from segue import Topic, TopicRecord
from segue.errors import PartitionLost, ProducerBusy
from segue.stores.file.topics.group import GroupCore
from segue.stores.topic_contract import Member
from tests.crash.channel import Channel, Report
from tests.crash.processes import Child
from tests.crash.shared_clock import SharedClock
from tests.waiting import LIMIT_SECONDS

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 4
READY: Final = "ready"
SAVED: Final = "saved"
LOST: Final = "lost"
BUSY: Final = "busy"
LONG_SECONDS: Final = 3_600.0
"""Time to live of a member. It is over only if a test advances the shared clock."""
CLOCK: Final = "clock"
"""File of the shared clock, beside the store's directories."""
POLL_SECONDS: Final = 0.05


def open_topic(root: Path, partitions: int | None = None) -> tuple[segue.Store, Topic]:
    """Return the store and its topic, which is created if `partitions` are given."""
    root.mkdir(exist_ok=True)
    clock = SharedClock(root / CLOCK)
    store = segue.open(root / "store", sync="os", clock=clock, ticks=clock.ticks)
    return store, store.topic(TOPIC, partitions=partitions)


def be_member(channel: Channel, root: Path, ttl: float, *, commits: bool = False) -> None:
    """Join the group and do what we are told, until we are killed or our orders end.

    `commits`: also whatever we are about to give up.
    """
    _, topic = open_topic(root)

    def commit_before(partitions: list[int]) -> None:
        place = member.position
        member.commit({partition: place[partition] for partition in partitions})

    member = topic.group(GROUP).join(ttl=ttl, on_revoke=commit_before if commits else None)
    channel.report(READY)
    while True:
        name, *arguments = str(channel.wait_for_order()).split()
        channel.report(_ACTS[name](member, [int(argument) for argument in arguments]))


def _poll(member: Member, _: list[int]) -> Report:
    return [f"{record.partition}:{record.offset}" for record in member.poll(1_000)]


def _join(member: Member, numbers: list[int]) -> Report:
    """Poll until we have so many partitions; return what came."""
    return [
        f"{record.partition}:{record.offset}"
        for record in poll_until(member, lambda: len(member.assignment) == numbers[0])
    ]


def _commit(member: Member, numbers: list[int]) -> Report:
    """Commit the place we are at, or up to an offset in each partition that we were told."""
    offsets = dict.fromkeys(numbers[1:], numbers[0]) if numbers else None
    return _tried(lambda: member.commit(offsets))


def _show_up(member: Member, _: list[int]) -> Report:
    return _tried(member.show_up)


def _tokens(member: Member, _: list[int]) -> Report:
    return [f"{partition}:{token}" for partition, token in member.assignment.items()]


def _close(member: Member, _: list[int]) -> Report:
    member.close()
    return SAVED


def _tried(act: Callable[[], None]) -> Report:
    try:
        act()
    except PartitionLost as error:
        return [LOST, *map(str, error.partitions)]
    return SAVED


_ACTS: Final[dict[str, Callable[[Member, list[int]], Report]]] = {
    "poll": _poll,
    "join": _join,
    "commit": _commit,
    "show_up": _show_up,
    "tokens": _tokens,
    "close": _close,
}


def poll_until(member: Member, condition: Callable[[], bool]) -> list[TopicRecord]:
    """Poll until `condition` holds and nothing more comes; return all that came."""
    records: list[TopicRecord] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        found = member.poll(1_000, timeout=POLL_SECONDS)
        records += found
        if condition() and not found:
            return records
        assert time.monotonic() < deadline, f"waited in vain, with {member.assignment}"


def hold_the_turn(channel: Channel, root: Path) -> None:
    """Join the group, begin a turn and never end it."""
    store, topic = open_topic(root)
    member = topic.group(GROUP).join(ttl=LONG_SECONDS)
    core = GroupCore(vars(store)["_topics"][TOPIC], GROUP)
    with core.turn():
        channel.report(READY)
        channel.wait_for_order()
    member.close()


def be_producer(channel: Channel, root: Path, name: str) -> None:
    """Have the producer's name, and append one record each time we are told to."""
    _, topic = open_topic(root)
    try:
        producer = topic.producer(name)
    except ProducerBusy:
        channel.report(BUSY)
        return
    channel.report(producer.last_sequence())
    while True:
        value = str(channel.wait_for_order())
        producer.append(value, partition=0)
        channel.report(producer.last_sequence())


def ask(child: Child, order: str) -> Report:
    """Tell a child something and return its answer."""
    child.tell(order)
    return child.read()


def numbers_of(report: Report) -> dict[int, int]:
    """Return what a child said of its partitions: each with a number."""
    assert isinstance(report, list)
    pairs = [str(each).split(":") for each in report]
    return {int(partition): int(number) for partition, number in pairs}


def places_of(report: Report) -> list[tuple[int, int]]:
    """Return which records a child said it got."""
    assert isinstance(report, list)
    places = [tuple(map(int, str(each).split(":"))) for each in report]
    return sorted((partition, offset) for partition, offset in places)
