"""Fixtures and settings of every test: scratch directories, a manual clock, sizes, scheduling."""

import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from segue import Log
from tests.unit.support import ManualClock
from tests.waiting import LIMIT_SECONDS

TORTURE = bool(os.environ.get("SEGUE_TORTURE"))

SLOW_FIRST: Final = ("spark", "crash", "integration", "browser", "property", "contract")
"""Folders in the order in which their tests start. Short tests come last and fill both cores."""
SPREAD: Final = ("tests/crash/", "tests/integration/")
"""Folders whose tests run on any worker. Elsewhere the tests of a file share one worker."""
SPARK_PROCESSES: Final = {
    "test_cluster",
    "test_connect",
    "test_demo",
    "test_exactly_once",
    "test_redis_exactly_once",
    "test_spark_examples",
}
"""Files of tests/spark that start Spark themselves. The other tests there share one session."""

# A shell starts background jobs with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP. What a
# test starts would inherit that, and a test that interrupts it would wait until its time is over.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# No deadline: a machine that others use, too, is slow at times. What failed can be replayed from
# the blob that is printed, also where no example database is kept.
settings.register_profile(
    "default",
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "torture",
    settings.get_profile("default"),
    max_examples=200,
    stateful_step_count=100,
)
# What CI says of a commit must not depend on luck: it tries the same examples each time. New ones
# are found by everybody else's runs, and by the torture.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
# `make check` asks for it: the laws at a small size.
settings.register_profile("check", settings.get_profile("ci"), max_examples=10)
settings.load_profile("torture" if TORTURE else "ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(tryfirst=True)  # Before pytest-timeout reads the option.
def pytest_configure(config: pytest.Config) -> None:
    """Set the limit for a whole test, which only a hang reaches, from that for one wait."""
    if config.option.timeout is None:
        config.option.timeout = (30 if TORTURE else 5) * LIMIT_SECONDS


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor among them: they all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests unless SEGUE_TORTURE is set, and put slow folders first."""
    long = [] if TORTURE else [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
    kept = [item for item in items if TORTURE or not item.get_closest_marker("long")]
    items[:] = sorted(kept, key=_start_order)


def _start_order(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no annotations.
    """Gives a worker one file at a time, or one test where a file takes long.

    All tests that use the shared Spark session go to one worker. The others run beside them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        if file.startswith("tests/spark/"):
            return file if Path(file).stem in SPARK_PROCESSES else "tests/spark/"
        return nodeid if file.startswith(SPREAD) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Use the scheduling of this suite (a hook of pytest-xdist)."""
    config.option.loadscopereorder = False  # Else files with many tests start first, not slow ones.
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record how many examples Hypothesis tried, as the property `tries`."""
    statistics = getattr(item, "hypothesis_statistics", "")
    if statistics and call.when == "teardown":
        found = re.findall(r"(\d+) passing, (\d+) failing", statistics)
        item.user_properties.append(("tries", sum(int(a) + int(b) for a, b in found)))
    return (yield)


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
