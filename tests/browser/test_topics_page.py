"""The screens of topics: who reads them, how far behind, what is kept for whom, and records."""

import re

import pytest
from playwright.sync_api import Page, expect

from segue import Event, Topic, TopicRules
from tests.browser.acting import (
    NONE,
    act,
    asked,
    cancel,
    card,
    cell,
    expect_refused,
    expect_told,
    fact,
    heading,
    noted,
    row,
    rows,
)
from tests.browser.browser_support import Dashboard

READERS = "Readers and groups"
ORDERS = "/api/v1/topics/orders"
PER_PAGE = 20


def append(topic: Topic, count: int, *, partition: int = 0, first: int = 0) -> None:
    """Append records to one partition, and begin a new segment there."""
    topic.append_many(
        [
            Event(value=f"value {number}", key=f"key-{number % 3}", partition=partition)
            for number in range(first, first + count)
        ]
    )
    topic.roll(partitions=[partition])


def commit(topic: Topic, reader: str, offsets: dict[int, int]) -> None:
    """Have a reader stand somewhere."""
    with topic.reader(reader) as opened:
        opened.seek(offsets)
        opened.commit()


@pytest.fixture
def orders(dashboard: Dashboard) -> Topic:
    """A topic of two partitions, with a reader that is 4 behind and a group that is 15 behind."""
    topic = dashboard.store.topic("orders", partitions=2)
    append(topic, 10)
    append(topic, 5, partition=1)
    commit(topic, "audit", {0: 6, 1: 5})
    topic.group("billing").join(owner="billing-1").close()
    return topic


# All topics --------------------------------------------------------------------------------------


def test_topics_are_listed_with_who_is_furthest_behind(dashboard: Dashboard, orders: Topic) -> None:
    """The figures are the store's; one that nobody reads has nobody behind."""
    append(dashboard.store.topic("unread"), 3)
    page = dashboard.open("/topics")

    line = row(page, "Topics", "orders")
    info, lag = orders.info(), orders.group("billing").lag()
    expect(cell(line, "Partitions")).to_have_text("2")
    expect(cell(line, "Records")).to_have_text(str(info.count))
    expect(cell(line, "Readers")).to_have_text("1")
    expect(cell(line, "Groups")).to_have_text("1")
    expect(cell(line, "Lag")).to_have_text(f"{sum(each.records for each in lag)} records")
    expect(cell(line, "Lag, size")).to_have_text(f"{sum(each.size_bytes for each in lag)} B")
    expect(cell(line, "Lag, time")).to_have_text(re.compile("^[0-9.]+ m?s$"))
    expect(cell(line, "Of")).to_have_text("group billing")
    unread = row(page, "Topics", "unread")
    expect(cell(unread, "Records")).to_have_text("3")
    expect(cell(unread, "Lag")).to_have_text(NONE)
    line.get_by_role("link", name="orders").click()
    expect(heading(page, "orders")).to_be_visible()
    expect(page).to_have_url(re.compile("#/topics/orders$"))


def test_a_store_without_topics_says_how_to_make_one(dashboard: Dashboard) -> None:
    """An empty table would tell less."""
    page = dashboard.open("/topics")

    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
    assert list(dashboard.store.topics()) == []


def test_topics_are_paged_by_name(dashboard: Dashboard) -> None:
    """Fifty at a time; the next page and the way back have an address."""
    for number in range(52):
        dashboard.store.topic(f"topic-{number:02}", partitions=1)
    page = dashboard.open("/topics")
    pages = page.get_by_role("navigation", name="Pages")

    expect(rows(page, "Topics")).to_have_count(50)
    pages.get_by_role("link", name="Next").click()
    expect(rows(page, "Topics")).to_have_count(2)
    expect(page.get_by_role("link", name="topic-51")).to_be_visible()
    expect(page).to_have_url(re.compile("after=topic-49"))
    pages.get_by_role("link", name="Back").click()
    expect(page.get_by_role("link", name="topic-00")).to_be_visible()


# One topic ---------------------------------------------------------------------------------------


