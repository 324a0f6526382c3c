"""One round trip to the server for each operation, repeated until its outcome is known.

Whatever changes something carries the number of its request. The server remembers, for each of our
lines, the last request and its answer: one that arrives twice, because a connection broke before
the answer came, is answered from memory and changes nothing again.
"""

import contextlib
import itertools
import logging
import math
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn, cast

import redis
from redis import exceptions

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.errors import (
    ConnectionsBusy,
    NotReplicated,
    SegueError,
    StorageError,
    StorageFull,
    StoreUnavailable,
)
from segue.stores.forking import in_every_child
from segue.stores.redis.address import Address
from segue.stores.redis.libraries import Library
from segue.stores.redis.servers import NETWORK_ERRORS, Connection, Node, Servers
from segue.values import dataclass

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 0.01
BACKOFF_SECONDS_MAX: Final = 0.5
TIMEOUT_SECONDS_MIN: Final = 0.5
"""How long an answer may take at least, however little time a call has."""
CLIENT_BYTES: Final = 8
WAIT_SLACK_SECONDS: Final = 2.0
"""How much longer than a blocking command may block its answer may take."""

Word = bytes | str | int | float
Answer = object

_TRANSIENT: Final = (
    *NETWORK_ERRORS,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)
_TRANSIENT_WORDS: Final = ("NOREPLICAS", "BUSY", "UNBLOCKED", "LOADING", "MASTERDOWN")
_NON_LOCAL: Final = "access a non local key"
"""A slot is on its way to another node: whole again in a moment."""
_NO_FUNCTION: Final = "Function not found"
_SIGNAL: Final = "SEGUE"
_BULKY: Final = frozenset({"pop", "dequeue"})
"""Functions whose answers, which the server remembers, are messages."""
_NOTHING: Final = b"\xc0"
"""No answer, as functions/common.lua writes it."""


class Refusal(SegueError):
    """A function on the server said no, and why; nothing was changed. Stores translate it."""

    def __init__(self, code: str, words: list[str]) -> None:
        super().__init__(f"{code} {' '.join(words)}")
        self.code = code
        self.words = words


@dataclass(frozen=True, slots=True)
class _Block:
    """Commands the server does with nothing between them. All of them are of one slot."""

    commands: tuple[tuple[Word, ...], ...]


@dataclass(slots=True)
class _Line:
    """One of those of us who may have a request under way."""

    number: int
    requests: Iterator[int]


