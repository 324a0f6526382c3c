"""An answer of an HTTP/1.1 server, read from its socket: bounded in size and in time.

The standard library's client takes a head that breaks off for a whole one, goes on for ever with a
server that never stops saying "100 Continue" or sends a byte now and then, and reads a gigabyte of
whatever answers. What comes from a network deserves less trust.
"""

import io
import socket
import time
from typing import Final

HEAD_BYTES_MAX: Final = 64 * 1024
INTERIM_MAX: Final = 10
"""How many answers may come that only say that there will be one."""
PIECE_BYTES: Final = 64 * 1024
"""What must come within one timeout, once the head is there."""
CHUNK_LINE_BYTES_MAX: Final = 256
CHUNK_DIGITS_MAX: Final = 8
LENGTH_DIGITS_MAX: Final = 18
"""More than anybody sends, and few enough that nobody is kept busy by one number."""
_STATUS_WORDS_MIN: Final = 2
_STATUS_DIGITS: Final = 3
_INTERIM: Final = range(100, 200)
_WITHOUT_BODY: Final = (204, 304)
_TLS: Final = (b"\x15\x03", b"\x16\x03")
"""How a TLS alert begins, and a handshake."""


class BrokenAnswer(ConnectionError):
    """What came is no answer, or only the beginning of one."""


class NothingCame(BrokenAnswer):
    """The connection ended, and not a byte had come."""


class SpeaksTls(BrokenAnswer):
    """What came is how TLS begins, or says that it cannot."""


