"""Every view and every filter has an address, which shows a stranger what we see."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from segue.server.picture import NOT_YET
from segue.tasks.worker import reports
from tests.browser.acting import NONE, heading, rows
from tests.browser.browser_support import Dashboard, go, load, ready, until
from tests.browser.filled import expect_shown
from tests.conftest import TORTURE


@pytest.fixture(autouse=True)
def _lasting_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "GONE_SECONDS", 600.0)  # The worker says something only once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to get somewhere by clicking, and where that is."""

    clicks: tuple[str | tuple[str, str], ...]
    """Links by their names, each where there is only one, or in a part that is named first."""
    address: str
    heading: str
    searches: dict[str, str] = field(default_factory=dict)
    """What to fill in at the end, by label."""
    choice: tuple[str, str] | None = None


NAV: Final = "Screens"
STATES: Final = "State of messages"
TASKS: Final = "State of tasks"

WAYS: Final = {
    "overview": Way(clicks=((NAV, "Overview"),), address="/", heading="Overview"),
    "overview, range": Way(clicks=("6 h",), address="/?range=6h", heading="Overview"),
    "overview, sorted": Way(
        clicks=(("Queues", "Ready"),), address="/?sort=-ready", heading="Overview"
    ),
    "overview, sorted the other way": Way(
        clicks=(("Queues", "Ready"), ("Queues", "Ready ↓")),
        address="/?sort=ready",
        heading="Overview",
    ),
    "overview, filtered": Way(
        clicks=(), address="/?q=mail", heading="Overview", searches={"Name contains": "mail"}
    ),
    "overview, all of it": Way(
        clicks=("15 min", ("Queues", "Dead")),
        address="/?range=15m&sort=-dead&q=o",
        heading="Overview",
        searches={"Name contains": "o"},
    ),
    "queue": Way(clicks=(("Queues", "mail"),), address="/queues/mail", heading="mail"),
    "queue, range": Way(
        clicks=(("Queues", "mail"), "7 d"), address="/queues/mail?range=7d", heading="mail"
    ),
    **{
        f"queue, {state}": Way(
            clicks=(("Queues", "mail"), (STATES, state)),
            address=f"/queues/mail?state={state}",
            heading="mail",
        )
        for state in (("ready", "delayed", "leased", "dead") if TORTURE else ("leased",))
    },
    "queue, next page": Way(
        clicks=(("Queues", "mail"), (STATES, "ready"), "Next →"),
        address="/queues/mail?state=ready&after=*&past=-",
        heading="mail",
    ),
    "message": Way(
        clicks=(("Queues", "mail"), (STATES, "ready"), ("Messages", "1-0")),
        address="/queues/mail/messages/1-0",
        heading="1-0 ready",
    ),
    "all letters": Way(clicks=((NAV, "Dead letters"),), address="/letters", heading="Dead letters"),
    "letters": Way(
        clicks=((NAV, "Dead letters"), ("Dead letters by queue", "mail")),
        address="/letters/mail",
        heading="Dead letters of mail",
    ),
    "letters, by cause": Way(
        clicks=(("Queues", "mail"), ("Dead letters by cause", "dead")),
        address="/letters/mail?cause=dead",
        heading="Dead letters of mail",
    ),
    "letters, by reason": Way(
        clicks=(
            (NAV, "Dead letters"),
            ("Dead letters by queue", "mail"),
            ("Dead letters by cause", "plain words"),
        ),
        address="/letters/mail?cause=dead&pattern=plain+words",
        heading="Dead letters of mail",
    ),
    "letter": Way(
        clicks=(
            (NAV, "Dead letters"),
            ("Dead letters by queue", "mail"),
            ("Dead letters", "0-1"),
        ),
        address="/queues/mail/messages/0-1",
        heading="0-1 dead",
    ),
    "tasks": Way(clicks=((NAV, "Tasks"),), address="/tasks", heading="Tasks"),
    **{
        f"tasks, {state}": Way(
            clicks=((NAV, "Tasks"), (TASKS, state)),
            address=f"/tasks?state={state.replace(' ', '_')}",
            heading="Tasks",
        )
        for state in (
            ("pending", "scheduled", "processing", "completed", "dead letter")
            if TORTURE
            else ("dead letter",)
        )
    },
    "tasks, filtered": Way(
        clicks=((NAV, "Tasks"), (TASKS, "dead letter")),
        address="/tasks?state=dead_letter&queue=mail.tasks&error=words",
        heading="Tasks",
        searches={"Queue": "mail.tasks", "Error contains": "words"},
    ),
    "tasks, by name": Way(
        clicks=((NAV, "Tasks"), ("Tasks by name", "plain words")),
        address="/tasks?task=plain+words",
        heading="Tasks",
    ),
    "task": Way(
        clicks=(
            (NAV, "Tasks"),
            (TASKS, "dead letter"),
            ("Tasks", "plain words"),
        ),
        address="/tasks/mail.tasks/0-0",
        heading="plain words dead letter",
    ),
    "task, as a message": Way(
        clicks=(
            (NAV, "Tasks"),
            (TASKS, "dead letter"),
            ("Tasks", "plain words"),
            "As a message",
        ),
        address="/queues/mail.tasks/messages/0-0",
        heading="0-0 dead",
    ),
    "schedules": Way(clicks=((NAV, "Schedules"),), address="/schedules", heading="Schedules"),
    "workers": Way(clicks=((NAV, "Workers"),), address="/workers", heading="Workers"),
    "topics": Way(clicks=((NAV, "Topics"),), address="/topics", heading="Topics"),
    "topic": Way(
        clicks=((NAV, "Topics"), ("Topics", "mail.events")),
        address="/topics/mail.events",
        heading="mail.events",
    ),
    "topic, partition": Way(
        clicks=((NAV, "Topics"), ("Topics", "mail.events"), ("Partition", "1")),
        address="/topics/mail.events?partition=1",
        heading="mail.events",
    ),
    "segments": Way(clicks=((NAV, "Segments"),), address="/segments", heading="Segments"),
    "segments, topics": Way(
        clicks=((NAV, "Segments"), ("Kind", "topics")),
        address="/segments?kind=topic",
        heading="Segments",
    ),
    "segments, of a ring": Way(
        clicks=((NAV, "Segments"), ("Kind", "rings")),
        address="/segments?kind=ring&name=orders.ring",
        heading="Segments",
        choice=("Name of the ring", "orders.ring"),
    ),
    "segments, of a topic": Way(
        clicks=((NAV, "Topics"), ("Topics", "mail.events"), ("main", "Segments")),
        address="/segments?kind=topic&name=mail.events",
        heading="Segments",
    ),
    "limits": Way(clicks=((NAV, "Limits"),), address="/limits", heading="Limits and switches"),
    "audit": Way(clicks=((NAV, "Audit log"),), address="/audit", heading="Audit log"),
}


