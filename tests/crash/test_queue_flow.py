"""Groups keep their order while workers are killed at work, and processes share a rate."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Item, QueueRules
from tests.crash.processes import Child, ForkServer
from tests.crash.queue_flow_roles import pop_by_rate, work_in_groups
from tests.crash.queue_roles import QUEUE

GROUPS: Final = "abcdef"
MESSAGES: Final = 240
TTL: Final = 1.0
"""Long enough that nobody who lives is late with what takes a hundredth of it."""
KILLS: Final = 8
GRACE_SECONDS: Final = 60.0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_keeps_its_order_though_its_workers_are_killed(
    scratch: Path, forks: ForkServer, seed: int
) -> None:
    """Each delivery is that of the one before once more, or of the next: none is left out."""
    diary = scratch / "diary"
    diary.touch()
    chance = random.Random(seed)
    rules = QueueRules(max_deliveries=None, segment_items=20)
    with segue.open(scratch / "data", sync="os") as store, ExitStack() as workers:
        queue = store.queue(QUEUE, rules)
        queue.push_many(
            [
                Item(body=b"%d" % (number // len(GROUPS)), group=GROUPS[number % len(GROUPS)])
                for number in range(MESSAGES)
            ]
        )

        def started(number: int) -> Child:
            own_seed = 100 * seed + number
            child = forks.start(work_in_groups, scratch / "data", diary, TTL, own_seed)
            return workers.enter_context(child)

        running = [started(number) for number in range(3)]
        for number in range(KILLS):
            time.sleep(chance.random() * 0.3)
            victim = running.pop(chance.randrange(len(running)))
            victim.kill()
            victim.join()
            running.append(started(10 + number))
        deadline = time.monotonic() + GRACE_SECONDS
        while queue.count().total and time.monotonic() < deadline:
            time.sleep(0.02)

        assert queue.count().total == 0
        assert queue.count().dead == 0
    delivered: dict[str, list[int]] = {name: [] for name in GROUPS}
    for line in diary.read_text().splitlines():
        name, number_text = line.split()
        delivered[name].append(int(number_text))
    for numbers in delivered.values():
        last = -1
        for each in numbers:
            assert each in (last, last + 1), numbers
            last = each
        assert last == MESSAGES // len(GROUPS) - 1


def test_two_processes_share_a_rate(scratch: Path, forks: ForkServer) -> None:
    """Together they are no faster than it says, and lose nothing."""
    count, rate, burst = 40, 40.0, 4
    with segue.open(scratch, sync="os") as store:
        queue = store.queue(QUEUE, QueueRules(rate=rate, rate_burst=burst))
        bodies = [str(number) for number in range(count)]
        start = time.monotonic()
        with forks.start(pop_by_rate, scratch) as one, forks.start(pop_by_rate, scratch) as two:
            queue.push_many(bodies)
            deadline = start + GRACE_SECONDS
            while queue.count().total and time.monotonic() < deadline:
                time.sleep(0.005)
            elapsed = time.monotonic() - start
            one.kill()
            two.kill()
            reports = [*one.read_rest(), *two.read_rest()]

        assert elapsed >= (count - burst) / rate
        # A pop that was not yet reported when its process was killed is gone.
        assert {str(report) for report in reports} <= set(bodies)
        assert len(reports) >= count - 2
        assert len(reports) == len(set(map(str, reports)))
