"""`segue topic`: everything a topic can do, one verb each.

create.py      how a topic is made: partitions and rules
look.py        which topics there are, how they stand and where their files lie
append.py      lines in; events.py: what a line stands for
read.py        records out; sources.py: where they come from, records.py: how they look
consumers.py   readers and groups: where they stand, how far behind, and moving them
keep.py        retention and compaction
"""

from collections.abc import Callable
from typing import Final

import typer

from segue.cli.topic.append import append
from segue.cli.topic.consumers import groups, lag, readers, seek
from segue.cli.topic.create import create
from segue.cli.topic.keep import clean, compact
from segue.cli.topic.look import files, info, ls
from segue.cli.topic.read import cat, tail

_VERBS: Final[tuple[Callable[..., None], ...]] = (
    *(ls, create, info, append, cat, tail),
    *(readers, groups, lag, seek, clean, compact, files),
)


def add_verbs(group: typer.Typer) -> None:
    """Give the group its verbs, in the order that help shows them."""
    for verb in _VERBS:
        group.command()(verb)
