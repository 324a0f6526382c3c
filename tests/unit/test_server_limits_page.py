"""What every queue is allowed over HTTP, a page at a time."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from segue import QueueRules
from segue.log.layout import _HEADER
from segue.server import paging
from tests.unit.server_looks import column, redis_placed, rows
from tests.unit.server_support import Place, new_token, placed
from tests.unit.support import SECOND_HEADER, segment_path
from tests.waiting import LIMIT_SECONDS

LIMITS = "/api/v1/overview/limits"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that have all the time there is, on however slow a machine."""
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", LIMIT_SECONDS)


@pytest.fixture(params=["directory", "redis"])
def place(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Place]:
    """A store behind a server, of each kind."""
    with placed(scratch) if request.param == "directory" else redis_placed() as place:
        yield place


def test_rules_are_told_and_how_much_of_them_is_used_up(place: Place) -> None:
    """Dead letters do not count for the capacity, what is leased or delayed does."""
    full = place.store.queue("full", QueueRules(capacity=10, max_leases=3, rate=5, rate_burst=5))
    full.push_many([b"x"] * 4)
    full.push(b"later", delay=600)
    full.lease(ttl=600)
    full.lease(ttl=600).bury("bad")
    place.store.queue("plain").push(b"x")
    place.store.queue("plain").pause()
    told = rows(place.ask("GET", LIMITS), "queues")
    rules = [row["rules"] for row in told]

    assert column(told, "name") == ["full", "plain"]
    assert column(told, "leased") == [1, 0]
    assert column(told, "capacity_used") == [0.4, None]
    assert column(told, "paused") == [False, True]
    assert column(told, "problem") == ["", ""]
    for name, row in zip(("full", "plain"), rules, strict=True):
        assert row == place.ask("GET", f"/api/v1/queues/{name}/rules").json


def test_queues_are_paged_by_name(place: Place) -> None:
    """Each once, in their order, and the last page says that it is the last."""
    names = [f"queue-{number}" for number in range(5)]
    for name in reversed(names):
        place.store.queue(name).push(b"x")
    seen: list[object] = []
    after: object = ""
    while after is not None:
        told = place.ask("GET", f"{LIMITS}?limit=2&after={after}")
        seen += column(rows(told, "queues"), "name")
        after = told.json["next"]

    assert seen == names
    assert place.ask("GET", f"{LIMITS}?after=queue-2z").json["next"] is None


def test_a_page_ends_when_it_has_taken_too_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a queue takes a moment; there may be thousands."""
    for name in ("a", "b"):
        place.store.queue(name).push(b"x")
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", 0.0)
    told = place.ask("GET", LIMITS)

    assert (column(rows(told, "queues"), "name"), told.json["next"]) == (["a"], "a")


def test_an_empty_store_has_no_queues_and_looking_makes_none(place: Place) -> None:
    assert place.ask("GET", LIMITS).json == {"queues": [], "next": None}
    assert place.store.queues() == []


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "before=a"])
def test_a_page_that_makes_no_sense_is_refused(scratch: Path, query: str) -> None:
    with placed(scratch) as place:
        assert place.ask("GET", f"{LIMITS}?{query}").status == 400


def test_tokens_see_the_queues_they_are_for(scratch: Path) -> None:
    tokens = scratch / "tokens"
    _, reader = new_token(tokens, "read", names=("jobs-*",))
    with placed(scratch / "store", tokens=tokens) as place:
        for name in ("jobs-1", "others", "jobs-2"):
            place.store.queue(name).push(b"x")
        told = rows(place.ask("GET", LIMITS, authorization=reader), "queues")

    assert column(told, "name") == ["jobs-1", "jobs-2"]


def test_a_damaged_queue_is_told_with_its_problem_and_the_others_go_on(scratch: Path) -> None:
    """Here one whose ledger is of a later version, which nobody dares to open."""
    with placed(scratch) as place:
        for name in ("a", "b", "c"):
            place.store.queue(name).push(b"x")
    path = segment_path(scratch / "queues/b/ledger", 0)
    data = bytearray(path.read_bytes())
    for start in (0, SECOND_HEADER):
        data[start + 8] = 99
        end = start + _HEADER.size
        data[end : end + 4] = crc32(data[start:end]).to_bytes(4, "little")
    path.write_bytes(data)
    with placed(scratch) as place:
        told = rows(place.ask("GET", LIMITS), "queues")

    assert column(told, "name") == ["a", "b", "c"]
    assert [bool(row["problem"]) for row in told] == [False, True, False]
    assert str(scratch) not in str(told[1]["problem"])


def test_a_queue_that_another_process_removed_is_left_out(scratch: Path) -> None:
    """And is there again once it was made anew."""
    with placed(scratch) as place, placed(scratch) as other:
        for name in ("a", "b"):
            place.store.queue(name).push(b"x")
        before = column(rows(place.ask("GET", LIMITS), "queues"), "name")
        other.store.remove_queue("a")
        removed = column(rows(place.ask("GET", LIMITS), "queues"), "name")
        other.store.queue("a").push(b"y")
        place.ask("GET", LIMITS)
        after = column(rows(place.ask("GET", LIMITS), "queues"), "name")

    assert (before, removed, after) == (["a", "b"], ["b"], ["a", "b"])
