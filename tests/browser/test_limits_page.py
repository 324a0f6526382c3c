"""The screen of limits: what every queue is held to, and the switches that pause them."""

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from segue import QueueRules
from tests.browser.acting import (
    NONE,
    act,
    asked,
    cell,
    expect_refused,
    expect_told,
    noted,
    row,
    rows,
)
from tests.browser.browser_support import Dashboard

LIMITS = "Limits of queues"
PER_PAGE = 100


# Looking -----------------------------------------------------------------------------------------


def test_limits_of_every_queue_are_shown_with_how_far_they_are_used(dashboard: Dashboard) -> None:
    """As the store has them; what has no limit shows none."""
    rules = QueueRules(
        rate=2.5, max_leases=4, group_concurrency=2, capacity=10, max_deliveries=7, lease_ttl=90
    )
    queue = dashboard.store.queue("mail", rules)
    queue.push_many([b"x"] * 5)
    queue.lease(ttl=600)
    dashboard.store.queue("free", QueueRules(max_deliveries=None)).push(b"x")
    page = dashboard.open("/limits")

    line = row(page, LIMITS, "mail")
    expect(cell(line, "Delivers")).to_have_text("yes Pause")
    expect(cell(line, "Rate")).to_have_text("2.50/s")
    expect(cell(line, "Leases at once")).to_have_text("1 of 4")
    expect(cell(line, "Of one group")).to_have_text("2")
    expect(cell(line, "Capacity")).to_have_text("50 % of 10")
    expect(cell(line, "Tries")).to_have_text("7")
    expect(cell(line, "Lease")).to_have_text("1 min 30 s")
    free = row(page, LIMITS, "free")
    for column in ("Rate", "Leases at once", "Capacity", "Tries"):
        expect(cell(free, column)).to_have_text(NONE)
    expect(cell(free, "Queue").get_by_role("link")).to_have_attribute("href", "#/queues/free")


def test_limits_are_paged_by_name(dashboard: Dashboard) -> None:
    """A hundred at a time."""
    for number in range(PER_PAGE + 2):
        dashboard.store.queue(f"queue-{number:03}").pause()
    page = dashboard.open("/limits")
    pages = page.get_by_role("navigation", name="Pages")

    expect(rows(page, LIMITS)).to_have_count(PER_PAGE)
    pages.get_by_role("link", name="Next").click()
    expect(rows(page, LIMITS)).to_have_count(2)
    expect(page).to_have_url(re.compile("after=queue-099"))
    pages.get_by_role("link", name="Back").click()
    expect(row(page, LIMITS, "queue-000")).to_be_visible()


def test_a_store_without_queues_has_no_limits(dashboard: Dashboard) -> None:
    """And says so."""
    page = dashboard.open("/limits")

    expect(page.get_by_text("There are no queues yet.")).to_be_visible()


# Acts --------------------------------------------------------------------------------------------


def test_one_queue_is_paused_and_resumed_and_no_other(dashboard: Dashboard) -> None:
    """The switch of a row is that of its queue."""
    mail, other = dashboard.store.queue("mail"), dashboard.store.queue("other")
    mail.push(b"x")
    other.push(b"x")
    page = dashboard.open("/limits")
    act(
        dashboard,
        "Pause mail",
        title="Pause mail?",
        go="Pause",
        look=lambda: (mail.stats().paused, other.stats().paused),
        told="mail is paused",
        does="POST /api/v1/queues/mail/pause",
    )

    assert (mail.stats().paused, other.stats().paused) == (True, False)
    expect(cell(row(page, LIMITS, "mail"), "Delivers")).to_have_text("paused Resume")
    page.get_by_role("button", name="Dismiss").click()
    act(
        dashboard,
        "Resume mail",
        title="Resume mail?",
        go="Resume",
        look=lambda: mail.stats().paused,
        told="mail delivers again",
        does="POST /api/v1/queues/mail/resume",
    )
    assert not mail.stats().paused
    assert mail.lease().message.body == b"x"


EVERYTHING = QueueRules(
    lease_ttl=45,
    max_leases=9,
    max_deliveries=5,
    backoff_base=2,
    backoff_cap=77,
    backoff_jitter=0.3,
    dedup_window=123,
    capacity=1_000,
    on_full="drop_oldest",
    on_expiry="drop",
    keep_seconds=3_600,
    keep_bytes=1 << 20,
    segment_items=500,
    group_concurrency=3,
    rate=10,
    rate_burst=4,
)
"""Everything otherwise than it is by itself."""


