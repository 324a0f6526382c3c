"""One warm process to fork from, for all tests of a run."""

from collections.abc import Iterator

import pytest

from tests.crash.processes import ForkServer


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server
