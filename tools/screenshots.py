"""Photographs every screen of the dashboard: `make screenshots`.

Two of them are the pictures of the README, in docs/images; all of them go where the first argument
says, to be looked at.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.stores.opening import open_directory
from tests.browser.browser_support import browser_program
from tools.lively_store import lively_store

ROOT: Final = Path(__file__).parent.parent
IMAGES: Final = ROOT / "docs" / "images"
LIVE_SECONDS: Final = 240.0
"""How long the store is used before it is photographed: charts need something to show."""
SCREENS: Final = {
    "overview": "#/?range=15m",
    "queue": "#/queues/orders?range=15m",
    "message": "#/queues/webhooks/messages/0-3",
    "letters": "#/letters/webhooks",
    "tasks": "#/tasks",
    "task": "#/tasks/default/2-9",
    "schedules": "#/schedules",
    "workers": "#/workers",
    "topics": "#/topics",
    "topic": "#/topics/orders.events",
    "segments": "#/segments?kind=queue&name=orders",
    "limits": "#/limits",
    "audit": "#/audit",
}
SIZES: Final = {"desktop": (1360, 900), "phone": (390, 844)}
README: Final = {
    "dashboard": ("overview", "desktop", "light"),
    "dead-letters": ("letters", "phone", "dark"),
}


def photograph(browser: Browser, url: str, target: Path) -> None:
    """Photograph every screen, for a desk and for a phone, in light and in dark."""
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="light" if scheme == "light" else "dark",
                device_scale_factor=1,
            )
            for name, address in SCREENS.items():
                _show(page, f"{url}/dash/{address}")
                page.screenshot(path=target / f"{name}-{size}-{scheme}.png", full_page=True)
                for image, wanted in README.items():
                    if wanted == (name, size, scheme):
                        page.screenshot(path=IMAGES / f"{image}.png")
            page.close()


def _show(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("main h1").wait_for()
    page.locator("#status", has_text="Live").wait_for()
    page.wait_for_timeout(1500)


def main() -> None:
    """Fill a store, serve it, photograph it."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "screenshots"
    target.mkdir(parents=True, exist_ok=True)
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        lively_store(Path(directory) / "data"),
        open_directory(Path(directory) / "data", sync="os") as store,
        ServerThread(build_app(store, records_history=True)) as server,
        sync_playwright() as playwright,
    ):
        time.sleep(LIVE_SECONDS)
        browser = playwright.chromium.launch(executable_path=browser_program())
        photograph(browser, server.url, target)
        browser.close()


if __name__ == "__main__":
    main()
