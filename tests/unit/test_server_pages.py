"""The dashboard's files as they are served, and a server where nobody may change anything."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from segue.errors import LogReadOnly
from segue.server.access import LOOKING, Guard
from segue.server.page_files import MEDIA_TYPES, PAGES, PageFiles
from segue.server.refusal import Refused
from segue.server.routes import ALL
from segue.server.routing import Reply, Role, Route, Router
from segue.stores.http.problems import error_of
from tests.unit.server_support import Place, messages, new_token, placed
from tests.unit.support import failing_cases

DASH: Final = PAGES / "dash"
LOOKED_AT_BY_POST: Final = {
    "/topics/{topic}/bounds",
    "/topics/{topic}/follow",
    "/topics/{topic}/reads",
    "/topics/{topic}/reads/{session}",
    "/topics/{topic}/bulk/behind",
}
"""What changes nothing though it is no GET: what is asked is too long for a path."""


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    with placed(scratch / "data") as place:
        yield place


# Where it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/dash"])
def test_a_browser_is_led_to_the_dashboard(place: Place, path: str) -> None:
    """By a relative address: this server answers below a path of its own, as behind a proxy."""
    told = place.ask("GET", path)

    assert (told.status, told.headers["location"]) == (302, "dash/")


def test_the_dashboard_may_load_nothing_from_elsewhere(place: Place) -> None:
    """Nor run anything that stands in the page itself."""
    told = place.ask("GET", "/dash/")

    assert (told.status, told.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert told.data == (DASH / "index.html").read_bytes()
    policy = told.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy


def test_every_file_of_the_dashboard_is_served(place: Place) -> None:
    """With a type that browsers accept, who else would guess; and nobody needs a token for it."""

    def check(path: Path) -> None:
        told = place.ask("GET", f"/dash/{path.name}")

        assert told.status == 200
        assert told.headers["content-type"] == MEDIA_TYPES[path.suffix]
        assert told.headers["x-content-type-options"] == "nosniff"
        assert told.data == path.read_bytes()

    assert failing_cases(check, sorted(DASH.iterdir())) == []


@pytest.mark.parametrize(
    "name",
    [
        *("nothing.js", "..", "%2e%2e", "..%2Fdocs.html", "%2E%2E%2Fdocs.html", "../docs.html"),
        *("..%2F__init__.py", "..%5Cdocs.html", "%2Fetc%2Fpasswd", "index.html%00", "%00", "."),
        *("index.html%2F", "INDEX.HTML", "index", "x" * 5_000),
    ],
)
def test_no_name_leads_out_of_the_directory(place: Place, name: str) -> None:
    """What is asked for is looked up, and is never part of a path."""
    told = place.ask("GET", f"/dash/{name}")

    assert (told.status, told.code) == (404, "not_found")


def test_pages_need_no_token(scratch: Path) -> None:
    """They hold nothing, and ask for the token themselves."""
    new_token(scratch / "tokens.json", "read")
    with placed(scratch / "data", tokens=scratch / "tokens.json") as place:
        assert [place.ask("GET", path).status for path in ("/", "/dash/")] == [302, 200]
        assert place.ask("GET", "/api/v1/queues").status == 401


# What browsers keep ------------------------------------------------------------------------------


def test_a_page_that_did_not_change_is_not_sent_again(place: Place) -> None:
    """Browsers ask each time, and get it only if it is another one."""
    first = place.ask("GET", "/dash/")
    etag = first.headers["etag"]
    again = place.ask("GET", "/dash/", If_None_Match=f'"other", W/{etag}')
    other = place.ask("GET", "/dash/", If_None_Match='"other"')

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status, again.data, again.headers["etag"]) == (304, b"", etag)
    assert "content-length" not in again.headers, "it would be taken for that of the page"
    assert (other.status, other.data) == (200, first.data)


def test_the_head_of_a_page_is_that_of_the_page(place: Place) -> None:
    """HEAD is GET without what it is about."""
    got, head = place.ask("GET", "/dash/"), place.ask("HEAD", "/dash/")

    assert (head.status, head.data) == (200, b"")
    assert head.headers == got.headers


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    """Who works on a page sees it without starting the server again."""
    path = tmp_path / "page.js"
    path.write_bytes(b"one")
    pages = PageFiles(tmp_path)
    first = pages.reply("page.js", {})
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    (tmp_path / "more.css").write_bytes(b"new")

    assert first.body == b"one"
    second = pages.reply("page.js", dict([etag_of(first)]))
    assert (second.status, second.body) == (200, b"two")
    assert pages.reply("more.css", {}).body == b"new"


def etag_of(reply: Reply) -> tuple[bytes, bytes]:
    """Return what a browser says that has it."""
    return b"if-none-match", dict(reply.headers)[b"etag"]


def test_only_what_pages_are_made_of_is_served(tmp_path: Path) -> None:
    """Whatever else comes to lie there stays there."""
    for name in ("page.py", ".html", "page.js~", "page"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(Refused):
            PageFiles(tmp_path).reply(name, {})


# The table ---------------------------------------------------------------------------------------


def route(path: str) -> Route:
    return Route(method="GET", path=path, summary="", role=Role.NOBODY, is_absolute=True)


def test_a_slash_at_the_end_matters_only_where_there_is_a_route_for_it() -> None:
    """A page and the address that leads to it differ by it; nothing else does."""
    router = Router((route("/"), route("/a"), route("/a/"), route("/b"), route("/a/{name}")))

    def found(path: str) -> list[str]:
        return [each.path for each in router.find(path)[0].values()]

    assert [found(path) for path in ("/", "/a", "/a/", "/b", "/b/", "/a/c", "/a/c/")] == [
        *(["/"], ["/a"], ["/a/"], ["/b"], ["/b"], ["/a/{name}"], ["/a/{name}"])
    ]


# Nobody changes anything -------------------------------------------------------------------------


def test_a_read_only_server_refuses_every_change() -> None:
    """By the table: a new route is refused unless it only looks."""

    def check(route: Route) -> None:
        guard = Guard(is_read_only=True)
        headers = {b"host": b"127.0.0.1"}
        scope = {"method": route.method, "client": None, "headers": list(headers.items())}
        if route.method == "GET" or route.path in LOOKED_AT_BY_POST:
            assert guard.admit(scope, route, [], headers) is LOOKING
            return

        with pytest.raises(Refused) as caught:
            guard.admit(scope, route, [], headers)

        assert (caught.value.problem.status, caught.value.problem.code) == (403, "read_only")
        assert "--allow-acts" in caught.value.problem.detail

    assert failing_cases(check, ALL) == []


def test_a_read_only_server_shows_and_changes_nothing(scratch: Path) -> None:
    """Whoever asks, and whatever for; and looking is as it is elsewhere."""
    _, admin = new_token(scratch / "tokens.json", "admin")
    with placed(scratch / "data") as place:
        place.push("mail", "hello")
    for tokens in (None, scratch / "tokens.json"):
        with placed(scratch / "data", tokens=tokens, is_read_only=True) as place:
            refused = [
                place.push("mail", Authorization=admin),
                place.ask("POST", "/api/v1/queues/mail/pop", {}, Authorization=admin),
                place.ask("POST", "/api/v1/queues/mail/purge", {}, Authorization=admin),
                place.ask("DELETE", "/api/v1/queues/mail", Authorization=admin),
            ]

            assert {(each.status, each.code) for each in refused} == {(403, "read_only")}
            path = "/api/v1/queues/mail/count"
            assert place.ask("GET", path, Authorization=admin).json["ready"] == 1


def test_programs_are_told_that_nothing_may_be_changed(scratch: Path) -> None:
    """As they are by a log that was opened for reading."""
    with placed(scratch / "data", is_read_only=True) as place:
        told = place.ask("POST", messages("mail"), {"messages": [{"body": "x"}]})

    assert isinstance(error_of(told.data), LogReadOnly)
    assert not list((scratch / "data").glob("queues/*"))


def test_pages_name_only_files_that_are_there() -> None:
    """What a page loads lies beside it, by a relative name."""
    named = re.findall(r"(?:src|href)=\"([^\"#]+)\"", (DASH / "index.html").read_text())

    assert named
    assert [name for name in named if not (DASH / name).is_file()] == []


def test_the_dashboard_lies_in_the_package() -> None:
    """A wheel without it would show nothing."""
    assert '"server/pages/dash/*"' in Path("pyproject.toml").read_text()
    assert all(path.is_file() for path in DASH.iterdir()), "what lies deeper is left out"
