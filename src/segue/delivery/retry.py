"""How long a failed message waits before it is tried again."""

import random
from typing import Final

from segue.values import dataclass

BASE_SECONDS_DEFAULT: Final = 1.0
CAP_SECONDS_DEFAULT: Final = 300.0
JITTER_DEFAULT: Final = 0.1

_EXPONENT_MAX: Final = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """`base · 2^failures` up to `cap`, times one plus or minus a random part of `jitter`.

    Messages that fail together would otherwise come back together, for ever.
    """

    base_us: int = round(BASE_SECONDS_DEFAULT * 1_000_000)
    cap_us: int = round(CAP_SECONDS_DEFAULT * 1_000_000)
    jitter: float = JITTER_DEFAULT

    def delay_us(self, failures: int, chance: random.Random) -> int:
        """Return the wait after one more failure than `failures`; the first waits `base`."""
        # Clamped before the shift: a large count must not make a larger number.
        exponent = min(max(failures, 0), _EXPONENT_MAX)
        delay_us = min(self.base_us << exponent, self.cap_us)
        return max(0, round(delay_us * (1 + self.jitter * chance.uniform(-1, 1))))
