"""Seeds of random tests: how a failing run says which it had, and how that run is repeated."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SEED_VARIABLE: Final = "SEGUE_SEED"
CI_SEED: Final = 20_261_116
TORTURE: Final = os.environ.get("SEGUE_TORTURE") == "1"


def new_seed() -> int:
    """Return the seed to use: the one asked for, else another one each time.

    Continuous integration has one of its own: there luck decides nothing, as with Hypothesis.
    """
    asked = os.environ.get(SEED_VARIABLE)
    if asked is None and os.environ.get("CI"):
        return CI_SEED
    return int(asked) if asked else random.SystemRandom().randrange(1 << 32)


@contextmanager
def naming_seed(seed: int) -> Iterator[None]:
    """Add to whatever goes wrong inside how to repeat it.

    The seed fixes what is written and when kills are due. When exactly one hits is up to the
    scheduler, so a repetition may need several runs.
    """
    with naming(f"repeat with {SEED_VARIABLE}={seed}"):
        yield


@contextmanager
def naming(circumstance: object) -> Iterator[None]:
    """Add `circumstance` to whatever goes wrong inside."""
    try:
        yield
    except Exception as error:
        error.add_note(str(circumstance))
        raise
