"""Fixtures of the crash tests: one process to fork from, and reports that can be repeated."""

from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

import pytest

from segue.testing import FaultyDisk, RecordingDisk
from tests.crash.processes import ForkServer
from tests.crash.replay import command_to_repeat, count_tries, tries_of

_P = ParamSpec("_P")
_R = TypeVar("_R")


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """One warm process for all tests of a run. It is started again if it dies."""
    with ForkServer() as server:
        yield server


def counted(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `call`, with each call counted as a try."""

    def call_and_count(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        count_tries()
        return call(*args, **kwargs)

    return call_and_count


@pytest.fixture(autouse=True)
def record_tries(
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Record how many kills, power cuts and faults a test tried, as the property `tries`."""
    # Kills are counted where killed processes are joined.
    monkeypatch.setattr(RecordingDisk, "after_power_cut", counted(RecordingDisk.after_power_cut))
    monkeypatch.setattr(FaultyDisk, "fail", counted(FaultyDisk.fail))
    yield
    if tries := tries_of(request.node.nodeid):
        record_property("tries", tries)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Append the command that repeats it to the report of a failure."""
    report = yield
    if report.failed:
        report.sections.append(("Repeat", command_to_repeat(item.nodeid)))
    return report
