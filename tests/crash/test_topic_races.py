"""Moments in which two processes meet, made to last: what random runs hit once in a hundred.

Each has a disk of its own that calls back at one chosen call, as if the scheduler had let the other
one run just then.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import segue
from segue import Topic, TopicRules
from segue.log.disk import Disk
from segue.stores.topic_contract import Member
from tests.waiting import LIMIT_SECONDS

TOPIC: Final = "orders"
GROUP: Final = "billing"
RULES: Final = TopicRules(segment_bytes=16 * 1024)
TTL: Final = 3_600
MEETING_SECONDS: Final = 0.8
"""How long one waits for the other to come so far; it may just as well be waiting for us."""


class MeetingDisk(Disk):
    """Calls `meet` once, after the next call that is of the `awaited` kind and path."""

    def __init__(self) -> None:
        self._awaited = ("", "")
        self._meet: Callable[[], object] | None = None

    def await_call(self, operation: str, part: str, meet: Callable[[], object]) -> None:
        """Have `meet` called after the next `operation` on a path that has `part` in it."""
        self._awaited, self._meet = (operation, part), meet

    def _called(self, operation: str, path: Path) -> None:
        meet = self._meet
        if meet is not None and self._awaited[0] == operation and self._awaited[1] in path.parts:
            self._meet = None
            meet()

    def names(self, directory: Path) -> list[str]:
        found = super().names(directory)
        self._called("names", directory)
        return found

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        fd = super().open_to_write(path, create=create)
        self._called("open_to_write", path)
        return fd


class LingeringDisk(Disk):
    """Keeps the next shared lock it gets until it is told to go on."""

    def __init__(self) -> None:
        self.is_to_linger = False
        self.lingers = threading.Event()
        self.goes_on = threading.Event()

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0.0) -> bool:
        got = super().try_lock(fd, shared=shared, timeout_seconds=timeout_seconds)
        if got and shared and self.is_to_linger:
            self.is_to_linger = False
            self.lingers.set()
            assert self.goes_on.wait(LIMIT_SECONDS)
        return got


def open_topic(root: Path, disk: Disk | None = None) -> tuple[segue.Store, Topic]:
    store = segue.open(root, sync="os", disk=disk)
    return store, store.topic(TOPIC, partitions=2, rules=RULES)


def test_a_topic_can_be_opened_while_another_rolls_and_cleans(scratch: Path) -> None:
    """The segment that was the last one a moment ago may be gone by now."""
    disk = MeetingDisk()
    store, topic = open_topic(scratch)
    other_store, other = open_topic(scratch, disk)

    def roll_and_clean() -> None:
        for _ in range(2):
            topic.append("more", partition=1)
            topic.roll()
        with topic.reader("ann", "latest"):
            assert topic.clean().count > 0

    with store, other_store:
        topic.append("first", partition=1)
        disk.await_call("names", "partition_1", roll_and_clean)
        other.append("last", partition=1)
        records = list(topic.records(partitions=[1]))

        assert [(record.offset, record.value) for record in records] == [(3, b"last")]


def test_one_who_joins_while_another_does_is_not_taken_for_dead(scratch: Path) -> None:
    """Also before its file is locked: whoever tidies up leaves alone what was just made."""
    disk = MeetingDisk()
    store, topic = open_topic(scratch)
    other_store, other = open_topic(scratch, disk)
    members: list[Member] = []
    joining = threading.Thread(target=lambda: members.append(topic.group(GROUP).join(ttl=TTL)))

    def join() -> None:
        joining.start()
        joining.join(MEETING_SECONDS)

    with store, other_store:
        topic.append("first", partition=0)
        disk.await_call("open_to_write", "members", join)
        second = other.group(GROUP).join(ttl=TTL)
        joining.join(LIMIT_SECONDS)
        first = members[0]

        assert len(topic.group(GROUP).info().members) == 2
        for _ in range(2):
            first.poll()
            second.poll()
        assert [len(first.assignment), len(second.assignment)] == [1, 1]
        second.commit()


def test_one_who_joins_while_another_looks_whether_it_lives_becomes_a_member(
    scratch: Path,
) -> None:
    """The look takes the lock of its file for a moment; that must not be taken for an owner."""
    disk, lingering = MeetingDisk(), LingeringDisk()
    store, topic = open_topic(scratch, lingering)
    other_store, other = open_topic(scratch, disk)
    members: list[Member] = []
    tidying = threading.Thread(target=lambda: members.append(topic.group(GROUP).join(ttl=TTL)))

    def look() -> None:
        lingering.is_to_linger = True
        tidying.start()
        lingering.lingers.wait(MEETING_SECONDS)
        threading.Timer(MEETING_SECONDS / 4, lingering.goes_on.set).start()

    with store, other_store:
        topic.offsets()  # Opens all there is: else it is that lock it would linger with.
        other.offsets()
        disk.await_call("open_to_write", "members", look)
        try:
            members.append(other.group(GROUP).join(ttl=TTL))
        finally:
            lingering.goes_on.set()
            tidying.join(LIMIT_SECONDS)

        assert len(members) == 2
        assert len(topic.group(GROUP).info().members) == 2
