"""What is refreshed every few seconds disturbs nobody: focus, typing, what is open, scrolling."""

import re

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from segue import Item
from tests.browser.acting import EVERY_MS, asked, card, cell, heading, row, rows, tile
from tests.browser.browser_support import Dashboard, ready, until
from tests.browser.filled import SCREENS, expect_shown, fill, show


def refresh(page: Page) -> None:
    """Press the key that loads the screen again, and wait until the answer is drawn."""
    page.keyboard.press("r")
    ready(page)


def is_focused(page: Page, href: str) -> bool:
    return bool(page.evaluate("document.activeElement.getAttribute('href')") == href)


# What is asked and answered in another order -----------------------------------------------------


def test_a_late_answer_does_not_undo_a_newer_one(dashboard: Dashboard) -> None:
    """What was asked first may be answered last, and tells of before."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open("/limits")
    expect(page.get_by_role("button", name="Pause mail")).to_be_visible()
    held: list[tuple[Route, APIResponse]] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(re.compile("/overview/limits"), hold_first)
    page.keyboard.press("r")
    until(page, lambda: bool(held))
    queue.pause()
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Resume mail")).to_be_visible()
    (route, response) = held[0]
    with page.expect_event("requestfinished", lambda request: request == route.request):
        route.fulfill(response=response)
    page.evaluate("new Promise((then) => requestAnimationFrame(() => setTimeout(then)))")

    expect(page.get_by_role("button", name="Resume mail")).to_be_visible()


def test_another_filter_of_a_screen_leaves_one_where_one_is(dashboard: Dashboard) -> None:
    """Whoever looks through a list at the end of a long screen goes on looking there."""
    fill(dashboard.store)
    page = dashboard.open("/queues/mail")
    states = page.get_by_role("navigation", name="State of messages")
    expect(states).to_be_visible()
    states.get_by_role("link", name="leased").scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    states.get_by_role("link", name="leased").click()

    expect(rows(page, "Messages")).to_have_count(2)
    expect(states.get_by_role("link", name="leased")).to_be_focused()
    assert before > 100
    assert page.evaluate("scrollY") > 100


# Nothing is made anew that is there --------------------------------------------------------------


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_that_did_not_change_keeps_every_element(filled: Dashboard, name: str) -> None:
    """So whatever belongs to an element stays: a selection, a scroll position, a chart."""
    page = show(filled, name)
    refresh(page)
    page.evaluate("document.querySelectorAll('main *').forEach((each) => { each.isKnown = true; })")
    refresh(page)

    made = page.evaluate(
        """[...document.querySelectorAll("main *")]
            .filter((each) => !each.isKnown && !each.closest(".u-legend"))
            .map((each) => each.outerHTML.slice(0, 200))"""
    )
    assert made == []


def test_charts_stay_when_something_gets_stuck_above_them(dashboard: Dashboard) -> None:
    """One thing took the place of another; what lies below it is the same as before."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open()
    expect(page.get_by_text("Nothing is stuck.")).to_be_visible()
    page.evaluate("document.querySelectorAll('canvas').forEach((each) => { each.isKnown = true; })")
    queue.pause()
    expect(page.get_by_role("link", name="mail is paused, with 1 ready")).to_be_visible()

    assert page.evaluate("[...document.querySelectorAll('canvas')].every((each) => each.isKnown)")
    queue.resume()
    expect(page.get_by_text("Nothing is stuck.")).to_be_visible()
    assert page.evaluate("[...document.querySelectorAll('canvas')].every((each) => each.isKnown)")


# Typing ------------------------------------------------------------------------------------------


