"""Dead letters over HTTP: chosen, brought back, dropped; slowly, if that is asked for."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import pytest

from segue.server.routes import letters as routes
from segue.stores import portions
from tests.unit.server_support import Place, cut, placed, until
from tests.waiting import LIMIT_SECONDS

LETTERS = "/api/v1/queues/jobs/dead-letters"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy finds as much as one that is not."""
    monkeypatch.setattr(routes, "PAGE_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A queue with ten dead letters, of two kinds."""
    with placed(scratch) as place:
        queue = place.store.queue("jobs")
        queue.push_many([b"%d" % number for number in range(10)])
        for number, job in enumerate(queue.lease_many(10)):
            job.bury("no such address" if number % 2 else "no such town")
        yield place


def counts(place: Place) -> tuple[object, object]:
    """Return how many are ready, and how many dead."""
    found = place.count("jobs")
    return found["ready"], found["dead"]


@pytest.mark.parametrize("rate", [None, 1_000])
@pytest.mark.parametrize(
    ("asked", "matched"),
    [
        ({}, 10),
        ({"limit": 3}, 3),
        ({"reason": "town"}, 5),
        ({"cause": "dead", "limit": 7}, 7),
        ({"cause": "expired"}, 0),
        ({"pattern": "no such town"}, 5),
        ({"pattern": "no such town", "reason": "address"}, 0),
        ({"pattern": "no such address", "cause": "dead", "limit": 2}, 2),
        ({"pattern": "no such"}, 0),
    ],
)
def test_letters_are_redriven_by_what_is_known_of_them(
    place: Place, asked: dict[str, object], matched: int, rate: float | None
) -> None:
    """All, or those of a cause or reason, as many as wanted; a dry run only counts them."""
    said = {**asked, "rate": rate}
    dry = place.ask("POST", f"{LETTERS}/redrive", {**said, "dry_run": True}).json
    before = counts(place)
    done = place.ask("POST", f"{LETTERS}/redrive", said).json

    assert dry == {"matched": matched, "redriven": 0, "dry_run": True}
    assert before == (0, 10)
    assert done == {"matched": matched, "redriven": matched, "dry_run": False}
    assert counts(place) == (matched, 10 - matched)


@pytest.mark.parametrize("rate", [0, -1, 1e400])
def test_a_rate_that_makes_no_sense_is_refused(place: Place, rate: float) -> None:
    answer = place.ask("POST", f"{LETTERS}/redrive", {"rate": rate})

    assert answer.status == 400
    assert counts(place) == (0, 10)


def begin_slowly(place: Place, line: socket.socket) -> None:
    """Ask for a redrive that takes for ever, and wait until it has begun."""
    body = b'{"rate": 0.001}'
    line.sendall(place.head("POST", f"{LETTERS}/redrive", f"Content-Length: {len(body)}") + body)
    until(lambda: counts(place) == (1, 9))


def test_a_slow_redrive_ends_when_whoever_asked_for_it_leaves(place: Place) -> None:
    """Ctrl-C stops it: what is back stays back, and the rest is dead as before."""
    line = place.connected()
    begin_slowly(place, line)
    cut(line)
    series = place.app.operations.requests
    until(lambda: any(each.route.endswith("/redrive") for each in series.series))

    assert counts(place) == (1, 9)


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_slow_redrive_that_is_stopped_says_how_far_it_came(place: Place, who: str) -> None:
    """Whoever closed its own half alone hears of it; and it keeps no server from ending."""
    with place.connected() as line:
        begin_slowly(place, line)
        if who == "client":
            line.shutdown(socket.SHUT_WR)
        else:
            place.app.waiting.close()
        answer = line.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'{"matched":1,"redriven":1,"dry_run":false,"stopped":true}')


def test_who_has_said_all_it_has_to_say_is_still_answered(place: Place) -> None:
    """Nothing is waited for, so nobody has to be there meanwhile."""
    with place.connected() as line:
        line.sendall(place.head("POST", f"{LETTERS}/redrive", "Content-Length: 2") + b"{}")
        line.shutdown(socket.SHUT_WR)
        answer = line.recv(65_536)

    assert answer.endswith(b'{"matched":10,"redriven":10,"dry_run":false}')


