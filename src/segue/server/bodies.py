"""Bodies of requests, as they come in: each of them bounded, and all of them together."""

from collections.abc import Mapping
from typing import Final

from segue.server.asgi import Gone, Receive
from segue.server.refusal import Refused
from segue.server.routing import Route

BODY_BYTES_MAX: Final = 64 << 20
BODIES_BYTES_MAX: Final = 1 << 30
"""How much may be held at once: one by one each of them would be small enough."""
NO_BODY_BYTES_MAX: Final = 64 * 1024
"""What may come with a request that takes no body."""
COUNTED_BYTES: Final = 64 * 1024
"""Smaller ones are not worth counting: there are not so many requests at once."""


class Bodies:
    """Reads bodies, and counts those that are large until they are given back.

    For the event loop alone.
    """

    def __init__(self) -> None:
        self.bytes_max = BODY_BYTES_MAX
        self._bytes = 0

    async def read(self, route: Route, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request. Raises Refused, Gone."""
        if route.body is None and not route.has_raw_body:
            most = NO_BODY_BYTES_MAX
        else:
            most = self.bytes_max if route.body_bytes_max is None else route.body_bytes_max
        said = headers.get(b"content-length")
        if said is not None and said.isdigit() and int(said) > most:
            raise _too_large(most)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        data: bytes = message["body"]
        if len(data) > most:
            raise _too_large(most)
        if not message["more_body"] and len(data) > COUNTED_BYTES:
            self._bytes += len(data)
        return await self._whole(data, receive, most) if message["more_body"] else data

    def give_back(self, data: bytes) -> None:
        """Have room again for what was read: nobody needs it any more."""
        if len(data) > COUNTED_BYTES:
            self._bytes -= len(data)

    async def _whole(self, first: bytes, receive: Receive, most: int) -> bytes:
        """Return a body that comes in pieces. Who is too slow about it is cut off: protocol.py."""
        pieces = [first]
        size_bytes = len(first)
        self._bytes += size_bytes
        try:
            more = True
            while more:
                if self._bytes > BODIES_BYTES_MAX:
                    raise Refused(503, "overloaded", "too much is being sent at once", retry=1)
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                pieces.append(message["body"])
                size_bytes += len(pieces[-1])
                self._bytes += len(pieces[-1])
                more = message["more_body"]
                if size_bytes > most:
                    raise _too_large(most)
        except BaseException:
            self._bytes -= size_bytes
            raise
        if size_bytes <= COUNTED_BYTES:
            self._bytes -= size_bytes
        return b"".join(pieces)


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"a body has at most {most} bytes here")
