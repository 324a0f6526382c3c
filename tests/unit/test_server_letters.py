"""Dead letters over HTTP: chosen, brought back, dropped; slowly, if that is asked for."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.stores import portions
from tests.unit.server_support import Place, cut, placed, until

LETTERS = "/api/v1/queues/jobs/dead-letters"


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
