"""The screen of one message: how it stands, all that happened to it, and what is in it."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from segue import QueueRules
from segue.stores.contract import Queue
from tests.browser.acting import (
    EVERY_MS,
    NONE,
    act,
    asked,
    card,
    cell,
    expect_told,
    fact,
    heading,
    rows,
)
from tests.browser.browser_support import Dashboard, until
from tests.waiting import LIMIT_SECONDS

SHOWN_BYTES = 65_536
"""How much of a body is shown."""
REDRIVE = "POST /api/v1/queues/mail/dead-letters/redrive"
DISCARD = "POST /api/v1/queues/mail/dead-letters/discard"


def events(page: Page) -> Locator:
    """Return what happened to a message."""
    return card(page, "Timeline").get_by_role("list").get_by_role("listitem")


def payload(page: Page) -> Locator:
    """Return what is in a message, as it is shown."""
    return card(page, "Payload").locator("pre")


def shown(dashboard: Dashboard, body: bytes) -> Page:
    """Have a message with this body shown."""
    message = dashboard.store.queue("mail").push(body)
    return dashboard.open(f"/queues/mail/messages/{message}")


# What happened -----------------------------------------------------------------------------------


def test_a_message_shows_all_that_happened_to_it_in_order(dashboard: Dashboard) -> None:
    """Who had it, at which try, and why it came back; from its push to the dead letters."""
    rules = QueueRules(max_deliveries=2)
    queue = dashboard.store.queue("mail", rules)
    message = queue.push(b"hello", delay=0.001)
    for owner in ("packer-1", "packer-2"):
        assert queue.wait(LIMIT_SECONDS)
        job = queue.lease(ttl=600, owner=owner)
        if owner == "packer-1":
            queue.extend(job, ttl=1_200)
            job.release()
    job.fail("mailbox full", delay=0.001)
    assert queue.wait(LIMIT_SECONDS)
    queue.lease(ttl=600, owner="packer-3").fail("mailbox still full")
    page = dashboard.open(f"/queues/mail/messages/{message}")

    expect(heading(page, message)).to_contain_text("dead")
    told = [
        "Pushed",
        "Leased by packer-1, attempt 1",
        "Lease extended by packer-1, attempt 1",
        "Given back by packer-1",
        "Leased by packer-2, attempt 1",
        "Failed by packer-2, attempt 1",
        "Leased by packer-3, attempt 2",
        "Failed by packer-3, attempt 2",
        "Moved to the dead letters, attempt 2",
    ]
    happened = events(page).filter(has_not_text=re.compile("^Delayed"))
    expect(happened).to_have_text([re.compile(f"^{words}") for words in told])
    expect(happened.nth(5).get_by_text("mailbox full", exact=True)).to_be_visible()
    expect(happened.nth(5)).to_contain_text("not before")
    expect(happened.nth(7).get_by_text("mailbox still full", exact=True)).to_be_visible()
    expect(happened.nth(1)).to_contain_text("until")
    expect(card(page, "Timeline").get_by_role("heading")).to_be_visible()
    expect(card(page, "Timeline")).not_to_contain_text("no longer known")
    times = happened.get_by_role("time").evaluate_all("all => all.map(each => each.dateTime)")
    assert times == sorted(times)
    assert len(times) == len(told)


def test_a_message_that_was_redriven_and_settled_shows_that(dashboard: Dashboard) -> None:
    """It is gone, and what became of it is still known."""
    queue = dashboard.store.queue("mail")
    message = queue.push(b"hello")
    queue.lease(owner="packer-1").bury("no such address")
    queue.redrive()
    queue.lease(owner="packer-2").ack()
    page = dashboard.open(f"/queues/mail/messages/{message}")

    expect(heading(page, message)).to_contain_text("settled")
    told = ["Pushed", "Leased by packer-1", "Moved to the dead letters", "Brought back"]
    told += ["Leased by packer-2", "Settled: done"]
    expect(events(page).filter(has_not_text=re.compile("^Failed"))).to_have_text(
        [re.compile(f"^{words}") for words in told]
    )
    expect(page.get_by_text("no such address").first).to_be_visible()


def test_a_leased_message_shows_who_has_it_and_for_how_long(dashboard: Dashboard) -> None:
    """Besides what it was pushed with."""
    queue = dashboard.store.queue("mail")
    message = queue.push(
        b"hello", priority=3, key="order-7", group="ann", headers={"trace": "abc"}, ttl=86_400
    )
    queue.lease(ttl=600, owner="packer-1")
    page = dashboard.open(f"/queues/mail/messages/{message}")

    expect(heading(page, message)).to_contain_text("leased")
    standing = card(page, "How it stands")
    expect(fact(standing, "Leased by")).to_have_text("packer-1")
    expect(fact(standing, "Lease ends in")).to_have_text(re.compile("^(9 min|10 min)"))
    expect(fact(standing, "Priority")).to_have_text("3")
    expect(fact(standing, "Tries")).to_have_text("1")
    expect(fact(standing, "Deduplication key")).to_have_text("order-7")
    expect(fact(standing, "Group")).to_have_text("ann")
    expect(fact(standing, "Lives until")).not_to_have_text(NONE)
    expect(fact(card(page, "Headers"), "trace")).to_have_text("abc")


def test_a_delayed_message_shows_when_it_is_due(dashboard: Dashboard) -> None:
    """And that it has no headers, if so."""
    message = dashboard.store.queue("mail").push(b"hello", delay=600)
    page = dashboard.open(f"/queues/mail/messages/{message}")

    expect(heading(page, message)).to_contain_text("delayed")
    expect(fact(card(page, "How it stands"), "Due")).to_have_text(re.compile("^in (9|10) min"))
    expect(card(page, "Headers")).to_contain_text("It has none.")


def test_a_message_changes_on_the_page_as_it_does_in_the_store(dashboard: Dashboard) -> None:
    """Whoever watches it sees it being taken and settled."""
    queue = dashboard.store.queue("mail")
    dashboard.page.clock.install()
    page = shown(dashboard, b"hello")
    expect(heading(page, "0-0")).to_contain_text("ready")
    job = queue.lease(ttl=600, owner="packer-1")
    page.clock.run_for(EVERY_MS)
    expect(heading(page, "0-0")).to_contain_text("leased")
    expect(events(page).last).to_contain_text("Leased by packer-1")
    job.ack()
    page.clock.run_for(EVERY_MS)

    expect(heading(page, "0-0")).to_contain_text("settled")
    expect(events(page).last).to_contain_text("Settled: done")


def test_a_message_that_never_was_is_told_to_be_unknown(dashboard: Dashboard) -> None:
    """In a queue that exists, as in one that does not; nothing is made by looking."""
    dashboard.store.queue("mail").push(b"hello")
    page = dashboard.open("/queues/mail/messages/0-99")

    expect(page.get_by_text("Nothing is known of this message")).to_be_visible()
    dashboard.open("/queues/nowhere/messages/0-0")
    expect(page.get_by_text("Nothing is known of this message")).to_be_visible()
    assert list(dashboard.store.queues()) == ["mail"]


def test_a_message_is_a_click_from_its_queue_and_back(dashboard: Dashboard) -> None:
    """There and back again."""
    dashboard.store.queue("mail").push(b"hello")
    page = dashboard.open("/queues/mail")
    cell(rows(page, "Messages"), "Message").get_by_role("link", name="0-0").click()
    expect(heading(page, "0-0")).to_be_visible()
    expect(page).to_have_title("0-0 in mail · Segue")
    page.get_by_role("main").get_by_role("link", name="mail").click()

    expect(heading(page, "mail")).to_be_visible()
    page.go_back()
    expect(heading(page, "0-0")).to_be_visible()


# What is in it -----------------------------------------------------------------------------------


def test_json_is_shown_as_json_as_text_and_as_bytes(dashboard: Dashboard) -> None:
    """Whichever is chosen; what is chosen stays while the page is refreshed."""
    said = {"to": "ann", "lines": [1, -2.5e3, True, None, 'a "quoted" <b>word</b>']}
    body = json.dumps(said).encode()
    page = shown(dashboard, body)
    buttons = card(page, "Payload")

    expect(payload(page)).to_have_text(json.dumps(said, indent=2))
    expect(buttons.get_by_role("button", name="JSON")).to_have_attribute("aria-pressed", "true")
    expect(payload(page).locator("b")).to_have_count(0)
    buttons.get_by_role("button", name="Text").click()
    expect(payload(page)).to_have_text(body.decode())
    expect(buttons.get_by_role("button", name="Text")).to_have_attribute("aria-pressed", "true")
    expect(buttons.get_by_role("button", name="JSON")).to_have_attribute("aria-pressed", "false")
    buttons.get_by_role("button", name="Hex").click()
    first = " ".join(f"{byte:02x}" for byte in body[:16])
    expect(payload(page)).to_contain_text(f"00000000  {first}  ")
    expect(buttons).to_contain_text(f"{len(body)} B")
    with page.expect_response(re.compile("/timeline$")):
        page.keyboard.press("r")
    expect(payload(page)).to_contain_text(f"00000000  {first}  ")


@pytest.mark.parametrize(
    "body", [b"plain words", b"42", b'"a string"', "Grüße, 世界".encode(), b""]
)
def test_what_is_no_json_object_is_shown_as_text(dashboard: Dashboard, body: bytes) -> None:
    """To the letter; nothing is offered that it is not."""
    page = shown(dashboard, body)

    expect(payload(page)).to_have_text(body.decode())
    expect(card(page, "Payload").get_by_role("button", name="JSON")).to_have_count(0)
    expect(card(page, "Payload").get_by_role("button", name="Text")).to_be_visible()


def test_what_is_no_text_is_shown_as_bytes(dashboard: Dashboard) -> None:
    """With the letters that there are among them."""
    page = shown(dashboard, b"\x00\x01\xff\xfeabc\n" + bytes(range(200, 216)))

    expect(payload(page)).to_have_text(
        re.compile(r"^00000000  00 01 ff fe 61 62 63 0a c8 .*  \.{4}abc\.{9}\n00000010  d0 ")
    )
    expect(card(page, "Payload").get_by_role("button", name=re.compile("JSON|Text"))).to_have_count(
        0
    )


def test_a_number_too_long_for_the_browser_is_shown_as_it_is(dashboard: Dashboard) -> None:
    """An id that is shown with its last digits changed would be looked for in vain."""
    page = shown(dashboard, b'{"id": 12345678901234567890}')

    expect(payload(page)).to_contain_text("12345678901234567890")


def test_a_large_payload_is_cut_and_says_so(dashboard: Dashboard) -> None:
    """What is shown is its beginning; all of it can be downloaded."""
    body = b"".join(b"%07d\n" % number for number in range(20_000))
    page = shown(dashboard, body)

    expect(card(page, "Payload")).to_contain_text("156 KiB, the first 64.0 KiB shown")
    text = payload(page).text_content()
    assert text == body[:SHOWN_BYTES].decode()
    card(page, "Payload").get_by_role("button", name="Hex").click()
    expect(payload(page)).to_contain_text(f"… {SHOWN_BYTES - 4096:,} bytes more")
    assert downloaded(page) == body


def test_a_payload_that_cannot_be_had_whole_says_how_much_is(dashboard: Dashboard) -> None:
    """A file that is cut without a word would be taken for all there is."""

    def larger(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(
            response=answer, json={**answer.json(), "body_bytes_total": 9 << 20, "is_cut": True}
        )

    dashboard.page.route(re.compile("/timeline"), larger)
    page = shown(dashboard, b"hello")

    expect(card(page, "Payload")).to_contain_text("9.00 MiB, the first 5 B shown")
    expect(page.get_by_role("button", name="Download the first 8.00 MiB")).to_be_visible()


def test_a_large_text_is_not_cut_within_a_letter(dashboard: Dashboard) -> None:
    """What is text is shown as text, wherever the cut is."""
    page = shown(dashboard, ("x" + "ß" * 60_000).encode())

    expect(card(page, "Payload")).to_contain_text("the first 64.0 KiB shown")
    expect(payload(page)).to_have_text(re.compile("^xß{32767}$"))


def downloaded(page: Page) -> bytes:
    """Return what the page gives as a file."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "mail-0-0.bin"
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("body", [b'{"to": "ann"}', "Grüße".encode(), b"\x00\xff\x80", b""])
def test_a_payload_is_downloaded_to_the_byte(dashboard: Dashboard, body: bytes) -> None:
    """Whatever it is."""
    page = shown(dashboard, body)

    assert downloaded(page) == body


