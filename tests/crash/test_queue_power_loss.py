"""What a queue promises when the power fails, tried on the states its disk may be found in."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Counts, Queue, QueueRules, Store
from segue.errors import LeaseLost
from segue.log.options import SyncName
from segue.stores.file import upkeep
from segue.testing import ManualClock, RecordingDisk
from tests.crash.queue_story import (
    CHECKPOINT_EVENTS,
    DELIVERIES_MAX,
    LEDGER_KEPT_BYTES,
    QUEUE,
    RESTART_SECONDS,
    START_US,
    STORY,
    TIDY_EVERY_ITEMS,
    Found,
    Held,
    allowed,
    drain,
    examine,
    open_store,
    play,
)
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed

CUTS: Final = 500 if TORTURE else 8
"""How often the power fails in one recorded life, in each setting."""
LOST_CUTS: Final = 300 if TORTURE else 6
ANYHOW: Final[set[Found]] = {None, "dead", *range(1, DELIVERIES_MAX + 2)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checkpoints, carries and deletions often."""
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", CHECKPOINT_EVENTS)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", LEDGER_KEPT_BYTES)
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", TIDY_EVERY_ITEMS)


class Recorded:
    """A story played on a recorded disk, and what was done when."""

    def __init__(self, root: Path, sync: SyncName, interval_ms: int) -> None:
        root.mkdir()
        self.sync = sync
        self.disk = RecordingDisk(root)
        self.begun: list[int] = []
        self.receipts: list[tuple[int, str]] = []
        """Each with the moment from which on somebody had it."""
        with open_store(root, sync, disk=self.disk, interval_ms=interval_ms) as store:
            play(store.queue(QUEUE), self._tell)

    def _tell(self, done: int, held: Held) -> None:
        assert done == len(self.begun)
        self.begun.append(self.disk.moment)
        known = {receipt for _, receipt in self.receipts}
        for job in held.values():
            if job.receipt not in known:
                self.receipts.append((self.disk.moment, job.receipt))

    def done_at(self, moment: int) -> int:
        """Return how many steps had returned, for certain, at `moment`."""
        return max(0, sum(begun <= moment for begun in self.begun) - 1)

    def receipts_at(self, moment: int) -> list[str]:
        return [receipt for taken, receipt in self.receipts if taken <= moment]


@pytest.mark.parametrize("interval_ms", [1, 60_000], ids=["flushed", "unflushed"])
def test_a_power_cut_keeps_pushes_and_pops_and_costs_redeliveries_at_most(
    scratch: Path, interval_ms: int
) -> None:
    """C1 to C5, C7 with sync "always": what is forgotten is delivered again, with new tokens.

    A buried message is a dead letter or still to be delivered, never neither.
    """
    seed = new_seed()
    chance = random.Random(f"{seed} {interval_ms}")
    life = Recorded(scratch / "0", "always", interval_ms)
    for _ in range(CUTS):
        moment = chance.randint(0, life.disk.moment)
        target = scratch / "1"
        with naming_seed(seed), naming(f"cut at {moment} of {life.disk.moment}"):
            after = life.disk.after_power_cut(target, moment, random.Random(chance.random()))
            done = life.done_at(moment)

            def reopen(clock: ManualClock, disk: RecordingDisk = after) -> Store:
                return open_store(scratch / "1", "always", disk=disk, clock=clock)

            expected = allowed(done, under_way=True, forgetful=True)
            found = examine(reopen, expected, life.receipts_at(moment), after_restart=True)
            assert found.counts.leased == 0, "nobody holds anything after a restart"
        shutil.rmtree(target)


