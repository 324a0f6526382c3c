"""Spans for OpenTelemetry, where it is installed; nothing otherwise.

The context of whoever queues a task travels in the message's headers, so that the span of the run
is the child of the one it was queued in, whatever machine that was on.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@cache
def _tracer() -> "Tracer | None":
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("segue")


def headers_of_span(given: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return `given` with the current span in it, if there is one."""
    if _tracer() is None:
        return given
    from opentelemetry import trace
    from opentelemetry.propagate import inject

    if not trace.get_current_span().get_span_context().is_valid:
        return given
    headers = dict(given or {})
    inject(headers)
    return headers


@contextmanager
def span_of_run(
    task: str, task_id: str, attempt: int, headers: Mapping[str, str]
) -> Iterator[None]:
    """Have what happens in the block be a span of its own."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        f"task {task}",
        context=extract(dict(headers)),
        kind=SpanKind.CONSUMER,
        attributes={
            "messaging.system": "segue",
            "messaging.message.id": task_id,
            "messaging.destination.name": task_id.rpartition("/")[0],
            "segue.task": task,
            "segue.attempt": attempt,
        },
    ):
        yield
