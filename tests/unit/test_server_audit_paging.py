"""What was done, read back in time over HTTP, and what an act is known to have done."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from segue.server.access import AUDIT_TOPIC
from segue.server.audit import Act, Audit
from segue.server.building import build_app
from segue.stores.opening import open_directory
from segue.tasks.scheduling import ScheduleBook, ScheduleState
from tests.http_server import shared_http_server
from tests.unit.server_looks import Json, column, redis_placed, rows
from tests.unit.server_support import Place, placed, until

AUDIT = "/api/v1/audit"


def note(place: Place, count: int) -> None:
    """Have so many acts written down."""
    audit = Audit(place.store)
    for number in range(count):
        audit.note(
            Act(
                time_us=number,
                token="tester",
                token_id="1",
                method="DELETE",
                path=f"/{number}",
                remote="127.0.0.1",
                status=200,
            )
        )
    audit.close()


@pytest.fixture(params=["directory", "redis"])
def place(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Place]:
    """A store with ten acts, of each kind."""
    with placed(scratch) if request.param == "directory" else redis_placed() as place:
        note(place, 10)
        yield place


def page(place: Place, query: str = "") -> tuple[list[object], object, object]:
    """Return which acts a page has, and where those lie that are newer and older."""
    told = place.ask("GET", f"{AUDIT}?{query}")
    return column(rows(told, "entries"), "offset"), told.json["next"], told.json["before"]


def test_the_newest_come_first_and_older_ones_page_by_page(place: Place) -> None:
    """Each page in its order, newest last; the oldest says that it is the oldest."""
    assert page(place, "limit=4") == ([6, 7, 8, 9], 9, 6)
    assert page(place, "limit=4&before=6") == ([2, 3, 4, 5], 5, 2)
    assert page(place, "limit=4&before=2") == ([0, 1], 1, None)
    assert page(place, "limit=4&before=0") == ([], None, None)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("limit=10", ([*range(10)], 9, None)),
        ("limit=9", ([*range(1, 10)], 9, 1)),
        ("limit=2&before=1000", ([8, 9], 9, 8)),
        ("limit=2&before=-5", ([], None, None)),
        ("limit=2&after=3", ([4, 5], 5, 4)),
        ("limit=2&after=-1", ([0, 1], 1, None)),
        ("limit=2&after=9", ([], 9, None)),
    ],
)
def test_pages_begin_and_end_where_acts_do(
    place: Place, query: str, found: tuple[list[object], object, object]
) -> None:
    assert page(place, query) == found


@pytest.mark.parametrize("query", ["after=1&before=5", "limit=0", "limit=1001", "before=x"])
def test_a_page_that_makes_no_sense_is_refused(scratch: Path, query: str) -> None:
    with placed(scratch) as place:
        assert place.ask("GET", f"{AUDIT}?{query}").status == 400


def test_where_nothing_was_done_there_is_nothing_to_page(scratch: Path) -> None:
    """And no topic is made by looking."""
    with placed(scratch) as place:
        assert page(place) == page(place, "before=5") == ([], None, None)
        assert place.store.topics() == []


def test_what_is_no_act_is_passed_over_and_paging_goes_on(scratch: Path) -> None:
    """Whoever may write there may write anything."""
    with placed(scratch) as place:
        note(place, 2)
        topic = place.store.topic(AUDIT_TOPIC)
        for _ in range(3):
            topic.append(b"no act")
        note(place, 1)
        newest = page(place, "limit=2")
        none = page(place, "limit=2&before=4")

    assert newest == ([5], 5, 4)
    assert none == ([], None, 2)


def test_an_act_tells_what_it_did(scratch: Path) -> None:
    """What was answered, if that is short; nothing of what was refused, or answered nothing."""
    server = shared_http_server()
    with open_directory(scratch, sync="os") as store:
        app = build_app(store)
        place = Place(store, app, url := server.add(app))
        store.queue("jobs").push_many([b"x"] * 3)
        place.ask("POST", "/api/v1/queues/jobs/purge")
        place.ask("POST", "/api/v1/queues/jobs/pause")
        place.ask("POST", "/api/v1/topics/none/clean", {"keep_seconds": -1})
        until(lambda: len(page(place)[0]) == 3)
        found = rows(place.ask("GET", AUDIT), "entries")
        server.remove(url)
        app.operations.close()

    purge, pause, refused = found
    assert json.loads(str(purge["did"])) == {"count": 3}
    assert (pause["status"], pause["did"]) == (204, "")
    assert (refused["status"], refused["did"]) == (400, "")


def test_acts_of_before_are_read_as_well(scratch: Path) -> None:
    """They do not say what they did."""
    old: Json = {
        "time_us": 5,
        "token": "tester",
        "token_id": "1",
        "method": "PUT",
        "path": "/x",
        "remote": "",
        "status": 200,
    }
    with placed(scratch) as place:
        place.store.topic(AUDIT_TOPIC, partitions=1).append(json.dumps(old).encode())
        (entry,) = rows(place.ask("GET", AUDIT), "entries")

    assert entry == {**old, "did": "", "offset": 0}


def test_firing_a_schedule_is_written_down_though_producers_may(scratch: Path) -> None:
    """It is a button of the dashboard: whoever presses one is in the log."""
    with open_directory(scratch, sync="os") as store:
        ScheduleBook(store).note(
            ScheduleState(
                name="nightly",
                when="1h",
                task="report",
                queue="mail",
                priority=0,
                args=msgspec.Raw(b"{}"),
                missed="latest",
                last_us=0,
            )
        )
        server = shared_http_server()
        url = server.add(app := build_app(store, has_audit=True))
        place = Place(store, app, url)
        try:
            fired = place.ask("POST", "/api/v1/schedules/nightly/fire")
            until(lambda: bool(rows(place.ask("GET", AUDIT), "entries")))
            paths = column(rows(place.ask("GET", AUDIT), "entries"), "path")
        finally:
            server.remove(url)

    assert fired.status == 200
    assert paths == ["/api/v1/schedules/nightly/fire"]
