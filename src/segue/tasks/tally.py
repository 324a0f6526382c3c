"""How many tasks there are in each state, without going through them."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, cast

from segue.stores.contract import Counts, MessageState, Queue, Store
from segue.stores.queue_base import QueueBase
from segue.tasks.index import TaskIndex
from segue.tasks.standing import is_task
from segue.tasks.states import State
from segue.tasks.walk import UNREADABLE, MayOpen, any_queue, count_of
from segue.values import dataclass

LOOK_SECONDS: Final = 0.1
"""How long queues are looked at for one answer: the counts of the others are those from before."""
VERDICT_SECONDS: Final = 10.0
"""For how long a queue that no event is about is taken for one with tasks, or for one without."""
TASKS_SHOWN_MAX: Final = 100
"""How many names of tasks are told of: those with most tasks."""

_KINDS: Final[tuple[MessageState, ...]] = ("ready", "leased", "delayed", "dead")

Covers = Callable[[str], bool]
"""Tells whether a queue counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """How many tasks are in which state."""

    states: Mapping[State, int]
    tasks: Sequence[tuple[str, Mapping[State, int]]]
    """By name, those with most first, as far as events say it."""
    more_queues: int
    """How many queues nobody has looked at yet, for want of time or because too many are open:
    their waiting tasks are not among these."""


class Tally:
    """Counts the tasks of a store. Safe from any thread.

    Completed and cancelled are counted by events, for as long as their records are kept. All others
    are messages, and counted by their queues, which know of workers that were killed: what is ready
    is pending, leased is processing, dead is a dead letter. Of what is delayed as many are retrying
    as events say that wait for another try, and the rest is scheduled; so one whose time has come
    again counts as pending, and so does one that is to be cancelled, until a worker meets it.

    Queues that events are about count, and those whose first messages are tasks; whatever else lies
    in one of these counts as if it were a task.
    """

    def __init__(
        self,
        store: Store,
        index: TaskIndex,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        may_open: MayOpen = any_queue,
    ) -> None:
        self._store = store
        self._index = index
        self._may_open = may_open
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seen: dict[str, Counts] = {}
        """By queue, as it was when it was looked at last."""
        self._verdicts: dict[str, tuple[float, bool]] = {}
        """By queue, whether it holds tasks, and until when that is believed."""
        self._next = ""
        """The queue to begin with."""

    def counts(self, covers: Covers) -> TaskCounts:
        """Return the counts of all queues that are covered."""
        is_covered = cache(covers)
        states: Counter[State] = Counter()
        by_task: dict[str, Counter[State]] = {}
        retrying: Counter[str] = Counter()
        known = set[str]()
        for (queue, task, state), count in self._index.counts_by_queue().items():
            known.add(queue)
            if not is_covered(queue):
                continue
            by_task.setdefault(task, Counter())[state] += count
            if state in (State.COMPLETED, State.CANCELLED):
                states[state] += count
            elif state is State.RETRYING:
                retrying[queue] += count
        with self._lock:
            there = sorted(self._store.queues())
            self._forget_all_but(there)
            names = [name for name in there if is_covered(name)]
            self._look(names, known)
            for name in names:
                counts = self._seen.get(name)
                if counts is not None and self._has_tasks(name, known):
                    states.update(_waiting(counts, retrying[name]))
            more = sum(name not in self._seen for name in names)
        return TaskCounts(
            states={state: states[state] for state in State},
            tasks=sorted(by_task.items(), key=_most_first)[:TASKS_SHOWN_MAX],
            more_queues=more,
        )

    def _forget_all_but(self, names: list[str]) -> None:
        for name in self._seen.keys() - names:
            del self._seen[name]
            self._verdicts.pop(name, None)

    def _look(self, names: list[str], known: set[str]) -> None:
        """Count as many queues as there is time for, beginning where the last look ended."""
        deadline = self._monotonic() + LOOK_SECONDS
        first = bisect_left(names, self._next)
        for name in (*names[first:], *names[:first]):
            self._next = name
            if self._monotonic() >= deadline:
                return
            if not self._may_open(name):
                continue
            try:
                queue = self._store.queue(name)
                self._seen[name] = counts = queue.count()
                if name not in known:
                    self._judge(name, queue, counts)
            except UNREADABLE:
                self._seen[name] = _NONE
        self._next = ""

    def _judge(self, name: str, queue: Queue, counts: Counts) -> None:
        until, is_one = self._verdicts.get(name, (0.0, False))
        if self._monotonic() >= until:
            is_one = any(
                is_task(body)
                for kind in _KINDS
                if count_of(counts, kind)
                for body in _first_body(queue, kind)
            )
            self._verdicts[name] = self._monotonic() + VERDICT_SECONDS, is_one

    def _has_tasks(self, name: str, known: set[str]) -> bool:
        return name in known or self._verdicts.get(name, (0.0, False))[1]


_NONE: Final = Counts(ready=0, delayed=0, leased=0, dead=0)


def _first_body(queue: Queue, kind: MessageState) -> list[bytes]:
    if kind == "dead":
        letter = next(cast("QueueBase", queue).letters.behind(-1), None)
        return [] if letter is None else [letter.message.body]
    return [status.message.body for status in queue.browse(state=kind, limit=1)]


def _waiting(counts: Counts, retrying: int) -> dict[State, int]:
    again = min(retrying, counts.delayed)
    return {
        State.PENDING: counts.ready,
        State.SCHEDULED: counts.delayed - again,
        State.RETRYING: again,
        State.PROCESSING: counts.leased,
        State.DEAD_LETTER: counts.dead,
    }


def _most_first(each: tuple[str, Counter[State]]) -> tuple[int, str]:
    name, counts = each
    return -counts.total(), name
