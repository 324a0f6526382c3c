"""Everybody can use it: by keyboard, on a phone, by ear, in any light and in any time zone."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.resources import files
from itertools import pairwise
from typing import Final, Literal
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.browser_support import LIMIT_MS, Complaints, Dashboard, load, until
from tests.browser.filled import SCREENS, asked_by, expect_shown, fill, show, status_of
from tests.conftest import TORTURE

DESK: Final = (1280, 800)
PHONE: Final = (390, 844)
NARROW: Final = (320, 640)
"""As narrow as a page of 1280 is to whoever has it four times as large."""
GROUPS: Final = (
    ("overview", "queue", "message", "audit"),
    ("all letters", "letters", "letter", "limits"),
    ("tasks", "task", "schedules", "workers"),
    ("topics", "topic", "segments"),
)
LANDMARKS: Final[tuple[Literal["banner", "main", "contentinfo"], ...]] = (
    "banner",
    "main",
    "contentinfo",
)
SCREEN_KEYS: Final = {
    "o": "Overview",
    "d": "Dead letters",
    "t": "Tasks",
    "s": "Schedules",
    "w": "Workers",
    "p": "Topics",
    "m": "Segments",
    "l": "Limits and switches",
    "a": "Audit log",
}
_AXE: Final = files("axe_playwright_python").joinpath("axe.min.js").read_text()
_LOOK: Final = """
async (rules) => {
  const { violations } = await axe.run(document, { runOnly: rules, resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 200)}: ${failureSummary}`));
}
"""
_ALL_RULES: Final = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
_CONTRAST: Final = {"type": "rule", "values": ["color-contrast"]}
_ACTIVE: Final = """
() => {
  const node = document.activeElement;
  const style = getComputedStyle(node);
  return {
    name: node.getAttribute("aria-label") || node.innerText || node.name || "",
    tag: node.tagName,
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
  };
}
"""


def resize(page: Page, size: tuple[int, int]) -> None:
    """Have the window so wide and high."""
    page.set_viewport_size({"width": size[0], "height": size[1]})


def expect_accessible(page: Page, rules: Mapping[str, object] = _ALL_RULES) -> None:
    """Fail if axe finds what keeps somebody out, by the rules of WCAG 2.1 A and AA."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(_AXE)
    assert page.evaluate(_LOOK, rules) == []


def expect_to_fit(page: Page) -> None:
    """Fail if one would have to push the page sideways."""
    content, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert content <= window


def nav_of(page: Page) -> Locator:
    """Return the links to all screens."""
    return page.get_by_role("navigation", name="Screens")


# Rules -------------------------------------------------------------------------------------------


def test_every_screen_is_looked_at() -> None:
    """One that is added is among them, too."""
    assert {screen for screens in GROUPS for screen in screens} == SCREENS.keys()


@pytest.mark.parametrize("screens", GROUPS, ids=" ".join)
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_screen_keeps_anybody_out(
    filled: Dashboard, size: tuple[int, int], screens: tuple[str, ...]
) -> None:
    """Names of fields and buttons, roles, tables, contrast at both sizes.

    The phone's size has the same elements in other places: the short run checks only that they fit.
    """
    resize(filled.page, size)

    for screen in screens:
        filled.page.emulate_media(color_scheme="light")
        page = show(filled, screen)
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        expect_to_fit(page)
        if size == DESK or TORTURE:
            expect_accessible(page)
            page.emulate_media(color_scheme="dark")
            expect_accessible(page, _CONTRAST)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_comes_over_a_screen_keeps_nobody_out_either(
    dashboard: Dashboard, scheme: Literal["light", "dark"]
) -> None:
    """Dialogs with their failures, what was done, the list of keys, and figures that are old."""
    dashboard.complaints.expect("net::ERR_|status of 4")
    fill(dashboard.store)
    page = dashboard.page
    page.emulate_media(color_scheme=scheme)
    dashboard.open(SCREENS["letters"].route)
    page.get_by_role("button", name="Redrive 3…").click()
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 letters would be brought back")
    expect_accessible(page)
    page.get_by_role("button", name="Bring them back").click()
    expect(page.get_by_role("log")).to_contain_text("brought back")
    page.keyboard.press("?")
    expect_accessible(page)
    page.keyboard.press("Escape")
    dashboard.server.stop()
    expect(status_of(page)).to_have_text("Disconnected")
    expect_accessible(page)


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_signing_in_keeps_nobody_out(guarded: Dashboard, size: tuple[int, int]) -> None:
    """Nor does being told that it did not work."""
    guarded.complaints.expect("status of 401")
    resize(guarded.page, size)
    page = guarded.open()
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_role("alert")).to_be_visible()

    expect_accessible(page)
    expect_to_fit(page)


@pytest.mark.parametrize("screens", GROUPS, ids=" ".join)
def test_every_screen_fits_a_narrow_window(filled: Dashboard, screens: tuple[str, ...]) -> None:
    """On the smallest phone, and for whoever needs everything four times as large."""
    resize(filled.page, NARROW)

    for screen in screens:
        expect_to_fit(show(filled, screen))


@pytest.mark.parametrize("screens", GROUPS, ids=" ".join)
def test_every_screen_has_headings_in_order_and_a_title(
    filled: Dashboard, screens: tuple[str, ...]
) -> None:
    """Whoever hears a page goes by its headings: one at the top, and none is left out below."""
    for screen in screens:
        page = show(filled, screen)
        headings = page.get_by_role("heading").all()
        levels = [int(each.evaluate("node => node.tagName.slice(1)")) for each in headings]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        expect(page).to_have_title(re.compile(r".+ · Segue$"))
        for landmark in LANDMARKS:
            expect(page.get_by_role(landmark)).to_have_count(1)


def test_charts_say_what_they_show(filled: Dashboard) -> None:
    """A drawing says nothing to whoever cannot see it."""
    page = filled.visit(SCREENS["queue"].route)
    chart = page.get_by_role("img", name=re.compile("Messages held, by state"))

    expect(chart).to_have_accessible_name(
        "Messages held, by state, last: ready 32, delayed 3, leased 2, dead 3"
    )


# By keyboard -------------------------------------------------------------------------------------


def tabbed(page: Page, count: int) -> list[str]:
    """Press Tab so often, at most, and return what had the focus: it must be seen each time."""
    names: list[str] = []
    for _ in range(count):
        page.keyboard.press("Tab")
        found = page.evaluate(_ACTIVE)
        if found["tag"] == "BODY":
            break  # It was the last one.
        assert found["outline"] >= 1, found
        names.append(found["name"].partition("\n")[0].strip())
    return names


def test_everything_is_reached_by_tab_in_the_order_it_is_seen(dashboard: Dashboard) -> None:
    """From the way past all links to the links of a table, and one always sees where one is."""
    fill(dashboard.store)
    page = dashboard.open()
    expect_shown(page, "Overview")
    expect(page.get_by_role("table", name="Queues")).to_be_visible()
    names = tabbed(page, 60)

    wanted = [
        "Skip to content",
        "Segue",
        "Live",
        "Theme: auto",
        "Overview",
        "Audit log",
        "15 min",
        "mail has 3 dead letters",
        "Dead letters",
        "q",
        "Filter",
        "Queues",
        "Ready",
        "mail",
        "3",
        "mail.paused",
    ]
    place = 0
    for name in wanted:
        assert name in names[place:], (name, names)
        place = names.index(name, place) + 1


@pytest.mark.parametrize("screen", ["queue", "letters", "topic", "limits"])
def test_the_focus_is_seen_wherever_it_is(filled: Dashboard, screen: str) -> None:
    """On every link, field and button of the screen."""
    page = filled.visit(SCREENS[screen].route)
    expect_shown(page, SCREENS[screen].heading)
    main = page.get_by_role("main")
    main.focus()
    count = (
        main.locator("a[href], button:enabled, input, select, summary, [tabindex='0']")
        .locator("visible=true")
        .count()
    )
    names = tabbed(page, min(count, 60))

    assert len(names) > 8
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_the_way_past_the_links_leads_to_the_screen(dashboard: Dashboard) -> None:
    """One key, and the next stop is in what one came for; the address stays."""
    page = dashboard.open("/topics")
    expect_shown(page, "Topics")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
    page.keyboard.press("Enter")

    expect(page.get_by_role("main")).to_be_focused()
    expect(page).to_have_url(re.compile(r"#/topics$"))


def test_another_screen_takes_the_focus_with_it(filled: Dashboard) -> None:
    """So that it is told, and one goes on from its beginning."""
    page = filled.visit()
    expect_shown(page, "Overview")
    nav_of(page).get_by_role("link", name="Topics").press("Enter")

    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_focused()


def test_a_dialog_holds_the_focus_and_gives_it_back(filled: Dashboard) -> None:
    """By keyboard alone: in by Enter, round by Tab, out by Escape to where one was."""
    page = filled.visit(SCREENS["letters"].route)
    expect_shown(page, SCREENS["letters"].heading)
    button = page.get_by_role("button", name="Redrive 3…")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    inside = []
    for _ in range(16):
        inside.append(dialog.evaluate("dialog => dialog.contains(document.activeElement)"))
        outside = page.evaluate("document.activeElement.closest('header, nav, main, footer')")
        assert outside is None
        page.keyboard.press("Tab")
    assert inside[0]
    assert inside.count(True) >= 12
    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    assert filled.store.queue("mail").count().dead == 3


def test_an_act_is_done_by_keyboard_alone(dashboard: Dashboard) -> None:
    """And the focus is where one was, for the next one."""
    fill(dashboard.store)
    page = dashboard.open(SCREENS["limits"].route)
    expect_shown(page, SCREENS["limits"].heading)
    page.get_by_role("button", name="Pause orders", exact=True).press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Pause").press("Enter")

    expect(page.get_by_role("log")).to_contain_text("orders is paused")
    expect(page.get_by_role("button", name="Resume orders")).to_be_focused()
    assert dashboard.store.queue("orders").stats().paused


def test_buttons_keep_the_focus_while_figures_come(guarded: Dashboard) -> None:
    """Each second brings new ones; none of them is a reason to begin again."""
    guarded.complaints.expect("status of 401")
    page = guarded.open()
    page.get_by_label("Token").fill(guarded.tokens["read"])
    page.keyboard.press("Enter")
    expect_shown(page, "Overview")
    queue = guarded.store.queue("mail")
    for button in (page.get_by_role("button", name="Sign out"), status_of(page).locator("button")):
        button.focus()
        queue.push("hello")
        ready = page.locator(".tile").filter(has_text="Ready").first
        expect(ready).to_contain_text(str(queue.count().ready))
        expect(button).to_be_focused()


def test_g_and_a_letter_lead_to_each_screen(filled: Dashboard) -> None:
    """Whoever looks often need not look for a link."""
    page = filled.visit()
    expect_shown(page, "Overview")

    for key, heading in reversed(SCREEN_KEYS.items()):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1, name=heading, exact=True)).to_be_visible()


def test_a_question_mark_tells_all_keys(filled: Dashboard) -> None:
    """Those that lead somewhere and those that do something; and Escape closes it."""
    page = filled.visit()
    expect_shown(page, "Overview")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")

    for key in ("/", "r", "p", "?", *(f"g {letter}" for letter in SCREEN_KEYS)):
        expect(dialog.get_by_text(key, exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_single_keys_can_be_switched_off(dashboard: Dashboard) -> None:
    """Whoever speaks to the browser says many letters. The switch is reached without a key."""
    page = dashboard.open()
    expect_shown(page, "Overview")
    page.get_by_role("button", name="Keys", exact=True).click()
    dialog = page.get_by_role("dialog", name="Keys")
    dialog.get_by_label("Use these keys").uncheck()
    dialog.get_by_role("button", name="Close").click()
    page.keyboard.type("p?gd")

    expect(status_of(page)).to_have_text("Live")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.get_by_role("button", name="Keys", exact=True).click()
    dialog.get_by_label("Use these keys").check()
    dialog.get_by_role("button", name="Close").click()
    page.keyboard.type("gd")
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")


def test_a_slash_leads_to_the_filter_where_keys_are_letters_again(filled: Dashboard) -> None:
    """What is typed there does nothing else."""
    page = filled.visit()
    expect_shown(page, "Overview")
    page.keyboard.press("/")
    field = page.get_by_label("Name contains")
    expect(field).to_be_focused()
    page.keyboard.type("gpr?/")

    expect(field).to_have_value("gpr?/")
    expect(status_of(page)).to_have_text("Live")
    expect(page.get_by_role("dialog")).to_have_count(0)
    field.fill("paused")
    page.keyboard.press("Enter")
    queues = page.get_by_role("table", name="Queues").get_by_role("link")
    expect(queues.filter(has_text="mail.tasks")).to_have_count(0)
    expect(queues.filter(has_text="mail.paused")).to_be_visible()


def test_r_asks_again(dashboard: Dashboard) -> None:
    """At once, and not when it is its turn."""
    page = dashboard.open("/schedules")
    expect_shown(page, "Schedules")
    page.keyboard.press("p")
    expect(status_of(page)).to_have_text("Paused")
    asked = asked_by(page)
    page.keyboard.press("r")

    until(page, lambda: len(asked) == 2)
    assert asked == [f"GET {dashboard.url}/api/v1/{name}" for name in ("overview", "schedules")]


@pytest.mark.parametrize("key", ["Control+p", "Alt+p", "Meta+r"])
def test_keys_of_the_browser_stay_the_browsers(filled: Dashboard, key: str) -> None:
    """Printing is not pausing."""
    page = filled.visit()
    expect_shown(page, "Overview")
    page.keyboard.press(key)

    expect(status_of(page)).to_have_text("Live")


# On a phone --------------------------------------------------------------------------------------


def test_on_a_phone_the_links_are_behind_a_button(filled: Dashboard) -> None:
    """Which says whether they are shown, and is done with once one of them is followed."""
    resize(filled.page, PHONE)
    page = filled.visit()
    expect_shown(page, "Overview")
    menu = page.get_by_role("button", name="Menu")
    expect(nav_of(page)).to_be_hidden()
    expect(menu).to_have_attribute("aria-expanded", "false")
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    expect_accessible(page)
    nav_of(page).get_by_role("link", name="Topics").click()

    expect_shown(page, "Topics")
    expect(nav_of(page)).to_be_hidden()
    expect(menu).to_have_attribute("aria-expanded", "false")


def test_on_a_phone_each_row_says_what_its_cells_are(filled: Dashboard) -> None:
    """There is no room for a heading above them."""
    resize(filled.page, PHONE)
    page = filled.visit("/letters/mail")
    table = page.get_by_role("region", name="Dead letters", exact=True)
    expect(table).to_be_visible()
    cell = table.get_by_text("plain words", exact=True).first.locator("xpath=ancestor::td")

    said = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert said == '"Reason"'


# Themes ------------------------------------------------------------------------------------------


def ground_of(page: Page) -> int:
    """Return how bright the page is, from 0 to 255."""
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) // 3


def test_the_theme_is_that_of_the_system_unless_another_is_chosen(dashboard: Dashboard) -> None:
    """At once when the system's changes, and a choice is kept over reloads."""
    page = dashboard.page
    page.emulate_media(color_scheme="light")
    dashboard.open()
    expect_shown(page, "Overview")
    assert ground_of(page) > 200
    page.emulate_media(color_scheme="dark")
    until(page, lambda: ground_of(page) < 50)
    button = page.get_by_role("button", name="Theme:")
    expect(button).to_have_text("Theme: auto")
    button.click()
    expect(button).to_have_text("Theme: light")
    until(page, lambda: ground_of(page) > 200)
    page.reload()
    expect(button).to_have_text("Theme: light")
    assert ground_of(page) > 200
    button.click()
    expect(button).to_have_text("Theme: dark")
    page.emulate_media(color_scheme="light")
    assert ground_of(page) < 50
    button.click()

    expect(button).to_have_text("Theme: auto")
    until(page, lambda: ground_of(page) > 200)


def test_nothing_moves_for_those_who_want_nothing_to_move(dashboard: Dashboard) -> None:
    """What fades for others is just there."""
    page = dashboard.open()
    expect_shown(page, "Overview")
    look = """() => {
      const main = document.querySelector("main");
      main.setAttribute("aria-busy", "true");
      return getComputedStyle(main).transitionDuration;
    }"""
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(look) != "0s"
    page.emulate_media(reduced_motion="reduce")

    assert page.evaluate(look) == "0s"


# Times -------------------------------------------------------------------------------------------


@pytest.fixture
def in_tokyo(browser: Browser, complaints: Complaints) -> Iterator[Page]:
    """A page of somebody who is nine hours ahead."""
    context = browser.new_context(locale="en-US", timezone_id="Asia/Tokyo")
    context.set_default_timeout(LIMIT_MS)
    complaints.listen(context)
    yield context.new_page()
    context.close()
    complaints.check()


def test_times_are_those_of_whoever_looks(
    dashboard: Dashboard, in_tokyo: Page, complaints: Complaints
) -> None:
    """Wherever the server is; and the page says which zone it means."""
    queue = dashboard.store.queue("mail")
    queue.push("hello")
    pushed_us = queue.peek()[0].pushed_us
    there = datetime.fromtimestamp(pushed_us / 1_000_000, ZoneInfo("Asia/Tokyo"))
    load(in_tokyo, f"{dashboard.url}/dash/#/queues/mail/messages/0-0")
    expect_shown(in_tokyo, "0-0 ready")

    timeline = in_tokyo.get_by_role("region", name="Timeline")
    time = timeline.get_by_role("time").first
    expect(time).to_have_text(re.compile(f"{there:%H:%M:%S}$"))
    expect(time).to_have_attribute(
        "title", f"{there:%b} {there.day}, {there:%Y, %H:%M:%S} (Asia/Tokyo)"
    )
    expect(in_tokyo.get_by_role("contentinfo")).to_contain_text("times in Asia/Tokyo")
    in_tokyo.close()  # Before the server ends.
