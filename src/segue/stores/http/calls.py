"""Requests that may be repeated, and answers that are checked.

A request that changes something has a key; the server answers it once, however often it comes. One
that gets no answer, or is told to come again, is repeated until `retry` is over. What it answers
is taken for nothing until it fits the type that it should have.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from segue.clock import Ticks, system_ticks
from segue.errors import (
    AccessDenied,
    BatchTooLarge,
    ConnectionsBusy,
    InvalidArgument,
    SegueError,
    SessionGone,
    StoreClosed,
    StoreUnavailable,
    UnsupportedServer,
)
from segue.stores.connections import Pool
from segue.stores.forking import in_every_child
from segue.stores.http.address import Address
from segue.stores.http.answer import Answer as HttpAnswer
from segue.stores.http.line import NETWORK_ERRORS, Line, context_of, is_in_vain
from segue.stores.http.problems import NOT_BEGUN, code_of, error_of
from segue.stores.http.sense import making_sense, nonsense
from segue.stores.http.wire.about import PREFIX
from segue.tracing import headers_of_span
from segue.values import dataclass

logger = logging.getLogger(__name__)

PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 1.0
DIGITS_MAX: Final = 9
RENEWING_SHARE: Final = 2 / 3
"""Which part of its length the renewal of a lease or lock may take: it begins after the rest."""
RENEWING_SECONDS_MIN: Final = 2.0
"""What it may take in any case: a server that is slow may well be in time."""
TRIES_WITHIN: Final = 2
"""How many tries a call has at least that has a time of its own: one request may get lost."""
SHORT_SECONDS: Final = 0.05
"""Who waits no longer than this takes a connection as who does not wait at all."""
CONNECTING_SHARE: Final = 10
"""Which part of its time who waits spends on getting a connection: it is waited longer by that."""
LONG_SECONDS: Final = 600.0
"""How long something may take that takes the longer the more there is."""
ANSWER_BYTES_MAX: Final = 1 << 30
SHORT_BYTES_MAX: Final = 1 << 20
"""What a refusal, or an introduction, may take up: we do not know yet who answers."""
LINE_BYTES_MAX: Final = 256 << 20
"""One line of an answer that is lines."""

A = TypeVar("A")
T = TypeVar("T")
Query = Mapping[str, str | int | float | None]

_encode = msgspec.json.Encoder().encode
_YES: Final = range(200, 300)
_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
"""What a server, or a proxy before one that restarts, answers to who should come again."""
_REFUSED_FOR_GOOD: Final = frozenset({400, 405, 411, 414, 415, 422, 431})


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error that the server told of, and after how long to ask again, None if not at all."""

    error: SegueError
    again: float | None = None


@dataclass(slots=True, kw_only=True)
class _Request:
    """What is asked, as often as it takes."""

    method: str
    target: str
    data: bytes | None
    headers: dict[str, str]
    wait: float
    """How long the server may wait for what is asked for."""
    takes: float
    """How long its work may take, for what is known to take long."""
    timeout: float
    """How long an answer may take besides."""
    pool: Pool[Line]
    """Whose connections it takes."""
    pool_wait: float
    """How long a connection is waited for."""
    was_sent: bool = False


