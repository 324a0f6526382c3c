"""Rings and locks whose users are killed at any moment."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from segue.log.options import SyncName
from segue.stores.contract import Ring, TransactionOutcome
from segue.stores.opening import open_directory
from tests.crash.channel import Report
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.ring_workers import (
    CAPACITY,
    LOCK,
    RING,
    body_of,
    txn_id_of,
    use_lock_until_killed,
    use_ring_until_killed,
)
from tests.waiting import random_pause

KILLS: Final = 400 if TORTURE else 10
"""For each test and setting."""
PROCESSES: Final = 3
LIFE_SECONDS_MAX: Final = 0.15
ALL_AT_ONCE: Final = 0.2
UNDER_WAY_MAX: Final = 20
"""How many calls after the last that was reported may have been begun: those that were aborted,
and one."""
SYNCS: Final = ["os", "always"]

Reports = list[list[Report]]
"""What each child reported, in the order they were started."""
Outcomes = dict[tuple[int, int], TransactionOutcome]
"""By worker and call."""


@pytest.mark.parametrize("sync", SYNCS)
def test_killed_users_of_a_ring_lose_nothing_they_were_told_and_take_nothing_twice(
    tmp_path: Path, forks: ForkServer, sync: SyncName
) -> None:
    """C1, C2: a commit is there whole or not at all, and its outcome says which."""
    path = tmp_path / "data"
    with open_directory(path, sync=sync) as store:
        ring = store.ring(RING, capacity=CAPACITY, entries_per_segment=50)
        ring.add_group("witness")  # Takes nothing, so that every entry can be looked at.
    seed = new_seed()
    unreported: Outcomes = {}

    def look_up(worker: int, told: list[Report]) -> None:
        # At once, because only so many outcomes are remembered.
        with open_directory(path, sync=sync) as store:
            unreported.update(_unreported(store.ring(RING, mode="open"), worker, told))

    with naming_seed(seed):
        reports = _kill_for_a_while(
            seed,
            lambda number: forks.start(use_ring_until_killed, path, sync, number),
            look_up,
        )
        with open_directory(path, sync=sync) as store:
            _check_ring(store.ring(RING, mode="open"), reports, unreported)


@pytest.mark.parametrize("sync", SYNCS)
def test_killed_users_of_a_lock_never_share_it_and_its_tokens_only_grow(
    tmp_path: Path, forks: ForkServer, sync: SyncName
) -> None:
    """C5: whatever became of the holder, the next token is higher."""
    path, witness = tmp_path / "data", tmp_path / "witness"
    seed = new_seed()
    with naming_seed(seed):
        reports = _kill_for_a_while(
            seed,
            lambda _: forks.start(use_lock_until_killed, path, sync, witness),
            lambda _, __: None,
        )
        tokens = [token for told in reports for token in told if isinstance(token, int)]
        with open_directory(path, sync=sync) as store:
            last = store.lock(LOCK, ttl=1).acquire().token

        assert [told for part in reports for told in part if not isinstance(told, int)] == []
        for part in reports:
            own = [token for token in part if isinstance(token, int)]
            assert own == sorted(own)
        assert len(tokens) == len(set(tokens)) > 0
        assert last > max(tokens)


def _kill_for_a_while(
    seed: int, start: Callable[[int], Child], after: Callable[[int, list[Report]], None]
) -> Reports:
    """Keep some children at work and kill one after the other; return what each reported.

    `after` is called after each kill, with the child's number and reports.
    """
    chance = random.Random(seed)
    reports: Reports = []

    def kill(child: Child) -> None:
        child.kill()
        assert child.join() == KILLED, "a child ended by itself; see its traceback"
        told = child.read_rest()
        after(len(reports), told)
        reports.append(told)

    with ExitStack() as ending:
        children: list[Child] = []
        while len(reports) < KILLS:
            while len(children) < PROCESSES:
                child = start(len(reports) + len(children))
                ending.callback(child.close)
                children.append(child)
            random_pause(chance, LIFE_SECONDS_MAX)
            # Now and then all of them: then whoever comes next is alone and recovers.
            for _ in range(PROCESSES if chance.random() < ALL_AT_ONCE else 1):
                kill(children.pop(0))
        while children:
            kill(children.pop(0))
    return reports


@dataclass(kw_only=True)
class _Found:
    """What the ring holds of one call."""

    first_offset: int
    bodies: list[bytes] = field(default_factory=list)

    @property
    def offsets(self) -> range:
        return range(self.first_offset, self.first_offset + len(self.bodies))


def _unreported(ring: Ring, worker: int, told: list[Report]) -> Outcomes:
    """Return what a worker committed and did not live to tell."""
    last_call = max((int(report[0]) for report in told if isinstance(report, list)), default=-1)
    outcomes = {
        (worker, call): ring.outcome(txn_id_of(worker, call))
        for call in range(last_call + 1, last_call + UNDER_WAY_MAX)
    }
    known = {key: outcome for key, outcome in outcomes.items() if outcome is not None}
    assert len(known) <= 1
    return known


def _check_ring(ring: Ring, reports: Reports, unreported: Outcomes) -> None:
    info = ring.info()
    calls = _calls_in(ring, info.tail_offset)
    taken: list[int] = []
    reported: set[tuple[int, int]] = set()
    for worker, told in enumerate(reports):
        for report in told:
            assert isinstance(report, list)
            call, first_offset, count, *offsets = map(int, report)
            reported.add((worker, call))
            taken += offsets
            found = calls.get((worker, call))
            assert (found is not None) == (count > 0)
            assert found is None or found.offsets == range(first_offset, first_offset + count)
    for key, outcome in unreported.items():
        taken += outcome.dequeued.get("default", range(0))
        assert outcome.enqueued == (calls[key].offsets if key in calls else outcome.enqueued[:0])

    assert calls.keys() - reported <= unreported.keys(), "committed, but its outcome is not known"
    assert sorted(taken) == list(range(info.groups["default"])), "taken twice or by nobody"
    assert taken, "nobody got anything done"


def _calls_in(ring: Ring, tail: int) -> dict[tuple[int, int], _Found]:
    """Return what each call added, all of which must be whole, together and in order."""
    calls: dict[tuple[int, int], _Found] = {}
    for offset in range(tail):
        entry = ring.get(offset)
        assert entry is not None
        worker, call, place, count = map(int, entry.body.split())
        found = calls.setdefault((worker, call), _Found(first_offset=offset))
        assert entry.body == body_of(worker, call, len(found.bodies), count)
        assert offset == found.first_offset + place
        found.bodies.append(entry.body)
    for found in calls.values():
        assert len(found.bodies) == int(found.bodies[0].split()[3])
    order: dict[int, int] = {}
    for worker, call in calls:
        assert order.get(worker, -1) < call
        order[worker] = call
    return calls