def click(page: Page, link: str | tuple[str, str]) -> None:
    """Follow a link, and wait until its screen is drawn."""
    part, text = link if isinstance(link, tuple) else ("main", link)
    name = re.compile(rf"^{re.escape(text)}( [0-9,]+)?$")
    place: Locator = page.get_by_role("main")
    if part in (NAV, STATES, TASKS, "Kind", "Partition"):
        place = page.get_by_role("navigation", name=part, exact=True)
    elif part == "Dead letters by cause":
        is_table = page.get_by_role("table", name=part, exact=True)
        place = is_table.or_(page.get_by_role("list", name=part, exact=True))
    elif part != "main":
        place = page.get_by_role("table", name=part, exact=True)
    place.get_by_role("link", name=name).first.click()
    ready(page)


def seen(page: Page) -> str:
    """Return all that a screen says, but for what changes by the second."""
    said = page.get_by_role("main").aria_snapshot()
    said = re.sub(r"-?[0-9.]+ (µs|ms|s|min|h|d)\b( [0-9]+ (s|min|h)\b)?", "a while", said)
    said = re.sub("(heard a while ago|silent for a while)", "heard", said)
    said = re.sub(r'link "Oldest waits [^"]*":\n\s*- /url: \S+', "oldest", said)
    said = re.sub(r"[0-9.,]+ [KMGT]iB free", "much free", said)
    said = re.sub(r"[0-9.<,]+/s", "a rate", said)
    said = re.sub(rf"(in|out|failed|oldest)( :)? ({NONE}|a rate|a while)", r"\1 some", said)
    said = re.sub(rf'cell "({NONE}|a rate|a while)"', "cell", said)
    said = re.sub(rf"(In|Out|Errors) ({NONE}|a rate)", r"\1 some", said)
    return re.sub(rf"({NONE}|a rate|a while)( ({NONE}|a rate|a while))*", "some", said)


