"""The screen of one queue: what it holds, in which state and of what, and acts on all of it."""

import re

from playwright.sync_api import Locator, Page, expect

from segue import Item, QueueRules
from segue.stores.contract import Queue
from tests.browser.acting import (
    EVERY_MS,
    act,
    acts_of,
    asked,
    card,
    cell,
    expect_refused,
    expect_told,
    fact,
    heading,
    noted,
    row,
    rows,
    tile,
)
from tests.browser.browser_support import Dashboard

PAGE = 25


def filled(queue: Queue) -> None:
    """Have four messages ready, two delayed, one leased and one dead."""
    queue.push_many(
        [
            *[Item(body=b"urgent", priority=0)] * 2,
            *[Item(body=b"usual", priority=3, group="bob")] * 4,
            Item(body=b"later", delay=600),
            Item(body=b"much later", delay=6_000),
        ]
    )
    dead, _leased = queue.lease_many(2, ttl=600, owner="packer-1")
    dead.bury("no such address")


def shares(page: Page, label: str) -> Locator:
    return page.get_by_role("list", name=label, exact=True).get_by_role("listitem")


# Looking -----------------------------------------------------------------------------------------


def test_a_queue_shows_what_it_holds_by_state(dashboard: Dashboard) -> None:
    """Each figure is the store's, and leads to the messages it counts."""
    queue = dashboard.store.queue("mail")
    queue.push_many([Item(body=b"now"), Item(body=b"now"), Item(body=b"later", delay=600)])
    queue.push_many([Item(body=b"x", priority=1)] * 3)
    jobs = queue.lease_many(2, ttl=600, owner="packer-1")
    jobs[0].bury("no such address")
    page = dashboard.open("/queues/mail")

    counts = queue.count()
    assert (counts.ready, counts.delayed, counts.leased, counts.dead) == (3, 1, 1, 1)
    expect(tile(page, "Ready")).to_have_text("Ready3")
    expect(tile(page, "Delayed")).to_have_text("Delayed1")
    expect(tile(page, "Leased")).to_have_text("Leased1")
    expect(tile(page, "Dead letters")).to_have_text("Dead letters1")
    tile(page, "Delayed").click()
    expect(page).to_have_url(re.compile(r"#/queues/mail\?state=delayed$"))
    expect(rows(page, "Messages")).to_have_count(1)
    expect(rows(page, "Messages")).to_contain_text("later")
    tile(page, "Dead letters").click()
    expect(heading(page, "Dead letters of mail")).to_be_visible()


def test_a_queue_shows_what_waits_by_priority_key_and_task(dashboard: Dashboard) -> None:
    """As many of each as the store has, the most first."""
    queue = dashboard.store.queue("mail")
    filled(queue)
    page = dashboard.open("/queues/mail")

    assert dict(queue.stats().ready_by_priority) == {3: 4}
    expect(shares(page, "Ready by priority")).to_have_text([re.compile("priority 3.*4")])
    expect(shares(page, "Top keys")).to_have_text([re.compile("bob.*4")])
    causes = shares(page, "Dead letters by cause")
    expect(causes).to_have_count(1)
    causes.get_by_role("link").click()
    expect(heading(page, "Dead letters of mail")).to_be_visible()
    expect(page).to_have_url(re.compile(r"#/letters/mail\?cause=\w+"))


def test_a_queue_shows_why_messages_came_back(dashboard: Dashboard) -> None:
    """They wait again, and the reason is the one that was given."""
    queue = dashboard.store.queue("mail", QueueRules(max_deliveries=None))
    queue.push_many([b"x"] * 3)
    for job in queue.lease_many(2, ttl=600):
        job.fail("connection refused", delay=600)
    page = dashboard.open("/queues/mail")

    expect(shares(page, "Why messages came back")).to_have_text(["connection refused2"])