def test_a_payload_is_copied(dashboard: Dashboard) -> None:
    """As it was pushed, and the button says that it was done."""
    page = shown(dashboard, b'{"to":   "ann"}')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()

    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.get_by_role("button", name="Copied").click()
    assert page.evaluate("navigator.clipboard.readText()") == '{"to":   "ann"}'
    expect(page.get_by_role("button", name="Copy", exact=True)).to_be_visible()


# Acts --------------------------------------------------------------------------------------------


@pytest.fixture
def dead(dashboard: Dashboard) -> Queue:
    """A queue with two dead letters."""
    queue = dashboard.store.queue("mail")
    queue.push_many([b"first", b"second"])
    for job in queue.lease_many(2):
        job.bury("no such address")
    return queue


def opened_as_letter(dashboard: Dashboard) -> Page:
    """Go to the second letter, as one does from the list of letters."""
    page = dashboard.open("/letters/mail")
    cell(rows(page, "Dead letters").last, "Message").get_by_role("link", name="0-1").click()
    expect(heading(page, "0-1")).to_contain_text("dead")
    return page


def test_a_dead_message_of_its_queue_can_be_brought_back_too(
    dashboard: Dashboard, dead: Queue
) -> None:
    """However one came to it."""
    page = dashboard.open("/queues/mail?state=dead")
    rows(page, "Messages").last.get_by_role("link", name="0-1").click()
    expect(heading(page, "0-1")).to_contain_text("dead")
    asked(page, "Redrive 0-1", "Redrive 0-1?").get_by_role("button", name="Bring it back").click()

    expect_told(page, "0-1 is back in mail")
    assert [letter.message.id for letter in dead.dead_letters()] == ["0-0"]


