"""A request from its first byte to its answer. Plain ASGI: see docs/adr for what that saves."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.errors import LogClosed, SegueError, StorageFailed, StoreClosed
from segue.server.access import Grant, Guard
from segue.server.asgi import (
    IS_BEGUN,
    IS_READ,
    Gone,
    Presence,
    Receive,
    Scope,
    Send,
    Sent,
    may_send_more,
    send_answer,
    stream_live,
    stream_pieces,
    told,
    with_headers,
)
from segue.server.bodies import COUNTED_BYTES, Bodies
from segue.server.call import Call
from segue.server.estimates import Estimates
from segue.server.health import Watchdog
from segue.server.historian import Historian
from segue.server.letter_groups import LetterGroups
from segue.server.listeners import Listeners
from segue.server.open_queues import OpenQueues
from segue.server.operations import REQUEST_ID, Operations
from segue.server.overlook import LOOK_SECONDS, Overlook
from segue.server.refusal import Refused
from segue.server.requests import Remembered, Requests, key_of
from segue.server.routing import LiveStream, Reply, Role, Route, Router, Stream
from segue.server.sessions import Sessions
from segue.server.task_desk import TaskDesk
from segue.server.threads import Threads
from segue.server.waiting import Waiting
from segue.stores.contract import Queue, Store
from segue.stores.file.store import FileStore
from segue.stores.http.problems import NOT_BEGUN, Problem, problem_of

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 256
"""How many lists and tables are being sent at once: each has some megabytes of what is read."""
PATHS_KEPT: Final = 4096
PATH_BYTES_KEPT: Final = 512
"""For how many paths is known what they lead to: clients ask the same again and again."""
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_JSON: Final = (b"content-type", b"application/json")
_REFUSED: Final = 400
_GONE: Final = 499
"""What is counted for those who left before they were answered, as nginx has it."""
_PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = ((b"content-security-policy", _PAGE_POLICY),)
"""What a page may load: what is on this server, and nothing in the page itself."""


class App:
    """The server's application. One for each process."""

    def __init__(
        self,
        store: Store,
        router: Router,
        *,
        ticks: Ticks = system_ticks,
        guard: Guard | None = None,
        operations: Operations | None = None,
        clock: Clock = system_clock,
        records_history: bool = False,
    ) -> None:
        self.store = store
        self.guard = guard or Guard()
        self.operations = operations or Operations(Watchdog(store.queues))
        self.router = router
        self.sessions = Sessions(ticks)
        self.waiting = Waiting(self._look)
        self.tasks = TaskDesk(store)
        self.requests = Requests()
        self.is_quick = isinstance(store, FileStore) and store.place.sync != "always"
        """Whether what is quick may be done in the event loop."""
        self.bodies = Bodies()
        self.queues = OpenQueues(store, self.waiting.is_for)
        self._streams = 0
        self._openers = frozenset(
            (each.method, each.path)
            for each in router.routes
            if "{queue}" in each.path and (each.is_quick or each.handle_async is not None)
        )
        self.threads = Threads()
        self.operations.watchdog.also = self.threads.is_stuck
        self.overlook = Overlook(store, self.queues, syncs=self._syncs, clock=clock, ticks=ticks)
        self.historian = Historian(store, self.overlook, records=records_history, clock=clock)
        self.letter_groups = LetterGroups(self.queue, self.forget_queue, clock=clock)
        self.estimates = Estimates(ticks)
        self.listeners = Listeners(partial(self.overlook.picture, LOOK_SECONDS), self.in_thread)
        self._found: dict[tuple[str, bytes], tuple[Route, list[str]]] = {}
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}
        for route in router.routes:
            if route.body is not None:
                self._decoders[route.body] = msgspec.json.Decoder(route.body)

    def queue(self, name: str) -> Queue:
        """Return a queue, which stays open for the next who asks; to look at it makes nothing."""
        return self.queues.find(name)

    def forget_queue(self, name: str) -> None:
        """Open a queue anew when it is asked for next."""
        self.queues.forget(name)

    async def _look(self, queue: str) -> int:
        def look() -> int:
            opened = self.queue(queue)
            return opened.count().ready if opened.wait(0) else 0

        return look() if self.is_quick else await self.in_thread(look)

    def _syncs(self) -> int | None:
        """Return how often the store synced. Of a server that only shows that tells nothing."""
        count = self.operations.syncs
        return None if count is None or self.guard.is_read_only else count()

    async def in_thread(self, step: Callable[[], T], name: str = "") -> T:
        """Return what `step` returns, from a thread. Raises Refused if too many wait for one."""
        return await self.threads.run(step, name)

    # A request -----------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        begun = time.perf_counter()
        if self.guard.cors_origins:
            if scope["method"] == "OPTIONS":
                await send_answer(send, 204, self.guard.preflight_of(scope), b"")
                return
            send = with_headers(send, self.guard.cors_of(scope))
        request_id = unread = None
        try:
            status, headers, body = await self._answer(scope, receive, send)
        except Refused as refused:
            status, headers, body = told(refused.problem, refused.headers)
            unread = receive if may_send_more(scope) else None
        except SegueError as error:
            status, headers, body = told(self._problem(scope, error))
        except Gone as gone:
            request_id = self.operations.request_id(scope)
            await gone.tell(scope, send, ((REQUEST_ID, request_id.encode()),))
            self.operations.finished(scope, _GONE, 0, begun, request_id)
            return
        except asyncio.CancelledError:
            if not self.operations.is_ending:
                raise
            ending = Refused(503, "ending", "the server ends; who knows how far this got", retry=1)
            status, headers, body = told(ending.problem)
        except Exception:
            logger.exception("failed path=%s", scope["path"])
            status, headers, body = told(
                Problem(status=500, code="internal", detail="see the server's log", fields={})
            )
        if status and IS_BEGUN in scope:
            # Too late to say so: what breaks off is cut, so that nobody takes it for whole.
            logger.warning("cut off path=%s reason=%s", scope["path"], body.decode())
        elif status:
            if status >= _REFUSED:
                request_id = self.operations.request_id(scope)
                headers = (*headers, (REQUEST_ID, request_id.encode()))
            await send_answer(send, status, headers, body, unread)
        self.operations.finished(scope, status, len(body), begun, request_id, body)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Sent:
        route, names = self._route(scope)
        scope["segue.route"] = route
        headers = dict(scope["headers"])
        grant = self.guard.admit(scope, route, names, headers)
        scope["segue.grant"] = grant
        data = await self.bodies.read(route, headers, receive)
        scope[IS_READ] = True
        if len(data) <= COUNTED_BYTES and b"idempotency-key" not in headers:
            return await self._handled(scope, receive, send, route, names, headers, grant, data)
        try:
            return await self._once(scope, receive, send, route, names, headers, grant, data)
        finally:
            self.bodies.give_back(data)

    async def _once(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        names: list[str],
        headers: Mapping[bytes, bytes],
        grant: Grant,
        data: bytes,
    ) -> Sent:
        """Handle a request, or answer it as it was answered before."""
        said = headers.get(b"idempotency-key") if route.changes else None
        if said is None:
            return await self._handled(scope, receive, send, route, names, headers, grant, data)
        key = key_of(grant.id, said)
        asked = hash((grant.id, scope["method"], scope["raw_path"], scope["query_string"], data))
        while (known := self.requests.find(key)) is not None:
            sent = await _repeated(known, asked)
            if sent is not None:
                return sent
        known = self.requests.begin(key, asked)
        try:
            status, extra, body = await self._handled(
                scope, receive, send, route, names, headers, grant, data
            )
        except SegueError as error:
            problem = self._problem(scope, error)
            if problem.code in NOT_BEGUN:
                self.requests.give_up(key, known)
                return told(problem)
            status, extra, body = told(problem)
        except BaseException:
            self.requests.give_up(key, known)
            raise
        if not status:  # A stream: what was sent is not remembered.
            self.requests.give_up(key, known)
        else:
            self.requests.end(key, known, status, extra, body)
        return status, extra, body

    def _problem(self, scope: Scope, error: SegueError) -> Problem:
        """Return what to tell of an error of the store."""
        if isinstance(error, StoreClosed | LogClosed):
            self.queues.forget()  # Another process removed one: the next who asks opens it anew.
        if isinstance(error, StorageFailed):
            self.operations.watchdog.note_failure()
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.warning("failed path=%s reason=%s", scope["path"], error)
        return problem

    def _route(self, scope: Scope) -> tuple[Route, list[str]]:
        asked = (scope["method"], scope["raw_path"])
        known = self._found.get(asked)
        if known is not None:
            return known
        routes, names = self.router.find(scope["raw_path"].decode("latin-1").partition("?")[0])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = routes.get(method)
        if route is not None:
            if len(self._found) >= PATHS_KEPT:
                self._found.clear()
            if len(scope["raw_path"]) <= PATH_BYTES_KEPT:
                self._found[asked] = route, names
            return route, names
        if not routes:
            raise Refused(404, "not_found", f"there is nothing at {scope['path']}")
        allowed = ", ".join(routes).encode()
        raise Refused(
            405,
            "method_not_allowed",
            f"{scope['method']} is not possible at {scope['path']}",
            headers=((b"allow", allowed),),
        )

    async def _handled(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        route: Route,
        names: list[str],
        headers: Mapping[bytes, bytes],
        grant: Grant,
        data: bytes,
    ) -> Sent:
        call = Call(
            self,
            route,
            names,
            headers,
            grant,
            self._query(route, scope["query_string"]),
            self._decoded(route, data),
            receive,
            size_bytes=len(data),
        )
        queues = self.queues
        used = None
        if names and queues.is_new(names[0]) and (route.method, route.path) in self._openers:
            used = names[0]
            queues.begin_use(used)
        try:
            if used is not None:
                await self._open(call, used)
            if route.handle_async is not None:
                try:
                    result = await route.handle_async(call)
                finally:
                    call.look_no_more()
            else:
                assert route.handle is not None
                result = await call.run(partial(route.handle, call))
            if isinstance(result, msgspec.Struct):
                return 200, (_JSON,), _encode(result)
            return await self._sent(scope, receive, send, call, result)
        finally:
            if used is not None:
                queues.end_use(used)

    async def _open(self, call: Call, queue: str) -> None:
        """Open a queue in a thread: that is to read what became of its messages, and not quick."""
        if queue in self.queues.opened or call.route.about == "tasks":
            return  # Those ask in a thread themselves, and whether it is there at all.
        if call.route.role is Role.PRODUCE:
            await call.in_thread(partial(self.queues.make, queue, call.grant.id))
        else:
            await call.in_thread(partial(self.queues.find, queue))

    async def _sent(
        self, scope: Scope, receive: Receive, send: Send, call: Call, result: object
    ) -> Sent:
        """Return what to answer, or send what is sent piece by piece."""
        if result is None:
            return 204, (), b""
        if isinstance(result, Stream | LiveStream) and scope["method"] == "HEAD":
            await call.in_thread(getattr(result.pieces, "close", lambda: None))
            return 200, ((b"content-type", result.media_type.encode()),), b""
        if isinstance(result, LiveStream):
            return await stream_live(scope, send, result, partial(self.guard.is_good, call.grant))
        if isinstance(result, Reply):
            head = (b"content-type", result.media_type.encode())
            page = _PAGE if result.media_type.startswith("text/html") else ()
            return result.status, (head, *page, *result.headers), result.body
        assert isinstance(result, Stream)
        if self._streams >= STREAMS_MAX:
            await call.in_thread(getattr(result.pieces, "close", lambda: None))
            raise Refused(503, "overloaded", "too much is being read at once", retry=1)
        self._streams += 1
        try:
            is_good = partial(self.guard.is_good, call.grant)
            presence = Presence(receive)
            return await stream_pieces(scope, send, result, presence, call.in_thread, is_good)
        finally:
            self._streams -= 1

    def _query(self, route: Route, text: bytes) -> msgspec.Struct | None:
        if route.query is None:
            return None
        try:
            values = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))
            return msgspec.convert(values, route.query, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise Refused(400, "invalid_argument", f"query: {error}") from None

    def _decoded(self, route: Route, data: bytes) -> msgspec.Struct | bytes | None:
        if route.has_raw_body:
            return data
        if route.body is None:
            return None
        try:
            return self._decoders[route.body].decode(data or b"{}")  # type: ignore[no-any-return]
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Refused(400, "invalid_body", f"body: {error}") from None

    # Ending --------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Have whoever waits come back: the server is about to end."""
        self.operations.is_ending = True
        self.waiting.close()
        self.listeners.close()

    def close(self) -> None:
        """Let go of what is held for clients. The store stays open.

        A step that is under way goes on until it asks the store again, which may be closed then.
        """
        self.overlook.close()
        self.historian.close()
        self.threads.close()
        self.letter_groups.close()
        self.sessions.close()
        self.operations.close()
        self.tasks.close()


async def _repeated(known: Remembered, asked: int) -> Sent | None:
    """Return the answer to an earlier request with the same key, or None if that was given up."""
    if known.asked != asked:
        raise Refused(422, "request_reused", "another request had this Idempotency-Key")
    if not known.status:
        known.is_over = known.is_over or asyncio.Event()
        await known.is_over.wait()
    return (known.status, known.headers, known.body) if known.status else None