def test_what_is_typed_stays_while_figures_come(dashboard: Dashboard) -> None:
    """With the focus, and the place where it is typed; also when something gets stuck."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open()
    field = page.get_by_label("Name contains")
    field.press_sequentially("orders")
    field.press("ArrowLeft")
    queue.pause()
    dashboard.store.queue("another").push(b"x")
    expect(page.get_by_role("link", name="mail is paused, with 1 ready")).to_be_visible()
    expect(row(page, "Queues", "another")).to_be_visible()

    expect(field).to_be_focused()
    expect(field).to_have_value("orders")
    assert field.evaluate("field => field.selectionStart") == 5
    field.press_sequentially("x")
    expect(field).to_have_value("orderxs")


def test_what_is_typed_stays_while_a_list_is_loaded_anew(dashboard: Dashboard) -> None:
    """A filter that is not applied yet is nobody's but the one's who types it."""
    dashboard.page.clock.install()
    fill(dashboard.store)
    page = dashboard.open("/tasks")
    expect_shown(page, "Tasks")
    before = rows(page, "Tasks").count()
    field = page.get_by_role("search").get_by_label("Error contains")
    field.press_sequentially("Timeo")
    dashboard.store.queue("mail.tasks").purge()
    page.clock.run_for(EVERY_MS)

    until(page, lambda: rows(page, "Tasks").count() < before)
    expect(field).to_be_focused()
    expect(field).to_have_value("Timeo")
    field.press_sequentially("ut")
    expect(field).to_have_value("Timeout")


def test_a_dialog_stays_as_it_is_while_the_screen_goes_on(dashboard: Dashboard) -> None:
    """What is typed there is typed in peace."""
    dashboard.page.clock.install()
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open("/queues/mail")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    field = dialog.get_by_label("Capacity")
    field.press_sequentially("12")
    queue.push_many([b"x"] * 6)
    page.clock.run_for(EVERY_MS)
    expect(tile(page, "Ready")).to_have_text("Ready7")

    expect(dialog).to_be_visible()
    expect(field).to_be_focused()
    field.press_sequentially("5")
    expect(field).to_have_value("125")


def test_a_key_that_is_typed_is_no_command(dashboard: Dashboard) -> None:
    """Whoever looks for a queue called `grip` goes nowhere, and pauses nothing."""
    dashboard.store.queue("grip").push(b"x")
    page = dashboard.open()
    field = page.get_by_label("Name contains")
    field.press_sequentially("grip?")

    expect(field).to_have_value("grip?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    expect(heading(page, "Overview")).to_be_visible()


# Focus -------------------------------------------------------------------------------------------


def test_the_focus_stays_on_a_row_that_moves(dashboard: Dashboard) -> None:
    """A table that is sorted by what changes is in another order each time."""
    for name, count in (("a", 3), ("b", 2), ("c", 1)):
        dashboard.store.queue(name).push_many([b"x"] * count)
    page = dashboard.open("/?sort=-ready")
    expect(rows(page, "Queues").first).to_contain_text("3")
    link = row(page, "Queues", "c").get_by_role("link", name="c", exact=True)
    link.focus()
    dashboard.store.queue("c").push_many([b"x"] * 9)
    expect(cell(rows(page, "Queues").first, "Queue")).to_have_text("c")

    expect(link).to_be_focused()
    dashboard.store.queue("c").purge()
    expect(cell(rows(page, "Queues").last, "Queue")).to_have_text("c")
    expect(link).to_be_focused()


def test_the_focus_stays_when_something_comes_above_it(dashboard: Dashboard) -> None:
    """A section that was not there before takes nothing from those below."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * 3)
    page = dashboard.open("/queues/mail")
    link = row(page, "Messages", "0-2").get_by_role("link", name="0-2")
    link.focus()
    job = queue.lease(ttl=600, owner="packer-1")
    refresh(page)
    expect(rows(page, "Leases")).to_have_count(1)

    expect(link).to_be_focused()
    job.ack()
    refresh(page)
    expect(rows(page, "Leases")).to_have_count(0)
    expect(link).to_be_focused()
    assert is_focused(page, "#/queues/mail/messages/0-2")


