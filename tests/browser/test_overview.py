"""The first screen: what is stuck, how much there is, how fast it goes, and every queue."""

import re
import shutil
import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from segue import Item
from segue.server.building import CountingDisk, build_app
from segue.server.picture import NOT_YET
from segue.server.routes import overview
from segue.server.samples import HISTORY_TOPIC, RULES, QueueSample, Sample, encoded
from segue.server.serving import ServerThread
from segue.stores.contract import Queue
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.browser.acting import NONE, cell, heading, row, rows, table, tile
from tests.browser.browser_support import Complaints, Dashboard, go, shown, until
from tests.browser.working import studio_in

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
PER_PAGE = 50
DEPTH = "Messages held, by state"
FLOW = "In and out, messages a second"
AGE = "Age of the oldest message that waits"


def now_us() -> int:
    return time.time_ns() // 1_000


def chart(page: Page, title: str) -> Locator:
    return page.get_by_role("group", name=title)


def described(page: Page, title: str) -> Locator:
    """Return the drawing of a chart, which says in words what it ends with."""
    return chart(page, title).get_by_role("img")


def legend(page: Page, title: str, label: str) -> Locator:
    """Return the figure that a chart tells of the moment that is pointed at."""
    line = chart(page, title).get_by_role("row", name=re.compile(f"^{label} "))
    return line.get_by_role("cell")


def strip(page: Page) -> Locator:
    """Return what wants to be looked at."""
    part = page.get_by_role("region", name="What wants to be looked at")
    return part.get_by_role("listitem")


def pushed_long_ago(root: Path, queue: str, *, seconds: float, count: int = 1) -> None:
    """Have messages that were pushed a while ago."""
    past = ManualClock(now_us() - round(seconds * SECOND_US))
    with open_directory(root, sync="os", clock=past) as store:
        store.queue(queue).push_many([b"old"] * count)


# Figures -----------------------------------------------------------------------------------------


@pytest.fixture
def queues(dashboard: Dashboard) -> dict[str, Queue]:
    """Two queues with messages in every state, and an empty one that is paused."""
    mail, orders = dashboard.store.queue("mail"), dashboard.store.queue("orders")
    mail.push_many([*[Item(body=b"x")] * 5, Item(body=b"x", delay=600)])
    orders.push_many([*[Item(body=b"x" * 1_000)] * 2_000, *[Item(body=b"x", delay=600)] * 2])
    for job in mail.lease_many(2, ttl=600):
        job.bury("bad")
    orders.lease_many(3, ttl=600)
    idle = dashboard.store.queue("idle")
    idle.pause()
    return {"mail": mail, "orders": orders, "idle": idle}


def sized(size_bytes: int) -> str:
    """Return a size as the page tells it."""
    value, unit = size_bytes / 1_024, "KiB"
    if value >= 1_024:
        value, unit = value / 1_024, "MiB"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def test_the_figures_of_each_queue_are_the_store_s(
    dashboard: Dashboard, queues: dict[str, Queue]
) -> None:
    """Each leads to its queue, and dead letters to those."""
    page = dashboard.open()

    expect(rows(page, "Queues")).to_have_count(3)
    for name, queue in queues.items():
        counts, line = queue.count(), row(page, "Queues", name)
        expect(cell(line, "Ready")).to_have_text(f"{counts.ready:,}")
        expect(cell(line, "Delayed")).to_have_text(str(counts.delayed))
        expect(cell(line, "Leased")).to_have_text(str(counts.leased))
        expect(cell(line, "Dead")).to_have_text(str(counts.dead))
        expect(cell(line, "Size")).to_have_text(sized(queue.stats().size_bytes))
    expect(cell(row(page, "Queues", "idle"), "Queue")).to_have_text("idle paused")
    expect(cell(row(page, "Queues", "idle"), "Oldest")).to_have_text(NONE)
    expect(cell(row(page, "Queues", "mail"), "Oldest")).to_have_text(re.compile("^[0-9.]+ m?s$"))
    cell(row(page, "Queues", "mail"), "Dead").get_by_role("link").click()
    expect(heading(page, "Dead letters of mail")).to_be_visible()
    page.go_back()
    row(page, "Queues", "orders").get_by_role("link", name="orders").click()
    expect(heading(page, "orders")).to_be_visible()


