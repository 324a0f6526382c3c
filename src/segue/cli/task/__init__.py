"""`segue task`: what became of tasks, and what can be done about it, without their code.

look.py      which tasks there are, and all that is known of one
act.py       bringing dead ones back, cancelling others
enqueue.py   queuing a call
records.py   a task as a row, as facts and as JSON
"""

import typer

from segue.cli.task.act import cancel, retry
from segue.cli.task.enqueue import enqueue
from segue.cli.task.look import ls, show


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in (ls, show, enqueue, retry, cancel):
        group.command()(verb)
