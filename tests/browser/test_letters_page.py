"""The screens of dead letters: what they died of, and bringing them back or dropping them."""

import re
from collections import Counter

import pytest
from playwright.sync_api import Locator, Page, expect

from segue import QueueRules
from segue.stores.contract import Queue
from tests.browser.acting import (
    EVERY_MS,
    act,
    acts_of,
    asked,
    card,
    cell,
    changing_nothing,
    expect_told,
    heading,
    noted,
    row,
    rows,
)
from tests.browser.browser_support import Dashboard, load, until

PAGE = 25
BY_CAUSE = "Dead letters by cause"
REDRIVE = "POST /api/v1/queues/hooks/dead-letters/redrive"
DISCARD = "POST /api/v1/queues/hooks/dead-letters/discard"
HTTP = "HTTP # after # ms"
KEYS = "KeyError: '…'"


@pytest.fixture
def hooks(dashboard: Dashboard) -> Queue:
    """A queue with seven dead letters: four of one pattern, two of another, one for no reason."""
    queue = dashboard.store.queue("hooks", QueueRules(max_deliveries=1))
    queue.push_many([f"hook {number}" for number in range(8)])
    for number, job in enumerate(queue.lease_many(7, ttl=600, owner="hook-1")):
        if number < 4:
            job.fail(f"HTTP 503 after {number} ms")
        elif number < 6:
            job.fail(f"KeyError: 'c{number}'")
        else:
            job.fail("")
    return queue


def reasons(queue: Queue) -> Counter[str]:
    """Return how many letters there are by the word that their reason begins with."""
    return Counter(letter.reason.partition(" ")[0] for letter in queue.dead_letters())


def field(dialog: Locator, label: str) -> Locator:
    return dialog.get_by_label(re.compile(f"^{label}"))


def dry_run(dialog: Locator) -> Locator:
    """Ask what would be done, and return what is said to that."""
    dialog.get_by_role("button", name="Dry run").click()
    return dialog.get_by_text(re.compile(r"would be (brought back|dropped)\.$"))


def chosen(page: Page, pattern: str) -> None:
    """Have only the letters of one group shown."""
    row(page, BY_CAUSE, pattern).get_by_role("link", name=pattern, exact=True).click()
    expect(heading(page, "Dead letters of hooks")).to_be_visible()
    expect(card(page, "Letters of this cause")).to_be_visible()


# Looking -----------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_queue_most_of_them_first(dashboard: Dashboard) -> None:
    """Queues without any are left out; each leads to its own."""
    for name, count in (("few", 1), ("many", 3), ("none", 0)):
        queue = dashboard.store.queue(name)
        queue.push_many([b"x"] * 4)
        for job in queue.lease_many(count) if count else []:
            job.bury("bad")
    page = dashboard.open("/letters")

    lines = rows(page, "Dead letters by queue")
    expect(lines).to_have_count(2)
    expect(cell(lines.nth(0), "Queue")).to_have_text("many")
    expect(cell(lines.nth(0), "Dead letters")).to_have_text("3")
    expect(cell(lines.nth(0), "Ready")).to_have_text("1")
    expect(cell(lines.nth(1), "Queue")).to_have_text("few")
    expect(card(page, "By queue")).to_contain_text("4 in all")
    expect(page.get_by_role("navigation", name="Screens")).to_contain_text("Dead letters 4")
    lines.nth(0).get_by_role("link", name="many").click()
    expect(heading(page, "Dead letters of many")).to_be_visible()


def test_a_store_without_dead_letters_says_so(dashboard: Dashboard) -> None:
    """There is nothing to bring back, then."""
    dashboard.store.queue("hooks").push(b"x")
    page = dashboard.open("/letters")

    expect(page.get_by_text("There are no dead letters.")).to_be_visible()
    dashboard.open("/letters/hooks")
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Redrive|Discard"))).to_have_count(0)


def test_letters_that_died_of_the_same_are_one_group(dashboard: Dashboard, hooks: Queue) -> None:
    """However their numbers and names differ; with how many there are and one as an example."""
    page = dashboard.open("/letters/hooks")

    assert reasons(hooks) == {"HTTP": 4, "KeyError:": 2, "": 1}
    lines = rows(page, BY_CAUSE)
    expect(lines).to_have_count(3)
    for number, (pattern, count) in enumerate([(HTTP, 4), (KEYS, 2), ("no reason given", 1)]):
        expect(cell(lines.nth(number), "Reason")).to_have_text(pattern)
        expect(cell(lines.nth(number), "Letters")).to_have_text(str(count))
        expect(cell(lines.nth(number), "Cause")).to_have_text("failed")
    expect(card(page, "By cause")).to_contain_text("7 letters")
    expect(cell(lines.nth(0), "Example").get_by_role("link")).to_have_attribute(
        "href", "#/queues/hooks/messages/0-3"
    )


