"""Connections: uvicorn's, with limits on what a client can make them cost.

One sweep a second looks at all of them, so none has a timer of its own: a head that does not come
to its end, a body that trickles, an answer that nobody takes all end the connection.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from segue.stores.http.problems import MEDIA_TYPE, Problem

HEAD_BYTES_MAX: Final = 32 << 10
"""Of the first line and all headers together."""
HEAD_SECONDS_MAX: Final = 10.0
"""From the first byte, or from the connection's beginning if there is none yet."""
BODY_SECONDS_MAX: Final = 30.0
"""How long a body may take, besides what it takes at BODY_RATE_MIN."""
BODY_RATE_MIN: Final = 1024
"""Bytes in a second."""
UNREAD_SECONDS_MAX: Final = 60.0
"""How long a client may take nothing of an answer that is ready."""
CONNECTIONS_MAX: Final = 20_000
PIPELINED_MAX: Final = 8
"""How many requests may wait for the one before them, and we still read what comes."""
SWEPT_AT_ONCE: Final = 500
SECURITY_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
"""What every answer has. Pages have more: see app.py."""


class Config(uvicorn.Config):
    """Uvicorn's settings, and ours."""

    connections_max: int = CONNECTIONS_MAX


class _HeadTooLarge(Exception):
    """The headers are more than they may be."""


class _HeadRefused(Exception):
    """The headers can be understood, and nothing is done about them. Says why."""