def test_the_totals_are_those_of_all_queues(dashboard: Dashboard, queues: dict[str, Queue]) -> None:
    """What waits for longest names its queue; what takes room says how much is left."""
    page = dashboard.open()

    counts = [queue.count() for queue in queues.values()]
    assert sum(each.ready for each in counts) == 2_000
    expect(tile(page, "Ready")).to_have_text("Ready2,0001 queue paused")
    expect(tile(page, "Leased")).to_have_text(f"Leased{sum(each.leased for each in counts)}")
    expect(tile(page, "Delayed")).to_have_text(f"Delayed{sum(each.delayed for each in counts)}")
    expect(tile(page, "Dead letters")).to_have_text("Dead letters2")
    expect(tile(page, "Oldest waits")).to_contain_text(re.compile(r"[0-9.]+ m?s(mail|orders)$"))
    size_bytes = sum(queue.stats().size_bytes for queue in queues.values())
    expect(tile(page, "On disk")).to_contain_text(sized(size_bytes))
    expect(tile(page, "On disk")).to_contain_text(re.compile(r"free \([0-9.]+ %\)"))
    expect(tile(page, "Workers")).to_have_text("Workers00 of 0 slots busy")
    tile(page, "Dead letters").click()
    expect(heading(page, "Dead letters")).to_be_visible()


def test_an_empty_store_says_how_to_begin(dashboard: Dashboard) -> None:
    """And that nothing is stuck; to look makes nothing."""
    page = dashboard.open()

    expect(page.get_by_text("There are no queues yet.")).to_be_visible()
    expect(page.get_by_text("Nothing is stuck.")).to_be_visible()
    expect(tile(page, "Ready")).to_have_text("Ready0")
    assert list(dashboard.store.queues()) == []


# Live --------------------------------------------------------------------------------------------


def test_what_is_pushed_elsewhere_shows_up_by_itself(dashboard: Dashboard) -> None:
    """Without a reload, and without the page asking for it again."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open()
    ready = cell(row(page, "Queues", "mail"), "Ready")
    expect(ready).to_have_text("1")
    page.evaluate("document.body.dataset.seen = 'yes'")
    with open_directory(dashboard.store.place.root, sync="os") as elsewhere:
        elsewhere.queue("mail").push_many([b"x"] * 41)

    expect(ready).to_have_text("42")
    expect(tile(page, "Ready")).to_have_text("Ready42")
    expect(described(page, DEPTH)).to_have_attribute("aria-label", re.compile("ready 42,"))
    assert page.evaluate("document.body.dataset.seen") == "yes"


def test_a_queue_that_comes_or_goes_does_so_on_the_page(dashboard: Dashboard) -> None:
    """While all others stay where they are."""
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    expect(rows(page, "Queues")).to_have_count(1)
    dashboard.store.queue("another").push(b"x")
    expect(rows(page, "Queues")).to_have_count(2)
    dashboard.store.remove_queue("mail")

    expect(rows(page, "Queues")).to_have_count(1)
    expect(row(page, "Queues", "another")).to_be_visible()


def test_rates_are_told_while_messages_come_and_go(dashboard: Dashboard) -> None:
    """In and out, and what fails; of each queue and of all."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    page = dashboard.open()
    expect(tile(page, "In")).to_be_visible()

    def flows() -> bool:
        queue.push_many([b"x"] * 3)
        done, failed, _ = queue.lease_many(3)
        done.ack()
        failed.fail("bad")
        line = row(page, "Queues", "mail")
        told = [tile(page, label).inner_text() for label in ("In", "Out", "Errors")]
        told += [cell(line, column).inner_text() for column in ("In", "Out")]
        return all(re.search(r"[1-9][0-9.]*/s|0\.[0-9]+/s", text) for text in told)

    until(page, flows)
    until(
        page,
        lambda: bool(re.search(r"in [0-9.]+/s, out [0-9.]+/s, failed [0-9.]+/s", flow(page))),
    )
    expect(row(page, "Queues", "mail").get_by_role("img")).to_have_attribute(
        "aria-label", "Out of mail in the last minute"
    )