def test_a_queue_shows_the_leases_that_end_first(dashboard: Dashboard) -> None:
    """Who has which message, and for how long; the message is a click away."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * 3)
    queue.lease(ttl=3_600, owner="slow-1")
    queue.lease(ttl=600, owner="quick-1")
    page = dashboard.open("/queues/mail")

    expect(rows(page, "Leases")).to_have_count(2)
    first, second = (rows(page, "Leases").nth(number) for number in range(2))
    expect(cell(first, "Owner")).to_have_text("quick-1")
    expect(cell(first, "Ends in")).to_have_text(re.compile("^(9|10) min"))
    expect(cell(second, "Owner")).to_have_text("slow-1")
    expect(cell(second, "Message")).to_have_text("0-0")
    expect(cell(second, "Message").get_by_role("link")).to_have_attribute(
        "href", "#/queues/mail/messages/0-0"
    )


def test_messages_are_listed_by_state_page_by_page(dashboard: Dashboard) -> None:
    """A filter and a page have an address each, and the way back is the way there."""
    queue = dashboard.store.queue("mail")
    queue.push_many([f"ready {number}" for number in range(PAGE + 2)])
    queue.push(b"later", delay=600)
    page = dashboard.open("/queues/mail")

    messages = card(page, "Messages")
    expect(rows(page, "Messages")).to_have_count(PAGE)
    messages.get_by_role("link", name="ready").first.click()
    expect(page).to_have_url(re.compile("state=ready"))
    pages = messages.get_by_role("navigation", name="Pages")
    onwards = pages.get_by_role("link", name="Next")
    expect(onwards).to_have_attribute("href", re.compile("state=ready"))  # and not that of before
    onwards.click()
    expect(rows(page, "Messages")).to_have_count(2)
    expect(rows(page, "Messages").last).to_contain_text(f"ready {PAGE + 1}")
    expect(pages).to_contain_text("page 2")
    expect(pages.get_by_role("link", name="Next")).to_have_count(0)
    page.go_back()
    expect(rows(page, "Messages").first).to_contain_text("ready 0")
    page.go_forward()
    expect(rows(page, "Messages")).to_have_count(2)
    pages.get_by_role("link", name="Back").click()
    expect(rows(page, "Messages")).to_have_count(PAGE)
    expect(page).to_have_url(re.compile("state=ready$"))


def test_a_page_that_is_full_to_the_last_has_none_behind_it(dashboard: Dashboard) -> None:
    """Whoever went on from it would find nothing."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * PAGE)
    page = dashboard.open("/queues/mail")

    expect(rows(page, "Messages")).to_have_count(PAGE)
    expect(card(page, "Messages").get_by_role("navigation", name="Pages")).to_have_count(0)


def test_a_message_s_row_says_how_it_stands(dashboard: Dashboard) -> None:
    """Its state, who has it, how often it was tried and why it came back."""
    queue = dashboard.store.queue("mail", QueueRules(max_deliveries=None))
    queue.push(b'{"to": "ann"}', priority=2, key="order-7")
    queue.push(b"\xff\xfe\x00", priority=2)
    queue.push(b"y" * 200, priority=2)
    queue.lease(ttl=600, owner="packer-1").fail("mailbox full", delay=900)
    queue.lease(ttl=600, owner="packer-2")
    page = dashboard.open("/queues/mail")

    failed = rows(page, "Messages").filter(has_text="order-7")
    expect(cell(failed, "State")).to_have_text(re.compile("^delayed in 1[45] min"))
    expect(cell(failed, "Priority")).to_have_text("2")
    expect(cell(failed, "Tries")).to_have_text("1")
    expect(cell(failed, "Reason")).to_have_text("mailbox full")
    expect(cell(failed, "Body")).to_have_text('{"to": "ann"}')
    leased = rows(page, "Messages").filter(has_text="packer-2")
    expect(cell(leased, "State")).to_have_text("leased by packer-2")
    expect(cell(leased, "Body")).to_have_text("binary")
    expect(cell(rows(page, "Messages").filter(has_text="yyy"), "Body")).to_have_text("y" * 80 + "…")


def test_a_queue_shows_its_limits_and_all_that_ever_happened(dashboard: Dashboard) -> None:
    """As the store has them."""
    rules = QueueRules(lease_ttl=90, max_deliveries=7, capacity=5_000, rate=2.5, rate_burst=3)
    queue = dashboard.store.queue("mail", rules)
    queue.push_many([b"x"] * 3)
    queue.lease().ack()
    page = dashboard.open("/queues/mail")

    limits = card(page, "Limits")
    expect(fact(limits, "Lease")).to_have_text("1 min 30 s")
    expect(fact(limits, "Tries")).to_have_text("7")
    expect(fact(limits, "Capacity")).to_have_text("5,000, then refuse")
    expect(fact(limits, "Rate")).to_have_text("2.50/s, 3 at once")
    expect(fact(limits, "Leases at once")).to_have_text("no limit")
    expect(fact(limits, "Settled are kept")).to_have_text("no")
    since = card(page, "Since it was made")
    for name, number in queue.stats().totals.items():
        expect(fact(since, name)).to_have_text(str(number))
    expect(fact(since, "acked")).to_have_text("1")


def test_a_queue_changes_on_the_page_as_it_does_in_the_store(dashboard: Dashboard) -> None:
    """Nobody has to ask for it anew."""
    queue = dashboard.store.queue("mail")
    queue.push(b"first")
    dashboard.page.clock.install()
    page = dashboard.open("/queues/mail")
    expect(tile(page, "Ready")).to_have_text("Ready1")
    queue.push_many([b"second", b"third"])
    page.clock.run_for(EVERY_MS)

    expect(tile(page, "Ready")).to_have_text("Ready3")
    expect(rows(page, "Messages")).to_have_count(3)


def test_a_queue_that_does_not_exist_is_empty_and_is_not_made_by_looking(
    dashboard: Dashboard,
) -> None:
    """Whoever mistypes a name learns that nothing is there."""
    page = dashboard.open("/queues/nowhere")

    expect(heading(page, "nowhere")).to_be_visible()
    expect(tile(page, "Ready")).to_have_text("Ready0")
    expect(page.get_by_text("The queue holds nothing.")).to_be_visible()
    assert list(dashboard.store.queues()) == []