class Calls:
    """Calls functions for one store. Safe from any thread."""

    def __init__(
        self,
        address: Address,
        servers: Servers,
        *,
        clock: Clock | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        self.servers = servers
        self._options = address.options
        self._clock = clock
        self._ticks = ticks
        self._chance = random.Random()
        self._over_at = math.inf
        self.begin()
        in_every_child(self)

    def begin(self) -> None:
        """Have a name of our own. After a fork the parent goes on under the one it has."""
        self._client = secrets.token_hex(CLIENT_BYTES)
        self._lock = threading.Lock()
        self._free: deque[_Line] = deque()
        self._numbers = itertools.count()
        self._bulky: dict[tuple[str, int], int] = {}

    @property
    def has_manual_clock(self) -> bool:
        """Whether time is what somebody says it is, and not the server's."""
        return self._clock is not None

    def ticks(self) -> int:
        """Return ticks here, for what is judged without asking the server."""
        return self._ticks() if self._ticks is not None else system_ticks()

    @property
    def clock(self) -> Clock:
        """What time it is, as far as we know; the server goes by its own."""
        return self._clock or system_clock

    def _now(self) -> str:
        """Return the time for functions: none, so that they take the server's, but in tests."""
        if self._clock is None:
            return ""
        return f"{self._clock()} {self._ticks() if self._ticks else 0}"

    @contextlib.contextmanager
    def _line(self) -> Iterator[_Line]:
        with self._lock:
            line = self._free.pop() if self._free else None
        if line is None:
            line = _Line(next(self._numbers), itertools.count(1))
        try:
            yield line
        finally:
            with self._lock:
                self._free.append(line)

    # Calling -------------------------------------------------------------------------------

    def change(
        self, library: Library, name: str, base: str, *words: Word, retry: float | None = None
    ) -> Answer:
        """Have a function change something, once, however often it must be tried.

        For `retry` seconds, if that is less than what the URL says. Raises Refusal,
        StoreUnavailable, NotReplicated, StorageFull, StorageError.
        """
        with self._line() as line:
            function = library.function(name)
            number = next(line.requests)
            request = (
                *("FCALL", function, 1, base, self._now()),
                *(f"{self._client}.{line.number}", number),
                *words,
            )
            answer = self._until_known(base, library, request, is_change=True, retry=retry)
            if name in _BULKY:
                self._bulky[base, line.number] = number
            elif self._bulky:
                self._bulky.pop((base, line.number), None)
            return answer

    def hurry(self, seconds: float) -> None:
        """Have nothing be tried for longer than that from now on: the store is to be closed."""
        self._over_at = time.monotonic() + seconds

    def leave(self) -> None:
        """Have the server forget the messages it keeps for us in case we ask again."""
        with contextlib.suppress(SegueError):  # It forgets them by itself, later.
            while self._bulky:
                (base, line), number = self._bulky.popitem()
                key = f"{base}:request_{self._client}.{line}"
                # The number stays: a copy of the request may still be on its way.
                words = ("SET", key, number.to_bytes(8) + _NOTHING, "XX", "KEEPTTL")
                self._until_known(key, None, words, retry=TIMEOUT_SECONDS_MIN)

    def look(self, library: Library, name: str, base: str, *words: Word) -> Answer:
        """Have a function answer that changes nothing anybody could see. Raises as `change`."""
        return self._until_known(base, library, self._looking(library, name, base, *words))

    def look_with(
        self,
        commands: Sequence[tuple[Word, ...]],
        library: Library,
        name: str,
        base: str,
        *words: Word,
    ) -> list[Answer]:
        """Look, and have commands that may be done twice done at the same moment.

        The function's answer comes first. Raises as `change`.
        """
        block = _Block((self._looking(library, name, base, *words), *commands))
        return cast("list[Answer]", self._until_known(base, library, block))

    def _looking(self, library: Library, name: str, base: str, *words: Word) -> tuple[Word, ...]:
        return ("FCALL", library.function(name), 1, base, self._now(), "", 0, *words)

    def command(self, key: str, *words: Word, retry: float | None = None) -> Answer:
        """Have the server of `key` do a command that may be done twice. Raises as `change`."""
        return self._until_known(key, None, words, retry=retry)

    def wait(self, key: str, *words: Word, timeout: float) -> Answer:
        """Do a command that blocks for at most `timeout` seconds; None if it could not be done."""
        try:
            node = self.servers.node_of(key)
            connection = node.waits.take()
        except (StoreUnavailable, *NETWORK_ERRORS):
            time.sleep(min(timeout, BACKOFF_SECONDS_MAX / 5))
            return None
        try:
            connection.send_packed_command(_packed(connection, words))
            answer = connection.read_response(timeout=timeout + WAIT_SLACK_SECONDS)
        except (*_TRANSIENT, redis.ResponseError):
            node.waits.drop(connection)  # Whoever calls next finds out what is the matter.
            time.sleep(min(timeout, BACKOFF_SECONDS))
            return None
        except BaseException:
            node.waits.drop(connection)
            raise
        node.waits.give_back(connection)
        return answer

    def _until_known(
        self,
        key: str,
        library: Library | None,
        request: tuple[Word, ...] | _Block,
        *,
        is_change: bool = False,
        retry: float | None = None,
    ) -> Answer:
        now = time.monotonic()
        limit = min(math.inf if retry is None else retry, max(0.0, self._over_at - now))
        patience = min(self._options.retry, limit)
        timeout = min(self._options.timeout, max(limit, TIMEOUT_SECONDS_MIN))
        deadline = now + patience
        pause = BACKOFF_SECONDS
        was_moved = was_tried = False
        while True:
            try:
                node = self.servers.node_of(key)
                return self._try(node, library, request, is_change=is_change, timeout=timeout)
            except ConnectionsBusy as error:
                if not was_tried:
                    raise  # Nothing was sent.
                problem: Exception = error
            except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
                raise StoreUnavailable(f"the server does not let us in: {error}") from error
            except _TRANSIENT as error:  # StoreUnavailable is among them, as a ConnectionError.
                problem = error
            except redis.ResponseError as error:
                if not _is_transient(error):
                    _raise_refusal(error)
                problem = error
            was_tried = True
            if time.monotonic() + pause > deadline:
                _give_up(problem, patience)
            logger.debug("trying again key=%s reason=%r", key, problem)
            if was_moved or not isinstance(problem, exceptions.MovedError):
                time.sleep(pause * self._chance.uniform(0.5, 1))
                pause = min(2 * pause, BACKOFF_SECONDS_MAX)
            was_moved = isinstance(problem, exceptions.MovedError)
            with contextlib.suppress(StoreUnavailable):
                self.servers.moved(key, problem)

    def _try(
        self,
        node: Node,
        library: Library | None,
        request: tuple[Word, ...] | _Block,
        *,
        is_change: bool,
        timeout: float,
    ) -> Answer:
        pool = node.pool
        connection = pool.take()
        try:
            answer = self._exchange(connection, request, is_change=is_change, timeout=timeout)
        except redis.ResponseError as error:
            pool.give_back(connection)
            if library is not None and _NO_FUNCTION in str(error):
                self._load(node, library)
                return self._try(node, None, request, is_change=is_change, timeout=timeout)
            raise
        except BaseException:
            pool.drop(connection)
            raise
        pool.give_back(connection)
        return answer

    def _exchange(
        self,
        connection: Connection,
        request: tuple[Word, ...] | _Block,
        *,
        is_change: bool,
        timeout: float,
    ) -> Answer:
        if isinstance(request, _Block):
            return _exchange_block(connection, request, timeout)
        confirming = self._confirmation() if is_change else None
        packed = _packed(connection, request)
        if confirming is None:
            connection.send_packed_command(packed)
            return connection.read_response(timeout=timeout)
        connection.send_packed_command([*packed, *_packed(connection, confirming)])
        try:
            answer = connection.read_response()
        except redis.ResponseError:
            with contextlib.suppress(redis.ResponseError):
                connection.read_response()
            raise
        try:
            confirmed = connection.read_response()
        except redis.ResponseError as error:  # It was a master until just now.
            raise NotReplicated(f"done, and not confirmed: {error}", answer=answer) from error
        self._require_confirmed(confirmed, answer)
        return answer

    def _confirmation(self) -> tuple[Word, ...] | None:
        """Return the command that waits until what was done is where it should be."""
        options = self._options
        wait_ms = max(1, round(options.timeout * 500))
        if options.fsync:
            return ("WAITAOF", 1, options.replicas, wait_ms)
        if options.replicas:
            return ("WAIT", options.replicas, wait_ms)
        return None

    def _require_confirmed(self, confirmed: object, answer: Answer) -> None:
        options = self._options
        synced, replicas = (
            cast("list[int]", confirmed) if options.fsync else (1, cast("int", confirmed))
        )
        if replicas < options.replicas:
            raise NotReplicated(
                f"done, and on {replicas} of {options.replicas} replicas within "
                f"{options.timeout / 2:g} s",
                answer=answer,
            )
        if not synced:
            raise NotReplicated(
                f"done, and not synced within {options.timeout / 2:g} s", answer=answer
            )

    def _load(self, node: Node, library: Library) -> None:
        with node.pool.connection() as connection:
            words = ("FUNCTION", "LOAD", "REPLACE", library.code)
            connection.send_packed_command(connection.pack_command(*words))
            connection.read_response()
            logger.info("loaded functions kind=%s version=%s", library.kind, library.version)


def _packed(connection: Connection, words: tuple[Word, ...]) -> list[bytes]:
    """Return a command as it is sent.

    Numbers become text here: the packer in C crashes if a signal handler raises while it does that.
    """
    return connection.pack_command(*[word if type(word) is bytes else str(word) for word in words])


def _exchange_block(connection: Connection, block: _Block, timeout: float) -> list[Answer]:
    requests = (("MULTI",), *block.commands, ("EXEC",))
    connection.send_packed_command(
        [part for words in requests for part in _packed(connection, words)]
    )
    answers: list[Answer] = []
    for _ in requests:  # All of them are read: the connection is used again.
        try:
            answers.append(connection.read_response(timeout=timeout))
        except redis.ResponseError as error:
            answers.append(error)
    done = answers[-1] if isinstance(answers[-1], list) else answers
    for answer in done:
        if isinstance(answer, redis.ResponseError):
            raise answer
    return done


def _is_transient(error: redis.ResponseError) -> bool:
    text = str(error)
    return text.startswith(_TRANSIENT_WORDS) or _NON_LOCAL in text


def _raise_refusal(error: redis.ResponseError) -> NoReturn:
    """Raise what an error of the server means."""
    text = str(error)
    if text.startswith(_SIGNAL):
        code, *words = text.removeprefix(_SIGNAL).split(" ")
        if code == "STALE":
            raise StoreUnavailable("somebody else answered for us: " + " ".join(words)) from None
        raise Refusal(code, words) from None
    if isinstance(error, exceptions.OutOfMemoryError):
        raise StorageFull(f"the server has no memory left: {text}") from error
    raise StorageError(f"the server refused: {text}") from error


def _give_up(problem: Exception, seconds: float) -> NoReturn:
    if isinstance(problem, StoreUnavailable) and not isinstance(problem, ConnectionsBusy):
        raise problem
    raise StoreUnavailable(f"tried for {seconds:.3g} s: {problem}") from problem