class _Over:
    """What a request waits on whose client says nothing more: it has happened, for good."""

    async def wait(self) -> bool:
        return True

    def set(self) -> None:
        """Do nothing: it is set."""

    def clear(self) -> None:
        """Do nothing: it stays set."""


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections_max = cast("Config", config).connections_max
        self._ahead: deque[RequestResponseCycle] = deque()
        """Requests that are not answered yet, before the last one; the first is under way."""
        self._chunk_bytes = 0
        self._fed_bytes = 0
        """With the chunk that the request began in: at least as much as its head has."""
        self._carried_bytes = 0
        """The size of that chunk, of which some may belong to the request before."""
        self._is_in_head = True
        self._is_read_again = False
        """Whether the head asks for another protocol: it is read once more, without that."""
        self._has_host = False
        self._is_refused = False
        """Whether nothing more is taken: the connection ends with what is being answered."""
        self._idle_bytes = 0
        """What came since a piece of the body did; -1 if one did just now."""
        self._since = 0.0
        """When we began to wait for a head or a body; 0 if it is not known to be late at all."""
        self._unread_bytes = 0
        self._unread_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > self._connections_max:
            self._refuse(503, "overloaded", "the server has as many connections as it may")

    # What comes ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _HeadTooLarge):
                self._refuse_head()
            elif isinstance(error.__context__, _HeadRefused):
                self._refuse(400, "invalid_request", str(error.__context__))
            else:
                self._refuse(400, "invalid_request", "this is no HTTP that can be understood")
            return
        if self._is_in_head:
            if self._is_head_too_large():
                self._refuse_head()
            elif self._since == 0.0:
                self._since = self.loop.time()
        elif self.cycle.more_body:
            self._count_idle(len(data))

    def _parse(self, data: bytes | memoryview) -> None:
        """Have the parser read what came, as if nobody could ask for another protocol.

        It takes what is behind a head that does for that protocol, and the body would be lost. So
        a new one gets such a head once more, without the wish, and then what is behind it.
        """
        while data:
            self._count_fed(len(data))
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as asked:
                data = memoryview(data)[asked.args[0] :]
            # Not among what is done about the error: that would stand for the reason of the next.
            head = self._head_without_upgrade()
            self._is_read_again = False
            # The old one reads nothing more where the connection is to be closed behind that head.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._count_fed(len(head))
            self.parser.feed_data(head)

    def _count_fed(self, size_bytes: int) -> None:
        self._chunk_bytes = size_bytes
        self._fed_bytes += size_bytes

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        # Not when anything comes: blank lines, and what is left of a body that was refused, would
        # keep the connection open for ever.
        self._unset_keepalive_if_required()
        self._is_in_head = True
        self._has_host = False
        self._fed_bytes = self._carried_bytes = self._chunk_bytes
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._fed_bytes > HEAD_BYTES_MAX and self._is_head_too_large():
            raise _HeadTooLarge
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _HeadRefused("this is no proxy: CONNECT leads nowhere")
            self._is_read_again = True
            return
        # Also here: if this head began before the last request was answered, it was set since.
        self._unset_keepalive_if_required()
        self._is_in_head = False
        self._since = 0.0
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self._wait_behind(before)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # What comes behind a body is of no use to anybody.
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            elif name == b"host":
                if self._has_host:  # Who stands between us and the client may go by the other one.
                    raise _HeadRefused("a request has one Host")
                self._has_host = True
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = -1
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_read_again:
            return
        self._since = 0.0
        super().on_message_complete()

    def _wait_behind(self, before: RequestResponseCycle) -> None:
        """Take note that the last request has to wait for the one before it."""
        before.on_response = self._go_on
        self._ahead.append(before)
        if len(self.pipeline) <= PIPELINED_MAX:
            # Uvicorn has just stopped reading, and who does not read does not see anybody leave.
            self.flow.resume_reading()

    def _go_on(self) -> None:
        self._ahead.popleft()
        self.on_response_complete()

    def _is_head_too_large(self) -> bool:
        if self._fed_bytes <= HEAD_BYTES_MAX:
            return False
        if self._is_in_head and self._fed_bytes - self._carried_bytes > HEAD_BYTES_MAX:
            return True
        seen_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return seen_bytes > HEAD_BYTES_MAX

    def _count_idle(self, size_bytes: int) -> None:
        """Refuse what belongs to a body and adds nothing to it, if there is too much of it."""
        if self._idle_bytes == -1:
            self._idle_bytes = 0
            return
        self._idle_bytes += size_bytes
        if self._idle_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """End in order: a client that has asked and only closed its own half is answered.

        It may as well be gone. So whoever waits for it to go is told, and takes nothing for it.
        """
        cycle = self._answering()
        if cycle is None or cycle.more_body or self._is_in_head or self.scheme == "https":
            return None
        cycle.keep_alive = False
        for each in (*self._ahead, cycle):
            each.message_event.set()
            each.message_event = _Over()  # type: ignore[assignment]
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits for the client to go. Uvicorn tells only the last request."""
        for each in self._ahead:
            each.disconnected = True
            each.message_event.set()
        super().connection_lost(exc)

    # What is refused before it is a request ------------------------------------------------

    def _refuse_head(self) -> None:
        self._refuse(431, "headers_too_large", f"headers have at most {HEAD_BYTES_MAX} bytes here")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Say why, and close. Or only close, behind the answers to all that came whole before."""
        cycle = self._answering()
        if cycle is not None and (self._ahead or self._is_in_head or not cycle.more_body):
            last = self._ahead[-1] if self._ahead and cycle.more_body else cycle
            last.keep_alive = False
            # Reading goes on, and leads to nothing: else we would not see the client leave.
            self._is_refused = True
            self._since = 0.0
            return
        if cycle is None or not cycle.response_started:
            body = Problem(status=status, code=code, detail=detail, fields={}).to_json()
            self.transport.write(_answer(status, body))
        self.transport.close()

    def _answering(self) -> RequestResponseCycle | None:
        """Return the last request, if it is not answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    # What is late --------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """End the connection if its client keeps us waiting."""
        if self._is_in_head:
            if self._since and now - self._since > HEAD_SECONDS_MAX:
                self._refuse(408, "request_timeout", "the request did not come")
        elif not self.flow.read_paused:
            cycle = self._answering()
            if cycle is not None and cycle.more_body:
                self._sweep_body(now)
        if self.flow.write_paused or self.transport.is_closing():
            self._sweep_unread(now)
        else:
            self._unread_since = 0.0

    def _sweep_body(self, now: float) -> None:
        if self._since == 0.0:
            self._since = now
        elif now - self._since > BODY_SECONDS_MAX + self._fed_bytes / BODY_RATE_MIN:
            self._refuse(408, "body_timeout", "the body did not come")

    def _sweep_unread(self, now: float) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if self._unread_since == 0.0 or unread_bytes != self._unread_bytes:
            self._unread_since = now
            self._unread_bytes = unread_bytes
        elif now - self._unread_since > UNREAD_SECONDS_MAX:
            self.transport.abort()


async def sweep(connections: Iterable[object], now: float) -> None:
    """End those connections whose clients keep us waiting. Requests get their turn meanwhile."""
    for count, connection in enumerate(list(connections), start=1):
        if isinstance(connection, Connection):
            connection.sweep(now)
        if count % SWEPT_AT_ONCE == 0:
            await asyncio.sleep(0)


def _answer(status: int, body: bytes) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {MEDIA_TYPE}",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name.lower()}: {value}" for name, value in SECURITY_HEADERS),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
