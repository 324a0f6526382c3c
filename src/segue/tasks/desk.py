"""Questions about tasks, and acts on them, with nothing but the store at hand: no code of tasks.

A task that is not finished is a message: its queue knows how it stands. What became of a finished
one is in the events.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from segue.clock import Clock
from segue.delivery.message import DeadLetter, MessageId
from segue.errors import InvalidName, StoreUnavailable, TaskNotFound
from segue.stores.contract import MessageStatus, Queue, Store
from segue.stores.letters import DeadLetters
from segue.stores.queue_base import QueueBase
from segue.tasks.cancelling import Cancellations
from segue.tasks.events import KEEP_SECONDS_DEFAULT, EventLog, TaskEvent
from segue.tasks.index import TaskIndex
from segue.tasks.index_pages import Wanted
from segue.tasks.obituaries import letter_near
from segue.tasks.records import TaskRecord, split_id
from segue.tasks.standing import as_it_stands, status_of_dead
from segue.tasks.states import TERMINAL, State
from segue.tasks.tally import Covers, Tally, TaskCounts
from segue.tasks.walk import (
    STRETCH,
    MayOpen,
    Place,
    Walk,
    Without,
    any_queue,
    kinds_of,
    place_from,
)
from segue.values import dataclass

INDEX_PATH: Final = Path("index", "tasks.sqlite3")
LIST_LIMIT_DEFAULT: Final = 100
BROWSE_MAX: Final = 10_000
"""How many messages of a queue are looked at for those that fit, where no page follows."""
PAGE_MESSAGES_MAX: Final = 2_000
PAGE_SECONDS: Final = 0.06
"""How many messages are looked at for one page, and for how long: fewer if they are large."""
PAGE_MESSAGES_MIN: Final = 25
"""However long that takes: where others keep a queue busy, the first one may have to wait."""
WITHOUT_MAX: Final = 100_000
"""How many queues without tasks are remembered."""
RECORD_SECONDS: Final = 5.0
"""How long the record of a task that has left its queue waits for events to be taken in."""

_FINISHED: Final = (State.COMPLETED, State.CANCELLED)
"""What is known by events alone. Of the dead the queue knows which there still are."""


class _HasQueue(Protocol):
    """What every store can tell, and Redis without a call for each of its queues."""

    def has_queue(self, name: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Which tasks a list is of."""

    states: tuple[State, ...]
    task: str | None
    queue: str | None
    error: str | None
    since_us: int | None
    until_us: int | None

    @property
    def finished(self) -> tuple[State, ...]:
        return tuple(state for state in self.states if state in _FINISHED)

    def fits(self, record: TaskRecord) -> bool:
        return (
            record.state in self.states
            and (self.task is None or record.task == self.task)
            and (self.error is None or self.error.lower() in record.error.lower())
            and (self.since_us is None or record.updated_us >= self.since_us)
            and (self.until_us is None or record.updated_us < self.until_us)
        )

    def wanted(self, queues: frozenset[str] | None) -> Wanted:
        return Wanted(
            states=self.finished,
            task=self.task,
            queues=queues,
            error=self.error,
            since_us=self.since_us,
            until_us=self.until_us,
        )


