"""Waiting for several partitions at once, as far as the server allows that."""

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from segue.log.options import Duration
from segue.stores.redis.calls import Calls
from segue.stores.redis.waiting import Patience

KEYS_MAX: Final = 1000
"""How many keys one wait blocks on; the others are looked at when it is over."""
CLUSTER_STEP_SECONDS: Final = 0.03
"""How soon several partitions are looked at again where no server has all of them: blocking on one
for so short a time would last for longer, as servers look at timeouts ten times a second only."""
CLUSTER_LOOK_SECONDS: Final = 0.002
"""What it adds to that for each partition, so that looking at very many is not all that is done."""
WAIT_SECONDS_MIN: Final = 0.001


class Wait(NamedTuple):
    """How one try to find something is to be woken if it finds nothing."""

    waiter: str
    """Under which name; empty if it is not to wait."""
    step_us: int


NO_WAIT: Final = Wait("", 0)


class Vigil:
    """The tries of one call to find something, until its time is over."""

    def __init__(
        self,
        calls: Calls,
        timeout: Duration | None,
        *,
        is_cluster: bool,
        step_us_max: int | None = None,
    ) -> None:
        self._calls = calls
        self._is_cluster = is_cluster
        self._patience = Patience(calls, "", timeout, name="timeout")
        self._step_us_max = step_us_max
        self.bases: Sequence[str] = ()
        """Where a try asked to be woken."""

    def tries(self) -> Iterator[Wait]:
        """Yield at once, and then whenever there may be something, until the time is over."""
        yield NO_WAIT
        if self._patience.is_over:
            return
        while not self._patience.is_over:
            yield NO_WAIT if self._is_scattered else Wait(self._patience.waiter, self._step_us())
            self._block()
        yield NO_WAIT  # What came at the very end came in time.

    @property
    def _is_scattered(self) -> bool:
        """Whether no server could wake us for all we wait for."""
        return self._is_cluster and len(self.bases) > 1

    def _step_us(self) -> int:
        step_us = self._patience.step_us
        return step_us if self._step_us_max is None else min(step_us, self._step_us_max)

    def _block(self) -> None:
        timeout = max(WAIT_SECONDS_MIN, self._step_us() / 1_000_000)
        if self._is_scattered:
            step = max(CLUSTER_STEP_SECONDS, CLUSTER_LOOK_SECONDS * len(self.bases))
            time.sleep(min(timeout, step))
        elif self.bases:
            keys = [f"{base}:wake_{self._patience.waiter}" for base in self.bases[:KEYS_MAX]]
            self._calls.wait(keys[0], "BLPOP", *keys, f"{timeout:.3f}", timeout=timeout)
        else:
            time.sleep(timeout)  # There is nothing that anybody could wake us for.
