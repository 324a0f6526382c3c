"""Where there is nothing: every screen says so and how to begin, and what is not there is told."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.browser.browser_support import Dashboard, go
from tests.browser.filled import expect_shown, fill, show, status_of

EMPTY: Final = {
    "/": ("Overview", "There are no queues yet. Push a message: segue queue push"),
    "/letters": ("Dead letters", "There are no dead letters."),
    "/tasks": ("Tasks", "There are no tasks yet. Queue one: segue task enqueue"),
    "/schedules": ("Schedules", "No worker has told of a schedule yet. A task gets one where"),
    "/workers": ("Workers", "No worker is running, and none fell silent of late. Start one: segue"),
    "/topics": ("Topics", "There are no topics yet. Append a record: echo"),
    "/segments": ("Segments", "There are no queues."),
    "/segments?kind=topic": ("Segments", "There are no topics."),
    "/segments?kind=ring": ("Segments", "There are no rings."),
    "/limits": ("Limits and switches", "There are no queues yet. Push a message: segue queue push"),
    "/audit": ("Audit log", "Nothing was done yet that takes the role admin."),
}
"""The heading of each screen, and what it says while there is nothing."""


def names_of(dashboard: Dashboard) -> list[list[str]]:
    """Return all that there is."""
    store = dashboard.store
    return [store.queues(), store.topics(), store.rings(), store.locks()]


# An empty store ----------------------------------------------------------------------------------


def test_an_empty_store_says_so_on_every_screen(dashboard: Dashboard) -> None:
    """And how to have something there. Looking makes nothing."""
    dashboard.open()

    for route, (heading, words) in EMPTY.items():
        go(dashboard.page, route)
        expect_shown(dashboard.page, heading)
        expect(dashboard.page.get_by_role("main")).to_contain_text(words)
        expect(dashboard.page.get_by_role("main").get_by_role("alert")).to_have_count(0)
    assert names_of(dashboard) == [[], [], [], []]


def test_an_empty_store_is_calm(dashboard: Dashboard) -> None:
    """Nothing to do is nothing to worry about: no figure is missing or makes no sense."""
    page = dashboard.open()
    expect_shown(page, "Overview")

    main = page.get_by_role("main")
    expect(main).to_contain_text("Nothing is stuck.")
    expect(
        main.get_by_text(re.compile(r"NaN|undefined|null|Infinity")).locator("visible=true")
    ).to_have_count(0)


@pytest.mark.parametrize(
    ("route", "label", "name"),
    [
        ("/", "Queues", "orders"),
        ("/topics", "Topics", "events"),
        ("/tasks", "Tasks", "resize"),
    ],
)
def test_what_an_empty_screen_tells_to_type_does_what_it_says(
    dashboard: Dashboard, route: str, label: str, name: str
) -> None:
    """Word for word; and what it makes is there without asking again."""
    page = dashboard.open(route)
    expect(status_of(page)).to_have_text("Live")
    command = page.get_by_role("main").locator("code").inner_text()
    run(command, dashboard.store.place.root.parent)

    table = page.get_by_role("table", name=label, exact=True)
    expect(table.get_by_role("link", name=name, exact=True)).to_be_visible()


def run(command: str, directory: Path) -> None:
    """Run a command as somebody would who has Segue installed, beside a store called data."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        check=False,
        shell=True,
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# What is not there -------------------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_told_as_that(dashboard: Dashboard) -> None:
    """It looks like an empty one to whoever pushes; to whoever looks it says what it is."""
    page = dashboard.open("/queues/nowhere")
    expect_shown(page, "nowhere")

    expect(page.get_by_role("main")).to_contain_text("There is no queue nowhere.")
    dashboard.store.queue("nowhere").push("hello")
    expect(page.get_by_role("main")).not_to_contain_text("There is no queue")
    expect(page.get_by_role("table", name="Messages").get_by_role("link")).to_have_text("0-0")


def test_what_is_not_there_is_told_as_that_and_not_made(dashboard: Dashboard) -> None:
    """In words that say what is missing, on a page that goes on."""
    told = {
        "/queues/nowhere/messages/0-0": "Nothing is known of this message",
        "/letters/nowhere": "There are no dead letters.",
        "/tasks/nowhere/0-0": "nothing is known of task nowhere/0-0",
        "/topics/nowhere": "there is no topic nowhere",
        "/segments?kind=queue&name=nowhere": "It has no segments.",
        "/segments?kind=topic&name=nowhere": "It has no segments.",
        "/segments?kind=ring&name=nowhere": "It has no segments.",
    }
    dashboard.complaints.expect("status of 404")
    page = dashboard.open("/queues/nowhere/messages/0-0")

    for route, words in told.items():
        go(page, route)
        expect(status_of(page)).to_have_text("Live")
        expect(page.get_by_role("main")).to_contain_text(words)
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Overview").click()
        expect_shown(page, "Overview")
    assert names_of(dashboard) == [[], [], [], []]


def test_a_message_that_never_was_is_not_known(dashboard: Dashboard) -> None:
    """Also where others are; and acts are not offered for it."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open("/queues/mail/messages/0-99")
    expect_shown(page, "0-99 unknown")

    expect(page.get_by_role("main")).to_contain_text("Nothing is known of this message")
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)


def test_a_queue_that_goes_while_one_looks_is_told_to_be_gone(dashboard: Dashboard) -> None:
    """What was shown of it goes with it."""
    fill(dashboard.store)
    dashboard.complaints.expect("status of (410|503)|answer: 503")  # To who asks at that moment.
    dashboard.open()
    page = show(dashboard, "queue")
    dashboard.store.remove_queue("mail")

    expect(page.get_by_role("main")).to_contain_text("There is no queue mail.")
    expect(page.get_by_role("table", name="Messages")).to_have_count(0)


# No store any more -------------------------------------------------------------------------------


def test_a_store_that_is_removed_under_the_server_breaks_no_page(dashboard: Dashboard) -> None:
    """It tells what the server says of it, whatever that is, on every screen."""
    dashboard.complaints.expect("status of (4|5)[0-9][0-9]|answer: 503")
    fill(dashboard.store)
    page = dashboard.open()
    expect_shown(page, "Overview")
    root = dashboard.store.place.root
    moved = root.with_name("moved")
    root.rename(moved)
    try:
        expect(page.get_by_role("main")).to_contain_text("There are no queues yet.")
        for screen in ("Dead letters", "Tasks", "Schedules", "Workers", "Topics", "Segments"):
            link = page.get_by_role("navigation", name="Screens").get_by_role("link", name=screen)
            link.click()
            expect(page.get_by_role("heading", level=1, name=screen)).to_be_visible()
            expect(page.get_by_role("main")).not_to_contain_text("(bug)")
        go(page, "/queues/mail")
        expect(page.get_by_role("heading", level=1, name="mail", exact=True)).to_be_visible()
        page.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
        moved.rename(root)  # So that it can be closed.