class Calls:
    """Talks to one server. Safe from any thread, and after a fork."""

    def __init__(self, address: Address, *, ticks: Ticks | None = None) -> None:
        self.address = address
        self.ticks = ticks or system_ticks
        tls = context_of(address)
        options = address.options

        def pool() -> Pool[Line]:
            return Pool(
                lambda: Line(address, tls), size=options.connections, wait_seconds=options.pool_wait
            )

        # Three: who waits, or reads on and on, takes no connection from who works, or keeps a
        # lease alive.
        self._work, self._waits, self._streams = self._pools = (pool(), pool(), pool())
        self._closing = threading.Event()
        in_every_child(self)
        self._decoders: dict[object, msgspec.json.Decoder[object]] = {}

    def begin(self) -> None:
        """Have locks of our own, after a fork."""
        is_closed = self._closing.is_set()
        self._closing = threading.Event()
        if is_closed:
            self._closing.set()

    # Asking --------------------------------------------------------------------------------

    def get(self, path: str, answer: type[A], *, query: Query | None = None) -> A:
        """Return what the server answers."""
        return self._decoded(self.fetch("GET", path, query=query), answer)

    def introduce(self, answer: type[A]) -> A:
        """Return what the server says of itself: whoever it is, that is little."""
        request = self._request("GET", "")
        return self._decoded(self._persisted(request, self._short_answer), answer)

    def get_or_none(self, path: str, answer: type[A], *, query: Query | None = None) -> A | None:
        """The same where there may be nothing to answer."""
        data = self.fetch("GET", path, query=query)
        return self._decoded(data, answer) if data else None

    def post(
        self,
        path: str,
        body: msgspec.Struct | None,
        answer: type[A],
        *,
        wait: float = 0,
        takes: float = 0,
    ) -> A:
        """Have something done and return the answer.

        The server may wait for `wait`, and what it does may take `takes`.
        """
        return self._decoded(self.fetch("POST", path, body, wait=wait, takes=takes), answer)

    def post_or_none(
        self, path: str, body: msgspec.Struct | None, answer: type[A], *, wait: float = 0
    ) -> A | None:
        """The same where there may be nothing to answer."""
        data = self.fetch("POST", path, body, wait=wait)
        return self._decoded(data, answer) if data else None

    def delete(self, path: str, answer: type[A], *, takes: float = 0) -> A:
        """Have something deleted and return the answer."""
        return self._decoded(self.fetch("DELETE", path, takes=takes), answer)

    def tell(
        self,
        path: str,
        body: msgspec.Struct | None = None,
        *,
        method: str = "POST",
        within: float | None = None,
    ) -> None:
        """Have something done that is not answered; no try begins once `within` is over."""
        self.fetch(method, path, body, within=within)

    def fetch(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0,
        takes: float = 0,
        within: float | None = None,
    ) -> bytes:
        """Return the body of the answer. One that breaks off is asked for again.

        With `within` that goes on for so long, and no step of a try takes more than half of it.
        """
        request = self._request(method, path, body, query, headers, wait=wait, takes=takes)
        return self._persisted(request, self._whole_answer, within)

    def _short_answer(self, line: Line, response: HttpAnswer) -> bytes:
        data = response.whole(SHORT_BYTES_MAX)
        self._let_go(line, response)
        return data

    def _whole_answer(self, line: Line, response: HttpAnswer) -> bytes:
        data = response.whole(ANSWER_BYTES_MAX)
        self._let_go(line, response)
        return data

    @contextmanager
    def asked(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        takes: float = 0,
    ) -> Iterator[HttpAnswer]:
        """Yield an answer whose body is still to be read, all of it or the connection is dropped.

        What breaks while it is being read raises StoreUnavailable and is not repeated.
        """
        request = self._request(method, path, body, query, headers, takes=takes, pool=self._streams)
        line, response = self._persisted(request, lambda *both: both)
        try:
            yield response
        except BaseException as error:
            line.home.drop(line)
            if isinstance(error, NETWORK_ERRORS) and not isinstance(error, SegueError):
                self._require_open()
                raise StoreUnavailable(f"{self.address.url} broke off: {error!r}") from error
            raise
        self._let_go(line, response)

    def _request(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        wait: float = 0,
        takes: float = 0,
        pool: Pool[Line] | None = None,
    ) -> "_Request":
        timeout, pool_wait = self.address.options.timeout, self.address.options.pool_wait
        is_wait = wait > SHORT_SECONDS
        data = _encoded(body)
        said = {"Accept-Encoding": "identity", **self._credentials(), **(headers or {})}
        if data is not None:
            said.setdefault("Content-Type", "application/json")
        return _Request(
            method=method,
            target=f"{self.address.path}{PREFIX}{path}{_query(query)}",
            data=data,
            headers=said,
            wait=wait,
            takes=takes,
            timeout=timeout,
            pool=pool or (self._waits if is_wait else self._work),
            pool_wait=min(pool_wait, wait / CONNECTING_SHARE) if is_wait else pool_wait,
        )

    def _persisted(
        self,
        request: "_Request",
        take: Callable[[Line, HttpAnswer], T],
        within: float | None = None,
    ) -> T:
        """Return what `take` makes of an answer that is no refusal, asked for until there is one.

        For as long as the address says from the first try that failed (a long poll may last longer
        than that), or until `within` is over.
        """
        begun = time.monotonic()
        wait = request.wait
        deadline = None if within is None else begun + within
        pause = PAUSE_SECONDS_MIN
        is_repeated = False
        while True:
            self._require_open()
            if within is not None and deadline is not None:
                left = max(0.001, min(deadline - time.monotonic(), within / TRIES_WITHIN))
                request.timeout = min(self.address.options.timeout, left)
                request.pool_wait = min(self.address.options.pool_wait, left)
            told = 0.0
            failure: SegueError
            try:
                outcome = self._tried(request, take)
            except NETWORK_ERRORS as error:  # StoreUnavailable is among them.
                if is_in_vain(error) or (
                    isinstance(error, ConnectionsBusy) and not request.was_sent
                ):
                    raise
                failure = _unanswered(self.address.url, error)
            else:
                if not isinstance(outcome, _Refusal):
                    return outcome
                if outcome.again is None:
                    if isinstance(outcome.error, SessionGone):
                        outcome.error.was_repeated = is_repeated
                    raise outcome.error
                failure, told = outcome.error, outcome.again
            self._require_open()
            now = time.monotonic()
            if deadline is None:
                deadline = now + self.address.options.retry
            is_repeated = True
            seconds = max(told, pause * random.uniform(0.5, 1))
            if now + seconds > deadline:
                raise failure
            logger.debug("asked again url=%s reason=%s", self.address.url, failure)
            self._closing.wait(seconds)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
            if request.wait:
                request.wait = max(0.0, wait - (time.monotonic() - begun))
                # Not in the body: under one key that must stay as it was.
                request.headers["Prefer"] = f"wait={request.wait:.3f}"

    def _tried(self, request: "_Request", take: Callable[[Line, HttpAnswer], T]) -> "T | _Refusal":
        """Return what `take` makes of an answer, or what a refusal means. Raises NETWORK_ERRORS."""
        line = self._taken(request)
        try:
            if not line.is_connected:
                line.connect_within(request.timeout)
                self._require_open()  # Closed meanwhile: nobody would interrupt this one.
            if request.method != "GET":
                request.headers.setdefault("Idempotency-Key", line.new_key())
            request.was_sent = True
            response = line.ask(
                request.method,
                request.target,
                request.data,
                request.headers,
                wait=request.wait + request.takes,
                timeout=request.timeout,
            )
            if response.status in _YES:
                return take(line, response)
            refusal = self._refusal(response)
        except BaseException:
            line.home.drop(line)
            raise
        if refusal.again is None:
            self._let_go(line, response)
        else:
            # Its last key is asked again: no later one may come on it before.
            line.home.drop(line)
        return refusal

    def _let_go(self, line: Line, response: HttpAnswer) -> None:
        """Keep a line whose answer was read to its end, and drop any other."""
        if response.may_go_on:
            line.home.give_back(line)
        else:
            line.home.drop(line)

    def _taken(self, request: _Request) -> Line:
        """Return a line that is in order. Raises ConnectionsBusy, StoreUnavailable."""
        pool = request.pool
        while True:
            line = pool.take(wait_seconds=request.pool_wait)
            line.home = pool
            if self._closing.is_set():
                pool.drop(line)  # Taken while the store was closed: nobody would interrupt it.
                self._require_open()
            if not line.is_stale:
                return line
            pool.drop(line)  # The server had enough of it: another costs nothing.

    def _credentials(self) -> Mapping[str, str]:
        said = headers_of_span(None) or {}
        if self.address.token is not None:
            return {**said, "Authorization": f"Bearer {self.address.token}"}
        return said

    # Refusals ------------------------------------------------------------------------------

    def _refusal(self, response: HttpAnswer) -> "_Refusal":
        """Return what a refusal means, and after how long to ask again."""
        body = response.whole(SHORT_BYTES_MAX)
        status = response.status
        error = error_of(body)
        detail = _detail(body) or f"status {status}"
        if status in _AGAIN and (error is None or code_of(body) in NOT_BEGUN):
            unavailable = StoreUnavailable(f"{self.address.url}: {detail}")
            return _Refusal(unavailable, _seconds_after(response))
        if error is not None:
            return _Refusal(error)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return _Refusal(AccessDenied(f"{self.address.url}: {detail}"))
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return _Refusal(BatchTooLarge(detail))
        if status in _REFUSED_FOR_GOOD:
            return _Refusal(InvalidArgument(detail))
        if status == HTTPStatus.NOT_FOUND:
            return _Refusal(
                UnsupportedServer(f"{self.address.url}: {detail}; is it an older Segue?")
            )
        if status < HTTPStatus.BAD_REQUEST:
            return _Refusal(UnsupportedServer(f"{self.address.url} leads elsewhere: {status}"))
        return _Refusal(StoreUnavailable(f"{self.address.url}: {detail}"))

    # Answers -------------------------------------------------------------------------------

    def _decoded(self, data: bytes, answer: type[A]) -> A:
        decoder = self._decoders.get(answer)
        if decoder is None:
            decoder = self._decoders[answer] = msgspec.json.Decoder(answer)
        try:
            return decoder.decode(data)  # type: ignore[return-value]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnsupportedServer(
                f"{self.address.url} answered what makes no sense: {error}"
            ) from error

    def lines(self, path: str, answer: type[A], *, query: Query | None = None) -> Iterator[A]:
        """Yield what a server answers line by line. Raises the problem that the last one tells."""
        with self.asked("GET", path, query=query) as response:
            while data := response.readline(LINE_BYTES_MAX):
                if data.startswith(b'{"problem":'):
                    raise _told(self.address.url, data)
                yield self._decoded(data, answer)
                self._require_open()

    # Closing -------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosed(f"{self.address.url} is closed")

    def close(self) -> None:
        """Wait for no answer any more."""
        self._closing.set()
        for pool in self._pools:
            pool.close()
            for line in pool.in_use():
                line.interrupt()


