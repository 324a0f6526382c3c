"""What a route is, and finding the one that a request means.

A route says all there is to say of an operation: who may ask, what is sent and answered, which
errors there are. The application goes by it, and so does the description at /openapi.json: there
is no second list that could disagree.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote

import msgspec

from segue.errors import SegueError
from segue.stores.http.wire.about import PREFIX
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.server.call import Call

Method = Literal["GET", "POST", "PUT", "DELETE"]


class Role(Enum):
    """What a token may be for. `ADMIN` may do everything."""

    PRODUCE = "produce"
    CONSUME = "consume"
    READ = "read"
    ADMIN = "admin"
    ANY = "any"
    """Of a route that any token will do for."""
    NOBODY = "nobody"
    """Of a route that needs no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An answer that is sent piece by piece, made in a thread."""

    media_type: str
    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStream:
    """An answer that is sent as things happen, made in the event loop."""

    media_type: str
    pieces: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that is no JSON of a struct, or has a status or headers of its own."""

    body: bytes = b""
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


EVENT_STREAM: Final = "text/event-stream"
"""What a LiveStream of Server-Sent Events is."""

Handler = Callable[["Call"], object]
"""Returns a struct, None for no content, a Reply or a Stream."""
AsyncHandler = Callable[["Call"], Awaitable[object]]
"""The same, for what waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation."""

    method: Method
    path: str
    """Below `/api/v1` unless `is_absolute`; `{name}` stands for one part.

    With a slash at its end it is a path of its own: what a page there loads is found below it.
    """
    summary: str
    role: Role
    about: str = "store"
    """What it belongs to, in the description."""
    handle: Handler | None = None
    handle_async: AsyncHandler | None = None
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    takes: str = "application/json"
    """What a body is that is no struct; then the handler gets its bytes."""
    has_raw_body: bool = False
    answer: type[msgspec.Struct] | None = None
    """What 200 comes with; None is 204 without content, unless `gives` says otherwise."""
    gives: tuple[str, ...] = ()
    """What else an answer may be, by media type."""
    errors: tuple[type[SegueError], ...] = ()
    statuses: tuple[int, ...] = ()
    """What else may be answered than 200 or 204 and the errors."""
    is_quick: bool = False
    """Done at once on a store that is quick, so that no thread is asked."""
    is_absolute: bool = False
    is_guarded: bool = True
    """Whether a token must be for the first name in the path; else its handler sees to that."""
    body_bytes_max: int | None = None
    """Instead of the server's own limit."""
    is_audited: bool = False
    """Whether it is written to the audit though it does not take the role `admin`."""

    @property
    def full_path(self) -> str:
        return self.path if self.is_absolute else PREFIX + self.path

    @property
    def changes(self) -> bool:
        """Whether repeating it may do more than doing it once."""
        return self.method != "GET"


@dataclass(slots=True)
class _Step:
    """One part of a path: where each next part leads to."""

    named: dict[str, "_Step"] = field(default_factory=dict)
    any: "_Step | None" = None
    routes: dict[str, Route] = field(default_factory=dict)
    with_slash: dict[str, Route] = field(default_factory=dict)
    """Of the same path with a slash at its end; without any that makes no difference."""


class Router:
    """Finds routes by the parts of a path."""

    def __init__(self, routes: Mapping[str, Route] | tuple[Route, ...]) -> None:
        self.routes = tuple(routes.values()) if isinstance(routes, Mapping) else routes
        self._root = _Step()
        for route in self.routes:
            step = self._root
            for part in route.full_path.strip("/").split("/"):
                if part.startswith("{"):
                    step.any = step.any or _Step()
                    step = step.any
                else:
                    step = step.named.setdefault(part, _Step())
            routes = step.with_slash if route.full_path.endswith("/") else step.routes
            assert route.method not in routes, f"{route.method} {route.path} twice"
            routes[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], list[str]]:
        """Return the routes of a path by method, and what stands for each name in it.

        `path` is as it was sent: a part may have an encoded slash in it, and stays one part.
        """
        step: _Step | None = self._root
        names: list[str] = []
        for part in path.strip("/").split("/"):
            assert step is not None
            following = step.named.get(part)
            if following is None:
                following = step.any
                if following is None:
                    return {}, names
                names.append(unquote(part) if "%" in part else part)
            step = following
        assert step is not None
        if step.with_slash and path.endswith("/"):
            return step.with_slash, names
        return step.routes, names
