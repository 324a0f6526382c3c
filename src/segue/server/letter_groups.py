"""Dead letters grouped by what they died of, for as long as somebody asks.

One thread for the whole server reads them, in small steps and with rests between, what was asked
for last first. Who asks waits a moment for it and is then told what is known so far.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from typing import Final

from segue.clock import Clock, system_clock
from segue.delivery.message import DeadLetter
from segue.errors import LogClosed, StoreClosed
from segue.server.letter_index import LetterGroup
from segue.server.letter_tally import Tally
from segue.stores.contract import Queue
from segue.stores.letters import DeadLetters
from segue.values import dataclass

logger = logging.getLogger(__name__)

QUEUES_MAX: Final = 64
"""Of how many queues is known what their letters died of: those that were asked for last."""
LETTERS_MAX: Final = 4_000_000
"""How many letters are known, of all queues together: seventeen bytes each."""
WAIT_SECONDS: Final = 0.05
"""How long who asks waits for what is not known yet."""
STEP_SECONDS: Final = 0.02
REST_SHARE: Final = 0.5
"""How long the thread rests after a step, of what it took of the processor: others need it."""
RETRY_SECONDS: Final = 1.0
"""How long a queue that failed is left alone."""
DROP_SECONDS: Final = 300.0
"""After how long what nobody asks for any more is forgotten."""
SWEEP_SECONDS: Final = 10.0
JOIN_SECONDS: Final = 2.0
"""How long the end waits for a step that is under way."""
FOUND_MAX: Final = 500
"""How many numbers are looked up at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known of the dead letters of a queue."""

    groups: list[LetterGroup]
    """Most letters first, those not told apart last."""
    is_complete: bool
    """Whether all that can be read were counted, as they were when this was asked for."""
    as_of_us: int


@dataclass(slots=True, kw_only=True)
class _Asked:
    """A queue that was asked for."""

    name: str
    tally: Tally = field(default_factory=Tally)
    asked_at: float = 0.0
    ticket: int = 0
    """How often it was asked for."""
    round_ticket: int = 0
    """How often when the round that is under way began."""
    done: int = 0
    """How often when the last round that is over began."""
    failed: int = 0
    """How often when it last failed: it is tried again for who asks after that."""
    retry_at: float = 0.0
    as_of_us: int = 0
    is_begun: bool = False
    begun_at: float = 0.0


class LetterGroups:
    """The groups of all queues of a server. Safe from any thread."""

    def __init__(
        self,
        find: Callable[[str], Queue],
        forget: Callable[[str], None] = lambda name: None,
        *,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns a queue to look at, `forget` has it opened anew by who asks next."""
        self._find = find
        self._forget = forget
        self._clock = clock
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._queues: dict[str, _Asked] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def look(self, name: str, *, wait_seconds: float = WAIT_SECONDS) -> Look:
        """Return what is known of a queue's dead letters, after waiting for it a little."""
        asked, is_current = self._ask(name, wait_seconds)
        return Look(
            groups=asked.tally.groups(),
            is_complete=is_current and not asked.tally.is_full,
            as_of_us=asked.as_of_us or self._clock(),
        )

    def nothing(self) -> Look:
        """Return what is known of a queue that has no dead letters."""
        return Look(groups=[], is_complete=True, as_of_us=self._clock())

    def ask_for(self, name: str) -> None:
        """Have a queue looked at, for who asks in a moment."""
        self._ask(name, 0.0)

    def like(
        self,
        name: str,
        letters: DeadLetters,
        *,
        cause: str | None,
        pattern: str | None,
        after: int = -1,
        is_act: bool = False,
    ) -> Iterator[DeadLetter]:
        """Yield, of `letters`, those behind a number that may be of a cause and pattern, in order.

        Others may be among them, and none is missing: what is not known is read one by one. For an
        act all of it is, unless everything is known as it is now.
        """
        if cause is None and pattern is None:
            return letters.behind(after)
        asked, is_current = self._ask(name, WAIT_SECONDS)
        if is_act and not is_current:
            return letters.behind(after)
        return _known_first(asked.tally, letters, cause, pattern, after)

    def close(self) -> None:
        """Read no more. A step that does not come back is not waited for."""
        self._ending.set()
        with self._changed:
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(JOIN_SECONDS)

    def _ask(self, name: str, wait_seconds: float) -> tuple[_Asked, bool]:
        """Return what is known of a queue, and whether that is so now."""
        with self._changed:
            asked = self._queues.get(name)
            if asked is None:
                asked = self._queues[name] = _Asked(name=name)
            asked.asked_at = self._monotonic()
            self._make_room()
            asked.ticket += 1
            ticket = asked.ticket
            self._begin()
            self._changed.notify_all()
            if asked.is_begun:  # What has taken long will take longer.
                wait_seconds -= self._monotonic() - asked.begun_at
            is_current = self._changed.wait_for(
                lambda: asked.done >= ticket or self._ending.is_set(), max(0.0, wait_seconds)
            )
        return asked, is_current and asked.done >= ticket

    def _make_room(self) -> None:
        while len(self._queues) > QUEUES_MAX:
            oldest = min(self._queues.values(), key=lambda asked: asked.asked_at)
            del self._queues[oldest.name]

    # The thread ----------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is None and not self._ending.is_set():
            thread = threading.Thread(target=self._run, name="segue-serve-letters", daemon=True)
            with suppress(RuntimeError):  # There is no thread to be had: the next who asks tries.
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while (asked := self._next()) is not None:
            begun = time.thread_time()
            is_done = self._step(asked, self._monotonic() + STEP_SECONDS)
            if is_done:
                with self._changed:
                    asked.done, asked.is_begun = asked.round_ticket, False
                    self._changed.notify_all()
            else:
                self._ending.wait((time.thread_time() - begun) * REST_SHARE)

    def _next(self) -> _Asked | None:
        """Return the queue to look at next, once there is one; None if nobody asks any more."""
        with self._changed:
            while not self._ending.is_set():
                self._drop_idle()
                if not self._queues:
                    break
                now = self._monotonic()
                waiting = [
                    asked
                    for asked in self._queues.values()
                    if max(asked.done, asked.failed) < asked.ticket and asked.retry_at <= now
                ]
                if waiting:
                    asked = max(waiting, key=lambda asked: asked.asked_at)
                    if not asked.is_begun:
                        asked.round_ticket, asked.is_begun = asked.ticket, True
                        asked.begun_at = now
                    return asked
                has_failed = any(asked.retry_at > now for asked in self._queues.values())
                self._changed.wait(RETRY_SECONDS if has_failed else SWEEP_SECONDS)
            self._thread = None
            return None

    def _drop_idle(self) -> None:
        now = self._monotonic()
        for asked in list(self._queues.values()):
            if now - asked.asked_at > DROP_SECONDS:
                del self._queues[asked.name]

    def _step(self, asked: _Asked, deadline: float) -> bool:
        """Do some work for one queue; tell whether its round is over."""
        tally = asked.tally
        others = sum(len(each.tally) for each in list(self._queues.values()) if each is not asked)
        try:
            is_done = tally.step(
                self._find(asked.name),
                letters_max=LETTERS_MAX - others,
                is_over=lambda: self._monotonic() >= deadline or self._ending.is_set(),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, others ask for other queues.
            if isinstance(error, StoreClosed | LogClosed):
                tally.start_over()  # Somebody removed it.
                self._forget(asked.name)
            tally.break_off()
            asked.failed, asked.is_begun = asked.ticket, False
            asked.retry_at = self._monotonic() + RETRY_SECONDS
            logger.warning("dead letters not read queue=%s reason=%r", asked.name, error)
            return False
        asked.as_of_us = self._clock()
        return is_done


def _known_first(
    tally: Tally, letters: DeadLetters, cause: str | None, pattern: str | None, after: int
) -> Iterator[DeadLetter]:
    upto = tally.seen
    while numbers := tally.numbers_of(
        cause=cause, pattern=pattern, after=after, upto=upto, count_max=FOUND_MAX
    ):
        yield from letters.at(numbers)
        after = numbers[-1]
    yield from letters.behind(max(after, upto))