@pytest.mark.parametrize(
    ("pattern", "bodies"),
    [
        (HTTP, ["hook 0", "hook 1", "hook 2", "hook 3"]),
        (KEYS, ["hook 4", "hook 5"]),
        ("no reason given", ["hook 6"]),
    ],
)
def test_a_group_shows_its_letters_and_no_others(
    dashboard: Dashboard, hooks: Queue, pattern: str, bodies: list[str]
) -> None:
    """Those without a reason are a group, too. The filter is in the address, and can be left."""
    page = dashboard.open("/letters/hooks")
    expect(rows(page, "Dead letters")).to_have_count(hooks.count().dead)
    chosen(page, pattern)

    expect(rows(page, "Dead letters")).to_have_count(len(bodies))
    for number, body in enumerate(bodies):
        expect(cell(rows(page, "Dead letters").nth(number), "Body")).to_have_text(body)
    expect(page.get_by_role("button", name=f"Redrive {len(bodies)}…")).to_be_visible()
    expect(page.get_by_role("button", name=f"Discard {len(bodies)}…")).to_be_visible()
    address = page.url
    load(page, address)
    expect(rows(page, "Dead letters")).to_have_count(len(bodies))
    page.get_by_role("link", name="Show all").click()
    expect(rows(page, "Dead letters")).to_have_count(7)


def test_a_letter_s_row_tells_its_whole_reason(dashboard: Dashboard, hooks: Queue) -> None:
    """How often it was tried, and when it died; the message is a click away."""
    page = dashboard.open("/letters/hooks")

    line = rows(page, "Dead letters").filter(has_text="hook 2")
    expect(cell(line, "Reason")).to_have_text("HTTP 503 after 2 ms")
    expect(cell(line, "Cause")).to_have_text("failed")
    expect(cell(line, "Tries")).to_have_text("1")
    expect(cell(line, "Died")).to_have_text(re.compile("^[0-9.]+ s ago$"))
    expect(cell(line, "Message").get_by_role("link")).to_have_attribute(
        "href", "#/queues/hooks/messages/0-2"
    )
    assert hooks.count().dead == 7


def test_letters_are_paged_and_the_way_back_is_the_way_there(dashboard: Dashboard) -> None:
    """Oldest first, each once; with a filter, too."""
    queue = dashboard.store.queue("hooks")
    queue.push_many([f"hook {number}" for number in range(2 * PAGE + 3)])
    for number, job in enumerate(queue.lease_many(2 * PAGE + 3)):
        job.bury("odd one" if number == 30 else "even one" if number % 2 else "other")
    page = dashboard.open("/letters/hooks")
    pages = page.get_by_role("navigation", name="Pages")

    lines = rows(page, "Dead letters")
    expect(lines).to_have_count(PAGE)
    pages.get_by_role("link", name="Next").click()
    expect(lines.first).to_contain_text(f"hook {PAGE}")
    pages.get_by_role("link", name="Next").click()
    expect(lines).to_have_count(3)
    expect(pages).to_contain_text("page 3")
    expect(pages.get_by_role("link", name="Next")).to_have_count(0)
    pages.get_by_role("link", name="Back").click()
    expect(lines.first).to_contain_text(f"hook {PAGE}")
    page.go_back()
    expect(lines).to_have_count(3)
    row(page, BY_CAUSE, "odd one").get_by_role("link", name="odd one").click()
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("hook 30")


def test_letters_that_die_meanwhile_show_up(dashboard: Dashboard, hooks: Queue) -> None:
    """Without anybody asking for them anew."""
    dashboard.page.clock.install()
    page = dashboard.open("/letters/hooks")
    expect(rows(page, "Dead letters")).to_have_count(7)
    hooks.lease(ttl=600).fail("HTTP 500 after 12 ms")
    page.clock.run_for(EVERY_MS)

    expect(rows(page, "Dead letters")).to_have_count(8)
    expect(cell(row(page, BY_CAUSE, HTTP), "Letters")).to_have_text("5")


# Bringing back -----------------------------------------------------------------------------------


