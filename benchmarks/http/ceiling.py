"""The ceiling: an application on the same server that decodes the body and does nothing.

python -m benchmarks.http.ceiling PORT
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn

from segue.server.serving import config_of, listen
from segue.stores.http.wire.queues import Push

_decode = msgspec.json.Decoder(Push).decode
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"15")]

Message = dict[str, Any]


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Decode what is to be pushed, and push nothing."""
    if scope["type"] != "http":
        return
    message = await receive()
    data: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        data += message["body"]
    _decode(data)
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": b'{"ids":["0-1"]}'})


def main() -> None:
    """Serve until killed."""
    listener = listen("127.0.0.1", int(sys.argv[1]))
    server = uvicorn.Server(config_of(app))  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listener]))


if __name__ == "__main__":
    main()
