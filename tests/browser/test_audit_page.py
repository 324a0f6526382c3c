"""The audit log: who did what, from where, and what came of it; newest first."""

import re

from playwright.sync_api import Page, expect

from segue.server.audit import Act, Audit
from tests.browser.acting import NONE, act, acts_of, asked, cell, expect_refused, rows
from tests.browser.browser_support import Dashboard, load, until

PER_PAGE = 50
SECOND_US = 1_000_000


def whats(page: Page) -> list[str]:
    """Return what was done by the acts that are shown."""
    return rows(page, "Acts").get_by_role("code").all_text_contents()


def note(dashboard: Dashboard, count: int) -> None:
    """Have so many acts noted, as the server does."""
    audit = Audit(dashboard.store)
    for number in range(count):
        audit.note(
            Act(
                time_us=1_700_000_000 * SECOND_US + number * SECOND_US,
                token="ops",
                token_id="t1",
                method="POST",
                path=f"/api/v1/queues/queue-{number}/pause",
                remote="10.0.0.1",
                status=204,
            )
        )
    audit.close()


def test_what_is_done_by_the_page_is_in_the_log_with_all_that_came_of_it(
    dashboard: Dashboard,
) -> None:
    """Who, from where, what, whether it went well, and what it did; the newest first."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * 3)
    page = dashboard.open("/queues/mail")
    act(
        dashboard,
        "Pause",
        title="Pause mail?",
        go="Pause",
        look=queue.count,
        told="mail is paused",
        does="POST /api/v1/queues/mail/pause",
    )
    page.get_by_role("button", name="Dismiss").click()
    act(
        dashboard,
        "Purge…",
        title="Purge mail?",
        go="Drop them for good",
        look=queue.count,
        types="mail",
        told="3 messages of mail dropped",
        does="POST /api/v1/queues/mail/purge",
    )
    page.get_by_role("link", name="Audit log").click()

    lines = rows(page, "Acts")
    expect(lines).to_have_count(2)
    newest, oldest = lines.nth(0), lines.nth(1)
    expect(cell(newest, "Who")).to_have_text("anonymous")
    expect(cell(newest, "From")).to_have_text("127.0.0.1")
    expect(cell(newest, "What")).to_have_text("POST /api/v1/queues/mail/purge")
    expect(cell(newest, "Outcome")).to_have_text("200")
    expect(cell(newest, "Did")).to_have_text('{"count":3}')
    expect(cell(newest, "When")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$|20\d\d"))
    expect(cell(oldest, "What")).to_have_text("POST /api/v1/queues/mail/pause")
    expect(cell(oldest, "Outcome")).to_have_text(re.compile("^20[04]$"))


def test_what_was_refused_is_in_the_log_too(dashboard: Dashboard) -> None:
    """With its status, and nothing that it did."""
    dashboard.complaints.expect("status of 400")
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open("/queues/mail")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    dialog.get_by_label("Messages a second").fill("0")
    dialog.get_by_role("button", name="Change them").click()
    expect_refused(dialog, "rate must be")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Audit log").click()

    line = rows(page, "Acts")
    expect(cell(line, "What")).to_have_text("PUT /api/v1/queues/mail/rules")
    expect(cell(line, "Outcome")).to_have_text("400")
    expect(cell(line, "Did")).to_have_text(NONE)


def test_the_log_says_whose_token_it_was(guarded: Dashboard) -> None:
    """By name, and by its id for whoever points at it."""
    guarded.complaints.expect("status of 401")
    queue = guarded.store.queue("mail")
    queue.push(b"x")
    page = guarded.open("/queues/mail")
    page.get_by_label("Token").fill(guarded.tokens["admin"])
    page.get_by_role("button", name="Sign in").click()
    dialog = asked(page, "Pause", "Pause mail?")
    dialog.get_by_role("button", name="Pause").click()
    until(page, lambda: queue.stats().paused)
    page.get_by_role("link", name="Audit log").click()

    who = cell(rows(page, "Acts"), "Who")
    expect(who).to_have_text("tester")
    until(page, lambda: len(acts_of(guarded.store)) == 1)
    (entry,) = acts_of(guarded.store)
    assert entry.token_id
    expect(who.get_by_title(f"token {entry.token_id}")).to_be_visible()


def test_looking_is_not_in_the_log(dashboard: Dashboard) -> None:
    """Not even at the log."""
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open("/queues/mail")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("link", name="Audit log").click()

    expect(page.get_by_text("Nothing was done yet that takes the role admin.")).to_be_visible()
    assert acts_of(dashboard.store) == []


def test_older_acts_are_a_page_back(dashboard: Dashboard) -> None:
    """Fifty at a time, each once; every page has an address, and the way back is the way there."""
    note(dashboard, 2 * PER_PAGE + 20)
    page = dashboard.open("/audit")
    pages = page.get_by_role("navigation", name="Pages")

    def expect_acts(newest: int, oldest: int) -> None:
        expect(cell(rows(page, "Acts").first, "What")).to_contain_text(f"/queue-{newest}/")
        expect(rows(page, "Acts")).to_have_count(newest - oldest + 1)
        assert whats(page) == [
            f"POST /api/v1/queues/queue-{number}/pause" for number in range(newest, oldest - 1, -1)
        ]

    expect_acts(119, 70)
    expect(cell(rows(page, "Acts").first, "When")).to_have_text("Nov 14, 2023, 22:15:19")
    pages.get_by_role("link", name="Next").click()
    expect_acts(69, 20)
    expect(page).to_have_url(re.compile(r"before=70\b"))
    pages.get_by_role("link", name="Next").click()
    expect_acts(19, 0)
    expect(pages).to_contain_text("page 3")
    expect(pages.get_by_role("link", name="Next")).to_have_count(0)
    pages.get_by_role("link", name="Back").click()
    expect_acts(69, 20)
    page.go_back()
    expect_acts(19, 0)
    address = page.url
    load(page, address)
    expect_acts(19, 0)
    pages.get_by_role("link", name="Back").click()
    expect_acts(69, 20)
    pages.get_by_role("link", name="Back").click()
    expect_acts(119, 70)


def test_a_new_act_shows_up_by_itself(dashboard: Dashboard) -> None:
    """On the first page; an older one stays as it is."""
    note(dashboard, PER_PAGE + 1)
    dashboard.page.clock.install()
    page = dashboard.open("/audit")
    expect(rows(page, "Acts")).to_have_count(PER_PAGE)
    note(dashboard, 1)
    page.clock.run_for(5_000)

    expect(cell(rows(page, "Acts").first, "What")).to_contain_text("/queue-0/")
    dashboard.open("/audit?before=5&past=-")
    expect(rows(page, "Acts")).to_have_count(5)
    note(dashboard, 1)
    with page.expect_response(re.compile("/audit")):
        page.clock.run_for(5_000)
    expect(rows(page, "Acts")).to_have_count(5)