def test_a_dry_run_tells_how_many_and_changes_nothing(dashboard: Dashboard, hooks: Queue) -> None:
    """It may be asked again with other limits, before anything is done."""
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Redrive 7…", "Redrive dead letters of hooks")
    expect(dry_run(dialog)).to_have_text("7 letters would be brought back.")
    field(dialog, "At most").fill("3")
    expect(dry_run(dialog)).to_have_text("3 letters would be brought back.")
    field(dialog, "At most").fill("")
    field(dialog, "Only where the reason contains").fill("KeyError: 'c4")
    expect(dry_run(dialog)).to_have_text("1 letter would be brought back.")
    field(dialog, "Only where the reason contains").fill("nothing like it")

    expect(dry_run(dialog)).to_have_text("0 letters would be brought back.")
    assert (hooks.count().dead, hooks.count().ready) == (7, 1)
    expect(page.get_by_role("log", name="What was done")).to_be_empty()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert (hooks.count().dead, hooks.count().ready) == (7, 1)


def test_all_letters_are_brought_back(dashboard: Dashboard, hooks: Queue) -> None:
    """To the front of their priority, with all their deliveries anew."""
    page = dashboard.open("/letters/hooks")
    entry = act(
        dashboard,
        "Redrive 7…",
        title="Redrive dead letters of hooks",
        go="Bring them back",
        look=hooks.count,
        told="7 of 7 dead letters of hooks brought back",
        does=REDRIVE,
    )

    assert (hooks.count().dead, hooks.count().ready) == (0, 8)
    assert [job.message.body for job in hooks.lease_many(8)][-1] == b"hook 7"
    assert '"redriven":7' in entry.did
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Redrive|Discard"))).to_have_count(0)


def test_no_more_letters_are_brought_back_than_were_asked_for(
    dashboard: Dashboard, hooks: Queue
) -> None:
    """The oldest first."""
    dashboard.open("/letters/hooks")
    act(
        dashboard,
        "Redrive 7…",
        title="Redrive dead letters of hooks",
        go="Bring them back",
        look=hooks.count,
        fields={"At most": "2"},
        told="2 of 2 dead letters of hooks brought back",
        does=REDRIVE,
    )

    assert [letter.message.body for letter in hooks.dead_letters()] == [
        f"hook {number}".encode() for number in range(2, 7)
    ]
    expect(dashboard.page.get_by_role("button", name="Redrive 5…")).to_be_visible()


def test_letters_are_brought_back_no_faster_than_asked_for(
    dashboard: Dashboard, hooks: Queue
) -> None:
    """The page says meanwhile that it is at work, and at the end how many it were."""
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Redrive 7…", "Redrive dead letters of hooks")
    field(dialog, "At most").fill("3")
    field(dialog, "No faster than").fill("4")
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        dialog.get_by_role("button", name="Bring them back").click()
        expect(dialog.get_by_text("Working…")).to_be_visible()
        expect(dialog.get_by_role("button", name="Bring them back")).to_be_disabled()
        assert hooks.count().dead > 4
    expect_told(page, "3 of 3 dead letters of hooks brought back")

    answer = answered.value
    assert '"rate":4' in (answer.request.post_data or "")
    answer.finished()
    assert answer.request.timing["responseStart"] >= 2 / 4 * 1000 - 10
    assert (hooks.count().dead, hooks.count().ready) == (4, 4)
    noted(dashboard, REDRIVE)


def test_bringing_letters_back_can_be_stopped(dashboard: Dashboard, hooks: Queue) -> None:
    """What is back by then stays so, and the page says that it was stopped."""
    dashboard.complaints.expect("net::ERR_ABORTED")
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Redrive 7…", "Redrive dead letters of hooks")
    field(dialog, "No faster than").fill("2")
    dialog.get_by_role("button", name="Bring them back").click()
    until(page, lambda: hooks.count().dead < 7)
    dialog.get_by_role("button", name="Stop", exact=True).click()
    expect(dialog).to_be_hidden()

    told = page.get_by_role("log", name="What was done")
    expect(told).to_contain_text("stopped; what was done until then stays done")
    until(page, lambda: bool(acts_of(dashboard.store)))
    assert hooks.count().dead > 0
    assert hooks.count().dead + hooks.count().ready == 8


@pytest.mark.parametrize("pattern", [HTTP, KEYS, "no reason given"])
def test_only_the_letters_of_a_group_are_brought_back(
    dashboard: Dashboard, hooks: Queue, pattern: str
) -> None:
    """That of those without a reason, too: else all others of the cause came along."""
    page = dashboard.open("/letters/hooks")
    begins = "" if pattern == "no reason given" else pattern.partition(" ")[0]
    before = reasons(hooks)
    count = before[begins]
    chosen(page, pattern)
    dialog = asked(page, f"Redrive {count}…", "Redrive dead letters of hooks")
    letters = "1 letter" if count == 1 else f"{count} letters"
    expect(dry_run(dialog)).to_have_text(f"{letters} would be brought back.")
    assert reasons(hooks) == before
    dialog.get_by_role("button", name="Bring them back").click()
    expect_told(page, f"{count} of {count} dead {letters.partition(' ')[2]} of hooks brought back")

    del before[begins]
    assert reasons(hooks) == before
    assert hooks.count().ready == 1 + count
    noted(dashboard, REDRIVE)
    expect(page.get_by_text("None fits.")).to_be_visible()


