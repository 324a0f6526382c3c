"""Groups keep their order while workers are killed at work, and processes share a rate."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Item, QueueRules
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.queue_flow_roles import pop_by_rate, work_in_groups
from tests.crash.queue_roles import QUEUE, expire_leases, open_store
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.waiting import random_pause, wait_for_progress, wait_until

GROUPS: Final = "abcdef"
MESSAGES: Final = 240
ROUNDS: Final = 20 if TORTURE else 1
WORKERS: Final = 3
KILLS: Final = 8
LIFE_SECONDS_MAX: Final = 0.06
"""Before a worker is killed, and again before the others end."""


def end(workers: list[Child]) -> None:
    """Have workers end, which settle what they hold."""
    for worker in workers:
        worker.tell("end")
    for worker in workers:
        assert worker.join() == 0


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_group_keeps_its_order_though_its_workers_are_killed(
    scratch: Path, forks: ForkServer, round_: int
) -> None:
    """Each delivery of a group repeats the message before it, or is the next one.

    In each round one worker is killed and the others end by themselves. Then the lease of the
    killed one expires.
    """
    seed = new_seed()
    with naming_seed(seed):
        check_order_under_kills(scratch, forks, seed + round_)


def check_order_under_kills(scratch: Path, forks: ForkServer, seed: int) -> None:
    """Kill workers at moments that follow from `seed`, drain the queue and check the diary."""
    diary = scratch / "diary"
    diary.touch()
    chance = random.Random(seed)
    rules = QueueRules(max_deliveries=None, segment_items=20)
    root = scratch / "data"
    root.mkdir()
    with open_store(root) as store:
        queue = store.queue(QUEUE, rules)
        queue.push_many(
            [
                Item(body=b"%d" % (number // len(GROUPS)), group=GROUPS[number % len(GROUPS)])
                for number in range(MESSAGES)
            ]
        )
        for number in range(KILLS):
            with ExitStack() as ending:
                workers = [
                    ending.enter_context(
                        forks.start(work_in_groups, root, diary, 1_000 * seed + 10 * number + each)
                    )
                    for each in range(WORKERS)
                ]
                for worker in workers:
                    worker.read()
                random_pause(chance, LIFE_SECONDS_MAX)
                workers[0].kill()
                assert workers[0].join() == KILLED
                random_pause(chance, LIFE_SECONDS_MAX)
                end(workers[1:])
            expire_leases(root)
        with forks.start(work_in_groups, root, diary, seed) as worker:
            wait_for_progress(queue.count, lambda: queue.count().total == 0)
            end([worker])

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
            wait_until(lambda: queue.count().total == 0, "all messages are popped")
            elapsed = time.monotonic() - start
            one.kill()
            two.kill()
            reports = [*one.read_rest(), *two.read_rest()]

        assert elapsed >= (count - burst) / rate
        # A pop that was not yet reported when its process was killed is gone.
        assert {str(report) for report in reports} <= set(bodies)
        assert len(reports) >= count - 2
        assert len(reports) == len(set(map(str, reports)))
