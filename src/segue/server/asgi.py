"""The words of ASGI, and how an answer goes out: in one piece, in many, or as things happen."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeVar

from segue.server.refusal import Headers, Refused
from segue.server.routing import EVENT_STREAM, LiveStream, Stream
from segue.stores.http.problems import MEDIA_TYPE, RETRY_AFTER_SECONDS, Problem

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Leaving = asyncio.Future[dict[str, Any]]
"""Done once nothing more can come from whoever asked."""
Sent = tuple[int, Headers, bytes]
"""An answer: its status, 0 if it has been sent already, its headers and its body."""

IS_BEGUN: Final = "segue.is_begun"
"""Where the scope says that the head of a stream is out: no other answer can follow."""
# Plain numbers: to look one up in an enum takes a microsecond.
_WITHOUT_LENGTH: Final = (204, 304)
"""No content, and what 304 is about has another length than the nothing that comes with it."""
_PROBLEM: Final = (b"content-type", MEDIA_TYPE.encode())
_STREAMED: Final[Sent] = (0, (), b"")


IS_READ: Final = "segue.is_read"
"""Where the scope says that the body was read to its end."""
CLOSE: Final = (b"connection", b"close")
LEFT_BYTES_MAX: Final = 64 * 1024
"""So much of a body may be left of a request that was refused, and the connection goes on."""
DISCARDED_BYTES_MAX: Final = 16 << 20
DISCARDING_SECONDS: Final = 5.0


class Gone(Exception):
    """Whoever asked has left: nobody waits for an answer, or so it seems."""

    problem: Final = Problem(
        status=503,
        code="overloaded",
        detail="the connection was half closed before it was this request's turn: nothing is done",
        fields={},
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )

    async def tell(self, scope: Scope, send: Send, headers: Headers) -> None:
        """Answer who closed its own half alone, and still listens. Others are sent nothing."""
        if IS_BEGUN not in scope:
            await send_answer(send, *told(self.problem, headers))


class Presence:
    """Knows whether whoever asked is still there, from the first time it is asked on."""

    __slots__ = ("_receive", "_task")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: Leaving | None = None

    def leaving(self) -> Leaving:
        """Return what is done once nothing more can come from there."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._receive())
        return self._task

    def is_cut(self) -> bool:
        """Tell whether the connection is gone, and not only the half that we were asked on."""
        if self._task is not None and self._task.done():
            if self._task.result()["type"] == "http.disconnect":
                return True
            self._task = None
        self.leaving()
        return False

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()


def told(problem: Problem, headers: Headers = ()) -> Sent:
    """Return the answer that tells of a problem."""
    if problem.retry_after_seconds is not None:
        headers = (*headers, (b"retry-after", str(problem.retry_after_seconds).encode()))
    return problem.status, (_PROBLEM, *headers), problem.to_json()


def may_send_more(scope: Scope) -> bool:
    """Tell whether more of a body may come than is worth reading, of a request that was refused."""
    if IS_READ in scope:
        return False
    headers = dict(scope["headers"])
    said = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not said.isdigit() or int(said) > LEFT_BYTES_MAX


def with_headers(send: Send, headers: Headers) -> Send:
    """Return what sends answers with these headers, too."""

    async def send_more(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return send_more


async def send_answer(
    send: Send, status: int, headers: Headers, body: bytes, unread: Receive | None = None
) -> None:
    """Send an answer in one piece.

    Some of what is still coming is then thrown away before the connection ends: who is in the midst
    of sending would else not get to see the answer.
    """
    length = () if status in _WITHOUT_LENGTH else ((b"content-length", b"%d" % len(body)),)
    close = () if unread is None else (CLOSE,)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *close, *length],
        }
    )
    if unread is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _discard(unread)
        body = b""
    await send({"type": "http.response.body", "body": body})


async def _discard(receive: Receive) -> None:
    left_bytes = DISCARDED_BYTES_MAX
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARDING_SECONDS):
            while left_bytes > 0:
                message = await receive()
                left_bytes -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return


async def stream_pieces(
    scope: Scope,
    send: Send,
    stream: Stream,
    presence: Presence,
    in_thread: Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]],
    is_good: Callable[[], bool],
) -> Sent:
    """Send an answer piece by piece, each made in a thread, while whoever asked is let in.

    Raises Gone, and Refused for who is let in no more: what was sent is not the whole then.
    """
    pieces = stream.pieces
    try:
        piece = await in_thread(lambda: next(pieces, None))  # Its errors have a status yet.
        await _begin(scope, send, stream.media_type)
        while piece is not None:
            if presence.is_cut():
                raise Gone
            if not is_good():
                raise Refused(401, "unauthenticated", "the token is not good any more")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await in_thread(lambda: next(pieces, None))
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            # Not through the application: also where too many wait for a thread.
            await asyncio.get_running_loop().run_in_executor(None, close)
        presence.close()
    await send({"type": "http.response.body"})
    return _STREAMED


async def stream_live(
    scope: Scope, send: Send, stream: LiveStream, is_good: Callable[[], bool]
) -> Sent:
    """Send an answer as things happen, for as long as whoever asked is let in."""
    await _begin(scope, send, stream.media_type)
    async for piece in stream.pieces:
        if not is_good():
            break
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})
    return _STREAMED


async def _begin(scope: Scope, send: Send, media_type: str) -> None:
    scope[IS_BEGUN] = True
    headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-store")]
    if media_type == EVENT_STREAM:
        headers.append((b"x-accel-buffering", b"no"))  # Else nginx keeps events for a while.
    await send({"type": "http.response.start", "status": 200, "headers": headers})
