"""Clicks that come faster than the screens: each acts on what was shown when it was made."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.acting import row, rows
from tests.browser.browser_support import Dashboard, go, ready, redrawn

_WAITS_UNDRAWN = "new Promise((then) => requestAnimationFrame(() => setTimeout(then)))"
"""Resolves after everything that the page had to do, a frame included."""
_READY = "document.documentElement.matches('[data-ready]')"
_INERT = "document.querySelector('main').inert"


@contextmanager
def unanswered(page: Page) -> Iterator[None]:
    """Hold back the answers to all requests for figures until the block ends."""
    held: list[Route] = []
    is_over = False
    pattern = re.compile(r"/api/v1/(?!overview/live)")

    def hold(route: Route) -> None:
        if is_over:
            route.continue_()
        else:
            held.append(route)

    page.route(pattern, hold)
    yield
    is_over = True
    for route in held:
        route.continue_()
    page.unroute(pattern)


def press(page: Page, target: Locator) -> None:
    """Press the mouse button on an element without releasing it."""
    target.hover()
    page.mouse.down()


def centre(target: Locator) -> tuple[float, float]:
    box = target.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


# Navigation is under way --------------------------------------------------------------------------


def test_range_clicked_at_once_is_the_range_of_the_new_screen(dashboard: Dashboard) -> None:
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    page.evaluate("location.hash = '/queues/mail'")
    page.get_by_role("main").get_by_role("link", name="7 d").click()
    ready(page)

    assert page.url == f"{dashboard.url}/dash/#/queues/mail?range=7d"


def test_old_screen_takes_no_clicks_while_the_next_one_loads(dashboard: Dashboard) -> None:
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    range_link = centre(page.get_by_role("main").get_by_role("link", name="7 d"))
    with unanswered(page):
        row(page, "Queues", "mail").get_by_role("link", name="mail").click()
        page.mouse.click(*range_link)
        assert page.evaluate(_INERT)
    ready(page)

    assert page.url == f"{dashboard.url}/dash/#/queues/mail"
    assert not page.evaluate(_INERT)


def test_old_screen_stays_inert_if_the_next_one_is_filtered_unseen(dashboard: Dashboard) -> None:
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    with unanswered(page):
        page.evaluate("location.hash = '/queues/mail'")
        page.wait_for_function(_INERT)
        page.evaluate("location.hash = '/queues/mail?state=ready'")
        expect(page.get_by_role("main")).to_have_attribute("aria-busy", "true")
        page.evaluate(_WAITS_UNDRAWN)
        assert page.evaluate(_INERT)
    ready(page)

    assert not page.evaluate(_INERT)


def test_link_starts_the_navigation_before_the_next_click(dashboard: Dashboard) -> None:
    """The browser's own hashchange event comes later than a click that waits."""
    page = dashboard.open()
    link = page.get_by_role("navigation", name="Screens").get_by_role("link", name="Topics")
    is_inert, is_ready = link.evaluate(f"link => {{ link.click(); return [{_INERT}, {_READY}]; }}")

    assert (is_inert, is_ready) == (True, False)
    ready(page)
    assert page.url == f"{dashboard.url}/dash/#/topics"


def test_filter_sent_after_the_address_changed_stays_with_its_screen(dashboard: Dashboard) -> None:
    """Changing the address and sending the form in one task leaves no time for the navigation."""
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open()
    page.get_by_label("Name contains").fill("mail")
    page.get_by_role("search").evaluate(
        "form => { location.hash = '/topics'; form.requestSubmit(); }"
    )
    ready(page)

    assert page.url == f"{dashboard.url}/dash/#/?q=mail"


def test_links_drawn_after_the_address_changed_stay_with_their_screen(
    dashboard: Dashboard,
) -> None:
    """A new address without its event is the state between the two."""
    page = dashboard.open()
    with redrawn(page):
        page.evaluate("history.replaceState(null, '', '#/queues/mail')")

    link = page.get_by_role("main").get_by_role("link", name="7 d")
    expect(link).to_have_attribute("href", "#/?range=7d")