def test_a_page_of_large_letters_has_few_of_them_and_the_next_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are asked for; one that is too large for any page comes alone."""
    monkeypatch.setattr(portions, "PORTION_BYTES_MAX", 0)
    numbers: list[int] = []
    while True:
        after = numbers[-1] if numbers else -1
        found = place.ask("GET", f"{LETTERS}?limit=1000&after={after}").json["letters"]
        assert isinstance(found, list)
        if not found:
            break
        assert len(found) == 1
        numbers += [letter["number"] for letter in found]

    assert numbers == list(range(10))


# Pages and groups --------------------------------------------------------------------------


def test_as_much_of_each_body_is_told_as_is_asked_for(place: Place) -> None:
    """A list shows the beginnings: a page of large letters need not be sent for that."""
    queue = place.store.queue("jobs")
    queue.push_many(["ä" * 1_000, b"\xff" * 1_000])
    for job in queue.lease_many(2):
        job.bury("large")
    said = place.ask("GET", f"{LETTERS}?after=9&body_bytes=5")

    letters = cast("list[dict[str, dict[str, object]]]", said.json["letters"])
    assert [each["message"].get("body") for each in letters] == ["ää", None]
    assert [each["message"].get("body_base64") for each in letters] == [None, "//////8="]
    for wrong in ("-1", "9000000"):
        assert place.ask("GET", f"{LETTERS}?body_bytes={wrong}").status == 400


def test_a_list_of_messages_tells_how_they_begin_and_where_it_goes_on(place: Place) -> None:
    """Fewer than asked for are the last ones, unless they are large."""
    queue = place.store.queue("mail")
    queue.push_many([b"x" * 2_000_000, *[b"y" * 1_000] * 3])

    def listed(query: str) -> tuple[list[object], object]:
        told = place.ask("GET", f"/api/v1/queues/mail/messages?body_bytes=3&{query}")
        messages = cast("list[dict[str, dict[str, object]]]", told.json["messages"])
        return [each["message"]["body"] for each in messages], told.json.get("next")

    assert listed("limit=2&after=0-0") == (["yyy", "yyy"], "0-2")
    assert listed("limit=9&after=0-0") == (["yyy"] * 3, None)
    assert listed("limit=9") == (["xxx", *["yyy"] * 3], "0-3")
    assert listed("limit=9&after=0-3") == ([], None)


def page(place: Place, **query: str | int) -> tuple[list[int], object]:
    """Return the numbers of a page's letters, and where the next one goes on."""
    said = place.ask("GET", f"{LETTERS}?{urlencode(query)}").json
    letters = cast("list[dict[str, int]]", said["letters"])
    return [letter["number"] for letter in letters], said["next"]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_pages_of_one_pattern_have_its_letters_alone(place: Place, is_known: bool) -> None:
    """Page by page, to the end that is told; whether the groups are known or not."""
    if not is_known:
        place.app.letter_groups.close()
    first, after = page(place, pattern="no such town", limit=3)
    second, end = page(place, pattern="no such town", limit=3, after=cast("int", after))

    assert (first, after) == ([0, 2, 4], 4)
    assert (second, end) == ([6, 8], None)
    assert page(place, pattern="no such town", cause="expired") == ([], None)
    assert page(place, cause="dead", after=7) == ([8, 9], None)


def test_a_page_tells_where_the_next_goes_on(place: Place) -> None:
    """Also of all letters: nothing at the end."""
    assert page(place, limit=4) == ([0, 1, 2, 3], 3)
    assert page(place, limit=4, after=7) == ([8, 9], None)
    assert page(place, after=9) == ([], None)


def test_one_request_looks_at_a_few_letters_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may be empty for that, and the next goes on where it ended."""
    place.app.letter_groups.close()
    monkeypatch.setattr(routes, "LOOKED_AT_MAX", 3)
    queue = place.store.queue("jobs")
    queue.push(b"last")
    queue.lease().bury("found at last")
    pages = [page(place, pattern="found at last")]
    while pages[-1][1] is not None:
        pages.append(page(place, pattern="found at last", after=cast("int", pages[-1][1])))

    assert pages == [([], 2), ([], 5), ([], 8), ([10], None)]


def test_one_request_looks_for_a_moment_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one letter at least; where all fit, as many are shown as were asked for."""
    monkeypatch.setattr(routes, "PAGE_SECONDS", -1.0)

    assert page(place, cause="dead") == ([0], 0)
    assert page(place, limit=4) == ([0, 1, 2, 3], 3)


def test_a_page_of_large_letters_tells_of_the_last_one_that_fits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was left out is the first of the next page."""
    monkeypatch.setattr(portions, "PORTION_BYTES_MAX", 0)
    first = page(place, pattern="no such town")

    assert first == ([0], 0)
    assert page(place, pattern="no such town", after=0) == ([2], 2)


def test_letters_of_one_pattern_are_dropped(place: Place) -> None:
    """With whatever else is said of them; no others."""
    said = {"pattern": "no such address", "cause": "dead", "limit": 3}
    few = place.ask("POST", f"{LETTERS}/discard", said).json
    none = place.ask("POST", f"{LETTERS}/discard", {"pattern": "no such"}).json
    rest = place.ask("POST", f"{LETTERS}/discard", {"pattern": "no such address"}).json

    assert (few, none, rest) == ({"count": 3}, {"count": 0}, {"count": 2})
    assert page(place) == ([0, 2, 4, 6, 8], None)


def test_named_letters_are_dealt_with_once_each(place: Place) -> None:
    """However often they are named; one by another's name is none."""
    names = [{"id": "0-1", "number": 1}, {"id": "0-1", "number": 1}, {"id": "0-9", "number": 3}]
    dry = place.ask("POST", f"{LETTERS}/redrive", {"letters": names, "dry_run": True}).json
    done = place.ask("POST", f"{LETTERS}/redrive", {"letters": names}).json
    dropped = place.ask("POST", f"{LETTERS}/discard", {"letters": [{"id": "0-5", "number": 5}]})

    assert dry == {"matched": 1, "redriven": 0, "dry_run": True}
    assert done == {"matched": 1, "redriven": 1, "dry_run": False}
    assert dropped.json == {"count": 1}
    assert counts(place) == (1, 8)
