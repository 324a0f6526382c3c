"""Deduplication where the pusher was killed half-way, or lost its power."""

from pathlib import Path
from random import Random

import pytest

from segue import Item
from segue.stores.file.pushing import Pusher
from segue.stores.opening import open_directory
from segue.testing import ManualClock, RecordingDisk
from tests.contract.worlds import FileWorld


class Killed(BaseException):
    """Stands in for SIGKILL: nothing of ours handles it."""


@pytest.mark.parametrize("delay", [None, 5.0], ids=["at once", "with a delay"])
@pytest.mark.parametrize(("step", "kept"), [("announce_keys", 0), ("append", 0), ("note_keys", 1)])
def test_a_key_counts_if_its_message_is_there_whoever_was_killed(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, step: str, kept: int, delay: float | None
) -> None:
    """Killed before its message was appended it is free, killed after that it is taken."""
    world = FileWorld(scratch / "data", sync="os")
    killed, other = world.open(), world.open()
    queue, there = killed.queue("jobs"), other.queue("jobs")
    queue.push(b"before")
    there.push(b"noise")

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, step, die)
        with pytest.raises(Killed):
            queue.push(b"first", key="k", delay=delay)
    world.crash(killed)
    there.push(b"more noise")
    second = there.push(b"second", key="k", delay=delay)
    third = there.push(b"third", key="k", delay=delay)
    world.clock.advance(seconds=10)
    bodies = [message.body for message in there.pop_many(10)]

    assert third == second
    assert sorted(set(bodies) & {b"first", b"second", b"third"}) == [
        b"first" if kept else b"second"
    ]
    assert len(bodies) == 4
    world.end()


@pytest.mark.parametrize("delay", [None, 5.0], ids=["at once", "with a delay"])
def test_a_key_counts_if_its_message_is_there_after_a_power_cut(
    scratch: Path, delay: float | None
) -> None:
    """Whoever was not answered pushes again, and must not push a second one."""
    before = scratch / "before"
    before.mkdir()
    disk, clock = RecordingDisk(before), ManualClock()
    items = [Item(body=b"%d" % number, key=f"key {number}", delay=delay) for number in range(3)]
    with open_directory(before / "data", disk=disk, clock=clock, ticks=clock.ticks) as store:
        queue = store.queue("jobs")
        queue.push_many(items[:1])
        begin = disk.moment
        queue.push_many(items)
        end = disk.moment
    bodies = []
    for moment in range(begin, end + 1):
        after = scratch / f"after {moment}"
        restarted = disk.after_power_cut(after, moment, Random(moment))
        with open_directory(
            after / "data", disk=restarted, clock=clock, ticks=clock.ticks
        ) as store:
            store.queue("jobs").push_many(items)
            now = [status.message.body for status in store.queue("jobs").browse()]
            bodies.append(sorted(now))

    assert bodies == [[b"0", b"1", b"2"]] * (end + 1 - begin)
