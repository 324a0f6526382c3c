"""Seeds and counts of random tests, and the command that repeats a failure.

A test has one seed, however often it asks for it. If it fails, its report ends with the command
that repeats it with this seed (conftest.py).
"""

import os
import random
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SEED_VARIABLE: Final = "SEGUE_SEED"
TORTURE_VARIABLE: Final = "SEGUE_TORTURE"
CI_SEED: Final = 20_261_116
TORTURE: Final = os.environ.get(TORTURE_VARIABLE) == "1"

_seeds: dict[str, int] = {}
_tries: dict[str, int] = {}


def new_seed() -> int:
    """Return the seed of the current test: SEGUE_SEED if it is set, otherwise a random one.

    Continuous integration has a fixed one, so that its result does not depend on luck.
    """
    asked = os.environ.get(SEED_VARIABLE)
    if asked is None and os.environ.get("CI"):
        asked = str(CI_SEED)
    drawn = int(asked) if asked else random.SystemRandom().randrange(1 << 32)
    return _seeds.setdefault(_current_test(), drawn)


def count_tries(count: int = 1) -> None:
    """Add to the number of tries that the current test reports: kills, cuts, faults."""
    test = _current_test()
    _tries[test] = _tries.get(test, 0) + count


def tries_of(test: str) -> int:
    """Return how many tries the test with this node id has counted so far."""
    return _tries.get(test, 0)


def command_to_repeat(test: str) -> str:
    """Return the command that runs the test with this node id again, with the seed it had."""
    variables = [f"{TORTURE_VARIABLE}=1"] if TORTURE else []
    if test in _seeds:
        variables.append(f"{SEED_VARIABLE}={_seeds[test]}")
    return " ".join([*variables, ".venv/bin/python -m pytest", shlex.quote(test)])


@contextmanager
def naming_seed(seed: int) -> Iterator[None]:
    """Add the seed to any error raised inside.

    The seed fixes what is written and when kills are due. The scheduler decides what a kill hits,
    so a repetition may need several runs.
    """
    with naming(f"repeat with {SEED_VARIABLE}={seed}"):
        yield


@contextmanager
def naming(circumstance: object) -> Iterator[None]:
    """Add `circumstance` to any error raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(str(circumstance))
        raise


def _current_test() -> str:
    """Return the node id of the test that runs, or an empty string."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
