"""`segue queue`: everything a queue can do, one verb each.

push.py      messages in
take.py      messages out, for good or on lease, and looking at them
settle.py    what becomes of a lease, by its receipt
look.py      which queues there are and how they stand
find.py      how one message stands, and which are not settled
timeline.py  what happened to one message
letters.py   dead letters
operate.py   what an operator does to a whole queue
rules.py     how a queue behaves
"""

from collections.abc import Callable
from typing import Final

import typer

from segue.cli.queue.find import browse, show
from segue.cli.queue.letters import dead, discard, redrive
from segue.cli.queue.look import ls, state, stats
from segue.cli.queue.operate import pause, purge, replay, resume, rm
from segue.cli.queue.push import push
from segue.cli.queue.rules import rules
from segue.cli.queue.settle import ack, extend, nack
from segue.cli.queue.take import history, lease, peek, pop
from segue.cli.queue.timeline import timeline

_VERBS: Final[tuple[Callable[..., None], ...]] = (
    *(ls, push, pop, lease, ack, nack, extend, peek, show, timeline, browse, stats),
    *(state, dead, redrive, discard, history, replay, rules, pause, resume, purge, rm),
)


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in _VERBS:
        group.command()(verb)
