"""The record of a task as a row, as facts and as JSON."""

import json
from typing import TYPE_CHECKING, Final

from segue.cli.output import Column, Facts, Json, Kind, Value, is_terminal
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from segue.tasks.records import TaskRecord

COLUMNS: Final = (
    Column("id"),
    Column("task"),
    Column("state"),
    Column("attempt", Kind.COUNT),
    Column("updated", Kind.TIME),
    Column("error"),
)
ERROR_CHARACTERS_MAX: Final = 60
"""How much of an error people are shown in a table."""


def record_row(record: "TaskRecord") -> tuple[Value, ...]:
    """Return what a list shows of a task."""
    return (
        record.id,
        record.task,
        record.state.value,
        record.attempt,
        record.updated_us or None,
        _beginning(record.error) or None,
    )


def record_facts(record: "TaskRecord") -> Facts:
    """Return all that is known of a task but its traceback."""
    return Facts(
        items=(
            (Column("id"), record.id),
            (Column("task"), record.task),
            (Column("queue"), record.queue),
            (Column("state"), record.state.value),
            (Column("attempt", Kind.COUNT), record.attempt),
            (Column("pushed", Kind.TIME), record.pushed_us or None),
            (Column("due", Kind.TIME), record.due_us or None),
            (Column("started", Kind.TIME), record.started_us or None),
            (Column("finished", Kind.TIME), record.finished_us or None),
            (Column("updated", Kind.TIME), record.updated_us or None),
            (Column("wait_seconds", Kind.SECONDS), _seconds(record.wait_us, record.started_us)),
            (Column("run_seconds", Kind.SECONDS), _seconds(record.run_us, record.finished_us)),
            (Column("worker"), record.worker or None),
            (Column("schedule"), record.schedule or None),
            (Column("args"), _text(record.args)),
            (Column("progress"), _text(record.progress)),
            (Column("result"), _text(record.result)),
            (Column("error"), record.error or None),
        )
    )


def record_json(record: "TaskRecord") -> dict[str, Json]:
    """Return all that is known of a task; arguments and result are what they are, not text."""
    return {
        "id": record.id,
        "task": record.task,
        "queue": record.queue,
        "state": record.state.value,
        "attempt": record.attempt,
        "pushed": _time(record.pushed_us),
        "due": _time(record.due_us),
        "started": _time(record.started_us),
        "finished": _time(record.finished_us),
        "updated": _time(record.updated_us),
        "wait_seconds": _seconds(record.wait_us, record.started_us),
        "run_seconds": _seconds(record.run_us, record.finished_us),
        "worker": record.worker or None,
        "schedule": record.schedule or None,
        "args": json_value(record.args),
        "progress": json_value(record.progress),
        "result": json_value(record.result),
        "error": record.error or None,
        "traceback": record.traceback or None,
    }


def json_value(data: bytes | None) -> Json:
    """Return what JSON says; what turns out to be none, as text."""
    if data is None:
        return None
    text = data.decode(errors="backslashreplace")
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _beginning(error: str) -> str:
    if not is_terminal() or len(error) <= ERROR_CHARACTERS_MAX:
        return error
    return error[: ERROR_CHARACTERS_MAX - 1] + "…"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _time(time_us: int) -> str | None:
    return iso_time(time_us) if time_us else None


def _seconds(duration_us: int, measured_us: int) -> float | None:
    return duration_us / 1_000_000 if measured_us else None