@pytest.mark.parametrize(
    ("sync", "fixed_seed"),
    [
        ("interval", None),
        ("os", None),
        ("os", 2767969349),  # The first segment of a lane was gone, and an ack failed.
        ("os", 884074260),  # Delayed messages were missing behind the end of their log.
    ],
)
def test_where_less_is_promised_a_power_cut_still_leaves_a_queue_that_goes_on(
    scratch: Path, sync: SyncName, fixed_seed: int | None
) -> None:
    """Whatever is lost, opening works, nothing is invented, and new messages are delivered."""
    seed = fixed_seed or new_seed()
    chance = random.Random(f"{seed} {sync}")
    life = Recorded(scratch / "0", sync, 60_000)
    for _ in range(LOST_CUTS):
        moment = chance.randint(0, life.disk.moment)
        target = scratch / "1"
        with naming_seed(seed), naming(f"cut at {moment} of {life.disk.moment}"):
            after = life.disk.after_power_cut(target, moment, random.Random(chance.random()))

            def reopen(clock: ManualClock, disk: RecordingDisk = after) -> Store:
                return open_store(scratch / "1", sync, disk=disk, clock=clock)

            anything = allowed(len(STORY), under_way=False, forgetful=True)
            expected = dict.fromkeys([*anything, "g twin"], ANYHOW)
            examine(reopen, expected, life.receipts_at(moment), exact=False, after_restart=True)
        shutil.rmtree(target)


# Single moments ----------------------------------------------------------------------------------


class Machine:
    """A store on a machine that can lose power; its ticks start over each time."""

    def __init__(self, scratch: Path, sync: SyncName, rules: QueueRules | None = None) -> None:
        self._scratch = scratch
        self._number = 0
        self._sync = sync
        self._rules = rules
        self.clock = ManualClock(START_US)
        self._path().mkdir()
        self.disk = RecordingDisk(self._path())

    def _path(self) -> Path:
        return self._scratch / f"machine {self._number}"

    @contextmanager
    def running(self) -> Iterator[Queue]:
        """Have the queue open until the power is cut or the block is over."""
        store = segue.open(
            self._path(),
            sync=self._sync,
            sync_interval_ms=60_000,
            disk=self.disk,
            clock=self.clock,
            ticks=self.clock.ticks,
        )
        with store:
            yield store.queue(QUEUE, self._rules)

    def cut(self, seed: int, *, moment: int | None = None) -> None:
        """Cut the power at `moment`, by default now, and start the machine again."""
        self._number += 1
        self.clock = ManualClock(self.clock() + RESTART_SECONDS * 1_000_000)
        moment = self.disk.moment if moment is None else moment
        self.disk = self.disk.after_power_cut(self._path(), moment, random.Random(seed))


SEEDS: Final = range(100 if TORTURE else 6)


def test_all_that_was_leased_in_one_call_is_back_after_a_restart(scratch: Path) -> None:
    """Neighbours of several priorities in one lease, too: nobody holds anything any more.

    Ticks start over with the machine, so a deadline from before may lie days ahead.
    """
    machine = Machine(scratch, "always")
    machine.clock.advance(seconds=86_400)
    with machine.running() as queue:
        for priority in (0, 1, 2):
            queue.push(f"of priority {priority}", priority=priority)
        jobs = queue.lease_many(3, ttl=60)
        receipts = [job.receipt for job in jobs]
        assert len(queue.stats().leases) == 3
    machine.cut(1)
    with machine.running() as queue:
        assert queue.count() == Counts(ready=3, delayed=0, leased=0, dead=0)
        for receipt in receipts:
            with pytest.raises(LeaseLost):
                queue.ack(receipt)
        assert [job.attempt for job in queue.lease_many(3)] == [2, 2, 2]


