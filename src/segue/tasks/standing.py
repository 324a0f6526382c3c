"""How a task stands whose message is not settled: by its queue, and by what events say besides."""

from collections.abc import Mapping
from dataclasses import replace

from segue.delivery.message import DeadLetter
from segue.errors import InvalidArgument
from segue.stores.contract import MessageStatus
from segue.tasks.envelope import Envelope, read_envelope
from segue.tasks.records import TaskRecord
from segue.tasks.states import TERMINAL, State


def as_it_stands(
    task_id: str, status: MessageStatus, known: TaskRecord | None, requested: Mapping[str, int]
) -> TaskRecord:
    """Return the record of a task whose message is there. Raises InvalidArgument if it is none.

    `known` is what events say of it, `requested` which tasks are to be cancelled.
    """
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
    state = _state_of(task_id, status, requested)
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


def _state_of(task_id: str, status: MessageStatus, requested: Mapping[str, int]) -> State:
    if status.state == "leased":
        return State.PROCESSING
    if status.state == "dead":
        return State.DEAD_LETTER
    if requested.get(task_id) == status.message.pushed_us:
        return State.CANCELLED
    if status.tries or status.message.attempt > 1:  # Or it was dead, and is brought back.
        return State.RETRYING
    return State.SCHEDULED if status.state == "delayed" else State.PENDING


def _envelope_of(task_id: str, body: bytes) -> Envelope:
    try:
        return read_envelope(body)
    except InvalidArgument as error:
        raise InvalidArgument(f"{task_id}: {error}") from error


def is_task(body: bytes) -> bool:
    """Tell whether a message is a task."""
    try:
        read_envelope(body)
    except InvalidArgument:
        return False
    return True


def status_of_dead(letter: DeadLetter) -> MessageStatus:
    """Return how a dead letter stands, as its queue says it."""
    return MessageStatus(
        message=letter.message, state="dead", reason=letter.reason, tries=letter.tries
    )
