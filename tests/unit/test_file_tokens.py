"""Tokens of leases where the power is cut, and cut again."""

from pathlib import Path
from random import Random

import pytest

from segue.stores.opening import open_directory
from segue.testing import ManualClock, RecordingDisk


@pytest.mark.parametrize("seed", range(2))
def test_no_token_comes_again_though_the_power_fails_after_each_start(
    scratch: Path, seed: int
) -> None:
    """The ledger may lose that a lease was given, but not which start of the machine gave it."""
    clock, random = ManualClock(), Random(seed)
    (scratch / "start 0").mkdir()
    disk = RecordingDisk(scratch / "start 0")
    with open_directory(
        scratch / "start 0" / "data", disk=disk, clock=clock, ticks=clock.ticks
    ) as store:
        store.queue("jobs").push(b"a")
        moment = disk.moment
    tokens = []
    for start in range(1, 5):
        path = scratch / f"start {start}"
        disk = disk.after_power_cut(path, moment, random)
        with open_directory(path / "data", disk=disk, clock=clock, ticks=clock.ticks) as store:
            tokens.append(store.queue("jobs").lease(ttl=60).token)
            moment = disk.moment  # Before anything is synced by closing.

    assert tokens == sorted(set(tokens))
