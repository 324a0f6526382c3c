"""One look at the whole store for all who ask: its queues, its workers, its disk.

Whoever asks gets the last look, or has a new one made if that was a while ago: however many ask,
the store is looked at once. That is done by a thread, queue by queue. Where one does not come back,
another thread goes on with the rest, and the queue is passed over until it does: what is known of
it stays, with the problem told beside it. To look makes nothing, but opens queues: no more of them
than there are descriptors for.
"""

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.errors import LogClosed, SegueError, StoreClosed
from segue.server.flow import Flow, Standing, per_second, standing_of
from segue.server.open_queues import OpenQueues, queues_max
from segue.server.picture import NOT_YET, DiskSpace, Picture, Row
from segue.server.task_flow import Crew, crew_of
from segue.server.topic_sizes import TopicSizes
from segue.stores.contract import QueueStats, Store
from segue.stores.file.store import FileStore
from segue.stores.http.problems import problem_of
from segue.values import dataclass

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How old a look may be and still be shown."""
SHARE: Final = 4
"""Looking takes at most one part in so many of the time."""
QUEUE_SHARE: Final = 20
"""A look at one queue does, too: it holds up whoever pushes and takes there."""
LATE_SECONDS: Final = 10.0
"""After how long what does not come back is passed over. To open a large queue takes seconds."""
STUCK_MAX: Final = 4
"""How many threads may wait for what does not come back."""
RETRY_SECONDS: Final = 5.0
"""How soon a queue is looked at again that cannot be read."""
QUEUES_LOOKED_MAX: Final = 2_000
"""How many queues are looked at, those first that are open already."""
CREW_SECONDS: Final = 2.0
"""How often the reports of workers are read: they report no more often."""
CREW_SHARE: Final = 20
DISK_SECONDS: Final = 5.0
CLOSING_SECONDS: Final = 1.0
"""How long the end waits for a look that is under way."""

STUCK: Final = "does not answer; what is shown is what was last known"
FAILED: Final = "cannot be looked at; the server's log says more"


@dataclass(slots=True)
class _Seen:
    """What is known of one queue. Changed by the one thread that looks at it."""

    standing: Standing | None = None
    ticks_us: int = 0
    flow: Flow | None = None
    flow_seconds: float = 0.0
    problem: str = ""
    due_us: int = 0

    def note(self, standing: Standing, ticks_us: int) -> None:
        """Take in another look at it."""
        seconds = (ticks_us - self.ticks_us) / 1_000_000
        if self.standing is not None and seconds > 0:
            self.flow = Flow.between(self.standing, standing)
            self.flow_seconds = seconds
        self.standing = standing
        self.ticks_us = ticks_us
        self.problem = ""


class _Step(NamedTuple):
    """Something to look at."""

    what: str
    run: Callable[[], object]
    is_opening: bool = False
    """Whether it takes long only this once."""


class _Turn:
    """One thread's looking, until it is through or taken over by another."""

    def __init__(self, steps: deque[_Step], begun_us: int, taken_us: int = 0) -> None:
        self.steps = steps
        self.begun_us = begun_us
        self.taken_us = taken_us
        """How long it took so far, but for opening."""
        self.step: _Step | None = None
        """What it is at."""
        self.since_us = begun_us

    @property
    def at(self) -> str:
        """What it is at, in words."""
        return "" if self.step is None else self.step.what


