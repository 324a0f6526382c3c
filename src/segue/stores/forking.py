"""What a forked child must not share with its parent: sockets, locks that others hold, its name."""

import os
from typing import Protocol
from weakref import WeakSet


class Beginner(Protocol):
    """Something that begins anew in a child."""

    def begin(self) -> None:
        """Forget what is the parent's. Called where there is one thread alone."""


_BEGINNERS: "WeakSet[Beginner]" = WeakSet()


def in_every_child(beginner: Beginner) -> None:
    """Have `begin` called in every process that is forked from this one."""
    _BEGINNERS.add(beginner)


def _begin_all() -> None:
    for beginner in list(_BEGINNERS):
        beginner.begin()


# Before anybody else runs in the child: whoever looks later may look while others are at work.
os.register_at_fork(after_in_child=_begin_all)
