"""What the tests of the dashboard share: a browser, a served store, and an ear for complaints."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response

from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.server.tokens import RoleName
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from tests.ports import free_port
from tests.unit.server_support import new_token
from tests.waiting import LIMIT_SECONDS, wait_until
from tools.browser import NAMES

VARIABLE: Final = "SEGUE_BROWSER"
"""Says which program is the browser, if it is not the one that `make` found."""
LIMIT_MS: Final = LIMIT_SECONDS * 1_000
"""How long Playwright waits for anything."""
ARGUMENTS: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
)
_TELL_OF_POLICY: Final = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} keeps out ${event.blockedURI}`);
});
"""
_LOOK_MS: Final = 20.0
_IS_READY: Final = """
() => {
  const [address] = (document.documentElement.dataset.ready || "").split(" ");
  return address === (location.hash || "#/");
}
"""
_DRAWS: Final = (
    """() => Number((document.documentElement.dataset.ready || "").split(" ")[1] || 0)"""
)


def browser_program() -> Path:
    """Return the browser. Without one tests are skipped on a laptop, and fail in CI."""
    said = os.environ.get(VARIABLE) or _found_by_make()
    found = shutil.which(said) if said else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = f"there is no browser{f' {said}' if said else ''}: run make .venv/.browser"
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    return Path(found)


def _found_by_make() -> str:
    stamp = Path(sys.prefix) / ".browser"
    return stamp.read_text().strip() if stamp.is_file() else ""


# What pages say ----------------------------------------------------------------------------------


class Complaints:
    """What a page should never have: errors, broken policies, requests to anywhere else."""

    def __init__(self) -> None:
        self.origins: set[str] = set()
        """Of the servers that may be asked."""
        self.found: list[str] = []
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """Let pass what matches: whoever tests a refusal gets one, and browsers tell of each."""
        self._expected.append(re.compile(pattern))

    def listen(self, context: BrowserContext) -> None:
        """Take note of all that the pages of a context complain of."""
        context.add_init_script(_TELL_OF_POLICY)
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.found.append(f"uncaught: {error.error}"))
        context.on("request", self._asked)
        context.on("response", self._answered)
        context.on("page", lambda page: page.on("crash", lambda _: self.found.append("crashed")))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "assert"}:
            where = message.location
            self.found.append(f"console: {message.text} ({where['url']}:{where['lineNumber']})")

    def _asked(self, request: Request) -> None:
        where = urlsplit(request.url.removeprefix("blob:"))  # What a page made itself.
        if f"{where.scheme}://{where.netloc}" not in self.origins:
            self.found.append(f"elsewhere: {request.method} {request.url[:200]}")

    def _answered(self, response: Response) -> None:
        if response.status >= 500:  # Also where the page itself takes no offence.
            self.found.append(f"answer: {response.status} {response.url}")

    def check(self) -> None:
        """Fail if there is any that was not expected."""
        found = [each for each in self.found if not any(e.search(each) for e in self._expected)]
        assert not found, "\n".join(found)


# Waiting -----------------------------------------------------------------------------------------


def until(page: Page, is_so: Callable[[], bool]) -> None:
    """Return as soon as `is_so()` is true. Handles the browser's events meanwhile."""

    def look() -> bool:
        # Playwright delivers events only during its own calls.
        page.wait_for_timeout(_LOOK_MS)
        return is_so()

    wait_until(look)


def ready(page: Page) -> None:
    """Wait until the screen of the page's address is drawn with its data.

    After a click, a key or an act that loads the screen again, wait until the answer is drawn.
    """
    page.wait_for_function(_IS_READY)


def load(page: Page, address: str) -> None:
    """Load an address of the dashboard as a new document, and wait until its screen is drawn."""
    # The browser does not load a document again if only the fragment differs.
    if page.url != "about:blank":
        page.goto("about:blank")
    page.goto(address)
    ready(page)


def go(page: Page, route: str) -> None:
    """Change the address within the dashboard to a route, and wait until its screen is drawn."""
    page.evaluate("route => { location.hash = route; }", route)
    ready(page)


def hide(page: Page, is_hidden: bool) -> None:
    """Make the page believe that its tab is in the background, or in front again."""
    page.evaluate(
        """(isHidden) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


@contextmanager
def redrawn(page: Page) -> Iterator[None]:
    """Wait after the block until the screen was drawn at least once since its start."""
    before = page.evaluate(_DRAWS)
    yield
    page.wait_for_function(f"before => ({_DRAWS})() > before", arg=before)


# What is shown -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A store that is served, and the page that looks at it."""

    store: FileStore
    server: ServerThread
    page: Page
    complaints: Complaints
    tokens: Mapping[str, str] = field(default_factory=dict)
    """As they are typed in, by what they are for; none if none is needed."""

    @property
    def url(self) -> str:
        return self.server.url

    def open(self, route: str = "") -> Page:
        """Load the dashboard at a route such as `/queues`, and wait until it is drawn."""
        load(self.page, f"{self.url}/dash/{f'#{route}' if route else ''}")
        return self.page

    def visit(self, route: str = "/") -> Page:
        """Navigate to a route within the page that is open, and wait until it is drawn."""
        go(self.page, route)
        return self.page


@contextmanager
def shown(
    root: Path,
    page: Page,
    complaints: Complaints,
    *,
    tokens: Mapping[str, tuple[RoleName, tuple[str, ...]]] | None = None,
    is_read_only: bool = False,
) -> Iterator[Dashboard]:
    """Serve a directory for a while; `tokens` says which there are, by name.

    The page is closed before the server ends, which it would else complain of.
    """
    path = root / "server" / "tokens.json"
    texts = {
        name: new_token(path, role, names=names)[1].removeprefix("Bearer ")
        for name, (role, names) in (tokens or {}).items()
    }
    with open_directory(root, sync="os") as store:
        app = build_app(
            store, tokens=path if texts else None, has_audit=True, is_read_only=is_read_only
        )
        with ServerThread(app, port=free_port()) as server:
            complaints.origins.add(server.url)
            try:
                yield Dashboard(
                    store=store, server=server, page=page, complaints=complaints, tokens=texts
                )
            finally:
                page.close()
