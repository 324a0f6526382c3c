"""Spans for OpenTelemetry, where it is installed; nothing otherwise.

The context of whoever queues a task travels in the message's headers, so that the span of the run
is the child of the one it was queued in, whatever machine that was on.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from segue.tracing import opentelemetry_trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def _tracer() -> "Tracer | None":
    """Return what makes spans, None unless there is an SDK that takes them."""
    trace = opentelemetry_trace()
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    tracer: Tracer = trace.get_tracer("segue")
    return tracer


def span_of_run(
    task: str, task_id: str, attempt: int, headers: Mapping[str, str]
) -> AbstractContextManager[object]:
    """Return what has the block it is entered for be a span of its own."""
    tracer = _tracer()
    if tracer is None:
        return _NO_SPAN
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    return tracer.start_as_current_span(
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
    )


_NO_SPAN: Final = nullcontext()
