"""Long polls: many requests that wait for a message, and hardly any work while they do.

Whoever waits sleeps in the event loop. A push through this server wakes those who wait for that
queue at once. What comes otherwise (another process, a delay that is over, a lease that expired)
is found by one task that looks at each such queue again and again, more seldom the longer a round
takes. A look that takes long is left to itself, so that the others go on. Nobody is woken for a
message that is not there.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from segue.server.asgi import Gone
from segue.server.call import Call

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
"""How often queues are looked at that somebody waits for."""
SHARE: Final = 20
"""Looking takes at most one part in so many of the time."""
PATIENCE_SECONDS: Final = 0.02
"""How long a round waits for one look before it goes on to the next queue."""
SLOW_MAX: Final = 4
"""How many looks may take longer at once, before more of them begin slowly."""
SLOW_SECONDS: Final = 1.0
"""How long a round waits for one of those to end: each may hold a thread that others need."""
WAIT_SECONDS_MAX: Final = 30.0
"""How long one request waits: what stands in between may cut longer silences off."""
STEP_SECONDS_MIN: Final = 0.005
STEP_SECONDS_MAX: Final = 0.1
"""How often what is no queue is looked at, soon at first."""
QUICK_COUNT_MAX: Final = 1_000
"""How many messages are dealt with at once in the event loop: more take milliseconds."""

T = TypeVar("T")
Look = Callable[[str], Awaitable[int]]
"""Returns how many messages of a queue can be had now."""


def is_quick(call: Call, count: int) -> bool:
    """Tell whether so many messages are dealt with at once, in the event loop."""
    return count <= QUICK_COUNT_MAX and call.is_quick


async def run(call: Call, step: Callable[[], T], count: int) -> T:
    """Return what `step` returns: at once if it is quick for so many, else from a thread."""
    if is_quick(call, count):
        return step()
    return await call.in_thread(step)


def _for_who_is_here(call: Call, take: Callable[[], T]) -> Callable[[], T]:
    """Return what takes nothing for somebody who left while it waited for a thread."""
    call.is_gone()  # Looked at from here on.

    def step() -> T:
        if call.is_gone():
            raise Gone
        return take()

    return step


class Waiting:
    """Everybody who waits. For the event loop alone."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._lines: dict[str, OrderedDict[asyncio.Future[None], None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._slow: dict[str, asyncio.Task[None]] = {}
        """Queues that are passed over: their last look takes long, or took long a while ago."""
        self._round_seconds = 0.0
        self._closed = False

    @property
    def count(self) -> int:
        """How many wait for queues now."""
        return sum(map(len, self._lines.values()))

    @property
    def is_closed(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._closed

    def is_for(self, queue: str) -> bool:
        """Tell whether somebody waits for a queue."""
        return queue in self._lines

    def wake(self, queue: str, count: int = 1) -> None:
        """Have those who have waited longest look, as many as there may be messages for."""
        line = self._lines.get(queue)
        while line and count > 0:
            waiter, _ = line.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def until(self, queue: str, timeout: float) -> None:
        """Return when it is time to look: a message may be there, or `timeout` is over."""
        if self._closed:
            return
        waiter = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(queue, OrderedDict())
        line[waiter] = None
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            pass
        finally:
            line.pop(waiter, None)

    async def deliver(
        self,
        call: Call,
        take: Callable[[], T],
        wait: float,
        is_nothing: Callable[[T], bool],
        *,
        count: int = 1,
    ) -> T:
        """Return what `take` takes, again and again until it is something or `wait` is over.

        Up to `count` messages. Raises Gone if it would be for somebody who has left.
        """
        deadline = time.monotonic() + min(wait, WAIT_SECONDS_MAX)
        queue = call.names[0]
        step = take if is_quick(call, count) else _for_who_is_here(call, take)
        while True:
            found = await run(call, step, count)
            left = deadline - time.monotonic()
            if not is_nothing(found) or left <= 0 or call.is_gone() or self._closed:
                return found
            await self.until(queue, left)
            if call.is_gone():
                return found  # Nothing is taken for somebody who has left.
            call.require_grant()

    async def ask_again(
        self,
        call: Call,
        step: Callable[[], T],
        wait: float,
        is_nothing: Callable[[T], bool],
        *,
        count: int = 1,
    ) -> T:
        """Return what `step` returns, asked now and then until it is something. For no queues.

        Raises Gone if it would be for somebody who has left.
        """
        deadline = time.monotonic() + min(wait, WAIT_SECONDS_MAX)
        pause = STEP_SECONDS_MIN
        if not is_quick(call, count):
            step = _for_who_is_here(call, step)
        while True:
            found = await run(call, step, count)
            left = deadline - time.monotonic()
            if not is_nothing(found) or left <= 0 or call.is_gone() or self._closed:
                return found
            await asyncio.sleep(min(pause, left))
            if call.is_gone():
                return found  # Nothing is taken for somebody who has left.
            call.require_grant()
            pause = min(pause * 2, STEP_SECONDS_MAX)

    async def _run(self) -> None:
        while self._lines:
            self._round_seconds = 0.0
            await self._go_round()
            await asyncio.sleep(max(LOOK_SECONDS, self._round_seconds * SHARE))
        self._watch = None

    async def _go_round(self) -> None:
        """Look at each queue once. A look that does not come back in time is left to itself."""
        left = deque(queue for queue in self._lines if queue not in self._slow)
        while left:
            under_way = [look for look in self._slow.values() if not look.done()]
            if len(under_way) >= SLOW_MAX:
                # Those that hang must not stop the looks at all others, and are few: one more.
                await asyncio.wait(
                    under_way, timeout=SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            looking = asyncio.create_task(self._look_at_each(left))
            while not looking.done():
                before = len(left)
                await asyncio.wait([looking], timeout=PATIENCE_SECONDS)
                if not looking.done() and len(left) == before:
                    self._slow[left.popleft()] = looking
                    break

    async def _look_at_each(self, left: deque[str]) -> None:
        # One task for all that are quick: a look that is done at once does not wait for anything.
        while left and not self._closed:
            queue = left[0]
            begun = time.monotonic()
            await self._look_at(queue)
            taken = time.monotonic() - begun
            if queue in self._slow:  # Another looks at what is left, and this one rests alone.
                rest = min(taken * SHARE, WAIT_SECONDS_MAX)
                asyncio.get_running_loop().call_later(rest, self._slow.pop, queue, None)
                return
            self._round_seconds += taken
            left.popleft()

    async def _look_at(self, queue: str) -> None:
        line = self._lines.get(queue)
        if not line:
            self._lines.pop(queue, None)
            return
        try:
            self.wake(queue, await self._look(queue))
        except Exception as error:  # noqa: BLE001 - whatever it is, others wait for other queues.
            logger.warning("not looked at queue=%s reason=%r", queue, error)
            self.wake(queue, len(line))  # They find out for themselves.

    def close(self) -> None:
        """Have everybody come back with what there is."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line:
                if not waiter.done():
                    waiter.set_result(None)
        for task in (self._watch, *self._slow.values()):
            if task is not None:
                task.cancel()
