"""Everybody who listens to what is seen of the store: one looks, and all are told.

For the event loop alone. Nothing is looked at while nobody listens.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from segue.server.access import Grant
from segue.server.overlook import LOOK_SECONDS
from segue.server.picture import Picture
from segue.server.refusal import Refused

logger = logging.getLogger(__name__)

LISTENERS_MAX: Final = 256
"""How many listen at once: each holds a connection, and is sent the whole each second."""

T = TypeVar("T")


class InThread(Protocol):
    """Returns what a step returns, from a thread."""

    async def __call__(self, step: Callable[[], T], name: str = "") -> T: ...


class Listeners:
    """Those who listen. For the event loop alone."""

    def __init__(self, look: Callable[[], Picture], in_thread: InThread) -> None:
        self._look = look
        self._in_thread = in_thread
        self._count = 0
        self._news: asyncio.Future[Picture | None] | None = None
        """Done with what is seen next; with None when it is over."""
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self._said: tuple[Picture | None, dict[Grant, bytes]] = (None, {})
        """What was said last, to whom: all with one token are told the same."""

    def require_room(self) -> None:
        """Raise Refused if as many listen as may."""
        if self._count >= LISTENERS_MAX:
            raise Refused(503, "overloaded", "too many listen at once", retry=1)

    def join(self) -> None:
        """Become one of them, until `leave`."""
        self._count += 1

    def leave(self) -> None:
        """Listen no more."""
        self._count -= 1

    async def next(self) -> Picture | None:
        """Return what is seen next, for who has joined; None when it is over."""
        if self._closed:
            return None
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._go_on())
        # Shielded: who leaves must not end it for the others.
        return await asyncio.shield(self._news)

    def said(self, picture: Picture, grant: Grant) -> bytes | None:
        """Return what others were told of a look who may do the same; None if there are none."""
        return self._said[1].get(grant) if self._said[0] is picture else None

    def note(self, picture: Picture, grant: Grant, said: bytes) -> None:
        """Keep what is told of a look for others who may do the same."""
        if self._said[0] is not picture:
            self._said = (picture, {})
        self._said[1][grant] = said

    async def _go_on(self) -> None:
        """Look, tell, and rest, while anybody listens."""
        while self._count and not self._closed:
            try:
                self._tell(await self._in_thread(self._look, "/overview"))
            except Refused:
                pass  # Too many requests are under way: they come first.
            except Exception:
                logger.exception("not looked at the store")
            await asyncio.sleep(LOOK_SECONDS)
        self._looking = None

    def _tell(self, picture: Picture | None) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(picture)

    def close(self) -> None:
        """Have everybody go: the server is about to end."""
        self._closed = True
        self._tell(None)
        if self._looking is not None:
            self._looking.cancel()