def test_another_filter_of_the_same_screen_takes_clicks_while_it_loads(
    dashboard: Dashboard,
) -> None:
    dashboard.store.queue("mail").push(b"x")
    page = dashboard.open("/queues/mail")
    states = page.get_by_role("navigation", name="State of messages")
    with unanswered(page):
        states.get_by_role("link", name="dead").click()
        states.get_by_role("link", name="delayed").click()
    ready(page)

    assert page.url == f"{dashboard.url}/dash/#/queues/mail?state=delayed"


# A redraw under the pointer -----------------------------------------------------------------------


def test_click_hits_the_pressed_row_if_rows_come_meanwhile(dashboard: Dashboard) -> None:
    for name in ("b", "c"):
        dashboard.store.queue(name).push(b"x")
    page = dashboard.open("/limits")
    press(page, page.get_by_role("button", name="Pause b"))
    dashboard.store.queue("a").push(b"x")
    with page.expect_event("requestfinished", lambda request: "/limits" in request.url):
        page.keyboard.press("r")
    page.evaluate(_WAITS_UNDRAWN)
    expect(rows(page, "Limits of queues")).to_have_count(2)
    page.mouse.up()

    expect(page.get_by_role("dialog", name="Pause b?")).to_be_visible()
    ready(page)
    expect(rows(page, "Limits of queues")).to_have_count(3)


def test_click_is_kept_if_its_button_goes_meanwhile(dashboard: Dashboard) -> None:
    """The button was there when it was pressed, so its dialog opens."""
    queue = dashboard.store.queue("mail")
    queue.push(b"x")
    queue.lease().bury("bad")
    page = dashboard.open("/letters/mail")
    press(page, page.get_by_role("button", name="Discard 0-0"))
    queue.discard()
    with page.expect_event("requestfinished", lambda request: "/dead-letters" in request.url):
        page.keyboard.press("r")
    page.evaluate(_WAITS_UNDRAWN)
    page.mouse.up()

    expect(page.get_by_role("dialog")).to_be_visible()
    ready(page)
    expect(page.get_by_role("main")).to_contain_text("There are no dead letters.")


def test_figures_come_again_after_a_press_that_was_no_click(dashboard: Dashboard) -> None:
    """Such as one that ends elsewhere, or that drags a link."""
    page = dashboard.open()
    press(page, page.get_by_role("main").get_by_role("link", name="7 d"))
    page.mouse.move(600, 500, steps=5)
    with redrawn(page):
        page.mouse.up()
    with redrawn(page):
        go(page, "/topics")

    assert page.url == f"{dashboard.url}/dash/#/topics"


_PAINTS_WHILE_PRESSED = """
async () => {
  const main = document.querySelector("script[type=module]").src;
  const { paint } = await import(new URL("pressing.js", main));
  window.drawn = [];
  paint("badge", () => window.drawn.push("before the release"));
  paint("table", () => window.drawn.push("table"));
  addEventListener(
    "pointerup",
    () => paint("badge", () => window.drawn.push("after the release")),
    { once: true },
  );
}
"""


def test_draw_that_waited_does_not_replace_a_newer_one(dashboard: Dashboard) -> None:
    """A click draws at once what it changed; an older draw of the same part is obsolete."""
    page = dashboard.open()
    press(page, page.get_by_role("heading", name="Overview"))
    page.evaluate(_PAINTS_WHILE_PRESSED)
    page.mouse.up()
    page.wait_for_function("window.drawn.includes('table')")

    assert page.evaluate("window.drawn") == ["after the release", "table"]


def test_press_that_takes_the_focus_from_a_field_holds_back_draws(dashboard: Dashboard) -> None:
    page = dashboard.open()
    page.get_by_label("Name contains").focus()
    press(page, page.get_by_role("heading", name="Overview"))
    page.evaluate(_PAINTS_WHILE_PRESSED)
    assert page.evaluate("window.drawn") == []
    page.mouse.up()

    page.wait_for_function("window.drawn.includes('table')")


def test_second_finger_does_not_stop_the_drawing(dashboard: Dashboard) -> None:
    page = dashboard.open()
    press(page, page.get_by_role("heading", name="Overview"))
    page.evaluate(_PAINTS_WHILE_PRESSED)
    page.evaluate("dispatchEvent(new PointerEvent('pointerdown', { isPrimary: false }))")
    page.mouse.up()

    page.wait_for_function("window.drawn.includes('table')")
