"""What is told to whom: mistakes as mistakes, nothing of the machine, nothing of other queues."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from segue.errors import StorageError
from segue.stores.file.queue import FileQueue
from segue.tasks.scheduling import ScheduleBook, ScheduleState
from tests.unit.server_support import Place, new_token, placed

MANY = "9" * 5_000
"""More digits than Python makes a number of."""


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server, with a topic and a queue."""
    with placed(scratch) as place:
        place.store.topic("orders", partitions=1).append(b"1")
        place.store.queue("jobs").push(b"{}")
        yield place


# Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"/topics/orders/records?start={MANY}",
        f"/topics/orders/records?start=0:{MANY}",
        f"/topics/orders/records?start={MANY}:0",
        f"/topics/orders/records?start=time_us:{MANY}",
        f"/topics/orders/records?stop={MANY}",
        f"/topics/orders/records?partitions={MANY}",
        f"/topics/orders/records?max_records={MANY}",
        f"/topics/orders/segments/{MANY}/0",
        f"/topics/orders/segments/0/{MANY}",
        f"/topics/orders/bulk/columns?number={MANY}&start=0&stop=1",
        f"/queues/jobs/bulk/columns?number={MANY}&start=0&stop=1",
        f"/queues/jobs/history?start={MANY}",
        f"/queues/jobs/peek?count={MANY}",
    ],
    ids=lambda path: path.replace(MANY, "N"),
)
def test_a_number_of_many_digits_is_a_mistake_of_who_says_it(place: Place, path: str) -> None:
    """No failure of the server, and none that it has to look into."""
    answer = place.ask("GET", f"/api/v1{path}")

    assert (answer.status, answer.code) == (400, "invalid_argument")


@pytest.mark.parametrize("limit", [1 << 63, 1 << 64, int("9" * 400)])
def test_a_limit_beyond_all_there_is_is_no_failure(place: Place, limit: int) -> None:
    """It is refused, or there are just not so many."""
    body = b'{"limit":%d}' % limit
    answer = place.ask("POST", "/api/v1/queues/jobs/dead-letters/discard", body)

    assert answer.status in (200, 400)


# Paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1.0/actors/PushPopActor/jobs/method/Pop", "/api/v1/queues/jobs/pop"]
)
def test_no_problem_tells_where_the_store_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """In whosever words it is told: who asks needs to know that it failed, and the log says how."""
    root = str(place.store.place.root)

    def fail(*_: object, **__: object) -> None:
        raise StorageError(f"reading {root}/queues/jobs: Input/output error")

    for name in ("pop", "pop_many"):
        monkeypatch.setattr(FileQueue, name, fail)
    answer = place.ask("POST", path, {})

    assert answer.status >= 500
    assert b"Input/output error" in answer.data
    assert root.encode() not in answer.data


# Schedules -----------------------------------------------------------------------------------


def noted(place: Place, name: str, queue: str, *, when: str = "1h") -> None:
    """Have a worker meet a schedule."""
    state = ScheduleState(
        name=name,
        when=when,
        task="send",
        queue=queue,
        priority=0,
        args=msgspec.Raw(b"null"),
        missed="latest",
        last_us=time.time_ns() // 1_000,
    )
    ScheduleBook(place.store).note(state)


def test_who_is_for_some_queues_removes_no_schedule_of_others(scratch: Path) -> None:
    """What a schedule is called says nothing: it belongs to the queue that it pushes to."""
    tokens = scratch / "tokens.json"
    _, mail = new_token(tokens, "admin", names=("mail.*",))
    _, everything = new_token(tokens, "admin")
    with placed(scratch / "data", tokens=tokens) as place:
        noted(place, "mail.x", "billing")
        noted(place, "mail.y", "mail.out")
        removed = [
            place.ask("DELETE", f"/api/v1/schedules/{name}", authorization=mail)
            for name in ("mail.x", "mail.y")
        ]
        left = [state.name for state in ScheduleBook(place.store).states().values()]
        last = place.ask("DELETE", "/api/v1/schedules/mail.x", authorization=everything)

    assert [answer.status for answer in removed] == [404, 200]
    assert left == ["mail.x"]
    assert last.json == {"removed": True}


def test_who_is_for_some_queues_has_their_schedules_whatever_they_are_called(
    scratch: Path,
) -> None:
    """Patterns are for queues: a schedule called otherwise is fired and removed by who has its."""
    tokens = scratch / "tokens.json"
    _, mail = new_token(tokens, "admin", names=("mail.*",))
    with placed(scratch / "data", tokens=tokens) as place:
        noted(place, "nightly", "mail.out")
        noted(place, "shared", "mail.out")
        noted(place, "shared", "billing", when="2h")
        fired = place.ask("POST", "/api/v1/schedules/nightly/fire", authorization=mail)
        removed = [
            place.ask("DELETE", f"/api/v1/schedules/{name}", authorization=mail)
            for name in ("nightly", "shared")
        ]
        left = [state.name for state in ScheduleBook(place.store).states().values()]

    assert fired.status == 200
    assert [answer.status for answer in removed] == [200, 403]
    assert left == ["shared", "shared"]