class Overlook:
    """Looks at a store for whoever asks. Safe from any thread, but the event loop's."""

    def __init__(
        self,
        store: Store,
        queues: OpenQueues,
        *,
        syncs: Callable[[], int | None] = lambda: None,
        clock: Clock = system_clock,
        ticks: Ticks = system_ticks,
    ) -> None:
        """`syncs` tells how often the store has synced, where that is counted."""
        self._store = store
        self._queues = queues
        self._count_syncs = syncs
        self._clock = clock
        self._ticks = ticks
        self._changed = threading.Condition()
        self._turn: _Turn | None = None
        self._stuck: dict[str, _Turn] = {}
        """What does not come back, and who waits for it."""
        self._due_us = 0
        self._closed = False
        self._seen: dict[str, _Seen] = {}
        """By name, of those queues that are looked at."""
        self._others: tuple[str, ...] = ()
        self._crew: Crew | None = None
        self._crew_due_us = 0
        self._disk: DiskSpace | None = None
        self._disk_due_us = 0
        self._topics = TopicSizes(store, ticks) if isinstance(store, FileStore) else None
        self._syncs: tuple[int, int] | None = None
        self._syncs_per_second: float | None = None
        self._picture = Picture(at_us=clock())

    # Asking --------------------------------------------------------------------------------

    def picture(self, patience_seconds: float) -> Picture:
        """Return how the store stands, by a look that is new or no older than LOOK_SECONDS.

        A look that takes longer than `patience_seconds` is not waited for: then it is what is
        known so far.
        """
        deadline = time.monotonic() + patience_seconds
        with self._changed:
            self._take_over()
            if self._turn is None and not self._closed and self._ticks() >= self._due_us:
                self._begin()
            number = self._picture.number
            while self._turn is not None and self._picture.number == number:
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    at_us = self._picture.at_us if number else self._clock()
                    return self._composed(number, at_us)
                self._changed.wait(left)
            return self._picture

    def close(self) -> None:
        """Look no more. A look that does not come back is not waited for for long."""
        with self._changed:
            self._closed = True
            if self._turn is not None:
                self._turn.steps.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn is None, CLOSING_SECONDS)

    # Going round; what has `_changed` in its docstring is for who holds that -----------------

    def _begin(self) -> None:
        """Start a look (`_changed`)."""
        steps: deque[_Step] = deque()
        steps.append(_Step("the list of queues", partial(self._list, steps)))
        steps.append(_Step("the workers", self._look_at_workers))
        if isinstance(self._store, FileStore):
            steps.append(_Step("the disk", partial(self._look_at_disk, self._store)))
        self._start(_Turn(steps, self._ticks()))

    def _take_over(self) -> None:
        """Have another thread go on if one does not come back (`_changed`)."""
        turn, now_us = self._turn, self._ticks()
        if turn is None or now_us - turn.since_us <= LATE_SECONDS * 1_000_000:
            return
        if turn.at in self._seen:
            self._seen[turn.at].problem = STUCK
        if len(self._stuck) >= STUCK_MAX:
            return
        logger.warning("does not come back what=%s", turn.at)
        self._stuck[turn.at] = turn
        self._start(_Turn(turn.steps, turn.begun_us, turn.taken_us))

    def _start(self, turn: _Turn) -> None:
        """Have a thread do what is left (`_changed`)."""
        turn.since_us = self._ticks()
        try:
            # A daemon, and no pool of the standard library: those wait for it at the end.
            threading.Thread(
                target=self._go_on, args=(turn,), name="segue-serve-overlook", daemon=True
            ).start()
        except RuntimeError as error:  # There is no thread to be had.
            logger.warning("not looked reason=%s", error)
            self._turn = None
            self._due_us = self._ticks() + int(LOOK_SECONDS * 1_000_000)
        else:
            self._turn = turn

    def _go_on(self, turn: _Turn) -> None:
        while (step := self._next(turn)) is not None:
            try:
                step.run()
            except SegueError as error:  # What it is about a queue stands beside that.
                logger.debug("not looked at what=%s reason=%s", turn.at, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the rest is looked at.
                logger.warning("not looked at what=%s reason=%r", turn.at, error)

    def _next(self, turn: _Turn) -> _Step | None:
        """Return what a thread is to do next; None if there is nothing left for it."""
        with self._changed:
            if self._turn is not turn:
                self._stuck.pop(turn.at, None)  # It came back at last.
                return None
            now_us = self._ticks()
            if turn.step is not None and not turn.step.is_opening:
                turn.taken_us += now_us - turn.since_us
            turn.since_us = now_us
            while turn.steps:
                turn.step = turn.steps.popleft()
                if turn.at not in self._stuck:
                    return turn.step
            self._end(turn)
            return None

    def _end(self, turn: _Turn) -> None:
        """Have a look be over (`_changed`)."""
        due_us = turn.begun_us + int(LOOK_SECONDS * 1_000_000)
        self._due_us = max(due_us, self._ticks() + turn.taken_us * (SHARE - 1))
        self._turn = None
        self._note_syncs()
        self._picture = self._composed(self._picture.number + 1, self._clock())
        self._changed.notify_all()

    # Looking -------------------------------------------------------------------------------

    def _list(self, steps: deque[_Step]) -> None:
        names = self._store.queues()
        chosen = self._chosen(names)
        with self._changed:
            self._seen = {name: self._seen.get(name) or _Seen(problem=NOT_YET) for name in chosen}
            self._others = tuple(sorted(set(names).difference(chosen)))
            now_us = self._ticks()
            for name, seen in self._seen.items():
                if seen.due_us > now_us:
                    continue
                if name not in self._queues.opened:
                    steps.append(_Step(name, partial(self._open, name), is_opening=True))
                steps.append(_Step(name, partial(self._look_at, name)))

    def _chosen(self, names: Collection[str]) -> list[str]:
        """Return which queues are looked at: those that are open, others while there is room."""
        store, room = self._store, QUEUES_LOOKED_MAX
        if isinstance(store, FileStore):
            room = min(room, queues_max())
            opened = set(filter(store.is_queue_open, names))
        else:
            opened = self._queues.opened.keys() & names
        chosen = sorted(opened)[:QUEUES_LOOKED_MAX]
        left = max(0, room - len(chosen))
        chosen += sorted(set(names).difference(opened))[:left]
        return sorted(chosen)

    def _open(self, name: str) -> None:
        seen = self._seen.get(name)
        if seen is not None:
            with self._noting_problems(seen):
                self._queues.find(name)

    def _look_at(self, name: str) -> None:
        seen = self._seen.get(name)
        if seen is None or seen.due_us > self._ticks():
            return  # It is gone, or could not be opened just now.
        begun_us = self._ticks()
        with self._noting_problems(seen):
            stats = self._stats(name)
        now_us = self._ticks()
        with self._changed:
            seen.note(standing_of(stats), now_us)
        seen.due_us = now_us + (now_us - begun_us) * QUEUE_SHARE

    @contextmanager
    def _noting_problems(self, seen: _Seen) -> Iterator[None]:
        """Have what goes wrong with a queue stand beside it, and leave it alone for a while."""
        begun_us = self._ticks()
        try:
            yield
        except Exception as error:
            seen.problem = problem_of(error).detail if isinstance(error, SegueError) else FAILED
            now_us = self._ticks()
            rest_us = int(RETRY_SECONDS * 1_000_000)
            seen.due_us = now_us + max(rest_us, (now_us - begun_us) * QUEUE_SHARE)
            raise

    def _stats(self, name: str) -> QueueStats:
        try:
            return self._queues.find(name).stats()
        except (StoreClosed, LogClosed):
            self._queues.forget(name)  # Removed, and perhaps made anew.
            return self._queues.find(name).stats()

    def _look_at_workers(self) -> None:
        begun_us = self._ticks()
        if begun_us < self._crew_due_us:
            return
        try:
            self._crew = crew_of(self._store, self._clock(), self._crew)
        finally:
            taken_us = self._ticks() - begun_us
            self._crew_due_us = begun_us + max(int(CREW_SECONDS * 1_000_000), taken_us * CREW_SHARE)

    def _look_at_disk(self, store: FileStore) -> None:
        if self._ticks() < self._disk_due_us:
            return
        self._disk_due_us = self._ticks() + int(DISK_SECONDS * 1_000_000)
        usage = shutil.disk_usage(store.place.root)
        self._disk = DiskSpace(total_bytes=usage.total, free_bytes=usage.free)
        if self._topics is not None:
            self._topics.look()

    def _note_syncs(self) -> None:
        count, ticks_us = self._count_syncs(), self._ticks()
        before = self._syncs
        if count is not None:
            if before is not None and ticks_us > before[1]:
                grown = max(0, count - before[0])
                self._syncs_per_second = per_second(grown, (ticks_us - before[1]) / 1_000_000)
            if before is None or ticks_us > before[1]:
                self._syncs = count, ticks_us

    def _composed(self, number: int, at_us: int) -> Picture:
        """Return what is known now (`_changed`)."""
        rows = tuple(
            Row(
                name=name,
                standing=seen.standing,
                flow=seen.flow,
                flow_seconds=seen.flow_seconds,
                problem=seen.problem,
            )
            for name, seen in self._seen.items()
        )
        return Picture(
            number=number,
            at_us=at_us,
            rows=rows,
            others=self._others,
            is_whole=number > 0 and all(row.problem != NOT_YET for row in rows),
            crew=self._crew,
            disk=self._disk,
            topic_bytes={} if self._topics is None else self._topics.bytes_by_name,
            syncs=None if self._syncs is None else self._syncs[0],
            syncs_per_second=self._syncs_per_second,
        )
