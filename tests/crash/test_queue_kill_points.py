"""A queue's life, killed at every call that others can see; a sample of them in a short run."""

import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from segue import QueueRules, Store
from segue.delivery.events import Configured, Event
from segue.errors import QueueFull
from segue.log.options import SyncName
from segue.stores.file.journal import Journal
from segue.testing import ManualClock
from tests.crash.channel import Channel
from tests.crash.children import DONE
from tests.crash.kill_runs import ended
from tests.crash.killing_disk import KillingDisk, KillPoint, Moment
from tests.crash.processes import KILLED, ForkServer
from tests.crash.queue_story import (
    CHECKPOINT_EVENTS,
    LEDGER_KEPT_BYTES,
    QUEUE,
    TIDY_EVERY_ITEMS,
    Held,
    allowed,
    check_logs,
    examine,
    make_small,
    open_store,
    play,
    stays_paused,
)
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed

POINTS: Final = 900 if TORTURE else 24
"""How many are tried in each sync mode."""


class QueueDisk(KillingDisk):
    """Writes every record by a call, also where it would be stored in a mapping."""

    stores_mapped = False


def play_and_report(channel: Channel, root: Path, sync: SyncName, point: KillPoint | None) -> None:
    """Play the story; report how many steps are done, and each receipt once."""
    make_small()
    told: set[str] = set()

    def tell(done: int, held: Held) -> None:
        channel.report(done)
        for job in held.values():
            if job.receipt not in told:
                told.add(job.receipt)
                channel.report(job.receipt)

    with open_store(root, sync, disk=QueueDisk(point)) as store:
        play(store.queue(QUEUE), tell)
    channel.report(DONE)


def count_calls(channel: Channel, root: Path, sync: SyncName) -> None:
    """Play the story to its end and report how often each operation was called."""
    make_small()
    disk = QueueDisk()
    with open_store(root, sync, disk=disk) as store:
        play(store.queue(QUEUE), lambda *_: None)
    for operation, number in Counter(disk.trace).items():
        channel.report([operation, str(number)])
    channel.report(DONE)


def points_of(calls: dict[str, int]) -> list[KillPoint]:
    """Return every place to be killed at."""
    return [
        KillPoint(operation=operation, number=number, moment=moment)
        for operation, count in sorted(calls.items())
        for number in range(1, count + 1)
        for moment in Moment
        if moment is not Moment.WITHIN or operation == "write_at"
    ]


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_kill_at_any_call_leaves_a_state_the_queue_s_life_allows(
    scratch: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch, sync: SyncName
) -> None:
    """C1 to C5, C7: what returned has happened; the call under way has, or has not, whole.

    Only a push over several priorities may be parted.
    """
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", CHECKPOINT_EVENTS)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", LEDGER_KEPT_BYTES)
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", TIDY_EVERY_ITEMS)
    _, reports = ended(forks.start(count_calls, scratch / "calls", sync))
    calls = {str(each[0]): int(each[1]) for each in reports if isinstance(each, list)}
    seed = new_seed()
    points = points_of(calls)
    chance = random.Random(f"{seed} {sync}")
    kills = 0
    for point in chance.sample(points, min(POINTS, len(points))):
        root = scratch / "store"
        with naming_seed(seed), naming(point):
            killed, reports = ended(forks.start(play_and_report, root, sync, point))
            kills += killed
            numbers = [report for report in reports if isinstance(report, int)]
            done = numbers[-1] if numbers else 0
            receipts = [str(report) for report in reports if isinstance(report, str)]
            expected = allowed(done, under_way=True, forgetful=False)

            def reopen(clock: ManualClock, root: Path = root) -> Store:
                return open_store(root, sync, clock=clock)

            found = examine(reopen, expected, [each for each in receipts if each != DONE])
            if stays_paused(done) and stays_paused(done + 1):
                assert found.paused
            check_logs(root)
        shutil.rmtree(root)

    assert kills > POINTS // 2 or kills == len(points)


def die_while_configuring(_: Channel, root: Path) -> None:
    """Set a capacity, and die in the turn that does, once the ledger has it."""
    write = Journal.write

    def write_and_die(journal: Journal, event: Event) -> None:
        write(journal, event)
        if isinstance(event, Configured):
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Journal, "write", write_and_die)  # noqa: B010 - mypy knows no patched methods.
    open_store(root, "os").queue(QUEUE, QueueRules(capacity=2))


def test_rules_whose_giver_was_killed_hold_for_who_has_the_queue_open(
    scratch: Path, forks: ForkServer
) -> None:
    """A capacity that stands in the ledger is everybody's, whoever did not live to say so."""
    with open_store(scratch, "os") as store:
        queue = store.queue(QUEUE)
        queue.push("one")
        with forks.start(die_while_configuring, scratch) as child:
            assert child.join() == KILLED
        queue.push("two")
        assert queue.rules.capacity == 2

        with pytest.raises(QueueFull):
            queue.push("three")
