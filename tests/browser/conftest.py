"""A browser for the tests of the dashboard, and pages that fail their test if they complain.

Nothing here leaves this machine: the browser is one that `make` found or fetched, and a request to
anywhere but the test's own server fails the test.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.browser.browser_support import (
    ARGUMENTS,
    LIMIT_MS,
    Complaints,
    Dashboard,
    browser_program,
    hide,
    shown,
)
from tests.browser.filled import fill
from tests.browser.working import unhurried

VIEWPORT: Final[ViewportSize] = {"width": 1280, "height": 800}


class Launcher:
    """Launches the browser that the tests here share, and launches it again if it has died."""

    def __init__(self, chromium: BrowserType) -> None:
        self.chromium = chromium
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """Return the browser, launched if none is running."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = self.chromium.launch(executable_path=browser_program(), args=ARGUMENTS)
        return self._browser


# For this directory and not for the whole run: for as long as it is there, the event loop of
# playwright is the running one of this thread, and no other test could run its own.
@pytest.fixture(scope="package")
def launcher() -> Iterator[Launcher]:
    """Launches the browser when a test needs it."""
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        launcher = Launcher(playwright.chromium)
        yield launcher
        launcher.browser().close()


@pytest.fixture
def browser(launcher: Launcher) -> Browser:
    """The browser, shared with other tests."""
    return launcher.browser()


@pytest.fixture(scope="package", autouse=True)
def _unhurried() -> Iterator[None]:
    """On a busy machine, too, every page shows all that a test looks for."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        unhurried(monkeypatch)
        yield


@pytest.fixture
def complaints() -> Complaints:
    """What the page of this test complains of; asked for by tests that expect some."""
    return Complaints()


@contextmanager
def new_context(browser: Browser, complaints: Complaints) -> Iterator[BrowserContext]:
    """Open a browser context without any history or storage."""
    context = browser.new_context(
        locale="en-US",
        timezone_id="UTC",
        reduced_motion="reduce",
        service_workers="block",
        viewport=VIEWPORT,
    )
    context.set_default_timeout(LIMIT_MS)
    complaints.listen(context)
    yield context
    context.close()


@pytest.fixture
def context(browser: Browser, complaints: Complaints) -> Iterator[BrowserContext]:
    """A browser context of the test's own. Fails the test at its end if a page complained."""
    with new_context(browser, complaints) as context:
        yield context
    complaints.check()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty page."""
    return context.new_page()


# What is shown -----------------------------------------------------------------------------------


@pytest.fixture
def dashboard(scratch: Path, page: Page, complaints: Complaints) -> Iterator[Dashboard]:
    """A store that everybody may change."""
    with shown(scratch / "data", page, complaints) as dashboard:
        yield dashboard


@pytest.fixture
def read_only(scratch: Path, page: Page, complaints: Complaints) -> Iterator[Dashboard]:
    """A store that nobody may change, as `segue dash` shows it."""
    with shown(scratch / "data", page, complaints, is_read_only=True) as dashboard:
        yield dashboard


@pytest.fixture
def guarded(scratch: Path, page: Page, complaints: Complaints) -> Iterator[Dashboard]:
    """A store with tokens: `admin`, `read`, and `limited` to read what is called mail or mail.*."""
    with shown(
        scratch / "data",
        page,
        complaints,
        tokens={
            "admin": ("admin", ("*",)),
            "read": ("read", ("*",)),
            "limited": ("read", ("mail", "mail.*")),
        },
    ) as dashboard:
        yield dashboard


# Shared by the tests of a module that only read --------------------------------------------------


@pytest.fixture(scope="module")
def _shared(launcher: Launcher) -> Iterator[Dashboard]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    complaints = Complaints()
    with (
        tempfile.TemporaryDirectory(prefix="segue-test-", dir=memory) as root,
        new_context(launcher.browser(), complaints) as context,
        shown(Path(root) / "data", context.new_page(), complaints) as dashboard,
    ):
        fill(dashboard.store)
        dashboard.open()
        yield dashboard


@pytest.fixture
def filled(_shared: Dashboard) -> Iterator[Dashboard]:
    """A filled store and a page that other tests of the module use, too. Do not change them."""
    _shared.page.set_viewport_size(VIEWPORT)
    _shared.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    hide(_shared.page, False)
    yield _shared
    hide(_shared.page, True)  # Tests with a page of their own need not pay for this one.
    _shared.complaints.check()
