"""The trace a caller is in, where OpenTelemetry is installed; nothing otherwise.

It travels in the headers of messages and requests, whatever machine they are taken up on.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


@cache
def opentelemetry_trace() -> "ModuleType | None":
    """Return the package that knows the current span, None where it is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


def headers_of_span(given: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return `given` with the current span in it, if there is one."""
    trace = opentelemetry_trace()
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return given
    from opentelemetry.propagate import inject

    headers = dict(given or {})
    inject(headers)
    return headers
