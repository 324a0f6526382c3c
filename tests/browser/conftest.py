"""A browser for the tests of the dashboard, and pages that fail their test if they complain.

Nothing here leaves this machine: the browser is one that `make` found or fetched, and a request to
anywhere but the test's own server fails the test.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.browser_support import (
    ARGUMENTS,
    PATIENCE_SECONDS,
    Complaints,
    Dashboard,
    browser_program,
    shown,
)

PATIENCE_MS = PATIENCE_SECONDS * 1000


# For this directory and not for the whole run: for as long as it is there, the event loop of
# playwright is the running one of this thread, and no other test could run its own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests here that run one after another."""
    program = browser_program()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> Complaints:
    """What the page of this test complains of; asked for by tests that expect some."""
    return Complaints()


@pytest.fixture
def context(browser: Browser, complaints: Complaints) -> Iterator[BrowserContext]:
    """A browser that has never been anywhere. Fails the test at its end if a page complained."""
    context = browser.new_context(
        locale="en-US",
        timezone_id="UTC",
        reduced_motion="reduce",
        service_workers="block",
        viewport={"width": 1280, "height": 800},
    )
    context.set_default_timeout(PATIENCE_MS)
    complaints.listen(context)
    yield context
    context.close()
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
