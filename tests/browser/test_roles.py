"""Who may not: those who only look, those who are for some names, and those with no token."""

import json
import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from segue.server.tokens import read_tokens, remove_token
from segue.stores.file.store import FileStore
from tests.browser.browser_support import Dashboard, go
from tests.browser.filled import SCREENS, asked_by, expect_shown, fill, show, status_of

HARMLESS: Final = frozenset({"Filter", "Show", "JSON", "Text", "Hex", "Copy", "Download"})
"""Buttons of screens that change nothing but what is shown."""
READABLE: Final = tuple(name for name in SCREENS if name != "audit")
"""All screens but the audit log."""
ACTS: Final = {
    "queue": {"Pause", "Purge…", "Delete…", "Change the limits of mail"},
    "letters": {"Redrive 3…", "Discard 3…", "Redrive 0-0", "Discard 0-2"},
    "letter": {"Redrive 0-1", "Discard 0-1"},
    "tasks": {"Retry mail.tasks/0-0", "Cancel mail.tasks/0-3"},
    "task": {"Retry mail.tasks/0-0"},
    "schedules": {"Fire mail.tasks plain words now", "Forget orders.tasks plain words"},
    "topic": {"Clean…", "Compact…", "Forget reader audit", "Forget group billing"},
    "limits": {"Pause mail", "Resume mail.paused", "Change the limits of orders"},
}
"""Some of the buttons that do change something, by screen."""
CHANGES: Final[tuple[tuple[str, str, object], ...]] = (
    ("POST", "queues/mail/messages", {"messages": [{"body": "x"}]}),
    ("POST", "queues/mail/pop", {}),
    ("POST", "queues/mail/pause", {}),
    ("POST", "queues/mail.paused/resume", {}),
    ("POST", "queues/mail/purge", {}),
    ("PUT", "queues/mail/rules", {"capacity": 1}),
    ("DELETE", "queues/mail", None),
    ("POST", "queues/mail/dead-letters/redrive", {}),
    ("POST", "queues/mail/dead-letters/discard", {}),
    ("POST", "tasks/mail.tasks/0-0/retry", {}),
    ("POST", "tasks/mail.tasks/0-3/cancel", {}),
    ("POST", "schedules/mail.tasks%20plain%20words/fire", {}),
    ("DELETE", "schedules/mail.tasks%20plain%20words", None),
    ("POST", "topics/mail.events/clean", {}),
    ("POST", "topics/mail.events/compact", {}),
    ("DELETE", "topics/mail.events/readers/audit", None),
    ("DELETE", "topics/mail.events/groups/billing", None),
)
"""What the page's acts ask for, and more that changes something."""
_ASK: Final = """
async (changes) => {
  const token = sessionStorage.getItem("segue-token");
  const answers = [];
  for (const [method, path, body] of changes) {
    const answer = await fetch(`../api/v1/${path}`, {
      method,
      headers: {
        "content-type": "application/json",
        ...(token ? { authorization: `Bearer ${token}` } : {}),
      },
      body: body === null ? undefined : JSON.stringify(body),
    });
    answers.push([answer.status, (await answer.json()).code]);
  }
  return answers;
}
"""


def signed_in(dashboard: Dashboard, name: str, route: str = "/") -> Page:
    """Return the page as the holder of a token sees it, once it is live."""
    dashboard.complaints.expect("status of 401")
    page = dashboard.open(route)
    page.get_by_label("Token").fill(dashboard.tokens[name])
    page.get_by_role("button", name="Sign in").click()
    expect(status_of(page)).to_have_text("Live")
    return page


def state_of(store: FileStore) -> object:
    """Return what acts could have changed."""
    queues = {name: store.queue(name) for name in store.queues()}
    topic = store.topic("mail.events")
    return (
        {name: (queue.count(), queue.rules) for name, queue in queues.items()},
        {name: queue.stats().paused for name, queue in queues.items()},
        sorted(topic.readers()),
        topic.groups(),
    )