def test_the_focus_stays_on_what_is_refreshed(dashboard: Dashboard) -> None:
    """With the key for it, again and again."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open("/limits")
    button = page.get_by_role("button", name="Pause mail")
    button.focus()
    for count in range(2, 5):
        queue.push(b"x")
        refresh(page)
        assert queue.count().ready == count
        expect(button).to_be_focused()


# What is open, and where one is ------------------------------------------------------------------


def test_what_is_open_stays_open(dashboard: Dashboard) -> None:
    """And what is closed stays closed, while its figures change."""
    topic = dashboard.store.topic("orders", partitions=2)
    topic.append_many([b"x"] * 4)
    for name in ("audit", "billing"):
        topic.reader(name, "earliest").close()
    page = dashboard.open("/topics/orders")
    opened, closed = (row(page, "Readers and groups", name) for name in ("audit", "billing"))
    opened.get_by_text("2 partitions").click()
    expect(opened.get_by_role("listitem").first).to_be_visible()
    topic.append_many([b"x"] * 3)
    refresh(page)

    expect(cell(opened, "Lag")).to_have_text("7 records")
    expect(opened.get_by_role("listitem").first).to_be_visible()
    expect(closed.get_by_role("listitem")).to_have_count(0)
    opened.get_by_text("2 partitions").click()
    refresh(page)
    expect(opened.get_by_role("listitem")).to_have_count(0)


def test_what_was_open_from_the_beginning_stays_closed_once_it_is(dashboard: Dashboard) -> None:
    """Whoever has seen enough of a traceback does not see it again every few seconds."""
    fill(dashboard.store)
    page = dashboard.open(SCREENS["task"].route)
    traceback = card(page, "Error").locator("pre")
    expect(traceback).to_be_visible()
    card(page, "Error").get_by_text("Traceback", exact=True).click()
    expect(traceback).to_be_hidden()
    refresh(page)

    expect(traceback).to_be_hidden()


def test_a_screen_stays_where_it_was_scrolled_to(dashboard: Dashboard) -> None:
    """However much comes and goes below."""
    queue = dashboard.store.queue("mail")
    queue.push_many([Item(body=f"message {number}") for number in range(20)])
    page = dashboard.open("/queues/mail")
    expect(rows(page, "Messages")).to_have_count(20)
    page.mouse.move(640, 400)
    page.mouse.wheel(0, 700)
    until(page, lambda: bool(page.evaluate("scrollY >= 600")))
    place = page.evaluate("scrollY")
    queue.push_many([b"x"] * 3)
    refresh(page)

    expect(rows(page, "Messages")).to_have_count(23)
    assert page.evaluate("scrollY") == place


def test_a_wide_table_stays_where_it_was_scrolled_to(dashboard: Dashboard) -> None:
    """On a narrow window, where not all of it is seen at once."""
    dashboard.page.set_viewport_size({"width": 900, "height": 700})
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * 3)
    page = dashboard.open("/limits")
    region = page.get_by_role("region", name="Limits of queues")
    expect(row(page, "Limits of queues", "mail")).to_be_visible()
    region.evaluate("part => { part.scrollLeft = 60; }")
    place = region.evaluate("part => part.scrollLeft")
    assert place > 0
    queue.pause()
    refresh(page)

    expect(cell(row(page, "Limits of queues", "mail"), "Delivers")).to_contain_text("paused")
    assert region.evaluate("part => part.scrollLeft") == place


def test_what_is_selected_stays_selected(dashboard: Dashboard) -> None:
    """Whoever copies a reason has time for it."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"first", b"second"])
    queue.lease(ttl=600).bury("no such address: ann@example.com")
    page = dashboard.open("/letters/mail")
    reason = cell(rows(page, "Dead letters"), "Reason")
    expect(reason).to_have_text("no such address: ann@example.com")
    reason.locator("span").evaluate("part => getSelection().selectAllChildren(part)")
    queue.lease(ttl=600).bury("no such address: bob@example.com")
    refresh(page)

    expect(rows(page, "Dead letters")).to_have_count(2)
    assert page.evaluate("getSelection().toString()") == "no such address: ann@example.com"


def test_a_new_screen_begins_at_its_top_and_says_where_one_is(dashboard: Dashboard) -> None:
    """Going somewhere is no refresh: its heading has the focus, for those who listen."""
    dashboard.store.queue("mail").push_many([b"x"] * 20)
    page = dashboard.open("/queues/mail")
    row(page, "Messages", "0-15").get_by_role("link", name="0-15").click()

    expect(heading(page, "0-15")).to_be_focused()
    assert page.evaluate("scrollY") == 0


def test_nothing_is_asked_for_while_the_page_is_paused(dashboard: Dashboard) -> None:
    """Whoever wants to read in peace presses a key; another goes on."""
    dashboard.page.clock.install()
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open("/queues/mail")
    expect_shown(page, "mail")
    page.keyboard.press("p")
    status = page.get_by_role("banner").get_by_role("status")
    expect(status).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    queue.push_many([b"x"] * 4)
    page.clock.run_for(10 * EVERY_MS)

    assert asked == []
    expect(tile(page, "Ready")).to_have_text("Ready1")
    page.keyboard.press("p")
    expect(status).to_have_text("Live")
    expect(tile(page, "Ready")).to_have_text("Ready5")
    expect(card(page, "Messages")).to_contain_text(re.compile("ready 5"))
