"""One real server for all tests of a process, with an application for each that asks.

To begin and end a server takes a fifth of a second; to put another application behind a path of its
own takes none. Tests that are about the server itself start their own.
"""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import uvicorn

from segue.server.app import App
from segue.server.serving import config_of, listen

Send = Callable[[dict[str, Any]], Awaitable[None]]


class SharedServer:
    """Applications by the first part of the path."""

    def __init__(self) -> None:
        self._apps: dict[bytes, App] = {}
        self._numbers = itertools.count(1)
        listener = listen("127.0.0.1", 0)
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(config_of(self))  # type: ignore[arg-type]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets = [listener]
        threading.Thread(target=self._run, name="shared-server", daemon=True).start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve(self._sockets))

    async def __call__(self, scope: dict[str, Any], receive: object, send: Send) -> None:
        if scope["type"] != "http":
            return
        _, name, rest = scope["raw_path"].split(b"/", 2)
        app = self._apps.get(name)
        if app is None:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        path = "/" + rest.decode("latin-1")
        inner = {**scope, "raw_path": b"/" + rest, "path": path}
        await app(inner, receive, send)  # type: ignore[arg-type]

    def add(self, app: App) -> str:
        """Return the URL under which the application answers from now on."""
        name = f"world-{next(self._numbers)}"
        self._apps[name.encode()] = app
        return f"{self._url}/{name}"

    def remove(self, url: str) -> None:
        """Have the application answer no more, and let go of what it holds."""
        app = self._apps.pop(url.rpartition("/")[2].encode())
        assert self._loop is not None
        ended = threading.Event()

        def let_go() -> None:
            app.let_go()
            ended.set()

        self._loop.call_soon_threadsafe(let_go)
        ended.wait()
        app.close()


@cache
def shared_http_server() -> SharedServer:
    """Return the server of this process."""
    return SharedServer()
