"""The dashboard as a page: it comes, from here alone, and nothing in it is out of order."""

import re

import pytest
from playwright.sync_api import Error, expect

from tests.browser.browser_support import Complaints, Dashboard, browser_program, until
from tests.browser.conftest import Launcher


def test_the_address_of_a_server_shows_the_dashboard(dashboard: Dashboard) -> None:
    """Whoever types in the URL that `segue serve` prints gets there."""
    dashboard.store.queue("mail").push(b"hello")
    page = dashboard.page
    page.goto(dashboard.url)

    expect(page).to_have_url(re.compile(re.escape(f"{dashboard.url}/dash/")))
    expect(page).to_have_title(re.compile("Segue"))


def test_a_store_that_is_only_shown_is_shown(read_only: Dashboard) -> None:
    """Nothing that the page asks for is refused, then."""
    read_only.store.queue("mail").push(b"hello")

    expect(read_only.open().get_by_text("mail").first).to_be_visible()


def test_who_has_no_token_sees_nothing_of_the_store(guarded: Dashboard) -> None:
    """The page comes to everybody; what it shows does not."""
    guarded.complaints.expect("status of 401")
    guarded.store.queue("mail").push(b"hello")
    page = guarded.page
    with page.expect_response(lambda answer: answer.status == 401):
        guarded.open()

    expect(page).to_have_title(re.compile("Segue"))
    expect(page.get_by_text("mail")).to_have_count(0)


def test_the_description_is_a_page_in_order(dashboard: Dashboard) -> None:
    """It, too, loads nothing from elsewhere and complains of nothing."""
    page = dashboard.page
    page.goto(f"{dashboard.url}/docs")

    expect(page.get_by_text("/api/v1/queues", exact=True).first).to_be_visible()


# The watch itself --------------------------------------------------------------------------------

_BAD = {
    "console: oh no": "console.error('oh no')",
    "uncaught: .*oh no": "setTimeout(() => { throw new Error('oh no') })",
    "policy: style-src-attr": "document.body.setAttribute('style', 'color: red')",
    "policy: script-src-elem": "document.body.append(Object.assign("
    "document.createElement('script'), {textContent: '1'}))",
    "policy: connect-src": "fetch('http://127.0.0.2:9/').catch(() => 0)",
    "elsewhere: GET http://127.0.0.2:9/": "location.href = 'http://127.0.0.2:9/'",
    "answer: 503": "fetch('/ready').catch(() => 0)",
}


@pytest.mark.parametrize("complaint", _BAD)
def test_a_page_that_misbehaves_fails_its_test(
    dashboard: Dashboard, complaints: Complaints, complaint: str
) -> None:
    """Else all other tests here would pass whatever is wrong."""
    page = dashboard.page
    page.goto(f"{dashboard.url}/docs")
    complaints.check()
    dashboard.server.app.operations.is_ending = True  # For the one that wants a 503.
    page.evaluate(_BAD[complaint])
    until(page, lambda: any(map(re.compile(complaint).search, complaints.found)))

    with pytest.raises(AssertionError, match=complaint):
        complaints.check()
    complaints.expect(".")


def test_browser_that_crashed_is_launched_again(launcher: Launcher) -> None:
    """The test that lost its browser fails; the next one has another."""
    own = Launcher(launcher.chromium)
    crashed = own.browser()
    with pytest.raises(Error):
        crashed.new_browser_cdp_session().send("Browser.crash")

    assert own.browser() is not crashed
    assert own.browser().is_connected()
    own.browser().close()


@pytest.mark.parametrize("is_ci", [False, True])
def test_a_missing_browser_skips_on_a_laptop_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, is_ci: bool
) -> None:
    """What is skipped in CI is not tested anywhere."""
    monkeypatch.setenv("SEGUE_BROWSER", "/nowhere/chromium")
    monkeypatch.setenv("CI", "1" if is_ci else "")

    with pytest.raises(AssertionError if is_ci else pytest.skip.Exception, match="no browser"):
        browser_program()
