"""More queues than there are descriptors for: whoever looks at all of them opens only some."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from segue.server import paging
from segue.server.open_queues import DESCRIPTORS_PER_QUEUE, DESCRIPTORS_SHARE, queues_max
from segue.server.routes.limits import NO_ROOM
from segue.stores.opening import open_directory
from segue.tasks import desk, tally
from tests.unit.server_support import Place, placed
from tests.waiting import LIMIT_SECONDS

ROOM: Final = 3
NAMES: Final = [f"q{number:02d}" for number in range(12)]
OTHER_DESCRIPTORS: Final = 24
"""What the index of tasks, connections and topics take up at most."""


@pytest.fixture
def place(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A server that may open three queues, of a store that has twelve with a task in each."""
    with open_directory(scratch, sync="os") as store:
        for name in NAMES:
            store.queue(name).push(b'{"task": "send"}')
    soft = ROOM * DESCRIPTORS_PER_QUEUE * DESCRIPTORS_SHARE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    monkeypatch.setattr(paging, "PAGE_SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(desk, "PAGE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(tally, "LOOK_SECONDS", LIMIT_SECONDS)
    with placed(scratch) as place:
        yield place


def asked(place: Place, path: str) -> dict[str, Any]:
    """Return what is answered."""
    answer = place.ask("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer.data
    return answer.json


def listed(place: Place, query: str = "") -> list[str]:
    """Return the ids of all tasks that pages of a list have."""
    found: list[str] = []
    page = asked(place, f"tasks?limit=2{query}")
    found += [each["id"] for each in page["tasks"]]
    while page["next"] is not None:
        page = asked(place, f"tasks?limit=2{query}&after={page['next']}")
        found += [each["id"] for each in page["tasks"]]
    return found


def descriptors() -> int:
    """Return how many files are open here."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_all_who_look_at_every_queue_share_one_limit(place: Place) -> None:
    """Whoever comes first: together they open no more queues than there are descriptors for."""
    before = descriptors()
    for _ in range(3):
        for path in ("task-counts", "tasks", "overview/limits", "overview"):
            asked(place, path)
        assert place.ask("GET", "/metrics").status == 200
    after = descriptors()

    assert place.store.queues_open == queues_max() == ROOM
    assert after - before <= ROOM * DESCRIPTORS_PER_QUEUE + OTHER_DESCRIPTORS


def test_rules_of_a_queue_that_there_is_no_room_for_are_said_to_be_unknown(place: Place) -> None:
    """It has a row all the same, which says why."""
    rows = asked(place, "overview/limits")["queues"]

    assert [row["name"] for row in rows] == NAMES
    assert [row["problem"] for row in rows] == [""] * ROOM + [NO_ROOM] * (len(NAMES) - ROOM)


def test_queues_that_there_is_no_room_for_are_told_beside_the_counts(place: Place) -> None:
    """Their tasks are not among those that are counted."""
    said = [asked(place, "task-counts") for _ in range(2)]

    for each in said:
        assert each["states"]["pending"] == ROOM
        assert each["more_queues"] == len(NAMES) - ROOM


def test_a_list_of_tasks_passes_over_queues_that_there_is_no_room_for(place: Place) -> None:
    """One that is asked for by its name is opened, as by whatever else is about it."""
    place.app.queue(NAMES[-1])
    everywhere = listed(place)
    there = listed(place, f"&queue={NAMES[-2]}")

    assert everywhere == [f"{name}/0-0" for name in (*NAMES[: ROOM - 1], NAMES[-1])]
    assert there == [f"{NAMES[-2]}/0-0"]
