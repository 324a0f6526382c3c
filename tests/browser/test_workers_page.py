"""The screen of workers: who is there, when it was last heard of, and what it is at."""

import os
import re
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.acting import cell, fact, heading, rows, tile
from tests.browser.browser_support import Dashboard, go
from tests.browser.filled import report_worker
from tests.browser.working import WORKER, Studio, studio_in


@pytest.fixture
def studio(dashboard: Dashboard) -> Iterator[Studio]:
    """Tasks in the store that is shown."""
    with studio_in(dashboard.store) as studio:
        yield studio


def title(page: Page) -> Locator:
    """Return the heading of a worker."""
    return page.get_by_role("heading", level=2, name=re.compile(WORKER))


def test_a_worker_that_is_there_shows_what_each_of_its_slots_is_at(
    dashboard: Dashboard, studio: Studio
) -> None:
    """Who it is, how much it may do, and the task it runs, which is a click away."""
    task_id = studio.crawl.enqueue("https://example.com").id
    with studio.working(size=2):
        page = dashboard.open("/workers")

        expect(title(page)).to_contain_text("running")
        expect(title(page)).to_contain_text(re.compile(r"heard [0-9.]+ s ago"))
        expect(
            page.get_by_text(f"{socket.gethostname()}, pid {os.getpid()}, thread")
        ).to_be_visible()
        main = page.get_by_role("main")
        expect(fact(main, "Busy")).to_have_text("1 of 2 slots")
        expect(fact(main, "May have")).to_have_text("2")
        expect(fact(main, "Safe to stop")).to_have_text("no")
        expect(fact(main, "Queues").get_by_role("link")).to_have_count(
            len(studio.app.queue_names())
        )
        slots = rows(page, f"Slots of {WORKER}")
        expect(slots).to_have_count(2)
        busy = slots.filter(has_text="crawl")
        expect(cell(busy, "Job").get_by_role("link")).to_have_text("crawl")
        expect(cell(busy, "Job")).to_contain_text(task_id)
        expect(page.get_by_role("heading", name="Autoscaler")).to_be_visible()
        busy.get_by_role("link", name="crawl").click()
        expect(heading(page, "crawl")).to_contain_text("processing")


def test_a_worker_that_ends_leaves_the_screen(dashboard: Dashboard, studio: Studio) -> None:
    """It said goodbye: nobody has to wait until it is taken for dead."""
    with studio.working():
        page = dashboard.open("/workers")
        expect(title(page)).to_be_visible()
    page.keyboard.press("r")

    expect(title(page)).to_have_count(0)
    expect(page.get_by_text("No worker is running")).to_be_visible()


def test_a_worker_that_was_killed_is_shown_as_silent_with_what_it_was_at(
    dashboard: Dashboard,
) -> None:
    """At 3 a.m. that is what somebody looks for."""
    report_worker(dashboard.store, "resize", later=timedelta(minutes=-2))
    page = dashboard.open("/workers")

    expect(title(page)).to_contain_text("silent for 2 min")
    expect(page.get_by_text("It stopped without a word")).to_be_visible()
    expect(rows(page, "Slots of worker-1 resize").first).to_contain_text("mail.tasks/0-2")
    go(page, "/")
    expect(tile(page, "Workers")).to_contain_text("0 of 0 slots busy")


def test_a_store_without_workers_says_how_to_start_one(dashboard: Dashboard) -> None:
    """An empty screen would tell less."""
    page = dashboard.open("/workers")

    expect(page.get_by_text("segue worker jobs:app")).to_be_visible()


def test_the_overview_counts_workers_and_what_they_are_at(
    dashboard: Dashboard, studio: Studio
) -> None:
    """And leads to them."""
    studio.crawl.enqueue("https://example.com")
    with studio.working(size=2):
        page = dashboard.open("/")
        expect(tile(page, "Workers")).to_have_text("Workers11 of 2 slots busy")
        tile(page, "Workers").click()

        expect(title(page)).to_be_visible()