def flow(page: Page) -> str:
    return described(page, FLOW).get_attribute("aria-label") or ""


def test_percentiles_of_tasks_are_told_once_a_worker_has_run_some(dashboard: Dashboard) -> None:
    """How long they waited and how long they ran."""
    page = dashboard.open()
    expect(tile(page, "Wait, median")).to_have_text(f"Wait, median{NONE}no tasks yet")
    with studio_in(dashboard.store) as studio:
        studio.enqueue(*(f"{number}.png" for number in range(10)))
        with studio.working():
            expect(tile(page, "Wait, median")).to_have_text(
                re.compile(r"^Wait, median[0-9.]+ m?sp99 [0-9.]+ (µs|ms|s)$")
            )
            expect(tile(page, "Run, median")).to_have_text(
                re.compile(r"^Run, median[0-9.]+ (µs|ms|s)p99 [0-9.]+ (µs|ms|s)$")
            )
            expect(chart(page, "Tasks: time waited and time run")).to_be_visible()


# What is stuck -----------------------------------------------------------------------------------


def test_what_is_stuck_is_told_first_and_leads_there(dashboard: Dashboard) -> None:
    """A queue that nothing comes out of, one that is paused, one with dead letters."""
    root = dashboard.store.place.root
    pushed_long_ago(root, "stuck", seconds=700, count=3)
    pushed_long_ago(root, "waiting", seconds=200)
    paused = dashboard.store.queue("paused")
    paused.push_many([b"x"] * 2)
    paused.pause()
    dead = dashboard.store.queue("dead")
    dead.push_many([b"x"] * 2)
    dead.lease().bury("bad")
    dead.lease().ack()
    page = dashboard.open()

    expect(strip(page)).to_have_text(
        [
            re.compile(
                r"^stuck is stuck: 3 ready, the oldest for 1[12] min.*, and nothing comes out$"
            ),
            "dead has 1 dead letter",
            "paused is paused, with 2 ready",
        ]
    )
    expect(page.get_by_text("Nothing is stuck.")).to_have_count(0)
    for name, there in (
        ("stuck is stuck", "stuck"),
        ("dead has", "Dead letters of dead"),
        ("paused is", "paused"),
    ):
        page.get_by_role("link", name=re.compile(f"^{name}")).click()
        expect(heading(page, there)).to_be_visible()
        page.go_back()
        expect(heading(page, "Overview")).to_be_visible()