# Acts --------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(dashboard: Dashboard) -> None:
    """It asks first, says so, and nothing is delivered in between."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x"] * 3)
    page = dashboard.open("/queues/mail")
    act(
        dashboard,
        "Pause",
        title="Pause mail?",
        go="Pause",
        look=lambda: queue.stats().paused,
        told="mail is paused",
        does="POST /api/v1/queues/mail/pause",
    )

    assert queue.stats().paused
    assert queue.lease_many(1) == []
    expect(heading(page, "mail")).to_contain_text("paused")
    page.get_by_role("button", name="Dismiss").click()
    act(
        dashboard,
        "Resume",
        title="Resume mail?",
        go="Resume",
        look=lambda: queue.stats().paused,
        told="mail delivers again",
        does="POST /api/v1/queues/mail/resume",
    )
    assert not queue.stats().paused
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    expect(heading(page, "mail")).not_to_contain_text("paused")


def test_a_purge_drops_what_waits_and_nothing_else(dashboard: Dashboard) -> None:
    """Whoever wants that types the name of the queue, and is told how many are gone."""
    queue = dashboard.store.queue("mail")
    filled(queue)
    page = dashboard.open("/queues/mail")
    entry = act(
        dashboard,
        "Purge…",
        title="Purge mail?",
        go="Drop them for good",
        look=queue.count,
        types="mail",
        told="6 messages of mail dropped",
        does="POST /api/v1/queues/mail/purge",
    )

    counts = queue.count()
    assert (counts.ready, counts.delayed, counts.leased, counts.dead) == (0, 0, 1, 1)
    assert '"count":6' in entry.did
    expect(tile(page, "Ready")).to_have_text("Ready0")


def test_a_queue_is_deleted_with_all_it_holds(dashboard: Dashboard) -> None:
    """Then there is nothing to show: the page goes to the overview, and says what was done."""
    dashboard.store.queue("mail").push(b"x")
    dashboard.store.queue("other").push(b"x")
    page = dashboard.open("/queues/mail")
    act(
        dashboard,
        "Delete…",
        title="Delete mail?",
        go="Delete it",
        look=lambda: sorted(dashboard.store.queues()),
        types="mail",
        told="mail is deleted",
        does="DELETE /api/v1/queues/mail",
    )

    assert list(dashboard.store.queues()) == ["other"]
    expect(heading(page, "Overview")).to_be_visible()
    expect(row(page, "Queues", "other")).to_be_visible()
    expect(row(page, "Queues", "mail")).to_have_count(0)


def test_limits_of_a_queue_are_changed_on_its_own_screen(dashboard: Dashboard) -> None:
    """As on the screen of limits; those that are not in the dialog stay as they are."""
    rules = QueueRules(max_deliveries=7, keep_seconds=60)
    queue = dashboard.store.queue("mail", rules)
    page = dashboard.open("/queues/mail")
    act(
        dashboard,
        "Change the limits of mail",
        title="Limits of mail",
        go="Change them",
        look=lambda: queue.rules,
        fields={"Messages a second": "12.5", "Tries": ""},
        told="The limits of mail are changed",
        does="PUT /api/v1/queues/mail/rules",
    )

    assert queue.rules == QueueRules(max_deliveries=None, keep_seconds=60, rate=12.5)
    expect(fact(card(page, "Limits"), "Rate")).to_have_text("12.5/s, 1 at once")
    expect(fact(card(page, "Limits"), "Tries")).to_have_text("no limit")


def test_what_the_server_refuses_is_told_where_it_was_asked(dashboard: Dashboard) -> None:
    """Nothing is changed then; the dialog stays, and what was typed can be put right."""
    dashboard.complaints.expect("status of 400")
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    before = queue.rules
    page = dashboard.open("/queues/mail")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    dialog.get_by_label("Lease, in seconds").fill("0")
    dialog.get_by_role("button", name="Change them").click()

    expect_refused(dialog, "lease_ttl must be")
    assert queue.rules == before
    noted(dashboard, "PUT /api/v1/queues/mail/rules", is_refused=True)
    expect(dialog.get_by_label("Lease, in seconds")).to_have_value("0")
    dialog.get_by_label("Lease, in seconds").fill("45")
    dialog.get_by_role("button", name="Change them").click()
    expect_told(page, "The limits of mail are changed")
    assert queue.rules == QueueRules(lease_ttl=45)
    assert [entry.status for entry in acts_of(dashboard.store)][:1] == [400]


def test_escape_is_a_way_to_think_better_of_it(dashboard: Dashboard) -> None:
    """So is what a keyboard has for it; the button that was pressed has the focus again."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open("/queues/mail")
    button = page.get_by_role("button", name="Purge…")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Purge mail?")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    assert queue.count().ready == 1
    assert acts_of(dashboard.store) == []