def shown(page: Page, title: str) -> str:
    """Return the text of a screen once it is drawn and live, with every figure."""
    expect_shown(page, title)
    expect(page.get_by_text(NOT_YET)).to_have_count(0)
    return seen(page)


@pytest.mark.parametrize("name", WAYS)
def test_an_address_shows_a_stranger_what_clicking_showed_us(filled: Dashboard, name: str) -> None:
    """The same screen with the same filters, and all that is on it."""
    way = WAYS[name]
    page = filled.page
    go(page, "/")
    shown(page, "Overview")
    for link in way.clicks:
        click(page, link)
    for label, text in way.searches.items():
        page.get_by_role("search").get_by_label(label).fill(text)
    if way.searches:
        page.get_by_role("search").get_by_role("button", name="Filter").click()
    if way.choice is not None:
        page.get_by_label(way.choice[0]).select_option(way.choice[1])
    address = re.escape(f"{filled.url}/dash/#{way.address}").replace(r"\*", "[^&]+")
    ready(page)
    assert re.match(f"^{address}$", page.url)
    clicked, title, there = shown(page, way.heading), page.title(), page.url
    load(page, there)

    expect(page).to_have_title(title)
    shown(page, way.heading)
    with suppress(AssertionError):  # What differs is told better below.
        until(page, lambda: seen(page) == clicked)
    assert seen(page) == clicked


def test_an_address_that_leads_nowhere_says_so(dashboard: Dashboard) -> None:
    """And leads back."""
    page = dashboard.open("/nowhere/at/all")

    expect(heading(page, "There is no such page")).to_be_visible()
    expect(page).to_have_title("Not found · Segue")
    page.get_by_role("link", name="To the overview").click()
    expect(heading(page, "Overview")).to_be_visible()


def test_a_filter_with_signs_of_its_own_has_an_address(dashboard: Dashboard) -> None:
    """What means something in an address means nothing in a filter."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"x", b"y"])
    queue.lease().bury("50% & more? a+b=c #x /y")
    queue.lease().bury("something else")
    page = dashboard.open("/letters/mail")
    expect(rows(page, "Dead letters")).to_have_count(2)
    page.get_by_role("link", name="#% & more? a+b=c #x /y", exact=True).click()

    expect(rows(page, "Dead letters")).to_have_count(1)
    there = page.url
    load(page, there)
    expect(rows(page, "Dead letters")).to_have_count(1)
    expect(rows(page, "Dead letters")).to_contain_text("50% & more? a+b=c #x /y")


def test_the_way_back_goes_through_all_screens(dashboard: Dashboard) -> None:
    """And the way forth again."""
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    names = ["Overview", "Dead letters", "Tasks", "Topics", "Limits"]
    screens = page.get_by_role("navigation", name=NAV)
    for name in names[1:]:
        screens.get_by_role("link", name=name).click()
        expect(heading(page, name)).to_be_visible()
        expect(screens.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    for name in reversed(names[:-1]):
        page.go_back()
        expect(heading(page, name)).to_be_visible()
        expect(screens.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    for name in names[1:]:
        page.go_forward()
        expect(heading(page, name)).to_be_visible()
