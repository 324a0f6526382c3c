"""Waiting for several partitions at once, as far as the server allows that."""

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from segue.log.options import Duration
from segue.stores.redis.calls import Calls
from segue.stores.redis.waiting import Patience

KEYS_MAX: Final = 1000
"""How many keys one wait blocks on; the others are looked at when it is over."""
CLUSTER_STEP_SECONDS: Final = 0.04
"""How long a wait blocks on one of several partitions where they are on different servers."""
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
        self._turn = 0
        self.bases: Sequence[str] = ()
        """Where a try asked to be woken."""

    def tries(self) -> Iterator[Wait]:
        """Yield at once, and then whenever there may be something, until the time is over."""
        yield NO_WAIT
        while not self._patience.is_over:
            yield Wait(self._patience.waiter, self._step_us())
            self._block()

    def _step_us(self) -> int:
        step_us = self._patience.step_us
        return step_us if self._step_us_max is None else min(step_us, self._step_us_max)

    def _block(self) -> None:
        timeout = max(WAIT_SECONDS_MIN, self._step_us() / 1_000_000)
        bases = self.bases
        if not bases:
            time.sleep(timeout)  # There is nothing that anybody could wake us for.
            return
        if self._is_cluster and len(bases) > 1:
            step = max(CLUSTER_STEP_SECONDS, CLUSTER_LOOK_SECONDS * len(bases))
            timeout = min(timeout, step)
            self._turn += 1
            bases = [bases[self._turn % len(bases)]]
        keys = [f"{base}:wake_{self._patience.waiter}" for base in bases[:KEYS_MAX]]
        self._calls.wait(keys[0], "BLPOP", *keys, f"{timeout:.3f}", timeout=timeout)