def test_a_topic_shows_the_lag_of_each_reader_and_group(
    dashboard: Dashboard, orders: Topic
) -> None:
    """In records, bytes and time, and by partition for whoever opens that."""
    page = dashboard.open("/topics/orders")

    reader = row(page, READERS, "audit")
    expect(cell(reader, "Name")).to_have_text("audit reader")
    expect(cell(reader, "Lag")).to_have_text("4 records")
    size_bytes = sum(lag.size_bytes for lag in orders.readers()["audit"])
    expect(cell(reader, "Size")).to_have_text(f"{size_bytes} B")
    expect(cell(reader, "Gone unread")).to_have_text("0")
    group = row(page, READERS, "billing")
    expect(cell(group, "Name")).to_have_text("billing group")
    expect(cell(group, "Lag")).to_have_text("15 records")
    expect(cell(group, "Members")).to_have_text("nobody")
    cell(group, "By partition").get_by_text("2 partitions").click()
    expect(group.get_by_role("listitem")).to_have_text(["partition 010", "partition 15"])


def test_a_group_shows_its_members_and_what_each_has(dashboard: Dashboard, orders: Topic) -> None:
    """For as long as they are there."""
    with orders.group("billing").join(owner="billing-7", ttl=600):
        page = dashboard.open("/topics/orders")
        members = cell(row(page, READERS, "billing"), "Members")

        expect(members).to_contain_text("billing-7 has 0, 1,")
        expect(members).to_contain_text(re.compile("(9|10) min.* left"))
    page.keyboard.press("r")
    expect(members).to_have_text("nobody")


def test_records_that_were_deleted_unread_are_told(dashboard: Dashboard, orders: Topic) -> None:
    """By a limit that did not wait for the reader."""
    orders.clean(keep_bytes=0)
    page = dashboard.open("/topics/orders")

    assert sum(lag.trimmed for lag in orders.readers()["audit"]) == 4
    expect(cell(row(page, READERS, "audit"), "Gone unread")).to_have_text("4")
    expect(cell(row(page, READERS, "billing"), "Gone unread")).to_have_text("15")


def test_a_topic_says_what_retention_waits_for(dashboard: Dashboard, orders: Topic) -> None:
    """Who holds which partition, what may go already, and by which rules."""
    append(orders, 10, first=10)
    commit(orders, "audit", {0: 12})
    orders.remove_group("billing")
    orders.configure(TopicRules(keep_bytes=1 << 30, lag_max=5_000, clean_on_roll=False))
    page = dashboard.open("/topics/orders")

    retention = card(page, "Retention")
    expect(retention).to_contain_text("Waits for: reader audit in partition 0")
    line = rows(page, "Partitions").first
    expect(cell(line, "Offsets")).to_have_text(f"0 {NONE} 20")
    expect(cell(line, "Held by")).to_have_text("reader audit")
    expect(cell(line, "May go")).to_have_text(re.compile("^1 segment, "))
    expect(cell(rows(page, "Partitions").nth(1), "May go")).to_have_text(re.compile("^1 segment, "))
    assert {part: len(gone) for part, gone in orders.clean(dry_run=True).deleted.items()} == {
        0: 1,
        1: 1,
    }
    expect(fact(retention, "Keep for")).to_have_text("no limit")
    expect(fact(retention, "Keep at most")).to_have_text("1.00 GiB")
    expect(fact(retention, "Lag at most")).to_have_text("5,000 records")


def test_a_topic_without_readers_says_so(dashboard: Dashboard) -> None:
    """And that nothing of it goes, then."""
    append(dashboard.store.topic("orders", partitions=1), 3)
    page = dashboard.open("/topics/orders")

    expect(page.get_by_text("Nobody reads it by name.")).to_be_visible()
    expect(card(page, "Retention")).to_contain_text("without a limit nothing is deleted")


