"""The screen of segments: which there are, what state each is in, and what keeps it."""

import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from segue import QueueRules
from segue.log import Log
from segue.stores.contract import Queue
from segue.stores.topic_contract import Topic
from tests.browser.acting import NONE, card, cell, heading, rows, table, tile
from tests.browser.browser_support import Dashboard
from tests.unit.support import destroy_header, flip_bit, segment_path

ITEMS = 10
RULES = QueueRules(segment_items=ITEMS)
DAMAGED_POSITION = 8192 + 3
"""In the payload of a record."""


def push(queue: Queue, segments: int) -> None:
    """Push so many segments full of messages."""
    for _ in range(segments):
        queue.push_many([b"message"] * ITEMS)


def append(topic: Topic, segments: int) -> None:
    """Append ten records, and begin a new segment, so many times."""
    for _ in range(segments):
        topic.append_many([b"record"] * ITEMS)
        topic.roll()


def states(log: Locator) -> Locator:
    """Return the picture of a log's segments, which says in words what it shows."""
    return log.get_by_role("img")


def opened(page: Page, log: str) -> Locator:
    """Open the table of a log's segments and return its rows, the newest first."""
    card(page, log).get_by_text("As a table").click()
    expect(table(page, f"Segments of {log}")).to_be_visible()
    return rows(page, f"Segments of {log}")


# Queues ------------------------------------------------------------------------------------------


def test_segments_of_a_queue_are_sealed_but_for_the_one_that_takes_records(
    dashboard: Dashboard,
) -> None:
    """As many as the store has, each with what it holds."""
    push(dashboard.store.queue("jobs", RULES), 3)
    with Log(dashboard.store.place.root / "queues/jobs/lanes/0", read_only=True) as log:
        infos = log.segments()
    page = dashboard.open("/segments?kind=queue&name=jobs")

    sealed = len(infos) - 1
    assert sealed >= 2
    lane = card(page, "lane 0")
    expect(states(lane)).to_have_attribute("aria-label", f"lane 0: {sealed} sealed, 1 active")
    expect(lane).to_contain_text(f"{len(infos)} segments")
    expect(lane).to_contain_text(f"offsets 0 to {3 * ITEMS}")
    expect(states(lane).locator("span")).to_have_count(len(infos))
    lines = opened(page, "lane 0")
    expect(lines).to_have_count(len(infos))
    expect(cell(lines.first, "State")).to_have_text("active")
    oldest = lines.last
    expect(cell(oldest, "State")).to_have_text("sealed")
    expect(cell(oldest, "Segment")).to_have_text(str(infos[0].id))
    expect(cell(oldest, "First offset")).to_have_text("0")
    expect(cell(oldest, "Records")).to_have_text(str(infos[0].count))
    expect(cell(oldest, "Kept for")).to_have_text(NONE)
    expect(card(page, "ledger")).to_be_visible()


def test_a_segment_is_pinned_by_a_lease_that_is_stuck(dashboard: Dashboard) -> None:
    """It says which, and those behind it say that they wait for it."""
    queue = dashboard.store.queue("jobs", RULES)
    push(queue, 4)
    queue.lease(ttl=600, owner="stuck")
    queue.ack_many(queue.lease_many(3 * ITEMS - 1, ttl=600))
    page = dashboard.open("/segments?kind=queue&name=jobs")

    expect(states(card(page, "lane 0"))).to_have_attribute("aria-label", re.compile("3 pinned"))
    lines = opened(page, "lane 0")
    first = lines.last
    expect(cell(first, "State")).to_have_text("sealed pinned")
    expect(cell(first, "Kept for")).to_have_text("1 leased")
    expect(cell(lines.nth(-2), "Kept for")).to_have_text("segment 0, which comes before it")
    expect(cell(lines.first, "State")).to_have_text("active")
    expect(states(card(page, "lane 0")).locator("span").first).to_have_attribute(
        "title", re.compile("^segment 0: sealed, kept for 1 leased, 10 records")
    )


def test_a_segment_that_was_damaged_is_unreadable_and_quarantined_once_it_is_repaired(
    dashboard: Dashboard,
) -> None:
    """First the damage is to be seen, then what was set aside of it."""
    push(dashboard.store.queue("jobs", RULES), 4)
    path: Path = dashboard.store.place.root / "queues/jobs/lanes/0"
    destroy_header(segment_path(path, 1))
    flip_bit(segment_path(path, 0), DAMAGED_POSITION)
    page = dashboard.open("/segments?kind=queue&name=jobs")

    lane = card(page, "lane 0")
    expect(states(lane)).to_have_attribute("aria-label", re.compile("1 unreadable"))
    lines = opened(page, "lane 0")
    expect(lines.filter(has_text="unreadable")).to_have_count(1)
    with Log(path) as log:
        repaired = log.repair()
    assert len(repaired.quarantined) == 2
    page.keyboard.press("r")
    expect(states(lane)).to_have_attribute("aria-label", re.compile("2 quarantined"))
    expect(states(lane)).not_to_have_attribute("aria-label", re.compile("unreadable"))
    aside = lines.filter(has_text="quarantined")
    expect(aside).to_have_count(2)
    expect(cell(aside.last, "Records")).to_have_text(str(ITEMS))