@pytest.mark.parametrize(
    ("label", "typed", "then"),
    [
        ("Messages a second", "0.5", replace(EVERYTHING, rate=0.5)),
        ("Messages a second", "", replace(EVERYTHING, rate=None)),
        ("At once, if there was none for a while", "8", replace(EVERYTHING, rate_burst=8)),
        ("Leases at once", "2", replace(EVERYTHING, max_leases=2)),
        ("Leases at once", "", replace(EVERYTHING, max_leases=None)),
        ("Of one group at once", "6", replace(EVERYTHING, group_concurrency=6)),
        ("Capacity", "50", replace(EVERYTHING, capacity=50)),
        ("Capacity", "", replace(EVERYTHING, capacity=None)),
        ("Tries", "1", replace(EVERYTHING, max_deliveries=1)),
        ("Tries", "", replace(EVERYTHING, max_deliveries=None)),
        ("Lease, in seconds", "12.5", replace(EVERYTHING, lease_ttl=12.5)),
    ],
)
def test_a_limit_is_changed_and_all_others_stay_as_they_were(
    dashboard: Dashboard, label: str, typed: str, then: QueueRules
) -> None:
    """Also those that the dialog does not show."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    dialog.get_by_label(label).fill(typed)
    dialog.get_by_role("button", name="Change them").click()
    expect_told(page, "The limits of mail are changed")

    assert queue.rules == then
    noted(dashboard, "PUT /api/v1/queues/mail/rules")


def test_what_a_full_queue_does_is_chosen(dashboard: Dashboard) -> None:
    """It begins with what the queue does now."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    choice = dialog.get_by_label("When it is full")
    expect(choice).to_have_value("drop_oldest")
    choice.select_option("wait")
    dialog.get_by_role("button", name="Change them").click()
    expect_told(page, "The limits of mail are changed")

    assert queue.rules == replace(EVERYTHING, on_full="block")


def test_limits_are_changed_only_by_whoever_means_it(dashboard: Dashboard) -> None:
    """Cancel leaves them, whatever was typed; the change is shown once it is made."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    act(
        dashboard,
        "Change the limits of mail",
        title="Limits of mail",
        go="Change them",
        look=lambda: queue.rules,
        fields={"Capacity": "20", "Tries": "3"},
        told="The limits of mail are changed",
        does="PUT /api/v1/queues/mail/rules",
    )

    assert queue.rules == replace(EVERYTHING, capacity=20, max_deliveries=3)
    expect(cell(row(page, LIMITS, "mail"), "Capacity")).to_have_text("5.0 % of 20")
    expect(cell(row(page, LIMITS, "mail"), "Tries")).to_have_text("3")


def test_what_somebody_else_changed_meanwhile_is_not_undone(dashboard: Dashboard) -> None:
    """Of that which the dialog does not show: the rules are read again before they are written."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    queue.configure(replace(EVERYTHING, keep_seconds=60, backoff_base=9))
    dialog.get_by_label("Tries").fill("2")
    dialog.get_by_role("button", name="Change them").click()
    expect_told(page, "The limits of mail are changed")

    assert queue.rules == replace(EVERYTHING, keep_seconds=60, backoff_base=9, max_deliveries=2)


def test_only_what_was_changed_in_the_dialog_is_changed(dashboard: Dashboard) -> None:
    """What it shows besides may have been changed by somebody else since it was opened."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    queue.configure(replace(EVERYTHING, rate=77, max_leases=None))
    dialog.get_by_label("Tries").fill("2")
    dialog.get_by_role("button", name="Change them").click()
    expect_told(page, "The limits of mail are changed")

    assert queue.rules == replace(EVERYTHING, rate=77, max_leases=None, max_deliveries=2)


def test_limits_that_make_no_sense_are_refused_and_nothing_is_changed(
    dashboard: Dashboard,
) -> None:
    """The dialog says why, and keeps what was typed."""
    dashboard.complaints.expect("status of 400")
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    dialog.get_by_label("Messages a second").fill("0")
    dialog.get_by_role("button", name="Change them").click()

    expect_refused(dialog, "rate must be")
    expect(dialog.get_by_label("Messages a second")).to_have_value("0")
    assert queue.rules == EVERYTHING
    noted(dashboard, "PUT /api/v1/queues/mail/rules", is_refused=True)


def test_a_number_that_is_none_is_not_sent(dashboard: Dashboard) -> None:
    """The browser says so where it was typed."""
    queue = dashboard.store.queue("mail", EVERYTHING)
    queue.push(b"x")
    page = dashboard.open("/limits")
    dialog = asked(page, "Change the limits of mail", "Limits of mail")
    dialog.get_by_label("Tries").fill("2.5")
    dialog.get_by_role("button", name="Change them").click()

    expect(dialog).to_be_visible()
    assert dialog.get_by_label("Tries").evaluate("field => !field.validity.valid")
    assert queue.rules == EVERYTHING
