"""Questions about tasks, and acts on them, with nothing but the store at hand: no code of tasks.

A task that is not finished is a message: its queue knows how it stands. What became of a finished
one is in the events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.clock import Clock
from segue.delivery.message import MessageId
from segue.errors import InvalidArgument, TaskNotFound
from segue.stores.contract import MessageStatus, Queue, Store
from segue.tasks.cancelling import Cancellations
from segue.tasks.envelope import Envelope, read_envelope
from segue.tasks.events import KEEP_SECONDS_DEFAULT, EventLog
from segue.tasks.index import TaskIndex
from segue.tasks.records import TaskRecord, split_id, task_id_of
from segue.tasks.states import TERMINAL, State

if TYPE_CHECKING:
    from segue.stores.contract import MessageState

INDEX_PATH: Final = Path("index", "tasks.sqlite3")
LIST_LIMIT_DEFAULT: Final = 100
BROWSE_STEP: Final = 500
BROWSE_MAX: Final = 10_000
"""How many messages of a queue are looked at for those that fit."""

_AS_MESSAGES: "Final[dict[State, tuple[MessageState, ...]]]" = {
    State.PROCESSING: ("leased",),
    State.RETRYING: ("delayed", "ready"),
    State.SCHEDULED: ("delayed",),
    State.PENDING: ("ready",),
    State.DEAD_LETTER: ("dead",),
}


class Desk:
    """Answers for all tasks of a store. Safe from any thread."""

    def __init__(
        self, store: Store, clock: Clock, *, keep_seconds: float = KEEP_SECONDS_DEFAULT
    ) -> None:
        self.store = store
        self.log = EventLog(store)
        self.keep_seconds = keep_seconds
        self.cancellations = Cancellations(store)
        self.index = TaskIndex(self.log, _index_path(store), clock)

    def prepare(self) -> None:
        """Have the topics that workers append to and look at."""
        self.log.prepare(self.keep_seconds)
        self.cancellations.prepare()

    # Asking --------------------------------------------------------------------------------

    def record(self, task_id: str, *, since_us: int = 0) -> TaskRecord:
        """Return all that is known of a task. Raises TaskNotFound, InvalidArgument.

        What was pushed before `since_us` is another: ids of a queue that was removed come again.
        """
        queue, message_id = split_id(task_id)
        known = self._known(task_id, since_us)
        if known is not None and known.state in (State.COMPLETED, State.CANCELLED):
            return known
        status = self._queue(queue).look_up(message_id) if self._has_queue(queue) else None
        if status is not None:
            return self._as_it_stands(task_id, status, known)
        known = self._known(task_id, since_us)  # Again: its event came before it was settled.
        if known is None or known.state not in (State.COMPLETED, State.CANCELLED):
            raise TaskNotFound(
                f"nothing is known of task {task_id}: there never was one, its record has outlived "
                "its time, or its message was purged, discarded or taken by other means"
            )
        return known

    def _known(self, task_id: str, since_us: int) -> TaskRecord | None:
        known = self.index.get(task_id)
        return None if known is None or known.pushed_us < since_us else known

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

        Of a queue's waiting messages no more than a named limit are looked at.
        """
        wanted = tuple(states) or tuple(State)

        def fits(record: TaskRecord) -> bool:
            return (
                record.state in wanted
                and (task is None or record.task == task)
                and (error is None or error.lower() in record.error.lower())
                and (since_us is None or record.updated_us >= since_us)
                and (until_us is None or record.updated_us < until_us)
            )

        found = list(islice(filter(fits, self._unfinished(wanted, queue)), limit))
        seen = {record.id for record in found}
        # Of the dead the queue knows which there still are; they were found above.
        finished = [state for state in wanted if state in (State.COMPLETED, State.CANCELLED)]
        if len(found) < limit and finished:
            records = self.index.find(
                states=finished,
                task=task,
                queue=queue,
                error=error,
                since_us=since_us,
                until_us=until_us,
                limit=limit,
            )
            found += [record for record in records if record.id not in seen]
        return found[:limit]

    def _unfinished(self, states: Sequence[State], queue: str | None) -> Iterator[TaskRecord]:
        kinds = dict.fromkeys(kind for state in states for kind in _AS_MESSAGES.get(state, ()))
        if State.CANCELLED in states:
            kinds.update(dict.fromkeys(("delayed", "ready")))
        names = self.store.queues() if queue is None else [queue]
        for name in names:
            if not self._has_queue(name):
                continue
            for kind in kinds:
                for status in _browse(self._queue(name), kind):
                    task_id = task_id_of(name, status.message.id)
                    try:
                        yield self._as_it_stands(task_id, status, self.index.get(task_id))
                    except InvalidArgument:
                        continue  # A message that is no task.

    def _as_it_stands(
        self, task_id: str, status: MessageStatus, known: TaskRecord | None
    ) -> TaskRecord:
        message = status.message
        if known is not None and known.pushed_us != message.pushed_us:
            known = None  # Of a queue that was removed since, and made anew.
        if (
            known is not None
            and known.state in TERMINAL
            and known.attempt >= message.attempt
            and status.state == "leased"
        ):
            return known  # Finished, and about to be settled.
        if known is None:
            envelope = _envelope_of(task_id, message.body)
            known = TaskRecord(
                id=task_id,
                task=envelope.task,
                state=State.PENDING,
                pushed_us=message.pushed_us,
                updated_us=message.pushed_us,
                args=bytes(envelope.args),
                schedule=envelope.schedule or "",
            )
        state = self._state_of(task_id, status)
        return replace(
            known,
            state=state,
            attempt=message.attempt if status.state in ("leased", "dead") else status.tries,
            worker=(status.owner or known.worker) if state is State.PROCESSING else known.worker,
            error=known.error or status.reason,
            due_us=status.due_us or 0,
            finished_us=known.finished_us if state is State.DEAD_LETTER else 0,
            result=None,
        )

    def _state_of(self, task_id: str, status: MessageStatus) -> State:
        if status.state == "leased":
            return State.PROCESSING
        if status.state == "dead":
            return State.DEAD_LETTER
        if self.cancellations.requested().get(task_id) == status.message.pushed_us:
            return State.CANCELLED
        if status.tries or status.message.attempt > 1:  # Or it was dead, and is brought back.
            return State.RETRYING
        return State.SCHEDULED if status.state == "delayed" else State.PENDING

    def _has_queue(self, name: str) -> bool:
        return name in self.store.queues()

    def _queue(self, name: str) -> Queue:
        return self.store.queue(name)

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
        report = self._queue(queue).redrive(
            where=lambda letter: letter.message.id == message_id, limit=1
        )
        return bool(report.redriven)

    def close(self) -> None:
        """Let go of the index. The store stays open."""
        self.index.close()


def _browse(queue: Queue, state: "MessageState") -> Iterator[MessageStatus]:
    after: MessageId | None = None
    for _ in range(0, BROWSE_MAX, BROWSE_STEP):
        found = queue.browse(state=state, limit=BROWSE_STEP, after=after)
        if not found:
            return
        yield from found
        after = found[-1].message.id


def _envelope_of(task_id: str, body: bytes) -> Envelope:
    try:
        return read_envelope(body)
    except InvalidArgument as error:
        raise InvalidArgument(f"{task_id}: {error}") from error


def _index_path(store: Store) -> Path | None:
    root = Path(store.url)
    return root / INDEX_PATH if root.is_dir() else None
