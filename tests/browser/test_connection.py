"""When the server is away, or silent, or nobody looks: what is old never passes for new."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from segue.server.building import build_app
from segue.server.overlook import Overlook
from segue.server.serving import ServerThread
from tests.browser.acting import EVERY_MS, fact
from tests.browser.browser_support import Dashboard, go, hide, ready, until
from tests.browser.filled import asked_by, expect_shown, status_of
from tests.http_proxy import HttpProxy
from tests.redis_proxy import CHUNK_BYTES, _Link

GONE = "net::ERR_"
"""What browsers say of each request that nobody answers."""
LONG_MS = 30_000
"""Longer than the page ever waits before it tries again, or calls something old."""


NOT_SOON = re.compile(r"Next try in (1[0-9]|[5-9]\.0) s")


@pytest.fixture
def page(page: Page) -> Page:
    """A page whose clock can be put forward."""
    page.clock.install()
    return page


class Line(HttpProxy):
    """A line to the server, to be disturbed."""

    def __init__(self, port: int) -> None:
        self.cut_at = b""
        """What is in the answer that breaks off, once."""
        super().__init__(port)

    def _forward_answers(self, link: _Link) -> None:
        while data := link.server.recv(CHUNK_BYTES):
            self._thawed.wait()
            if self.cut_at and self.cut_at in data:
                link.client.sendall(data[: data.index(self.cut_at)])
                link.client.shutdown(socket.SHUT_WR)
                self.cut_at = b""
                return
            link.client.sendall(data)


@pytest.fixture
def proxy(dashboard: Dashboard) -> Iterator[Line]:
    """The line to the server of the test."""
    dashboard.complaints.expect(GONE)
    proxy = Line(dashboard.server.port)
    with proxy:
        dashboard.complaints.origins.add(proxy.url)
        yield proxy
        dashboard.page.close()  # Before the line is, which it would else complain of.


@contextmanager
def served_again(dashboard: Dashboard) -> Iterator[None]:
    """Have the store served by another server, at the address of the one that was stopped."""
    app = build_app(dashboard.store, has_audit=True)
    with ServerThread(app, port=dashboard.server.port):
        yield
        dashboard.page.close()


def lose_server(dashboard: Dashboard) -> None:
    """End the server, and return once the page knows."""
    dashboard.complaints.expect(GONE)
    dashboard.server.stop()
    expect(status_of(dashboard.page)).to_have_text("Disconnected")


def ready_of(page: Page, queue: str) -> Locator:
    """Return what the table of queues says is ready in one."""
    line = page.get_by_role("table", name="Queues", exact=True).get_by_role("row")
    return (
        line.filter(has=page.get_by_role("link", name=queue, exact=True)).get_by_role("cell").nth(1)
    )


def note_of(page: Page) -> Locator:
    """Return what is said above the screen while it is old."""
    return page.get_by_role("alert").filter(has=page.get_by_role("button", name="Try now"))


def expect_old(page: Page) -> None:
    """Fail unless one sees at a glance that what is shown is not of now."""
    expect(note_of(page)).to_contain_text("what is shown is old")
    expect(page.get_by_role("main")).to_have_css("filter", re.compile("grayscale"))


def expect_of_now(page: Page) -> None:
    """Fail if anything says that what is shown is old."""
    expect(status_of(page)).to_have_text("Live")
    expect(note_of(page)).to_have_count(0)
    expect(page.get_by_role("main")).to_have_css("filter", "none")


# What comes is not what is asked for --------------------------------------------------------------


def test_signs_of_life_are_no_figures(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lives, and whose look at the store does not come back, has nothing of now."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open()
    expect_shown(page, "Overview")
    monkeypatch.setattr(Overlook, "_begin", lambda _: None)
    page.clock.run_for(10_000)

    expect(status_of(page)).to_have_text("Stale")
    expect_old(page)
    monkeypatch.undo()
    expect_of_now(page)


def test_a_screen_whose_own_request_fails_says_so_while_others_come(dashboard: Dashboard) -> None:
    """Figures of another screen being live is no word about this one."""
    dashboard.complaints.expect(GONE)
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open("/limits")
    expect_shown(page, "Limits and switches")
    page.route(re.compile("/overview/limits"), lambda route: route.abort())
    page.clock.run_for(EVERY_MS)

    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("cannot be reached")
    expect(status_of(page)).to_have_text("Live")
    page.unroute(re.compile("/overview/limits"))
    page.clock.run_for(EVERY_MS)
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


def test_who_may_act_may_so_where_no_events_come(dashboard: Dashboard) -> None:
    """Some lines to a server let no stream through."""
    dashboard.complaints.expect("503")
    dashboard.store.queue("mail").push("hello")
    dashboard.page.route(re.compile("/overview/live"), lambda route: route.fulfill(status=503))
    page = dashboard.open("/queues/mail")

    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_enabled()
    expect(status_of(page)).to_have_text("Disconnected")


def test_ages_are_told_by_the_clock_of_the_server(dashboard: Dashboard) -> None:
    """Which wrote the times. That of whoever looks may be wrong."""
    dashboard.store.queue("mail").push("hello")
    dashboard.page.clock.set_system_time(datetime.now(UTC) + timedelta(minutes=90))
    page = dashboard.open("/queues/mail/messages/0-0")

    expect(fact(page, "Pushed")).to_have_text(re.compile(r"^[0-9.]+ s ago$"))


# The server is away ------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_told_and_what_was_shown_stays_as_old(
    dashboard: Dashboard,
) -> None:
    """Figures of before are worth something, if nobody takes them for those of now."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open()
    expect_shown(page, "Overview")
    lose_server(dashboard)

    expect_old(page)
    expect(note_of(page)).to_contain_text("Not connected")
    expect(note_of(page)).to_contain_text(re.compile(r"Next try in \d+(\.0)? s\."))
    expect(ready_of(page, "mail")).to_have_text("1")
    page.clock.run_for(LONG_MS)
    expect_old(page)
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


