"""A directory behind a server, and stores that reach it over a line that can be disturbed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.server import waiting
from segue.stores.http import patience
from segue.stores.http.address import RETRY_SECONDS_MAX, Options
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_http
from tests.contract.worlds import HttpWorld
from tests.http_proxy import HttpProxy
from tests.unit.http.support import Opener
from tests.waiting import LIMIT_SECONDS


@pytest.fixture(autouse=True)
def _patient_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients wait for a busy machine, unless a test asks for less."""
    defaults = Options.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", LIMIT_SECONDS)
    monkeypatch.setitem(defaults, "pool_wait", LIMIT_SECONDS)
    monkeypatch.setitem(defaults, "retry", min(LIMIT_SECONDS, RETRY_SECONDS_MAX))


@pytest.fixture
def long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one request of a long poll last longer than any test waits."""
    monkeypatch.setattr(patience, "STEP_SECONDS", 3 * LIMIT_SECONDS)
    monkeypatch.setattr(waiting, "WAIT_SECONDS_MAX", 3 * LIMIT_SECONDS)


@pytest.fixture
def world(scratch: Path) -> Iterator[HttpWorld]:
    """A directory behind a server."""
    world = HttpWorld(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def proxy(world: HttpWorld) -> Iterator[HttpProxy]:
    """A line to the server that can be disturbed."""
    with HttpProxy(int(world.url.split(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture
def disturbed_url(world: HttpWorld, proxy: HttpProxy) -> str:
    """The address of the server over that line."""
    return f"{proxy.url}/{world.url.rpartition('/')[2]}"


@pytest.fixture
def opened(disturbed_url: str, proxy: HttpProxy) -> Iterator[Opener]:
    """Opens stores over that line; closes them at the end."""
    found: list[HttpStore] = []

    def opened(**options: object) -> HttpStore:
        said = "&".join(f"{name}={value}" for name, value in options.items())
        found.append(open_http(f"{disturbed_url}?{said}"))
        return found[-1]

    yield opened
    proxy.restore()
    for store in found:
        store.close()
