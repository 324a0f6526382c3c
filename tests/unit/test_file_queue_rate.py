"""How long a file queue waits for its rate."""

import time
from pathlib import Path

import pytest

from segue import QueueRules
from segue.log import wake
from segue.stores.file.queue import FileQueue
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.contract.queue_support import push_all
from tests.waiting import LIMIT_SECONDS


def test_who_waits_knows_when_the_next_is_due(scratch: Path) -> None:
    """Nobody has to do anything for it."""
    clock = ManualClock()
    with open_directory(scratch, sync="os", clock=clock, ticks=clock.ticks) as store:
        queue = store.queue("jobs", QueueRules(rate=0.5))
        push_all(queue, 2)
        queue.lease()
        clock.advance(ms=500)

        assert queue.lease_many(1, wait=0.01) == []
        assert not queue.wait(0.01)
        # Time stands still: all that can be asked is how long it would be.
        assert isinstance(queue, FileQueue)
        with queue._core.turn():
            assert queue._core.seconds_to_next() == pytest.approx(1.5)


def test_a_rate_is_kept_by_the_real_clock(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty messages at a hundred a second take a fifth of a second, not less.

    Each wait ends when the next message may come: waits that only look now and then do not end.
    """
    monkeypatch.setattr(wake, "LOOK_AGAIN_SECONDS", 10 * LIMIT_SECONDS)
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs", QueueRules(rate=100))
        push_all(queue, 21)
        queue.lease()
        start = time.monotonic()
        for _ in range(20):
            queue.lease(wait=LIMIT_SECONDS)
        elapsed = time.monotonic() - start

    assert elapsed >= 0.199