def test_the_page_comes_back_by_itself(dashboard: Dashboard) -> None:
    """With what has changed meanwhile."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    page = dashboard.open()
    expect_shown(page, "Overview")
    expect(ready_of(page, "mail")).to_have_text("1")
    lose_server(dashboard)
    queue.push("hello")
    with served_again(dashboard):
        page.clock.run_for(LONG_MS)

        expect_of_now(page)
        expect(ready_of(page, "mail")).to_have_text("2")


def test_the_page_comes_back_at_once_when_it_is_told_to(dashboard: Dashboard) -> None:
    """Whoever has just started the server again need not wait."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open("/queues/mail")
    expect_shown(page, "mail")
    lose_server(dashboard)
    # The clock stops, so that no try begins by itself between two steps of this test.
    page.clock.pause_at(page.evaluate("Date.now()") + LONG_MS)

    def waits_long() -> bool:
        page.clock.run_for(EVERY_MS)
        return NOT_SOON.search(note_of(page).inner_text()) is not None

    until(page, waits_long)
    with served_again(dashboard):
        page.get_by_role("button", name="Try now").click()

        expect_of_now(page)


def test_the_button_stays_where_it_is_while_the_seconds_pass(dashboard: Dashboard) -> None:
    """The words beside it change, and a click on it must not miss."""
    page = dashboard.open()
    expect_shown(page, "Overview")
    lose_server(dashboard)
    button = page.get_by_role("button", name="Try now")
    expect(button).to_be_visible()
    places = set()
    words = set()
    for _ in range(30):
        page.clock.run_for(1_000)
        places.add(str(button.bounding_box()))
        words.add(note_of(page).inner_text())

    assert len(words) > 5
    assert len(places) == 1


def test_the_button_keeps_the_focus_while_the_seconds_pass(dashboard: Dashboard) -> None:
    """Each second tells anew when the next try is; whoever is about to press it still can."""
    page = dashboard.open()
    expect_shown(page, "Overview")
    lose_server(dashboard)
    button = page.get_by_role("button", name="Try now")
    button.focus()
    page.clock.run_for(LONG_MS)

    expect(button).to_be_focused()


def test_a_screen_that_could_not_be_shown_is_shown_once_the_server_is_there(
    dashboard: Dashboard,
) -> None:
    """It says what is wrong meanwhile, and not that it loads for ever."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.open()
    expect_shown(page, "Overview")
    lose_server(dashboard)
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Limits").click()
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("cannot be reached")
    with served_again(dashboard):
        page.clock.run_for(LONG_MS)

        expect(page.get_by_role("table", name="Limits of queues")).to_contain_text("mail")
        expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


def test_an_act_while_the_server_is_away_is_not_lost_in_silence(dashboard: Dashboard) -> None:
    """It is told that it was not done, and can be done again from where one was."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    page = dashboard.open("/queues/mail")
    expect_shown(page, "mail")
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause mail?")
    lose_server(dashboard)
    dialog.get_by_role("button", name="Pause", exact=True).click()

    expect(dialog.get_by_role("alert")).to_contain_text("the server cannot be reached")
    assert not queue.stats().paused
    with served_again(dashboard):
        dialog.get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_role("log")).to_contain_text("mail is paused")
        assert queue.stats().paused


# The server is silent ----------------------------------------------------------------------------


