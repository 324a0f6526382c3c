"""Tasks over HTTP: lists by page, counts, and what happened to one."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from segue.server import task_desk
from segue.stores.file.store import FileStore
from segue.tasks import App, desk, tally
from segue.tasks import index as index_module
from segue.tasks.events import EventLog, Happening, TaskEvent
from segue.testing.clock import START_US
from tests.contract.task_support import work
from tests.unit.server_support import Place, new_token, placed, until

TASKS, COUNTS = "/api/v1/tasks", "/api/v1/task-counts"
NOTHING = {
    "pending": 0,
    "scheduled": 0,
    "processing": 0,
    "retrying": 0,
    "completed": 0,
    "dead_letter": 0,
    "cancelled": 0,
}
FOR_EVER_US = 1 << 60


@pytest.fixture(autouse=True)
def _with_all_the_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages end for what they hold, however busy the machine is."""
    monkeypatch.setattr(desk, "PAGE_SECONDS", 3_600.0)
    monkeypatch.setattr(tally, "LOOK_SECONDS", 3_600.0)


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A server without any tasks yet."""
    with placed(scratch / "data", tokens=scratch / "tokens.json") as place:
        yield place


def note(store: FileStore, numbers: range, happened: Happening, *, queue: str = "mail") -> None:
    """Have something happen to tasks whose messages nobody has."""
    log = EventLog(store)
    log.prepare(3_600)
    log.append(
        TaskEvent(
            id=f"{queue}/2-{number}",
            happened=happened,
            at_us=START_US + number,
            task="send",
            attempt=1,
            worker="host:7",
            error="" if happened == "completed" else "OSError: busy",
            expires_us=FOR_EVER_US,
        )
        for number in numbers
    )


def listed(place: Place, query: str, **headers: str) -> list[list[str]]:
    """Return the ids of all pages of a list."""
    found: list[list[str]] = []
    after = ""
    for _ in range(1_000):
        said = place.ask("GET", f"{TASKS}?{query}{after}", **headers).json
        tasks, following = said["tasks"], said["next"]
        assert isinstance(tasks, list)
        found.append([task["id"] for task in tasks])
        if following is None:
            return found
        after = f"&after={quote(str(following))}"
    raise AssertionError("a list without an end")


def test_a_list_goes_on_where_the_page_before_says(place: Place) -> None:
    """Those that wait first, then the finished, the latest first; each of them once."""
    note(place.store, range(25), "completed")
    place.store.queue("mail").push_many([b'{"task": "send"}'] * 3)

    assert listed(place, "limit=10") == [
        *([f"mail/0-{number}" for number in range(3)] + [f"mail/2-{24 - n}" for n in range(7)],),
        [f"mail/2-{17 - number}" for number in range(10)],
        [f"mail/2-{7 - number}" for number in range(8)],
    ]
    assert [len(page) for page in listed(place, "state=completed&limit=10")] == [10, 10, 5]
    assert listed(place, "state=pending&limit=2") == [["mail/0-0", "mail/0-1"], ["mail/0-2"]]
    assert listed(place, "state=dead_letter") == [[]]


@pytest.mark.parametrize("after", ["", "nonsense", "WyJyZWFkeSIsICJxIiwgIm5vIGlkIl0", "%C3%A4"])
def test_a_place_that_nobody_was_given_is_refused(place: Place, after: str) -> None:
    """As any argument that makes no sense."""
    told = place.ask("GET", f"{TASKS}?after={after}")

    assert (told.status, told.code) == (400, "invalid_argument")


def test_tasks_are_counted_by_state_and_by_name(place: Place) -> None:
    """Finished ones by events, all others by their queues."""
    note(place.store, range(25), "completed")
    note(place.store, range(25, 28), "retrying")
    queue = place.store.queue("mail")
    queue.push_many([b'{"task": "send"}'] * 5)
    queue.lease().fail("again", delay=60)
    queue.lease().bury("no more")
    queue.lease()
    place.store.queue("plain").push(b"no task")

    assert place.ask("GET", COUNTS).json == {
        "states": NOTHING
        | {"pending": 2, "retrying": 1, "processing": 1, "completed": 25, "dead_letter": 1},
        "tasks": [{"task": "send", "states": {"completed": 25, "retrying": 3}}],
        "behind": 0,
        "more_queues": 0,
    }


def test_a_token_for_some_queues_is_told_of_these_alone(place: Place, scratch: Path) -> None:
    """In lists and in counts, of what waits and of what is finished."""
    for name in ("mail", "secret"):
        note(place.store, range(3), "completed", queue=name)
        place.store.queue(name).push(b'{"task": "send"}')
    _, said = new_token(scratch / "tokens.json", "read", names=("ma*",))
    until(lambda: place.ask("GET", TASKS).status == 401)
    found = place.ask("GET", COUNTS, Authorization=said).json

    assert listed(place, "limit=3", Authorization=said) == [
        ["mail/0-0", "mail/2-2", "mail/2-1"],
        ["mail/2-0"],
    ]
    assert found["states"] == NOTHING | {"pending": 1, "completed": 3}
    assert found["tasks"] == [{"task": "send", "states": {"completed": 3}}]
    for path in (f"{TASKS}?queue=secret", f"{TASKS}/secret/2-0/events"):
        assert place.ask("GET", path, Authorization=said).code == "access_denied"


def test_what_happened_to_a_task_is_told_in_its_order(place: Place) -> None:
    """And whether that is all."""
    note(place.store, range(1), "retrying")
    note(place.store, range(1), "completed")
    waiting = place.store.queue("mail").push(b'{"task": "send"}')
    found = place.ask("GET", f"{TASKS}/mail/2-0/events").json
    events = found["events"]
    assert isinstance(events, list)

    assert events[0] == {
        "at_us": START_US,
        "happened": "retrying",
        "attempt": 1,
        "worker": "host:7",
        "error": "OSError: busy",
        "traceback": "",
        "due_us": None,
        "progress": None,
    }
    assert [event["happened"] for event in events] == ["retrying", "completed"]
    assert found["is_whole"] is True
    assert place.ask("GET", f"{TASKS}/mail/{waiting}/events").json == {
        "events": [],
        "is_whole": True,
    }
    assert place.ask("GET", f"{TASKS}/mail/2-77/events").code == "task_not_found"
    assert place.ask("GET", f"{TASKS}/nowhere/2-77/events").code == "task_not_found"


def test_a_dead_task_is_brought_back_over_http(place: Place) -> None:
    """With the time of its death from its event, or without."""
    with App(place.store.url, sync="os") as app:

        @app.task(retries=0)
        def bad() -> None:
            raise ValueError("no")

        dead = bad.enqueue()
        work(app)
    by_hand = place.store.queue("default").push(b'{"task": "bad"}')
    place.store.queue("default").lease().bury("by hand")

    for task_id in (dead.id, f"default/{by_hand}"):
        assert place.ask("POST", f"{TASKS}/{task_id}/retry").json == {"retried": True}
        assert place.ask("POST", f"{TASKS}/{task_id}/retry").json == {"retried": False}
        assert place.ask("GET", f"{TASKS}/{task_id}").json["state"] == "retrying"


def test_a_server_answers_before_it_has_taken_in_all_events(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may come with millions of them: the answers say how many are left."""
    monkeypatch.setattr(task_desk, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(index_module, "BATCH_EVENTS_IMPATIENT", 10)
    note(place.store, range(5_000), "completed")
    first = place.ask("GET", f"{TASKS}?limit=1").json

    assert first["behind"] == 4_990
    until(lambda: place.ask("GET", COUNTS).json["behind"] == 0)
    assert place.ask("GET", COUNTS).json["states"] == NOTHING | {"completed": 5_000}


def test_looking_for_tasks_makes_nothing(place: Place, scratch: Path) -> None:
    """Neither in an empty store, nor for a queue that is not there."""
    before = sorted((scratch / "data").rglob("*"))

    assert listed(place, "") == listed(place, "queue=nowhere") == [[]]
    assert place.ask("GET", COUNTS).json["states"] == NOTHING
    assert place.ask("GET", f"{TASKS}/nowhere/2-0/events").status == 404
    assert sorted((scratch / "data").rglob("*")) == before


def test_a_queue_that_is_gone_or_damaged_does_not_hide_the_others(
    place: Place, scratch: Path
) -> None:
    """What is known of its finished tasks stays."""
    for name in ("a", "b", "c"):
        place.store.queue(name).push(b'{"task": "send"}')
    note(place.store, range(1), "completed", queue="a")
    place.store.remove_queue("a")
    place.store.let_go_of_queue("b")
    for path in (scratch / "data" / "queues" / "b").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
            path.write_bytes(b"no directory")

    assert listed(place, "") == [["c/0-0", "a/2-0"]]
    assert place.ask("GET", COUNTS).json["states"] == NOTHING | {"pending": 1, "completed": 1}
