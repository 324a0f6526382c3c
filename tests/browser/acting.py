"""How tests of the dashboard read its tables and press its buttons, and what follows from that."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Locator, Page, Request, expect

from segue.server.audit import Entry, page_of
from segue.stores.file.store import FileStore
from tests.browser.browser_support import Dashboard, until

ACTS_MAX: Final = 1_000
REFUSED: Final = 400
EVERY_MS: Final = 3_000
"""How often screens are loaded anew that do not say otherwise."""
NONE: Final = "\u2013"
"""What is shown where there is nothing to tell: a dash."""


# Looking -----------------------------------------------------------------------------------------


def heading(page: Page, text: str) -> Locator:
    """Return the heading of a screen: once it is there, so is the screen."""
    return page.get_by_role("heading", level=1, name=text)


def card(page: Page, title: str) -> Locator:
    """Return a part of a screen that has a heading of its own."""
    return page.get_by_role("region", name=title, exact=True).filter(
        has=page.get_by_role("heading", name=title)
    )


def table(page: Page, label: str) -> Locator:
    """Return a table."""
    return page.get_by_role("table", name=label, exact=True)


def row(page: Page, label: str, text: str) -> Locator:
    """Return the rows of a table that have a text for themselves somewhere."""
    return table(page, label).get_by_role("row").filter(has=page.get_by_text(text, exact=True))


def rows(page: Page, label: str) -> Locator:
    """Return all rows of a table but its heading."""
    return table(page, label).get_by_role("row").filter(has=page.get_by_role("cell"))


def cell(line: Locator, column: str) -> Locator:
    """Return what a row says in one of its columns."""
    heads = line.first.locator("xpath=ancestor::table[1]").get_by_role("columnheader")
    expect(heads.first).to_be_attached()
    titles = [text.strip(" ↑↓").lower() for text in heads.all_text_contents()]
    return line.get_by_role("cell").nth(titles.index(column.lower()))


def fact(part: Locator | Page, name: str) -> Locator:
    """Return what is said of one thing in a list of facts."""
    page = part if isinstance(part, Page) else part.page
    pair = part.locator("dl > div").filter(has=page.get_by_text(name, exact=True))
    return pair.get_by_role("definition")


def tile(page: Page, label: str) -> Locator:
    """Return one of the large figures at the top of a screen, with its label and its note."""
    return page.locator(".tile").filter(has=page.get_by_text(label, exact=True))


# Acting ------------------------------------------------------------------------------------------


def asked(page: Page, button: str, title: str) -> Locator:
    """Press a button and return the dialog that asks whether it is meant."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog", name=title, exact=True)
    expect(dialog).to_be_visible()
    return dialog


def cancel(dialog: Locator) -> None:
    """Think better of it."""
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(dialog).to_be_hidden()


def expect_told(page: Page, words: str | re.Pattern[str]) -> None:
    """Wait until the page says that something was done."""
    told = page.get_by_role("log", name="What was done")
    expect(told.get_by_text(words, exact=True)).to_be_visible()


def expect_refused(dialog: Locator, words: str) -> None:
    """Wait until a dialog, which stays open, says why something was not done."""
    expect(dialog.get_by_role("alert")).to_contain_text("That did not work")
    expect(dialog.get_by_role("alert")).to_contain_text(words)
    expect(dialog.page.get_by_role("log", name="What was done")).to_be_empty()


@contextmanager
def changing_nothing(page: Page, look: Callable[[], object]) -> Iterator[None]:
    """Fail if what `look` sees is changed in the block, or the page asks for any change."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.method != "GET":
            asked.append(f"{request.method} {request.url}")

    before = look()
    page.on("request", note)
    yield
    page.remove_listener("request", note)
    assert not asked
    assert look() == before


def act(
    dashboard: Dashboard,
    button: str,
    *,
    title: str,
    go: str,
    look: Callable[[], object],
    types: str | None = None,
    fields: Mapping[str, str] | None = None,
    told: str | re.Pattern[str],
    does: str,
) -> Entry:
    """Do something by a button of the page; return what the audit log says of it.

    Whoever thinks better of it has changed nothing that `look` sees. What loses something wants
    the name typed before it can be done. What was done is told, and written down as `does`.
    """
    page = dashboard.page
    with changing_nothing(page, look):
        cancel(asked(page, button, title))
    dialog = asked(page, button, title)
    done = dialog.get_by_role("button", name=go, exact=True)
    field = dialog.get_by_label("to go on")
    if types is None:
        expect(field).to_have_count(0)
    else:
        expect(done).to_be_disabled()
        field.fill(types[:-1])
        expect(done).to_be_disabled()
        field.fill(types)
    for label, value in (fields or {}).items():
        dialog.get_by_label(label).fill(value)
    expect(done).to_be_enabled()
    with changing_nothing(page, look):
        expect(page.get_by_role("log", name="What was done")).to_be_empty()
    done.click()
    expect(dialog).to_be_hidden()
    expect_told(page, told)
    return noted(dashboard, does)


def noted(dashboard: Dashboard, does: str, *, is_refused: bool = False) -> Entry:
    """Return the last act that the audit log tells of, once that is `does`."""
    found: list[Entry] = []

    def is_there() -> bool:
        found[:] = acts_of(dashboard.store)[-1:]
        return bool(found) and f"{found[0].method} {found[0].path}" == does

    until(dashboard.page, is_there)
    assert (found[0].status >= REFUSED, found[0].token) == (is_refused, "anonymous")
    return found[0]


def acts_of(store: FileStore) -> list[Entry]:
    """Return all that the audit log tells of."""
    return page_of(store, limit=ACTS_MAX).entries
