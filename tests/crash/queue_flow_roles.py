"""What processes do to a queue with groups, or with a rate, until they are killed."""

import os
import random
from pathlib import Path
from typing import Final

from tests.crash.channel import Channel
from tests.crash.queue_roles import LONG_SECONDS, POLL_SECONDS, STEPS_MAX, open_queue
from tests.waiting import random_pause

CHECKPOINT_EVENTS: Final = 120
"""Small: ledgers are written down all the time."""
WORK_SECONDS_MAX: Final = 0.01


def work_in_groups(channel: Channel, root: Path, diary: Path, seed: int) -> None:
    """Lease, write the messages to a diary that all share, work a little, ack or fail.

    End without a lease when told to.
    """
    chance = random.Random(seed)
    queue = open_queue(root, checkpoint_events=CHECKPOINT_EVENTS)
    fd = os.open(diary, os.O_WRONLY | os.O_APPEND)
    channel.report("ready")
    while not channel.has_order():
        count = chance.choice([1, 1, 4])
        jobs = queue.lease_many(count, ttl=LONG_SECONDS, wait=POLL_SECONDS)
        # One write, and at once: the order of lines is that of the deliveries.
        os.write(fd, b"".join(b"%s %s\n" % ((job.group or "").encode(), job.body) for job in jobs))
        for job in jobs:
            random_pause(chance, WORK_SECONDS_MAX)
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
