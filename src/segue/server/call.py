"""One request, as the handler of its route sees it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from segue.server.asgi import Leaving, Presence, Receive
from segue.server.refusal import Refused
from segue.server.routing import Route, Router
from segue.stores.contract import Queue, Store

if TYPE_CHECKING:
    from segue.server.access import Grant, Guard
    from segue.server.estimates import Estimates
    from segue.server.historian import Historian
    from segue.server.letter_groups import LetterGroups
    from segue.server.listeners import Listeners
    from segue.server.operations import Operations
    from segue.server.overlook import Overlook
    from segue.server.requests import Requests
    from segue.server.sessions import Sessions
    from segue.server.task_desk import TaskDesk
    from segue.server.waiting import Waiting

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Desk(Protocol):
    """What a handler needs of the server."""

    store: Store
    guard: "Guard"
    sessions: "Sessions"
    waiting: "Waiting"
    requests: "Requests"
    operations: "Operations"
    tasks: "TaskDesk"
    overlook: "Overlook"
    historian: "Historian"
    listeners: "Listeners"
    letter_groups: "LetterGroups"
    estimates: "Estimates"
    is_quick: bool
    router: Router

    def queue(self, name: str) -> Queue: ...

    def forget_queue(self, name: str) -> None: ...

    async def in_thread(self, step: Callable[[], T], name: str = "") -> T: ...


class Call:
    """One request."""

    __slots__ = (
        "_body",
        "_presence",
        "_query",
        "_receive",
        "desk",
        "grant",
        "headers",
        "names",
        "route",
        "size_bytes",
    )

    def __init__(
        self,
        desk: Desk,
        route: Route,
        names: list[str],
        headers: Mapping[bytes, bytes],
        grant: "Grant",
        query: msgspec.Struct | None,
        body: msgspec.Struct | bytes | None,
        receive: Receive,
        *,
        size_bytes: int = 0,
    ) -> None:
        self.desk = desk
        self.route = route
        self.names = names
        """What stands for each name in the route's path, in their order."""
        self.headers = headers
        self.grant = grant
        self.size_bytes = size_bytes
        """Of what was sent."""
        self._query = query
        self._body = body
        self._receive = receive
        self._presence: Presence | None = None

    def is_gone(self) -> bool:
        """Tell whether whoever asked does not listen any more."""
        return self.leaving().done()

    def leaving(self) -> Leaving:
        """Return what is done once whoever asked does not listen any more."""
        if self._presence is None:
            self._presence = Presence(self._receive)
        return self._presence.leaving()

    def require_grant(self) -> None:
        """Raise Refused if what was granted stands no more: whoever waits may outlive a token."""
        if not self.desk.guard.is_good(self.grant):
            raise Refused(401, "unauthenticated", "the token is not good any more")

    def look_no_more(self) -> None:
        """Take no more interest in whether somebody listens."""
        if self._presence is not None:
            self._presence.close()

    @property
    def store(self) -> Store:
        return self.desk.store

    @property
    def queue(self) -> Queue:
        """The queue that the path names first."""
        return self.desk.queue(self.names[0])

    def query(self, kind: type[S]) -> S:
        """Return what stands behind the question mark."""
        assert type(self._query) is kind
        return self._query

    def body(self, kind: type[S]) -> S:
        """Return what was sent."""
        assert type(self._body) is kind
        return self._body

    @property
    def data(self) -> bytes:
        """What was sent, of a route that takes bytes."""
        assert isinstance(self._body, bytes)
        return self._body

    @property
    def is_quick(self) -> bool:
        """Whether it is done at once, in the event loop."""
        return self.route.is_quick and self.desk.is_quick

    async def run(self, step: Callable[[], T]) -> T:
        """Return what `step` returns: at once if it is quick, else from a thread."""
        if self.route.is_quick and self.desk.is_quick:
            return step()
        return await self.in_thread(step)

    async def in_thread(self, step: Callable[[], T]) -> T:
        """Return what `step` returns, from one of the threads for what the path names first."""
        return await self.desk.in_thread(step, self.names[0] if self.names else self.route.path)
