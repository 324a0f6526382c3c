"""The trace a request belongs to goes on in the messages it pushes (W3C Trace Context)."""

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

_HEADERS: Final = (b"traceparent", b"tracestate")


class HasHeaders(Protocol):
    """What a trace can be put in."""

    headers: dict[str, str] | None


H = TypeVar("H", bound=HasHeaders)


def with_trace(drafts: list[H], headers: Mapping[bytes, bytes]) -> list[H]:
    """Return what is pushed, with the request's trace in what has none of its own."""
    if b"traceparent" not in headers:
        return drafts
    trace = {name.decode(): headers[name].decode("latin-1") for name in _HEADERS if name in headers}
    for draft in drafts:
        if draft.headers is None or "traceparent" not in draft.headers:
            draft.headers = trace if draft.headers is None else {**trace, **draft.headers}
    return drafts