def test_the_size_of_a_queue_leads_to_its_segments(dashboard: Dashboard) -> None:
    """To those of that queue, whichever comes first by name."""
    push(dashboard.store.queue("archive", RULES), 1)
    push(dashboard.store.queue("jobs", RULES), 2)
    page = dashboard.open("/queues/jobs")
    tile(page, "On disk").click()

    expect(heading(page, "Segments")).to_be_visible()
    expect(page.get_by_label("Name of the queue")).to_have_value("jobs")
    expect(card(page, "lane 0")).to_contain_text(f"offsets 0 to {2 * ITEMS}")


def test_another_queue_is_chosen_and_has_an_address_of_its_own(dashboard: Dashboard) -> None:
    """The first by name is shown if none is chosen; the way back leads there."""
    push(dashboard.store.queue("archive", RULES), 1)
    push(dashboard.store.queue("jobs", RULES), 2)
    page = dashboard.open("/segments")
    expect(card(page, "lane 0").get_by_text(re.compile(f"offsets 0 to {ITEMS}$"))).to_be_visible()
    page.get_by_label("Name of the queue").select_option("jobs")

    expect(card(page, "lane 0")).to_contain_text(f"offsets 0 to {2 * ITEMS}")
    expect(page).to_have_url(re.compile("kind=queue&name=jobs$"))
    expect(page).to_have_title("Segments of jobs · Segue")
    page.go_back()
    expect(card(page, "lane 0").get_by_text(re.compile(f"offsets 0 to {ITEMS}$"))).to_be_visible()
    expect(page.get_by_label("Name of the queue")).to_have_value("archive")


# Topics and rings --------------------------------------------------------------------------------


def test_a_segment_of_a_topic_is_pinned_by_the_reader_that_has_not_left_it(
    dashboard: Dashboard,
) -> None:
    """The topic's screen leads there; the one that everybody has left is not pinned."""
    topic = dashboard.store.topic("orders", partitions=1)
    append(topic, 3)
    with topic.reader("slow") as reader:
        reader.seek({0: ITEMS})
        reader.commit()
    page = dashboard.open("/topics/orders")
    page.get_by_role("main").get_by_role("link", name="Segments").click()

    expect(states(card(page, "partition 0"))).to_have_attribute(
        "aria-label", "partition 0: 1 sealed, 2 pinned, 1 active"
    )
    lines = opened(page, "partition 0")
    expect(cell(lines.nth(1), "Kept for")).to_have_text("reader slow")
    expect(cell(lines.nth(2), "Kept for")).to_have_text("reader slow")
    expect(cell(lines.nth(3), "Kept for")).to_have_text(NONE)
    assert [len(gone) for gone in topic.clean(dry_run=True).deleted.values()] == [1]


def test_rings_have_segments_too(dashboard: Dashboard) -> None:
    """Pinned by the group that is furthest back."""
    ring = dashboard.store.ring("wheel", capacity=30, entries_per_segment=10)
    for number in range(25):
        ring.enqueue(b"%d" % number)
    page = dashboard.open("/segments")
    page.get_by_role("link", name="rings").click()

    expect(page.get_by_label("Name of the ring")).to_have_value("wheel")
    expect(states(card(page, "entries"))).to_have_attribute(
        "aria-label", "entries: 2 pinned, 1 active"
    )
    expect(cell(opened(page, "entries").last, "Kept for")).to_have_text("group default")


def test_where_there_is_nothing_there_are_no_segments(dashboard: Dashboard) -> None:
    """Of no kind; and one that does not exist has none."""
    page = dashboard.open("/segments")

    for kind in ("queues", "topics", "rings"):
        page.get_by_role("link", name=kind, exact=True).click()
        expect(page.get_by_text(f"There are no {kind}.")).to_be_visible()
    dashboard.open("/segments?kind=queue&name=nowhere")
    expect(page.get_by_text("It has no segments.")).to_be_visible()
    assert list(dashboard.store.queues()) == []


def test_the_table_stays_open_while_segments_come(dashboard: Dashboard) -> None:
    """Whoever looks at one is not disturbed by the next."""
    queue = dashboard.store.queue("jobs", RULES)
    push(queue, 2)
    page = dashboard.open("/segments?kind=queue&name=jobs")
    lines = opened(page, "lane 0")
    before = lines.count()
    push(queue, 2)
    page.keyboard.press("r")

    expect(lines).to_have_count(before + 2)
    expect(lines.first).to_be_visible()
