"""Much of everything: what is sent and what is drawn stays small, however much there is.

How fast it is, the benchmarks say. Here is no clock: what is bounded in size is bounded in time.
"""

import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from segue.stores.contract import Item, Store
from segue.tasks.events import EventLog, TaskEvent
from tests.browser.browser_support import Complaints, Dashboard, go, ready, shown
from tests.browser.filled import expect_shown
from tests.conftest import TORTURE
from tests.waiting import wait_until

MESSAGES: Final = 10_000_000 if TORTURE else 1_000_000
"""In one queue. Ten million take 450 MB of disk, and five seconds of one core to push."""
LETTERS: Final = 100_000 if TORTURE else 5_000
TASKS: Final = 1_000_000 if TORTURE else 5_000
QUEUES: Final = 300 if TORTURE else 150
BATCH: Final = 5_000
ANSWER_BYTES_MAX: Final = 300_000
REQUESTS_MAX: Final = 40
"""Of one visit to a screen, with what it asks again in the seconds that a busy machine takes."""
ROWS_MAX: Final = 110
NODES_MAX: Final = 6_000


class Watch:
    """An eye on what a page asks for and draws."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._finished: list[Request] = []
        page.on("requestfinished", lambda request: self._finished.append(request))  # noqa: PLW0108 - what is bound cannot be wrapped.

    def check(self) -> None:
        """Fail if any answer since the last look was large, or much is drawn now."""
        finished = [each for each in self._finished if "/api/" in each.url]
        self._finished.clear()
        sizes = {each.url: each.sizes()["responseBodySize"] for each in finished}
        assert 0 < len(finished) <= REQUESTS_MAX
        assert max(sizes.values()) < ANSWER_BYTES_MAX, sizes
        assert self.page.get_by_role("row").count() <= ROWS_MAX
        assert self.page.locator("*").count() <= NODES_MAX


@pytest.fixture
def watch(page: Page) -> Watch:
    """What the page of the test does is watched."""
    return Watch(page)


@pytest.fixture
def spacious(tmp_path: Path, page: Page, complaints: Complaints) -> Iterator[Dashboard]:
    """A store on a disk, for what may be more than fits in memory."""
    with shown(tmp_path / "data", page, complaints) as dashboard:
        yield dashboard
    shutil.rmtree(tmp_path / "data")  # Others' directories are kept for a while.


def overview_bytes(dashboard: Dashboard) -> int:
    """Return how much each event of the live overview is."""
    with urllib.request.urlopen(f"{dashboard.url}/api/v1/overview") as answer:
        return len(answer.read())


def turn(page: Page, name: str) -> None:
    """Go a page on or back in a list, wait until it is drawn, and check its number."""
    pages = page.get_by_role("navigation", name="Pages", exact=True)
    before = int(re.findall(r"page (\d+)", pages.inner_text())[0])
    pages.get_by_role("link", name=name).click()
    ready(page)
    expect(pages).to_contain_text(f"page {before + (1 if name == 'Next' else -1)}")


def first_link(page: Page, label: str) -> Locator:
    """Return the link of the first row of a table."""
    return (
        page.get_by_role("table", name=label, exact=True)
        .get_by_role("row")
        .nth(1)
        .get_by_role("link")
        .first
    )


def test_a_large_queue_is_looked_at_like_a_small_one(spacious: Dashboard, watch: Watch) -> None:
    """Its figures are exact, its messages are paged, and those at its end are as near as others."""
    queue = spacious.store.queue("big")
    batch = [b"x"] * BATCH
    for _ in range(MESSAGES // BATCH):
        queue.push_many(batch)
    page = spacious.open()
    expect_shown(page, "Overview")
    figure = page.get_by_role("table", name="Queues").get_by_title(f"{MESSAGES:,}")
    expect(figure).to_have_text("10.0 M" if TORTURE else "1.00 M")
    watch.check()
    page.get_by_role("link", name="big", exact=True).click()
    expect_shown(page, "big")
    expect(page.get_by_role("main")).to_contain_text("priority 0")
    expect(page.get_by_role("list", name="Ready by priority")).to_contain_text(f"{MESSAGES:,}")
    watch.check()
    for number in range(1, 6):
        turn(page, "Next")
        expect(first_link(page, "Messages")).to_have_text(f"0-{25 * number}")
    watch.check()
    turn(page, "Back")
    expect(first_link(page, "Messages")).to_have_text("0-100")
    go(page, f"/queues/big?state=ready&after=0-{MESSAGES - 5}")
    expect(first_link(page, "Messages")).to_have_text(f"0-{MESSAGES - 4}")
    watch.check()
    first_link(page, "Messages").click()
    expect_shown(page, f"0-{MESSAGES - 4} ready")
    expect(page.get_by_role("list").filter(has_text="Pushed")).to_be_visible()
    watch.check()
    go(page, "/segments?kind=queue&name=big")
    expect(page.get_by_role("img", name=re.compile("sealed"))).to_be_visible()
    watch.check()


def test_hundreds_of_queues_are_shown_a_page_at_a_time(dashboard: Dashboard, watch: Watch) -> None:
    """All of them count, and each can be found."""
    for number in range(QUEUES):
        dashboard.store.queue(f"queue-{number:03}").push(b"x")
    page = dashboard.open()
    expect_shown(page, "Overview")
    tile = page.locator(".tile").filter(has_text="Ready").first
    expect(tile).to_contain_text(str(QUEUES))
    table = page.get_by_role("table", name="Queues")
    expect(table.get_by_role("row")).to_have_count(51)
    watch.check()
    pages = page.get_by_role("navigation", name="Pages of queues")
    for start in range(51, QUEUES, 50):
        pages.get_by_role("link", name="Next").click()
        ready(page)
        expect(pages).to_contain_text(re.compile(f"{start}.{start + 49} of {QUEUES}"))
    expect(table.get_by_role("link", name=f"queue-{QUEUES - 1}")).to_be_visible()
    page.get_by_label("Name contains").fill("-123")
    page.keyboard.press("Enter")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("link", name="queue-123")).to_be_visible()
    go(page, "/limits")
    expect_shown(page, "Limits and switches")
    turn(page, "Next")
    expect(first_link(page, "Limits of queues")).to_have_text("queue-100")
    watch.check()
    assert overview_bytes(dashboard) < ANSWER_BYTES_MAX


def test_many_dead_letters_are_told_by_cause_and_paged(dashboard: Dashboard, watch: Watch) -> None:
    """Why there are any is said without a look at each of them each time."""
    queue = dashboard.store.queue("mail")
    for _ in range(LETTERS // BATCH):
        queue.push_many([Item(body=b"x", ttl=0.001)] * BATCH)
    queue.push_many([b"y"] * 100)
    expired_us = time.time_ns() // 1_000 + 1_000
    wait_until(lambda: time.time_ns() // 1_000 > expired_us, "the time to live of the others")
    for number, job in enumerate(queue.lease_many(100)):
        queue.nack(job, outcome="dead", reason=f"KeyError: 'customer_{number}'")
    assert queue.count().dead == LETTERS + 100
    page = dashboard.open("/letters/mail")
    expect_shown(page, "Dead letters of mail")
    causes = page.get_by_role("table", name="Dead letters by cause")
    expect(causes).to_contain_text(f"{LETTERS:,}")
    watch.check()
    for _ in range(4):
        turn(page, "Next")
    expect(
        page.get_by_role("table", name="Dead letters", exact=True).get_by_role("row")
    ).to_have_count(26)
    causes.get_by_role("link", name="KeyError").click()
    letters = page.get_by_role("table", name="Dead letters", exact=True)
    expect(letters.get_by_role("cell", name="KeyError: 'customer_").first).to_be_visible()
    expect(page.get_by_role("button", name="Redrive 100…")).to_be_visible()
    watch.check()


def test_many_tasks_are_counted_found_and_paged(dashboard: Dashboard, watch: Watch) -> None:
    """The newest first; by their name or their error, whichever of all of them it is."""
    record_tasks(dashboard.store)
    page = dashboard.open("/tasks")
    states = page.get_by_role("navigation", name="State of tasks")
    expect(states.get_by_role("link", name="completed")).to_contain_text(f"{TASKS - 1:,}")
    expect(states.get_by_role("link", name="cancelled")).to_contain_text("1")
    watch.check()
    for _ in range(4):
        turn(page, "Next")
    tasks = page.get_by_role("table", name="Tasks", exact=True)
    expect(tasks.get_by_role("row")).to_have_count(26)
    watch.check()
    page.get_by_label("Error contains").fill("needle")
    page.keyboard.press("Enter")
    expect(tasks.get_by_role("cell", name="a needle in the hay")).to_be_visible()
    expect(tasks.get_by_role("row")).to_have_count(2)
    watch.check()


def record_tasks(store: Store) -> None:
    """Have workers tell of many tasks that are done, and in the middle of one that is not."""
    now_us = time.time_ns() // 1_000
    log = EventLog(store)
    log.prepare(86_400)
    for start in range(0, TASKS, BATCH):
        log.append(
            TaskEvent(
                id=f"default/0-{number}",
                happened="cancelled" if number == TASKS // 2 else "completed",
                at_us=now_us + number,
                task=f"task-{number % 40}",
                attempt=1,
                pushed_us=now_us - 2_000,
                started_us=now_us - 1_000,
                worker="worker-1",
                error="a needle in the hay" if number == TASKS // 2 else "",
            )
            for number in range(start, start + BATCH)
        )