class Desk:
    """Answers for all tasks of a store. Safe from any thread."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        keep_seconds: float = KEEP_SECONDS_DEFAULT,
        patience_seconds: float | None = None,
        may_open: MayOpen = any_queue,
    ) -> None:
        """`patience_seconds` is how long answers wait for the index, as `TaskIndex` has it.

        What is asked of all queues passes over those that it may not open.
        """
        self.store = store
        self.log = EventLog(store)
        self.keep_seconds = keep_seconds
        self.cancellations = Cancellations(store)
        self.index = TaskIndex(
            self.log, _index_path(store), clock, patience_seconds=patience_seconds
        )
        self._may_open = may_open
        self._tally = Tally(store, self.index, may_open=may_open)
        self._without: Without = {}

    def prepare(self) -> None:
        """Have the topics that workers append to and look at."""
        self.log.prepare(self.keep_seconds)
        self.cancellations.prepare()

    # One task ------------------------------------------------------------------------------

    def record(self, task_id: str, *, since_us: int = 0) -> TaskRecord:
        """Return all that is known of a task. Raises TaskNotFound, InvalidArgument.

        What was pushed before `since_us` is another: ids of a queue that was removed come again.
        Raises StoreUnavailable while it may be in events that are not taken in yet.
        """
        queue, message_id = split_id(task_id)
        known = self._known(task_id, since_us)
        if known is not None and known.state in _FINISHED:
            return known
        status = self._status(queue, message_id, known)
        if status is not None:
            return as_it_stands(task_id, status, known, self.cancellations.requested())
        behind = self.index.catch_up(RECORD_SECONDS)
        known = self._known(task_id, since_us)  # Again: its event came before it was settled.
        if known is not None and known.state in _FINISHED:
            return known
        if behind:
            raise StoreUnavailable(
                f"nothing is known of task {task_id} yet: {behind} events are still to be taken in"
            )
        raise TaskNotFound(
            f"nothing is known of task {task_id}: there never was one, its record has outlived "
            "its time, or its message was purged, discarded or taken by other means"
        )

    def _known(self, task_id: str, since_us: int) -> TaskRecord | None:
        known = self.index.get(task_id)
        return None if known is None or known.pushed_us < since_us else known

    def _status(
        self, queue: str, message_id: MessageId, known: TaskRecord | None
    ) -> MessageStatus | None:
        if not self._has_queue(queue):
            return None
        opened = self.store.queue(queue)
        if known is not None and known.state is State.DEAD_LETTER and self._finds_letters:
            # Looking it up would be to go through all letters.
            letter = letter_near(_letters_of(opened), message_id, known.finished_us)
            if letter is not None:
                return status_of_dead(letter)
        return opened.look_up(message_id)

    def events(self, task_id: str) -> tuple[list[TaskEvent], bool]:
        """Return what happened to a task, in its order, and whether that is all.

        Of many events the first ones and the last ones; of progress only the last, which does not
        count as missing. Raises TaskNotFound if nothing is known of the task, InvalidArgument.
        """
        split_id(task_id)
        offsets, is_all = self.index.offsets_of(task_id)
        if not offsets:
            self.record(task_id)
            offsets, is_all = self.index.offsets_of(task_id)
        found = [event for event in self.log.at(offsets) if event.id == task_id]
        return found, is_all and len(found) == len(offsets) and not self.index.behind

    # Lists ---------------------------------------------------------------------------------

    def find(
        self,
        *,
        states: Sequence[State] = (),
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        limit: int = LIST_LIMIT_DEFAULT,
    ) -> list[TaskRecord]:
        """Return the tasks that fit: the unfinished first, then the finished, the latest first.

        Of a queue's waiting messages no more than a named limit are looked at; `page` goes on.
        """
        asked = _Asked(
            states=tuple(states) or tuple(State),
            task=task,
            queue=queue,
            error=error,
            since_us=since_us,
            until_us=until_us,
        )
        found: dict[str, TaskRecord] = {}
        for _, record in self._walk(asked, None, STRETCH).steps(None, most=BROWSE_MAX):
            if len(found) == limit:
                return list(found.values())
            if record is not None and asked.fits(record):
                found.setdefault(record.id, record)
        if len(found) < limit and asked.finished:
            records = self.index.find(
                states=asked.finished,
                task=task,
                queue=queue,
                error=error,
                since_us=since_us,
                until_us=until_us,
                limit=limit,
            )
            for record in records:
                found.setdefault(record.id, record)
        return list(found.values())[:limit]

    def page(
        self,
        *,
        states: Sequence[State] = (),
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        limit: int = LIST_LIMIT_DEFAULT,
        after: str | None = None,
        covers: Covers | None = None,
    ) -> tuple[list[TaskRecord], str | None]:
        """Return some of the tasks that `find` would, and what to say for those `after` them.

        That is None at the end. A page takes about as long whatever there is: it may have fewer
        than `limit`, or none, and not be the last. What happens meanwhile may have a task be in
        two pages, or in none. A queue that is not named, that no event is about and whose first
        messages are none is left there. Only queues that are covered count. Raises InvalidArgument.
        """
        place = None if after is None else place_from(after)
        asked = _Asked(
            states=tuple(states) or tuple(State),
            task=task,
            queue=queue,
            error=error,
            since_us=since_us,
            until_us=until_us,
        )
        deadline = time.monotonic() + PAGE_SECONDS
        found: dict[str, TaskRecord] = {}
        if place is None or place.kind != "finished":
            walk = self._walk(asked, covers, min(max(limit, 1), STRETCH))
            for looked, (behind, record) in enumerate(walk.steps(place), 1):
                if record is not None and asked.fits(record):
                    found.setdefault(record.id, record)
                if (
                    len(found) >= limit
                    or looked >= PAGE_MESSAGES_MAX
                    or (looked >= PAGE_MESSAGES_MIN and time.monotonic() >= deadline)
                ):
                    return list(found.values()), behind.text()
            place = None
        if not asked.finished:
            return list(found.values()), None
        records, key = self.index.page(
            asked.wanted(self._covered(queue, covers)),
            behind=None if place is None else (place.number, place.after),
            limit=limit - len(found),
            deadline=deadline,
        )
        for record in records:
            found.setdefault(record.id, record)
        following = None if key is None else Place("finished", "", key[1], key[0]).text()
        return list(found.values()), following

    def _walk(self, asked: _Asked, covers: Covers | None, stretch: int) -> Walk:
        if len(self._without) > WITHOUT_MAX:
            self._without.clear()
        return Walk(
            store=self.store,
            queues=sorted(self._names(asked, covers)),
            states=asked.states,
            known=self.index.get_many,
            requested=self.cancellations.requested(),
            stretch=stretch,
            # One that is named is opened, as by whatever else is about that queue.
            may_open=self._may_open if asked.queue is None else any_queue,
            has_tasks=self._is_known if asked.queue is None else any_queue,
            without=self._without,
        )

    def _is_known(self, queue: str) -> bool:
        """Tell whether events are about tasks of a queue."""
        return queue in self.index.queues()

    def _names(self, asked: _Asked, covers: Covers | None) -> Iterator[str]:
        """Yield the queues to look at: those that are there, or the one that is meant if it is."""
        if not kinds_of(asked.states) and State.CANCELLED not in asked.states:
            return iter(())
        if asked.queue is None:
            return filter(covers or (lambda _: True), self.store.queues())
        is_meant = covers is None or covers(asked.queue)
        return iter([asked.queue] if is_meant and self._has_queue(asked.queue) else ())

    def _covered(self, queue: str | None, covers: Covers | None) -> frozenset[str] | None:
        """Return the queues whose finished tasks count, None for all."""
        if queue is not None:
            return frozenset({queue} if covers is None or covers(queue) else ())
        return None if covers is None else frozenset(filter(covers, self.index.queues()))

    def counts(self, covers: Callable[[str], bool] = lambda _: True) -> TaskCounts:
        """Return how many tasks there are in each state, as `Tally` counts them."""
        return self._tally.counts(covers)

    def _has_queue(self, name: str) -> bool:
        try:
            return cast("_HasQueue", self.store).has_queue(name)
        except InvalidName:
            return False

    # Acting --------------------------------------------------------------------------------

    def cancel(self, task_id: str, *, since_us: int = 0) -> bool:
        """Have a task not run, or stop; tell whether it was not finished yet."""
        record = self.record(task_id, since_us=since_us)
        if record.state in TERMINAL:
            return False
        self.cancellations.request(task_id, record.pushed_us)
        return True

    def retry(self, task_id: str) -> bool:
        """Bring a dead letter back, with all its tries anew; tell whether it was one."""
        queue, message_id = split_id(task_id)
        if not self._has_queue(queue):
            return False
        opened = self.store.queue(queue)
        known = self.index.get(task_id) if self._finds_letters else None
        if known is not None and known.state is State.DEAD_LETTER:
            letters = _letters_of(opened)
            letter = letter_near(letters, message_id, known.finished_us)
            if letter is not None:
                self._let_run(task_id)
                return bool(letters.revive([letter]))

        def is_meant(letter: DeadLetter) -> bool:
            if letter.message.id != message_id:
                return False
            self._let_run(task_id)
            return True

        return bool(opened.redrive(where=is_meant, limit=1).redriven)

    def _let_run(self, task_id: str) -> None:
        """Take a request to cancel back that came when the task was dead: it is for another try."""
        if task_id in self.cancellations.requested():
            self.cancellations.forget([task_id])

    @property
    def _finds_letters(self) -> bool:
        """Whether letters are found by number; a server elsewhere tells of all or of none."""
        return not self.store.url.startswith("http")

    def close(self) -> None:
        """Let go of the index. The store stays open."""
        self.index.close()


def _letters_of(queue: Queue) -> DeadLetters:
    return cast("QueueBase", queue).letters


def _index_path(store: Store) -> Path | None:
    root = Path(store.url)
    return root / INDEX_PATH if root.is_dir() else None