def test_nothing_is_said_of_queues_that_are_not_listed(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That all is well with them, least of all."""
    monkeypatch.setattr(overview, "QUEUES_SHOWN_MAX", 2)
    for name in ("a", "b", "c"):
        dashboard.store.queue(name).push(b"x")
    page = dashboard.open()

    words = "in the 2 queues listed"
    expect(page.get_by_role("main").get_by_text(words)).to_have_text(
        f"Nothing is stuck {words} here; 1 more is not."
    )
    go(page, "/letters")
    expect(page.get_by_text(words)).to_contain_text("1 more is not")


def test_a_queue_from_which_something_comes_now_and_then_is_not_stuck(dashboard: Dashboard) -> None:
    """However old what waits there is."""
    pushed_long_ago(dashboard.store.place.root, "mail", seconds=3_600, count=50)
    queue = dashboard.store.queue("mail")
    page = dashboard.open()
    expect(strip(page)).to_have_count(0)
    queue.pop()
    for _ in range(3):
        expect(cell(row(page, "Queues", "mail"), "Ready")).to_have_text(f"{queue.count().ready}")
        expect(cell(row(page, "Queues", "mail"), "Out")).to_have_text("0/s")
        expect(strip(page)).to_have_count(0)
        queue.pop()


def test_links_to_what_is_stuck_keep_the_focus(dashboard: Dashboard) -> None:
    """Also where only digits tell them apart."""
    for number in range(3):
        queue = dashboard.store.queue(f"shard-{number}")
        queue.push(b"x")
        queue.lease().bury("bad")
    page = dashboard.open()
    link = strip(page).get_by_role("link", name="shard-2 has")
    link.focus()
    dashboard.store.queue("shard-2").push(b"x")

    expect(cell(row(page, "Queues", "shard-2"), "Ready")).to_have_text("1")
    expect(link).to_be_focused()


def test_what_is_stuck_no_longer_leaves_the_strip(dashboard: Dashboard) -> None:
    """Once it is put right, all is well."""
    queue = dashboard.store.queue("mail")
    queue.pause()
    page = dashboard.open()
    expect(strip(page)).to_have_text(["mail is paused, with 0 ready"])
    queue.resume()

    expect(page.get_by_text("Nothing is stuck.")).to_be_visible()
    expect(strip(page)).to_have_count(0)


def test_of_many_things_that_are_stuck_the_rest_is_a_click_away(dashboard: Dashboard) -> None:
    """And stays open while figures come."""
    for number in range(9):
        dashboard.store.queue(f"queue-{number}").pause()
    page = dashboard.open()
    page.get_by_text("3 more").click()
    expect(page.get_by_role("link", name="queue-8 is paused, with 0 ready")).to_be_visible()
    dashboard.store.queue("queue-8").push(b"x")

    expect(page.get_by_role("link", name="queue-8 is paused, with 1 ready")).to_be_visible()


def test_a_queue_that_cannot_be_read_is_told_and_the_others_are_shown(
    scratch: Path, page: Page, complaints: Complaints
) -> None:
    """It is the first thing that wants to be looked at."""
    root = scratch / "data"
    with open_directory(root, sync="os") as store:
        store.queue("broken").push(b"x")
        store.queue("mail").push(b"x")
    ledger = root / "queues/broken/ledger"
    shutil.rmtree(ledger)
    ledger.write_bytes(b"no directory")
    with shown(root, page, complaints) as dashboard:
        dashboard.open()

        expect(strip(page)).to_have_text([re.compile("^broken cannot be read: .+")])
        expect(cell(row(page, "Queues", "broken"), "Queue")).to_contain_text("unreadable")
        expect(cell(row(page, "Queues", "mail"), "Ready")).to_have_text("1")


def test_what_was_not_looked_at_yet_is_no_alarm(dashboard: Dashboard) -> None:
    """Right after its start a server knows of a queue nothing but its name."""

    def begun(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        for each in told["queues"]:
            each["problem"] = NOT_YET
        route.fulfill(response=answer, json=told)

    page = dashboard.page
    page.route(re.compile("/overview/live$"), lambda route: None)  # Never answered.
    page.route(re.compile("/overview$"), begun)
    dashboard.store.queue("mail").push(b"x")
    dashboard.open()

    expect(page.get_by_text("Looking at the queues…")).to_be_visible()
    line = row(page, "Queues", "mail")
    expect(cell(line, "Queue")).to_have_text("mail not looked at yet")
    for column in ("Ready", "Delayed", "Leased", "Dead"):
        expect(cell(line, column)).to_have_text(NONE)


# The table ---------------------------------------------------------------------------------------


def names(page: Page) -> list[str]:
    """Return the queues that are shown, in their order."""
    links = rows(page, "Queues").get_by_role("link", name=re.compile("[a-z]-"))
    return links.all_text_contents()


@pytest.fixture
def three(dashboard: Dashboard) -> Dashboard:
    """Three queues: by name a, b and c, by what is ready b, c and a."""
    for name, count in (("a-mail", 7), ("b-orders", 1), ("c-mail", 4)):
        dashboard.store.queue(name).push_many([b"x"] * count)
    return dashboard


def test_queues_are_sorted_by_a_column_and_its_order_has_an_address(three: Dashboard) -> None:
    """The most first, then the least; by name at first. The way back undoes it."""
    page = three.open()
    heads = table(page, "Queues").get_by_role("columnheader")

    expect(rows(page, "Queues").first).to_contain_text("a-mail")
    assert names(page) == ["a-mail", "b-orders", "c-mail"]
    heads.get_by_role("link", name="Ready").click()
    expect(page).to_have_url(re.compile("sort=-ready$"))
    expect(heads.filter(has_text="Ready")).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["a-mail", "c-mail", "b-orders"]
    heads.get_by_role("link", name="Ready").click()
    expect(page).to_have_url(re.compile("sort=ready$"))
    expect(heads.filter(has_text="Ready")).to_have_attribute("aria-sort", "ascending")
    assert names(page) == ["b-orders", "c-mail", "a-mail"]
    page.go_back()
    expect(rows(page, "Queues").first).to_contain_text("a-mail")
    heads.get_by_role("link", name="Queue").click()
    expect(page).to_have_url(re.compile("sort=name$"))
    heads.get_by_role("link", name="Queue").click()
    expect(rows(page, "Queues").first).to_contain_text("c-mail")
    assert names(page) == ["c-mail", "b-orders", "a-mail"]


def test_queues_are_found_by_name_and_the_filter_has_an_address(three: Dashboard) -> None:
    """Together with the order; leaving it empty shows all again."""
    page = three.open("/?sort=-ready")
    expect(rows(page, "Queues")).to_have_count(3)
    search = page.get_by_label("Name contains")
    search.fill("MAIL")
    search.press("Enter")

    expect(rows(page, "Queues")).to_have_count(2)
    assert names(page) == ["a-mail", "c-mail"]
    expect(page).to_have_url(re.compile(r"\?sort=-ready&q=MAIL$"))
    expect(page.get_by_text("2 of 3")).to_be_visible()
    expect(search).to_be_focused()
    three.open("/?q=MAIL&sort=ready")
    expect(rows(page, "Queues")).to_have_count(2)
    assert names(page) == ["c-mail", "a-mail"]
    expect(search).to_have_value("MAIL")
    search.fill("nothing like it")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No queue has that in its name.")).to_be_visible()
    search.fill("")
    search.press("Enter")
    expect(rows(page, "Queues")).to_have_count(3)


def test_many_queues_are_paged(dashboard: Dashboard) -> None:
    """Fifty at a time, with an address each; sorted by what all of them have."""
    for number in range(PER_PAGE + 3):
        dashboard.store.queue(f"queue-{number:02}").pause()
    dashboard.store.queue("queue-52").push(b"x")
    page = dashboard.open()
    pages = page.get_by_role("navigation", name="Pages of queues")

    expect(rows(page, "Queues")).to_have_count(PER_PAGE)
    expect(pages).to_contain_text(f"1{NONE}50 of 53")
    pages.get_by_role("link", name="Next").click()
    expect(rows(page, "Queues")).to_have_count(3)
    expect(page).to_have_url(re.compile("from=50$"))
    pages.get_by_role("link", name="Back").click()
    expect(rows(page, "Queues")).to_have_count(PER_PAGE)
    table(page, "Queues").get_by_role("link", name="Ready", exact=True).click()
    expect(rows(page, "Queues").first).to_contain_text("queue-52")


# Charts ------------------------------------------------------------------------------------------


def is_drawn(drawing: Locator) -> bool:
    """Tell whether there is anything on a canvas."""
    return bool(
        drawing.evaluate(
            """canvas => canvas.getContext("2d")
                .getImageData(0, 0, canvas.width, canvas.height)
                .data.some((value, index) => index % 4 === 3 && value > 0)"""
        )
    )


def test_charts_are_drawn_and_say_in_words_what_they_end_with(
    dashboard: Dashboard, queues: dict[str, Queue]
) -> None:
    """For those who cannot see them."""
    page = dashboard.open()

    assert sum(queue.count().dead for queue in queues.values()) == 2
    expect(described(page, DEPTH)).to_have_attribute(
        "aria-label", f"{DEPTH}, last: ready 2,000, delayed 3, leased 3, dead 2"
    )
    expect(described(page, AGE)).to_have_attribute(
        "aria-label", re.compile(rf"^{AGE}, last: oldest [0-9.]+ m?s$")
    )
    expect(described(page, FLOW)).to_have_attribute(
        "aria-label", re.compile(rf"^{re.escape(FLOW)}, last: in .+, out .+, failed .+$")
    )
    until(page, lambda: all(is_drawn(described(page, title)) for title in (DEPTH, AGE, FLOW)))
    expect(legend(page, DEPTH, "ready")).to_have_text("2,000")
    expect(legend(page, DEPTH, "dead")).to_have_text("2")


def test_a_chart_tells_its_last_figures_before_anything_new_comes(dashboard: Dashboard) -> None:
    """Whoever points at nothing is told of the last moment from the first one on."""
    dashboard.page.route(re.compile("/overview/live$"), lambda route: None)  # Never answered.
    page = dashboard.open()

    expect(legend(page, DEPTH, "ready")).to_have_text("0")


def test_charts_that_are_shown_no_more_are_let_go(dashboard: Dashboard) -> None:
    """A dashboard stays open for weeks: what was shown does not pile up."""
    page = dashboard.page
    page.add_init_script(
        """const observe = MutationObserver.prototype.observe;
        window.watching = 0;
        MutationObserver.prototype.observe = function (...what) {
          window.watching += 1;
          return observe.apply(this, what);
        };"""
    )
    dashboard.open()
    until(page, lambda: is_drawn(described(page, DEPTH)))
    watching = page.evaluate("watching")
    for _ in range(3):
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Limits").click()
        expect(heading(page, "Limits and switches")).to_be_visible()
        page.go_back()
        until(page, lambda: is_drawn(described(page, DEPTH)))

    drawn = page.locator(".uplot").count()
    assert drawn >= 3
    until(page, lambda: page.evaluate("uPlot.sync('segue').plots.length") == drawn)
    assert page.evaluate("watching") == watching


def test_a_queue_has_charts_of_its_own(dashboard: Dashboard, queues: dict[str, Queue]) -> None:
    """Which tell of that queue alone."""
    page = dashboard.open("/queues/mail")

    counts = queues["mail"].count()
    expect(described(page, DEPTH)).to_have_attribute(
        "aria-label",
        f"{DEPTH}, last: ready {counts.ready}, delayed {counts.delayed}, "
        f"leased {counts.leased}, dead {counts.dead}",
    )


def sample(at_us: int, ready: int) -> Sample:
    """Return what a server notes of a store with one queue."""
    return Sample(
        is_whole=True,
        at_us=at_us,
        since_us=at_us - 10 * SECOND_US,
        queues={"mail": QueueSample(ready, 0, 0, 0, 10_000 + ready, 10_000, 0, 4_096, 1.0)},
    )


def point_at(page: Page, title: str, *, minutes_ago: float, span_minutes: float) -> None:
    """Point at a moment of a chart that ends now."""
    place = chart(page, title).locator(".u-over")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    share = 1 - minutes_ago / span_minutes
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_what_was_noted_before_a_restart_is_in_the_charts_after_it(
    scratch: Path, page: Page, complaints: Complaints
) -> None:
    """The server that shows it is another one, and has only what is in the store."""
    root = scratch / "data"
    now = now_us()
    with open_directory(root, sync="os") as store:
        store.queue("mail").push(b"x")
        topic = store.topic(HISTORY_TOPIC, partitions=1, rules=RULES)
        for step in range(80):
            at_us = now - (80 - step) * 10 * SECOND_US
            topic.append(encoded(sample(at_us, 700 if step < 40 else 300)), timestamp=at_us)
    with shown(root, page, complaints) as dashboard:
        dashboard.open("/?range=15m")
        expect(legend(page, DEPTH, "ready")).to_have_text("1")
        point_at(page, DEPTH, minutes_ago=10, span_minutes=15)
        expect(legend(page, DEPTH, "ready")).to_have_text("700")
        point_at(page, DEPTH, minutes_ago=3, span_minutes=15)
        expect(legend(page, DEPTH, "ready")).to_have_text("300")
        page.mouse.move(0, 0)
        expect(legend(page, DEPTH, "ready")).to_have_text("1")


def recorded(root: Path, *, minutes: int) -> None:
    """Have a server record what becomes of a queue for a while, which ended five minutes ago."""
    clock = ManualClock(now_us() - (minutes + 5) * MINUTE_US)
    with open_directory(root, sync="os", clock=clock, ticks=clock.ticks) as store:
        queue = store.queue("mail")
        queue.push_many([b"x"] * 70)
        app = build_app(store, records_history=True, clock=clock, ticks=clock.ticks)
        for _ in range(minutes * 6):
            clock.advance(seconds=10)
            queue.push(b"x")
            queue.pop()
            app.historian.tick()
        assert queue.purge() == 70
        app.close()


@pytest.mark.parametrize("route", ["/", "/queues/mail"])
def test_what_a_server_recorded_is_shown_by_the_next(
    scratch: Path, page: Page, complaints: Complaints, route: str
) -> None:
    """Of each queue as of all of them."""
    recorded(scratch / "data", minutes=6)
    with shown(scratch / "data", page, complaints) as dashboard:
        dashboard.open(f"{route}?range=15m")
        expect(legend(page, DEPTH, "ready")).to_have_text("0")
        point_at(page, DEPTH, minutes_ago=8, span_minutes=15)
        expect(legend(page, DEPTH, "ready")).to_have_text("70")


@pytest.mark.parametrize(
    ("text", "range_", "seconds"),
    [
        ("15 min", "15m", 900),
        ("1 h", "1h", 3_600),
        ("6 h", "6h", 21_600),
        ("24 h", "24h", 86_400),
        ("7 d", "7d", 604_800),
    ],
)
def test_the_range_of_the_charts_is_chosen_and_has_an_address(
    dashboard: Dashboard, text: str, range_: str, seconds: int
) -> None:
    """It is asked for as far back as it says; an hour, if nothing is said."""
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    ranges = page.get_by_role("navigation", name="Range of the charts")
    expect(ranges.get_by_role("link", name="1 h", exact=True)).to_have_attribute(
        "aria-current", "true"
    )
    with page.expect_request(re.compile(rf"/history\?seconds={seconds}$")):
        ranges.get_by_role("link", name=text, exact=True).click()

    expect(page).to_have_url(re.compile(f"range={range_}$"))
    expect(ranges.get_by_role("link", name=text, exact=True)).to_have_attribute(
        "aria-current", "true"
    )
    expect(described(page, DEPTH)).to_have_attribute("aria-label", re.compile("ready 1,"))


def test_how_often_the_store_syncs_is_told_where_it_is_counted(
    scratch: Path, page: Page, complaints: Complaints
) -> None:
    """By a server that keeps count, as `segue serve` does."""
    disk = CountingDisk()
    with (
        open_directory(scratch / "data", sync="always", disk=disk) as store,
        ServerThread(build_app(store, disk=disk)) as server,
    ):
        complaints.origins.add(server.url)
        page.goto(f"{server.url}/dash/")
        queue = store.queue("mail")

        def syncs() -> bool:
            queue.push(b"x")
            return bool(re.search(r"[0-9.]+/s", tile(page, "Fsync").inner_text()))

        expect(tile(page, "Fsync")).to_be_visible()
        until(page, syncs)
        expect(chart(page, "Writes made durable (fsync), a second")).to_be_visible()
        page.close()