def expect_acts_refused(page: Page, acts: set[str]) -> None:
    """Fail unless all buttons that act are there, cannot be pressed, and say why."""
    main = page.get_by_role("main")
    expect(main.get_by_role("alert")).to_have_count(0)
    for act in acts:
        button = main.get_by_role("button", name=act, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", re.compile("role admin"))
    enabled = main.get_by_role("button", disabled=False)
    assert {text for text in enabled.all_inner_texts() if text} <= HARMLESS


# Looking only ------------------------------------------------------------------------------------


def test_a_token_that_only_reads_sees_everything_and_can_press_nothing(guarded: Dashboard) -> None:
    """Buttons are there, so that one knows of them, and say what one lacks."""
    fill(guarded.store)
    before = state_of(guarded.store)
    signed_in(guarded, "read")

    for screen in READABLE:
        page = show(guarded, screen)
        expect(page.get_by_role("main")).to_contain_text("mail")
        expect_acts_refused(page, ACTS.get(screen, set()))
    assert state_of(guarded.store) == before


def test_a_server_that_only_shows_shows_everything_and_lets_nobody_press_anything(
    read_only: Dashboard,
) -> None:
    """As `segue dash` does unless it is told otherwise, whoever looks."""
    fill(read_only.store)
    read_only.open()

    for screen in SCREENS:
        expect_acts_refused(show(read_only, screen), ACTS.get(screen, set()))


def test_whoever_may_act_can_press_the_same_buttons(guarded: Dashboard) -> None:
    """Else it would say nothing that others cannot."""
    fill(guarded.store)
    page = signed_in(guarded, "admin", SCREENS["queue"].route)

    for act in ACTS["queue"]:
        expect(page.get_by_role("button", name=act, exact=True)).to_be_enabled()


def test_the_page_says_who_looks_and_what_they_may(guarded: Dashboard) -> None:
    """Somebody else's token is noticed before anything is done with it."""
    page = signed_in(guarded, "read")

    who = page.get_by_role("banner").get_by_text("tester (read-only)")
    expect(who).to_be_visible()
    expect(who).to_have_attribute("title", "roles: read; names: *")


def test_the_server_refuses_whoever_gets_round_the_buttons(guarded: Dashboard) -> None:
    """They are a courtesy: what may be done is decided where it is done."""
    guarded.complaints.expect("status of 403")
    fill(guarded.store)
    before = state_of(guarded.store)
    page = signed_in(guarded, "read")
    answers = page.evaluate(_ASK, [list(change) for change in CHANGES])

    assert answers == [[403, "access_denied"]] * len(CHANGES)
    assert state_of(guarded.store) == before


def test_a_server_that_only_shows_refuses_every_change(read_only: Dashboard) -> None:
    """Whatever is asked, by whatever page."""
    read_only.complaints.expect("status of 403")
    fill(read_only.store)
    before = state_of(read_only.store)
    page = read_only.open()
    expect(status_of(page)).to_have_text("Live")
    answers = page.evaluate(_ASK, [list(change) for change in CHANGES])

    assert answers == [[403, "read_only"]] * len(CHANGES)
    assert state_of(read_only.store) == before


# For some names ----------------------------------------------------------------------------------


def test_a_token_for_some_names_sees_those_alone(guarded: Dashboard) -> None:
    """No names of others, anywhere."""
    headings = {
        "/": "Overview",
        "/letters": "Dead letters",
        "/letters/mail": "Dead letters of mail",
        "/tasks": "Tasks",
        "/schedules": "Schedules",
        "/workers": "Workers",
        "/topics": "Topics",
        "/limits": "Limits and switches",
        "/segments": "Segments",
        "/segments?kind=topic": "Segments",
        "/segments?kind=ring": "Segments",
    }
    fill(guarded.store)
    page = signed_in(guarded, "limited")

    for route, heading in headings.items():
        go(page, route)
        expect_shown(page, heading)
        expect(page.get_by_role("main")).to_contain_text("mail")
        expect(page.get_by_role("main")).not_to_contain_text("orders")
        expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


def test_a_token_for_some_names_counts_those_alone(guarded: Dashboard) -> None:
    """Sums tell of others, too."""
    fill(guarded.store)
    page = signed_in(guarded, "limited")
    mine = [guarded.store.queue(name).count() for name in ("mail", "mail.paused", "mail.tasks")]

    tile = page.locator(".tile").filter(has_text="Dead letters")
    expect(tile).to_contain_text(str(sum(count.dead for count in mine)))
    tile = page.locator(".tile").filter(has_text="Ready")
    expect(tile).to_contain_text(str(sum(count.ready for count in mine)))


def test_a_token_for_some_names_is_told_that_another_is_not_for_it(guarded: Dashboard) -> None:
    """And the page goes on: the next screen is as good as before."""
    routes = (
        "/queues/orders",
        "/queues/orders/messages/0-0",
        "/letters/orders",
        "/tasks/orders.tasks/0-0",
        "/tasks?queue=orders.tasks",
        "/topics/orders.events",
        "/segments?kind=queue&name=orders",
        "/segments?kind=topic&name=orders.events",
        "/segments?kind=ring&name=orders.ring",
    )
    guarded.complaints.expect("status of 403")
    fill(guarded.store)
    page = signed_in(guarded, "limited")

    for route in routes:
        go(page, route)
        name = re.findall(r"orders[.a-z]*", route)[0]
        told = re.compile(rf"not (good )?for (queue )?{name} ")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text(told)
        expect(page.get_by_role("main")).not_to_contain_text("plain words")
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Overview").click()
    queues = page.get_by_role("table", name="Queues", exact=True)
    expect(queues.get_by_role("link", name="mail", exact=True)).to_be_visible()


@pytest.mark.parametrize("name", ["read", "limited"])
def test_the_audit_log_is_for_those_who_may_do_everything(guarded: Dashboard, name: str) -> None:
    """It says who did what to everything; others are told that it is not for them."""
    guarded.complaints.expect("status of 403")
    fill(guarded.store)
    page = signed_in(guarded, name, "/audit")

    expect(page.get_by_role("heading", name="Audit log")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("needs the role admin")
    expect(page.get_by_role("table")).to_have_count(0)


# Signing in --------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_in_words_and_a_right_one_lets_in(guarded: Dashboard) -> None:
    """What was asked for is shown then, not the first screen."""
    guarded.complaints.expect("status of 401")
    guarded.store.queue("mail").push("hello")
    page = guarded.open("/queues/mail")
    wrong = f"{guarded.tokens['read'][:-4]}nope"
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="That did not work")).to_have_count(0)
    expect(page.get_by_label("Token")).to_be_focused()
    page.get_by_label("Token").fill(wrong)
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("token is not known")
    page.get_by_label("Token").fill(f"  {guarded.tokens['read']}\n")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1, name="mail")).to_be_visible()
    expect(status_of(page)).to_have_text("Live")