class Answer(io.RawIOBase):
    """An answer whose head was read. A file of its body. For one thread at a time."""

    def __init__(self, sock: socket.socket, deadline: float, timeout: float) -> None:
        """Read the head until `deadline`; each piece of the body may then take `timeout`."""
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        self._timeout = timeout
        self._buffer = bytearray()
        self._has_begun = False
        self.headers: dict[str, str] = {}
        self.status = self._head()
        for _ in range(INTERIM_MAX):
            if self.status not in _INTERIM:
                break
            self.status = self._head()
        else:
            raise BrokenAnswer("many answers that are none")
        self._is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self._left = self._length()
        """Of the body, or of the chunk that is being read."""
        self._is_last = not self._is_chunked

    # The head --------------------------------------------------------------------------------

    def _head(self) -> int:
        """Read a head and return its status."""
        lines = self._until(b"\r\n\r\n", HEAD_BYTES_MAX).split(b"\r\n")
        words = lines[0].split(b" ", 2)
        if len(words) < _STATUS_WORDS_MIN or not words[0].startswith(b"HTTP/1."):
            raise BrokenAnswer("it does not speak HTTP/1.1")
        if len(words[1]) != _STATUS_DIGITS or not words[1].isdigit():
            raise BrokenAnswer("an answer without a status")
        self._is_old = words[0] == b"HTTP/1.0"
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        return int(words[1])

    def _length(self) -> int:
        if self._is_chunked or self.status in _WITHOUT_BODY:
            return 0
        said = self.headers.get("content-length", "")
        if not said.isascii() or not said.isdecimal() or len(said) > LENGTH_DIGITS_MAX:
            raise BrokenAnswer("an answer that does not say where it ends")
        return int(said)

    @property
    def is_whole(self) -> bool:
        """Whether the body was read to its end."""
        return not self._left and self._is_last

    @property
    def may_go_on(self) -> bool:
        """Whether the connection is good for another request."""
        said = self.headers.get("connection", "").lower()
        return self.is_whole and not self._buffer and said != "close" and not self._is_old

    # The body --------------------------------------------------------------------------------

    def readable(self) -> bool:
        """Say that it is a file to read."""
        return True

    def readinto(self, target: object, /) -> int:
        """Read what there is, at least a byte; 0 is the end. Raises BrokenAnswer, OSError."""
        with memoryview(target) as view:  # type: ignore[arg-type]
            data = self._some(len(view))
            view[: len(data)] = data
            return len(data)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line, or the rest of one longer than `size`; b"" is the end."""
        most = HEAD_BYTES_MAX if size is None or size < 0 else size
        pieces: list[bytes] = []
        length = due_bytes = 0
        while length < most:
            if length >= due_bytes:
                # A line has its time, and so has every piece of a long one: a byte has none.
                self._deadline = time.monotonic() + self._timeout
                due_bytes = length + PIECE_BYTES
            piece = self._line_piece(most - length)
            if not piece:
                break
            pieces.append(piece)
            length += len(piece)
            if piece.endswith(b"\n"):
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _line_piece(self, most: int) -> bytes:
        """Return what has come of the line, up to its end."""
        self._begin_piece()
        if not self._left:
            return b""
        if not self._buffer:
            self._fill()
        there = min(most, self._left, len(self._buffer))
        end = self._buffer.find(b"\n", 0, there)
        return self._taken(there if end < 0 else end + 1)

    def whole(self, bytes_max: int) -> bytes:
        """Return all of the body. Raises BrokenAnswer if it breaks off, or is longer than that."""
        if self._left > bytes_max:
            raise BrokenAnswer(f"an answer of {self._left} bytes")
        pieces = []
        size_bytes = due_bytes = 0
        while True:
            if size_bytes >= due_bytes:
                # However small the pieces are that it comes in: so much must come in time.
                self._deadline = time.monotonic() + self._timeout
                due_bytes = size_bytes + PIECE_BYTES
            data = self._next_bytes(PIECE_BYTES)
            if not data:
                break
            pieces.append(data)
            size_bytes += len(data)
            if size_bytes > bytes_max:
                raise BrokenAnswer(f"an answer of more than {bytes_max} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _some(self, size: int) -> bytes:
        """Return up to `size` bytes, all of them but at the end of a body or chunk."""
        self._deadline = time.monotonic() + self._timeout
        return self._next_bytes(size)

    def _next_bytes(self, size: int) -> bytes:
        self._begin_piece()
        wanted = min(size, self._left, PIECE_BYTES)
        while len(self._buffer) < wanted:
            self._fill()
        return self._taken(wanted)

    def _begin_piece(self) -> None:
        """Have something left to read, unless it is the end."""
        while not self._left and not self._is_last:
            self._begin_chunk()

    def _taken(self, size: int) -> bytes:
        """Return bytes that have come."""
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._left -= size
        is_chunk_over = self._is_chunked and not self._left and size
        if is_chunk_over and self._until(b"\r\n", CHUNK_LINE_BYTES_MAX):
            raise BrokenAnswer("a chunk longer than it said")
        return data

    def _begin_chunk(self) -> None:
        digits = self._until(b"\r\n", CHUNK_LINE_BYTES_MAX).partition(b";")[0].strip()
        try:
            size = int(digits, 16) if 0 < len(digits) <= CHUNK_DIGITS_MAX else -1
        except ValueError:
            size = -1
        if size < 0:
            raise BrokenAnswer("a chunk without a size")
        self._left = size
        if not size:
            self._is_last = True
            while self._until(b"\r\n", CHUNK_LINE_BYTES_MAX):
                continue  # Trailers say nothing that matters here.

    # The socket ------------------------------------------------------------------------------

    def _until(self, end: bytes, bytes_max: int) -> bytes:
        """Return what comes before `end`."""
        while True:
            place = self._buffer.find(end, 0, bytes_max)
            if place >= 0:
                data = bytes(self._buffer[:place])
                del self._buffer[: place + len(end)]
                return data
            if len(self._buffer) >= bytes_max:
                raise BrokenAnswer("a head without end")
            self._fill()

    def _fill(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._sock.settimeout(left)
        data = self._sock.recv(PIECE_BYTES)
        if not self._has_begun:
            if not data:
                raise NothingCame("the connection ended before the answer began")
            if data.startswith(_TLS):
                raise SpeaksTls("it speaks TLS")
            self._has_begun = True
        if not data:
            raise BrokenAnswer("the connection ended before the answer did")
        self._buffer += data