def test_a_dead_letter_is_brought_back(dashboard: Dashboard, dead: Queue) -> None:
    """That one alone; its timeline goes on."""
    page = opened_as_letter(dashboard)
    act(
        dashboard,
        "Redrive 0-1",
        title="Redrive 0-1?",
        go="Bring it back",
        look=dead.count,
        told="0-1 is back in mail",
        does=REDRIVE,
    )

    assert [letter.message.id for letter in dead.dead_letters()] == ["0-0"]
    expect(heading(page, "0-1")).to_contain_text("ready")
    expect(events(page).last).to_contain_text("Brought back")
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)


def test_a_dead_letter_is_dropped(dashboard: Dashboard, dead: Queue) -> None:
    """Whoever wants that types its id."""
    page = opened_as_letter(dashboard)
    act(
        dashboard,
        "Discard 0-1",
        title="Discard 0-1?",
        go="Drop it for good",
        look=dead.count,
        types="0-1",
        told="0-1 is dropped",
        does=DISCARD,
    )

    assert [letter.message.id for letter in dead.dead_letters()] == ["0-0"]
    assert dead.count().ready == 0
    expect(heading(page, "0-1")).to_contain_text("settled")
    expect(events(page).last).to_contain_text("Discarded")


def test_a_letter_that_is_none_any_more_is_not_brought_back_again(
    dashboard: Dashboard, dead: Queue
) -> None:
    """Somebody else was faster."""
    page = opened_as_letter(dashboard)
    dialog = asked(page, "Redrive 0-1", "Redrive 0-1?")
    dead.discard()
    dialog.get_by_role("button", name="Bring it back").click()

    expect_told(page, "0-1 was no dead letter any more")
    until(page, lambda: dead.count().ready == 0)