@pytest.mark.parametrize("sync", ["interval", "os"])
@pytest.mark.parametrize("max_deliveries", [1, 5])
def test_a_message_pushed_after_a_cut_is_delivered_though_the_cursor_was_ahead(
    scratch: Path, sync: SyncName, max_deliveries: int
) -> None:
    """Where the ledger outlasts what it tells of, its cursor goes back to what is left."""
    for seed in SEEDS:
        with naming(f"seed {seed}"):
            root = scratch / str(seed)
            root.mkdir()
            machine = Machine(root, sync, QueueRules(max_deliveries=max_deliveries))
            with machine.running() as queue:
                for number in range(6):
                    queue.push(f"old {number}")
                queue.lease_many(6, ttl=60)
                queue.pause()  # Syncs the ledger, where anything is synced at all.
                machine.cut(seed)
            with machine.running() as queue:
                queue.resume()
                queue.count()
                queue.push("new")
                bodies = [job.text for job in drain(queue)]

                assert bodies[-1:] == ["new"]
                assert queue.count().total == 0
            shutil.rmtree(root)


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_a_delayed_message_pushed_after_a_cut_is_delivered(scratch: Path, sync: SyncName) -> None:
    """Also where those before it were noted in the ledger and then lost."""
    for seed in SEEDS:
        with naming(f"seed {seed}"):
            root = scratch / str(seed)
            root.mkdir()
            machine = Machine(root, sync)
            with machine.running() as queue:
                for number in range(4):
                    queue.push(f"old {number}", delay=10)
                queue.count()
                queue.pause()
                machine.cut(seed)
            with machine.running() as queue:
                queue.resume()
                queue.push("new", delay=10)
                machine.clock.advance(seconds=11)
                bodies = [job.text for job in drain(queue)]

                assert bodies[-1:] == ["new"]
                assert queue.count().total == 0
            shutil.rmtree(root)


def kept_in_interval_mode(scratch: Path, seed: int, move: str) -> list[str]:
    """Push and sync a message in mode "interval", have it moved, cut the power; return it."""
    root = scratch / str(seed)
    root.mkdir()
    rules = QueueRules(segment_items=4, max_deliveries=1 if move == "bury" else 9)
    machine = Machine(root, "interval", rules)
    with machine.running() as queue:
        queue.push("kept")
        for number in range(40):
            queue.push(f"filler {number}")
    with machine.running() as queue:  # Closing has synced every push.
        kept = queue.lease(ttl=60)
        if move == "bury":
            queue.nack(kept, outcome="dead")
        for job in drain(queue):
            assert job.text != "kept"
        queue.pause()
        machine.cut(seed)
    with machine.running() as queue:
        queue.resume()
        letters = [letter.message.text for letter in queue.dead_letters()]
        found = letters + [job.text for job in drain(queue)]
    shutil.rmtree(root)
    return found


@pytest.mark.parametrize("move", ["bury", "carry"])
def test_what_was_synced_in_mode_interval_is_not_lost_where_it_is_moved(
    scratch: Path, move: str
) -> None:
    """The copy of a message is on the device before anything says that it is the message now."""
    assert upkeep.PINNED_SEGMENTS_MAX < 10
    for seed in SEEDS:
        with naming(f"seed {seed}"):
            assert kept_in_interval_mode(scratch, seed, move).count("kept") == 1


def test_recovery_may_lose_power_as_well(scratch: Path) -> None:
    """C7: cut again while it is being opened, and again, a queue keeps what it promised."""
    seed = new_seed()
    chance = random.Random(seed)
    for number in range(100 if TORTURE else 5):
        with naming_seed(seed), naming(f"machine {number}"):
            root = scratch / str(number)
            root.mkdir()
            _cut_while_opening(Machine(root, "always", QueueRules(segment_items=4)), chance)
            shutil.rmtree(root)


def _cut_while_opening(machine: Machine, chance: random.Random) -> None:
    with machine.running() as queue:
        queue.push_many(["one", "two"])
        first = queue.lease(ttl=60)
        first.ack()
        tokens = [first.token, queue.lease(ttl=60).token]
    moment = machine.disk.moment
    kept = {"two"}
    for round_ in range(4):
        machine.cut(chance.getrandbits(32), moment=moment)
        with machine.running() as queue:
            token = queue.lease(ttl=60).token
            leased = machine.disk.moment
            queue.push(f"more {round_}", priority=1)
            pushed = machine.disk.moment
        assert token > tokens[-1], "tokens grow over every cut"
        moment = chance.randint(0, machine.disk.moment)
        if moment >= leased:
            tokens.append(token)
        if moment >= pushed:
            kept.add(f"more {round_}")
    machine.cut(chance.getrandbits(32), moment=moment)
    with machine.running() as queue:
        assert {job.text for job in drain(queue)} >= kept