def test_a_server_that_says_nothing_more_is_told(dashboard: Dashboard, proxy: Line) -> None:
    """The line is there, so that nothing fails: what is shown is old all the same."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.page
    page.goto(f"{proxy.url}/dash/")
    expect_shown(page, "Overview")
    proxy.freeze()
    page.clock.run_for(10_000)

    expect(status_of(page)).to_have_text("Stale")
    expect_old(page)
    expect(note_of(page)).to_contain_text("No new figures come")
    expect(ready_of(page, "mail")).to_have_text("1")
    proxy.restore()
    expect_of_now(page)


def test_a_line_that_stays_silent_is_given_up_and_another_one_tried(
    dashboard: Dashboard, proxy: Line
) -> None:
    """As after a night with the lid closed: nobody ever says that the old one is over."""
    page = dashboard.page
    page.goto(f"{proxy.url}/dash/")
    expect_shown(page, "Overview")
    proxy.freeze()
    page.clock.run_for(23_000)
    expect(status_of(page)).to_have_text("Disconnected")
    expect_old(page)
    proxy.restore()
    page.clock.run_for(LONG_MS)

    expect_of_now(page)


def test_an_answer_that_breaks_off_is_no_mistake_of_the_page(
    dashboard: Dashboard, proxy: Line
) -> None:
    """It is told like any other answer that did not come, and the next one counts."""
    for number in range(20):
        dashboard.store.topic(f"events-{number}", partitions=1)
    page = dashboard.page
    page.goto(f"{proxy.url}/dash/#/topics")
    expect_shown(page, "Topics")
    page.keyboard.press("p")  # So that nothing but r asks for anything.
    expect(status_of(page)).to_have_text("Paused")
    page.keyboard.press("r")  # A load that began before the pause has been drawn after this one.
    ready(page)
    proxy.cut_at = b"events-5"
    page.keyboard.press("r")

    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_role("table", name="Topics")).to_contain_text("events-19")
    page.keyboard.press("r")
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)


def test_an_answer_of_somebody_else_is_told_as_that(dashboard: Dashboard) -> None:
    """Such as of a proxy that wants whoever passes to sign in first, and says so in HTML."""
    page = dashboard.page
    page.route("**/overview/topics?*", lambda route: route.fulfill(body="<h1>Welcome</h1>"))
    dashboard.open("/topics")

    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text(
        "no answer of this server"
    )
    page.unroute_all()
    page.keyboard.press("r")
    expect(page.get_by_role("main")).to_contain_text("There are no topics yet")


# Nobody looks ------------------------------------------------------------------------------------


def expect_silence(dashboard: Dashboard) -> None:
    """Fail if the page asks for anything, or still listens to the server."""
    page = dashboard.page
    listeners = dashboard.server.app.listeners
    until(page, lambda: listeners._count == 0)
    asked = asked_by(page)
    page.clock.run_for(2 * LONG_MS)
    assert asked == []


@pytest.mark.parametrize("route", ["/", "/queues/mail", "/workers"])
def test_a_page_that_nobody_sees_asks_for_nothing(dashboard: Dashboard, route: str) -> None:
    """Ten forgotten tabs cost the server nothing; each goes on when it is seen again."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    page = dashboard.open(route)
    expect(status_of(page)).to_have_text("Live")
    hide(page, True)
    expect(status_of(page)).to_have_text("Hidden")
    expect_silence(dashboard)
    hide(page, False)

    expect_of_now(page)
    queue.push("hello")
    go(page, "/")
    expect(ready_of(page, "mail")).to_have_text("2")


@pytest.mark.parametrize("how", ["key", "button"])
def test_what_is_shown_can_be_held(dashboard: Dashboard, how: str) -> None:
    """To read it in peace: nothing changes and nothing is asked until it goes on."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    page = dashboard.open()
    expect(ready_of(page, "mail")).to_have_text("1")
    expect(status_of(page)).to_have_text("Live")
    toggle(page, how)
    expect(status_of(page)).to_have_text("Paused")
    queue.push("hello")
    expect_silence(dashboard)

    expect(ready_of(page, "mail")).to_have_text("1")
    toggle(page, how)
    expect_of_now(page)
    expect(ready_of(page, "mail")).to_have_text("2")


def toggle(page: Page, how: str) -> None:
    """Have the page hold still or go on."""
    if how == "key":
        page.keyboard.press("p")
    else:
        status_of(page).get_by_role("button").click()


def test_a_page_that_is_held_shows_what_is_asked_for(dashboard: Dashboard) -> None:
    """By r the figures of now, by a link another screen; and then it is still again."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    page = dashboard.open("/limits")
    expect_shown(page, "Limits and switches")
    page.keyboard.press("p")
    queue.pause()
    page.keyboard.press("r")
    expect(page.get_by_role("table", name="Limits of queues")).to_contain_text("paused")
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()

    expect(status_of(page)).to_have_text("Paused")
    expect_silence(dashboard)


def test_a_page_that_is_held_stays_so_when_it_is_seen_again(dashboard: Dashboard) -> None:
    """Whoever holds it decides when it goes on."""
    page = dashboard.open()
    expect_shown(page, "Overview")
    page.keyboard.press("p")
    hide(page, True)
    hide(page, False)

    expect(status_of(page)).to_have_text("Paused")
    expect_silence(dashboard)