def test_a_topic_that_does_not_exist_is_not_made_by_looking(dashboard: Dashboard) -> None:
    """Whoever mistypes a name is told that there is none."""
    dashboard.complaints.expect("status of 404")
    page = dashboard.open("/topics/nowhere")

    expect(heading(page, "nowhere")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("That did not work")
    assert list(dashboard.store.topics()) == []


# Records -----------------------------------------------------------------------------------------


def offsets(page: Page) -> list[str]:
    """Return the offsets of the records that are shown."""
    return card(page, "Records").locator("summary > strong").all_text_contents()


def test_the_last_records_are_shown_first_and_older_ones_page_by_page(
    dashboard: Dashboard,
) -> None:
    """Each page has an address, and goes no further than there are records."""
    append(dashboard.store.topic("orders", partitions=1), 50)
    page = dashboard.open("/topics/orders")
    pages = page.get_by_role("navigation", name="Pages of records")

    expect(pages).to_contain_text("partition 0, offsets 30 to 49 of 0 to 49")
    assert offsets(page) == [str(number) for number in range(30, 50)]
    expect(pages.get_by_role("link", name="Newer")).to_have_count(0)
    pages.get_by_role("link", name="Older").click()
    expect(pages).to_contain_text("offsets 10 to 29")
    expect(page).to_have_url(re.compile("offset=10"))
    pages.get_by_role("link", name="Older").click()
    expect(pages).to_contain_text("offsets 0 to 19")
    expect(pages.get_by_role("link", name="Older")).to_have_count(0)
    assert offsets(page) == [str(number) for number in range(PER_PAGE)]
    pages.get_by_role("link", name="Newer").click()
    expect(pages).to_contain_text("offsets 20 to 39")
    page.go_back()
    page.go_back()
    expect(pages).to_contain_text("offsets 10 to 29")


def test_partitions_are_a_click_apart(dashboard: Dashboard) -> None:
    """One that holds nothing is no dead end."""
    topic = dashboard.store.topic("orders", partitions=3)
    append(topic, 3)
    append(topic, 2, partition=2)
    page = dashboard.open("/topics/orders")
    choices = page.get_by_role("navigation", name="Partition")

    expect(choices.get_by_role("link", name="0")).to_have_attribute("aria-current", "true")
    choices.get_by_role("link", name="1").click()
    expect(page.get_by_text("There are no records here.")).to_be_visible()
    expect(choices.get_by_role("link", name="1")).to_have_attribute("aria-current", "true")
    choices.get_by_role("link", name="2").click()
    expect(page.get_by_text("partition 2, offsets 0 to 1 of 0 to 1")).to_be_visible()
    rows(page, "Partitions").first.get_by_role("link", name="0").click()
    expect(page.get_by_text("partition 0, offsets 0 to 2 of 0 to 2")).to_be_visible()


def test_a_record_shows_its_key_its_headers_and_its_value(dashboard: Dashboard) -> None:
    """As JSON where it is, as bytes where it is not text; and a tombstone as what it is."""
    topic = dashboard.store.topic("orders", partitions=1)
    topic.append_many(
        [
            Event(value=b'{"paid": true}', key="ann", headers={"source": "shop"}),
            Event(value=None, key="bob"),
            Event(value=b"\xff\x00\xfe"),
        ]
    )
    page = dashboard.open("/topics/orders")
    records = card(page, "Records").get_by_role("group")

    expect(records).to_have_count(3)
    expect(records.nth(0)).to_contain_text("ann")
    records.nth(0).locator("summary").click()
    expect(fact(records.nth(0), "source")).to_have_text("shop")
    expect(records.nth(0).locator("pre")).to_have_text('{\n  "paid": true\n}')
    expect(records.nth(1)).to_contain_text("tombstone")
    records.nth(1).locator("summary").click()
    expect(records.nth(1).get_by_text("A tombstone: it has no value.")).to_be_visible()
    records.nth(2).locator("summary").click()
    expect(records.nth(2).get_by_role("button", name="Text")).to_have_count(0)
    expect(records.nth(2).locator("pre")).to_contain_text("00000000  ff 00 fe")


def test_new_records_show_up_and_what_is_open_stays_open(dashboard: Dashboard) -> None:
    """Whoever reads a record is not disturbed by the next."""
    topic = dashboard.store.topic("orders", partitions=1)
    append(topic, 2)
    page = dashboard.open("/topics/orders")
    records = card(page, "Records").get_by_role("group")
    records.nth(0).locator("summary").click()
    expect(records.nth(0).locator("pre")).to_be_visible()
    append(topic, 1, first=2)
    page.keyboard.press("r")

    expect(records).to_have_count(3)
    expect(records.nth(0).locator("pre")).to_be_visible()
    expect(records.nth(2).locator("pre")).to_be_hidden()


# Acts --------------------------------------------------------------------------------------------


def test_what_may_go_is_cleaned_and_nothing_else(dashboard: Dashboard, orders: Topic) -> None:
    """A dry run tells how much that is; the reader still finds all that it has not read."""
    append(orders, 10, first=10)
    orders.remove_group("billing")
    commit(orders, "audit", {0: 12, 1: 5})
    page = dashboard.open("/topics/orders")
    before = orders.info()
    dialog = asked(page, "Clean…", "Clean orders?")
    expect(dialog).to_contain_text("2 segments now")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_text(re.compile(r"^2 segments \(.*\) would go\.$"))).to_be_visible()
    cancel(dialog)
    assert orders.info() == before
    act(
        dashboard,
        "Clean…",
        title="Clean orders?",
        go="Delete them",
        look=lambda: [each.first_offset for each in orders.info().partitions],
        types="orders",
        told=re.compile(r"^2 segments \([0-9.]+ KiB\) of orders deleted$"),
        does=f"POST {ORDERS}/clean",
    )

    assert [each.first_offset for each in orders.info().partitions] == [10, 5]
    with orders.reader("audit") as reader:
        assert [record.offset for record in reader.poll()] == list(range(12, 20))
    expect(cell(rows(page, "Partitions").first, "Offsets")).to_have_text(f"10 {NONE} 20")


