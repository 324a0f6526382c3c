"""One connection to a server, which carries one request at a time."""

import itertools
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Final

from segue.errors import InvalidArgument, StoreUnavailable
from segue.stores.connections import Pool
from segue.stores.http.address import Address
from segue.stores.http.answer import Answer, BrokenAnswer, NothingCame, SpeaksTls

NETWORK_ERRORS: Final = (OSError,)
"""What may come of asking. StoreUnavailable is among them, and BrokenAnswer."""
NAME_BYTES: Final = 9
PIECE_BYTES: Final = 1 << 20
"""What is sent within one timeout."""
REFUSAL_SECONDS: Final = 1.0
"""How soon a server must have said why, if it takes no more of a request."""


class Line:
    """A connection, and the name under which the server remembers the last answer it gave on it."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._name = secrets.token_urlsafe(NAME_BYTES)
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._was_answered = False
        self.home: Pool[Line]
        """Where it was taken from, and belongs when it is not in use."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._host = f"Host: {host}:{address.port}\r\n"

    def new_key(self) -> str:
        """Return the key of a request that may have to be repeated; the last one was answered."""
        return f"segue-line:{self._name}/{next(self._numbers)}"

    def connect(self) -> None:
        """Do nothing yet: the first request knows how long it may take."""

    @property
    def is_connected(self) -> bool:
        """Whether there was a connection, as it may be still."""
        return self._socket is not None

    def connect_within(self, timeout: float) -> None:
        """Connect, and have small requests sent at once. Raises StoreUnavailable."""
        address = self._address
        try:
            sock = socket.create_connection((address.host, address.port), timeout=timeout)
        except (OSError, UnicodeError) as error:
            raise StoreUnavailable(f"the server cannot be reached: {error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise StoreUnavailable(f"{address.url}: {error.verify_message}") from error
        except OSError as error:
            sock.close()
            if _is_plain(error):
                raise StoreUnavailable(
                    f"{address.url} does not speak TLS: is it http://?"
                ) from error
            raise StoreUnavailable(f"no connection could be made: {error}") from error
        except BaseException:
            sock.close()
            raise
        self._socket = sock

    def disconnect(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the server, or has what nobody asked for."""
        sock = self._socket
        if sock is None:
            return False
        sock.settimeout(0)
        try:
            sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False  # Over TLS something may have come that is not for us.
        except OSError:
            return True
        return True

    def interrupt(self) -> None:
        """Have whoever waits for an answer on this connection wait no more. From any thread."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # It was closed already.

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        wait: float,
        timeout: float,
    ) -> Answer:
        """Send a request and return the answer, its body still to be read. Raises OSError."""
        sock = self._socket
        assert sock is not None
        head = [f"{method} {target} HTTP/1.1\r\n", self._host]
        head += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None or method != "GET":
            head.append(f"Content-Length: {len(body or b'')}\r\n")
        # What is short goes in one piece: the server wakes up once.
        data = "".join((*head, "\r\n")).encode("latin-1") + (body or b"")
        sock.settimeout(timeout)
        try:
            if len(data) <= PIECE_BYTES:
                sock.sendall(data)
            else:
                view = memoryview(data)
                for start in range(0, len(view), PIECE_BYTES):
                    sock.sendall(view[start : start + PIECE_BYTES])  # Each in time.
        except OSError:
            # A server that refuses by the head alone may not listen to the end.
            answer = self._answer(sock, REFUSAL_SECONDS, timeout)
            answer.headers["connection"] = "close"
            return answer
        return self._answer(sock, timeout + wait, timeout)

    def _answer(self, sock: socket.socket, seconds: float, timeout: float) -> Answer:
        """Return an answer whose head comes within `seconds`. Raises OSError."""
        try:
            answer = Answer(sock, time.monotonic() + seconds, timeout)
        except SpeaksTls as error:
            raise StoreUnavailable(f"{self._address.url} speaks TLS: is it https://?") from error
        except (NothingCame, ConnectionResetError) as error:
            if self._was_answered or self._tls is not None:
                raise
            # Servers that expect TLS say nothing to who begins otherwise.
            raise BrokenAnswer(f"{error}; if it speaks TLS, it is https://") from error
        self._was_answered = True
        return answer


def is_in_vain(error: BaseException) -> bool:
    """Tell whether trying again is of no use: the certificate, or the scheme, stays what it is."""
    cause = error.__cause__
    return isinstance(cause, ssl.SSLCertVerificationError | SpeaksTls) or _is_plain(cause)


def _is_plain(error: BaseException | None) -> bool:
    """Tell whether a server was asked for TLS and answered something else."""
    return isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"


def context_of(address: Address) -> ssl.SSLContext | None:
    """Return how to encrypt, None where nothing is. Raises InvalidArgument."""
    if not address.is_encrypted:
        return None
    try:
        return ssl.create_default_context(cafile=address.options.ca or None)
    except OSError as error:
        raise InvalidArgument(f"ca={address.options.ca}: {error}") from error
