"""Long polls: many requests that wait for a message, and hardly any work while they do.

Whoever waits sleeps in the event loop. A push through this server wakes those who wait for that
queue at once. What comes otherwise (another process, a delay that is over, a lease that expired)
is found by one task that looks at each such queue again and again, more seldom the longer a round
takes. A look that takes long is left to itself, so that the others go on. Nobody is woken for a
message that is not there. Who leaves stands in nobody's way: their wait is over at once, and what
they were woken for is for the next.
"""

import asyncio
import logging
import re
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from segue.server.asgi import Gone, Leaving
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
QUICK_BYTES_MAX: Final = 256 << 10
"""How much may be sent with them: writing more takes as long."""
_PREFERRED: Final = re.compile(
    rb'(?:^|,)\s*wait\s*=\s*"?(\d{1,9}(?:\.\d{0,9})?)"?\s*(?:[,;]|$)', re.IGNORECASE
)
"""How many seconds a Prefer header would have a request wait (RFC 7240), here with fractions."""

T = TypeVar("T")
Look = Callable[[str], Awaitable[int]]
"""Returns how many messages of a queue can be had now."""


def is_quick(call: Call, count: int) -> bool:
    """Tell whether so many messages are dealt with at once, in the event loop."""
    return count <= QUICK_COUNT_MAX and call.size_bytes <= QUICK_BYTES_MAX and call.is_quick


async def run(call: Call, step: Callable[[], T], count: int) -> T:
    """Return what `step` returns: at once if it is quick for so many, else from a thread."""
    if is_quick(call, count):
        return step()
    return await call.in_thread(step)


def _seconds(call: Call, wait: float) -> float:
    """Return how long a request waits that asks for `wait`: no longer than it prefers.

    Who repeats a request must not change its body, and has waited for some of its time already.
    """
    said = call.headers.get(b"prefer")
    # Streams, which are GET, wait again and again: a short wait would have them never rest.
    if said is not None and call.route.changes:
        preferred = _PREFERRED.search(said)
        wait = wait if preferred is None else min(wait, float(preferred[1]))
    return min(wait, WAIT_SECONDS_MAX)


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
        self._lines: dict[str, OrderedDict[asyncio.Future[bool], None]] = {}
        """Who waits for which queue, as what is done when it is over: by a message, if True."""
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
                waiter.set_result(True)
                count -= 1

    async def until(self, queue: str, timeout: float, leaving: Leaving) -> bool:
        """Return when it is time to look: a message may be there, or the wait is over.

        That is after `timeout`, or when who waits is `leaving`. True if a message may be there:
        nobody else looks for it.
        """
        if self._closed:
            return False
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def leave(_: object) -> None:
            if not waiter.done():
                waiter.set_result(False)

        leaving.add_done_callback(leave)
        line = self._lines.setdefault(queue, OrderedDict())
        line[waiter] = None
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            return False  # Everybody looks once more at the end: also who was woken just then.
        finally:
            line.pop(waiter, None)
            leaving.remove_done_callback(leave)

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
        deadline = time.monotonic() + _seconds(call, wait)
        queue = call.names[0]
        step = take if is_quick(call, count) else _for_who_is_here(call, take)
        is_woken = False
        try:
            while True:
                found = await run(call, step, count)
                is_woken = False
                left = deadline - time.monotonic()
                if not is_nothing(found) or left <= 0 or call.is_gone() or self._closed:
                    return found
                is_woken = await self.until(queue, left, call.leaving())
                if call.is_gone():
                    return found  # Nothing is taken for somebody who has left.
                call.require_grant()
        finally:
            if is_woken:  # And did not look: it is for the next in line.
                self.wake(queue)

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
        deadline = time.monotonic() + _seconds(call, wait)
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
                    waiter.set_result(False)
        for task in (self._watch, *self._slow.values()):
            if task is not None:
                task.cancel()