def test_needless_records_are_compacted_away(dashboard: Dashboard, orders: Topic) -> None:
    """Of each key the last stays; offsets stay as they are."""
    append(orders, 1, first=100)
    dashboard.open("/topics/orders")
    before = list(orders.records(partitions=[0]))
    entry = act(
        dashboard,
        "Compact…",
        title="Compact orders?",
        go="Compact it",
        look=lambda: len(list(orders.records())),
        types="orders",
        told=re.compile(r"^10 records \([0-9.]+ (KiB|B)\) of orders removed$"),
        does=f"POST {ORDERS}/compact",
    )

    left = list(orders.records(partitions=[0]))
    assert len(left) < len(before)
    assert {record.key: record.value for record in left} == {
        record.key: record.value for record in before
    }
    assert {record.offset for record in left} <= {record.offset for record in before}
    assert '"removed_records":10' in entry.did


def test_a_reader_is_forgotten_and_holds_nothing_back_any_more(
    dashboard: Dashboard, orders: Topic
) -> None:
    """Whoever wants that types its name."""
    page = dashboard.open("/topics/orders")
    act(
        dashboard,
        "Forget reader audit",
        title="Forget reader audit?",
        go="Forget it",
        look=lambda: (sorted(orders.readers()), list(orders.groups())),
        types="audit",
        told="reader audit is forgotten",
        does=f"DELETE {ORDERS}/readers/audit",
    )

    assert (sorted(orders.readers()), list(orders.groups())) == ([], ["billing"])
    expect(row(page, READERS, "audit")).to_have_count(0)
    expect(row(page, READERS, "billing")).to_be_visible()


def test_a_group_without_members_is_forgotten(dashboard: Dashboard, orders: Topic) -> None:
    """Its place is lost, that of readers is not."""
    page = dashboard.open("/topics/orders")
    act(
        dashboard,
        "Forget group billing",
        title="Forget group billing?",
        go="Forget it",
        look=lambda: list(orders.groups()),
        types="billing",
        told="group billing is forgotten",
        does=f"DELETE {ORDERS}/groups/billing",
    )

    assert (sorted(orders.readers()), list(orders.groups())) == (["audit"], [])
    expect(row(page, READERS, "billing")).to_have_count(0)


def test_a_group_that_has_members_is_not_forgotten(dashboard: Dashboard, orders: Topic) -> None:
    """The server refuses, the dialog says why, and the place of the group is not lost."""
    dashboard.complaints.expect("status of 409")
    page = dashboard.open("/topics/orders")
    with orders.group("billing").join(owner="billing-1") as member:
        member.poll(3)
        member.commit()
        lag = sum(each.records for each in orders.group("billing").lag())
        dialog = asked(page, "Forget group billing", "Forget group billing?")
        dialog.get_by_label("to go on").fill("billing")
        dialog.get_by_role("button", name="Forget it").click()

        expect_refused(dialog, "group_busy")
        noted(dashboard, f"DELETE {ORDERS}/groups/billing", is_refused=True)
        assert list(orders.groups()) == ["billing"]
        assert sum(each.records for each in orders.group("billing").lag()) == lag == 12
        expect(dialog.get_by_role("button", name="Forget it")).to_be_enabled()
    dialog.get_by_role("button", name="Forget it").click()
    expect_told(page, "group billing is forgotten")


def test_a_reader_that_is_gone_already_is_told(dashboard: Dashboard, orders: Topic) -> None:
    """Somebody else was faster."""
    page = dashboard.open("/topics/orders")
    dialog = asked(page, "Forget reader audit", "Forget reader audit?")
    orders.remove_reader("audit")
    dialog.get_by_label("to go on").fill("audit")
    dialog.get_by_role("button", name="Forget it").click()

    expect_told(page, "audit was not there any more")