@contextmanager
def _text() -> Iterator[None]:
    """Raise InvalidArgument for what cannot be written down: half a character, as JSON may have."""
    try:
        yield
    except UnicodeEncodeError:
        raise InvalidArgument("what is sent must be valid text, or bytes") from None


def renewing_seconds(ttl: float) -> float:
    """Return how long it may take to have something last for `ttl` more."""
    return max(RENEWING_SECONDS_MIN, ttl * RENEWING_SHARE)


def path_of(*words: str) -> str:
    """Return a path of words, whatever is in them. Raises InvalidArgument."""
    with _text():
        return "/" + "/".join(quote(word, safe="") for word in words)


def _query(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    with _text():
        return f"?{urlencode(given)}" if given else ""


def _encoded(body: msgspec.Struct | bytes | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    with _text():
        return _encode(body)


def _unanswered(url: str, error: BaseException) -> StoreUnavailable:
    failure = StoreUnavailable(f"{url} does not answer: {str(error) or type(error).__name__}")
    failure.__cause__ = error
    return failure


def _seconds_after(response: HttpAnswer) -> float:
    """Return after how long to ask again, as far as the server says so."""
    after = response.headers.get("retry-after", "")
    return float(after) if after.isdecimal() and len(after) <= DIGITS_MAX else 0.0


def _detail(body: bytes) -> str:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return str(document.get("detail", "")) if isinstance(document, dict) else ""


def _told(url: str, line: bytes) -> SegueError:
    """Return the error that the last line of an answer tells of."""
    with making_sense():
        problem = bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["problem"])
        error = error_of(problem)
        if error is not None:
            return error
    if not code_of(problem):
        return nonsense("a problem without a code")
    # It went wrong there for another reason than there are names for here.
    return StoreUnavailable(f"{url}: {_detail(problem) or code_of(problem)}")