def test_a_wrong_token_is_sent_once(guarded: Dashboard) -> None:
    """Servers count them, and turn away who sends many; a screen asks for many things."""
    guarded.complaints.expect("status of 401")
    page = guarded.open("/queues/mail")
    page.get_by_label("Token").fill("segue_wrong_wrong")
    asked = asked_by(page)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("main").get_by_role("alert")).to_be_visible()

    assert len(asked) == 1


@pytest.mark.parametrize("text", ["тайна", "two words", "   "])
def test_what_cannot_be_a_token_is_not_sent(guarded: Dashboard, text: str) -> None:
    """No header could hold it: it would look as if there were no server."""
    guarded.complaints.expect("status of 401")
    page = guarded.open()
    expect(page.get_by_label("Token")).to_be_focused()
    asked = asked_by(page)
    page.get_by_label("Token").fill(text)
    page.get_by_role("button", name="Sign in").click()

    assert page.get_by_label("Token").evaluate("field => field.validity.valid") is False
    assert asked == []


def test_a_token_is_kept_over_reloads_and_gone_after_signing_out(guarded: Dashboard) -> None:
    """In this tab, and nowhere else: neither on disk nor in the address."""
    guarded.store.queue("mail").push("hello")
    page = signed_in(guarded, "read")
    page.reload()
    expect(status_of(page)).to_have_text("Live")
    kept = page.evaluate("JSON.stringify([location.href, document.cookie, {...localStorage}])")
    page.get_by_role("button", name="Sign out").click()

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("main")).not_to_contain_text("mail")
    assert guarded.tokens["read"] not in kept
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_token_that_is_taken_back_is_asked_for_again_and_nothing_else_is_asked(
    guarded: Dashboard,
) -> None:
    """The page shows no more of the store, and does not go on asking with what is over."""
    guarded.complaints.expect("status of 401")
    fill(guarded.store)
    page = guarded.page
    page.clock.install()
    signed_in(guarded, "read", "/queues/mail")
    path = tokens_of(guarded)
    for token in read_tokens(path):
        remove_token(path, token.id)

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("not known, or is over")
    expect(page.get_by_role("main")).not_to_contain_text("plain words")
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
    expect(status_of(page)).to_have_text("Signed out")
    assert page.evaluate("({...sessionStorage})") == {}
    page.get_by_label("Token").fill("half a to")
    asked = asked_by(page)
    for _ in range(10):
        page.clock.run_for(30_000)
    assert asked == []
    expect(page.get_by_label("Token")).to_have_value("half a to")


def test_another_screen_asks_for_the_token_as_well(guarded: Dashboard) -> None:
    """Once; and what is typed in meanwhile stays."""
    guarded.complaints.expect("status of 401")
    page = guarded.page
    page.clock.install()
    guarded.open()
    page.get_by_label("Token").fill("half a to")
    with page.expect_response(lambda answer: answer.status == 401):
        page.get_by_role("navigation", name="Screens").get_by_role("link", name="Topics").click()
    expect(page).to_have_title(re.compile("Sign in"))
    asked = asked_by(page)
    page.clock.run_for(60_000)

    assert asked == []
    expect(page.get_by_label("Token")).to_have_value("half a to")


def tokens_of(dashboard: Dashboard) -> Path:
    """Return the file of tokens of a server."""
    path = dashboard.store.place.root / "server" / "tokens.json"
    assert len(json.loads(path.read_bytes())["tokens"]) == len(dashboard.tokens)
    return path
