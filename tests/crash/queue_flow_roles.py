"""What processes do to a queue with groups, or with a rate, until they are killed."""

import os
import random
import time
from pathlib import Path
from typing import Final

from tests.crash.channel import Channel
from tests.crash.queue_roles import STEPS_MAX, open_queue

CHECKPOINT_EVENTS: Final = 120
"""Small: ledgers are written down all the time."""
WORK_SECONDS_MAX: Final = 0.01


def work_in_groups(channel: Channel, root: Path, diary: Path, ttl: float, seed: int) -> None:
    """Lease, note whose turn it is in a diary that all share, work a little, ack or fail."""
    chance = random.Random(seed)
    queue = open_queue(root, checkpoint_events=CHECKPOINT_EVENTS)
    fd = os.open(diary, os.O_WRONLY | os.O_APPEND)
    channel.report("ready")
    for _ in range(STEPS_MAX):
        jobs = queue.lease_many(chance.choice([1, 1, 4]), ttl=ttl, wait=None)
        # One write, and at once: the order of lines is that of the deliveries.
        os.write(fd, b"".join(b"%s %s\n" % ((job.group or "").encode(), job.body) for job in jobs))
        for job in jobs:
            time.sleep(chance.random() * WORK_SECONDS_MAX)
            if chance.random() < 0.1:
                job.fail(delay=chance.choice([0, 0.02]))
            else:
                job.ack()


def pop_by_rate(channel: Channel, root: Path) -> None:
    """Pop whatever comes and report it."""
    queue = open_queue(root)
    for _ in range(STEPS_MAX):
        message = queue.pop(wait=None)
        assert message is not None
        channel.report(message.text)