def test_one_letter_is_brought_back(dashboard: Dashboard, hooks: Queue) -> None:
    """That one alone."""
    dashboard.open("/letters/hooks")
    act(
        dashboard,
        "Redrive 0-4",
        title="Redrive 0-4?",
        go="Bring it back",
        look=hooks.count,
        told="0-4 is back in hooks",
        does=REDRIVE,
    )

    assert hooks.lease().message.body == b"hook 4"
    assert reasons(hooks) == {"HTTP": 4, "KeyError:": 1, "": 1}
    expect(rows(dashboard.page, "Dead letters")).to_have_count(6)


def test_a_letter_that_is_none_any_more_is_not_brought_back_again(
    dashboard: Dashboard, hooks: Queue
) -> None:
    """Somebody else was faster: that is told, and nothing is done twice."""
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Redrive 0-0", "Redrive 0-0?")
    hooks.redrive(limit=1)
    dialog.get_by_role("button", name="Bring it back").click()

    expect_told(page, "0-0 was no dead letter any more")
    assert (hooks.count().dead, hooks.count().ready) == (6, 2)


# Dropping ----------------------------------------------------------------------------------------


def test_all_letters_are_dropped(dashboard: Dashboard, hooks: Queue) -> None:
    """Whoever wants that types the name of the queue."""
    page = dashboard.open("/letters/hooks")
    entry = act(
        dashboard,
        "Discard 7…",
        title="Discard dead letters of hooks",
        go="Drop them for good",
        look=hooks.count,
        types="hooks",
        told="7 dead letters of hooks dropped",
        does=DISCARD,
    )

    assert (hooks.count().dead, hooks.count().ready) == (0, 1)
    assert '"count":7' in entry.did
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()


@pytest.mark.parametrize("pattern", [HTTP, KEYS, "no reason given"])
def test_only_the_letters_of_a_group_are_dropped(
    dashboard: Dashboard, hooks: Queue, pattern: str
) -> None:
    """All others are still there afterwards."""
    page = dashboard.open("/letters/hooks")
    begins = "" if pattern == "no reason given" else pattern.partition(" ")[0]
    left = reasons(hooks)
    count = left.pop(begins)
    chosen(page, pattern)
    act(
        dashboard,
        f"Discard {count}…",
        title="Discard dead letters of hooks",
        go="Drop them for good",
        look=hooks.count,
        types="hooks",
        told=f"{count} dead letter{'s' * (count > 1)} of hooks dropped",
        does=DISCARD,
    )

    assert reasons(hooks) == left


def test_a_dry_run_of_dropping_tells_how_many_and_drops_nothing(
    dashboard: Dashboard, hooks: Queue
) -> None:
    """It needs no name typed: nothing is lost by it. Dropping still does afterwards."""
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Discard 7…", "Discard dead letters of hooks")
    field(dialog, "At most").fill("5")
    expect(dry_run(dialog)).to_have_text("5 letters would be dropped.")

    assert hooks.count().dead == 7
    expect(dialog.get_by_role("button", name="Drop them for good")).to_be_disabled()
    field(dialog, "Type").fill("hooks")
    dialog.get_by_role("button", name="Drop them for good").click()
    expect_told(page, "5 dead letters of hooks dropped")
    assert reasons(hooks) == {"KeyError:": 1, "": 1}


def test_one_letter_is_dropped(dashboard: Dashboard, hooks: Queue) -> None:
    """That one alone, and for good."""
    dashboard.open("/letters/hooks")
    act(
        dashboard,
        "Discard 0-6",
        title="Discard 0-6?",
        go="Drop it for good",
        look=hooks.count,
        types="0-6",
        told="0-6 is dropped",
        does=DISCARD,
    )

    assert reasons(hooks) == {"HTTP": 4, "KeyError:": 2}


def test_a_wrong_name_drops_nothing(dashboard: Dashboard, hooks: Queue) -> None:
    """Not by the keyboard either."""
    page = dashboard.open("/letters/hooks")
    dialog = asked(page, "Discard 7…", "Discard dead letters of hooks")
    with changing_nothing(page, hooks.count):
        for typed in ("Hooks", "hooks ", "hook"):
            field(dialog, "Type").fill(typed)
            expect(dialog.get_by_role("button", name="Drop them for good")).to_be_disabled()
            field(dialog, "Type").press("Enter")

    expect(dialog).to_be_visible()
    assert acts_of(dashboard.store) == []
