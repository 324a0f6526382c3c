"""What every test shares: a place on fast storage, a clock to turn, and how hard to try."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from segue import Log
from tests.unit.support import ManualClock

TORTURE = bool(os.environ.get("SEGUE_TORTURE"))

# A shell has what it starts in the background ignore Ctrl-C, and so would every process that a test
# starts and then interrupts: it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a machine that others use, too, is slow at times. What failed can be replayed from
# the blob that is printed, also where no example database is kept.
settings.register_profile(
    "default",
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "torture",
    settings.get_profile("default"),
    max_examples=5_000,
    stateful_step_count=100,
)
# What CI says of a commit must not depend on luck: it tries the same examples each time. New ones
# are found by everybody else's runs, and by the torture.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("torture" if TORTURE else "ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor among them: they all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty directory in memory, where there is such a thing; may be left damaged."""
    shared_memory = Path("/dev/shm")
    base = shared_memory if os.access(shared_memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="segue-test-", dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def directory(scratch: Path) -> Iterator[Path]:
    """A path for a log, which must be intact when the test is over."""
    path = scratch / "log"
    yield path
    if not any(path.glob("*.q")):
        return
    with Log(path, read_only=True) as log:
        assert [audit for audit in log.verify() if not audit.is_intact] == []


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until it is told otherwise."""
    return ManualClock()
