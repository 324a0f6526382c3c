"""What one queue, or one large request, costs the others: little."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from segue.server import threads, waiting
from segue.server.health import LATE_SECONDS
from segue.server.routes import messages as routes
from segue.stores.contract import Receipt
from segue.stores.file.queue import FileQueue
from segue.stores.file.store import FileStore
from segue.stores.file.topics.topic import FileTopic
from tests.unit.server_support import (
    Place,
    Told,
    messages,
    placed,
    until,
)
from tests.waiting import LIMIT_SECONDS

MANY = 5
"""More than are dealt with in the loop, in these tests."""


# One that hangs ------------------------------------------------------------------------------


@contextmanager
def hung(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have whatever is acknowledged in one queue take as long as this does."""
    is_over = threading.Event()
    real = FileQueue.ack_many

    def ack_many(queue: FileQueue, receipts: list[Receipt]) -> None:
        if queue.name == name:
            is_over.wait(LIMIT_SECONDS)
        else:
            real(queue, receipts)

    monkeypatch.setattr(FileQueue, "ack_many", ack_many)
    try:
        yield
    finally:
        is_over.set()


def ack(place: Place, queue: str) -> Told:
    """Acknowledge nothing."""
    return place.ask("POST", f"/api/v1/queues/{queue}/ack", {"receipts": []})


@contextmanager
def crowd(
    place: Place, queue: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list["Future[Told]"]]:
    """Have so many ask for a queue that hangs."""
    place.push(queue)
    with ThreadPoolExecutor(count) as callers, hung(queue, monkeypatch):
        asked = [callers.submit(ack, place, queue) for _ in range(count)]
        until(lambda: place.app.threads.pending == count)
        yield asked


def test_no_more_wait_for_a_queue_that_hangs_than_may(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds what it sent: who comes later is told to come again, and nothing is forgotten."""
    monkeypatch.setattr(threads, "THREADS_PER_NAME_MAX", 1)
    monkeypatch.setattr(threads, "PENDING_MAX", 3)
    with placed(scratch, sync="always") as place:
        with crowd(place, "jobs", 3, monkeypatch) as asked:
            refused = ack(place, "jobs")
        answered = [each.result(LIMIT_SECONDS).status for each in asked]
        until(lambda: place.app.threads.pending == 0)
        again = ack(place, "jobs")

    assert (refused.status, refused.code) == (503, "overloaded")
    assert "retry-after" in refused.headers
    assert [*answered, again.status] == [204] * 4


def test_those_who_wait_for_one_queue_shut_nobody_out_of_another(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come for the one that hangs, there is room for others."""
    monkeypatch.setattr(threads, "THREADS_PER_NAME_MAX", 1)
    monkeypatch.setattr(threads, "PENDING_MAX", 4)
    monkeypatch.setattr(threads, "PENDING_PER_NAME_MAX", 3)
    with placed(scratch, sync="always") as place, crowd(place, "jobs", 3, monkeypatch):
        refused = ack(place, "jobs")
        pushed = place.push("mail")

    assert (refused.status, refused.code) == (503, "overloaded")
    assert pushed.status == 200


def test_a_server_at_which_all_wait_for_one_queue_that_hangs_says_so(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though other threads are idle: requests wait, and nothing gets done."""
    monkeypatch.setattr(threads, "THREADS_PER_NAME_MAX", 1)
    monkeypatch.setattr(threads, "LATE_SECONDS", 0.05)
    with placed(scratch, sync="always") as place:
        with crowd(place, "jobs", 2, monkeypatch):
            until(place.app.threads.is_stuck)
            stuck = place.ask("GET", "/live")
        until(lambda: place.app.threads.pending == 0)
        well = place.ask("GET", "/live")

    assert (stuck.status, stuck.json["status"]) == (503, "stuck")
    assert well.status == 200


def test_a_server_with_a_queue_that_hangs_is_well_while_others_are_served(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start it anew would help nobody who gets answers."""
    monkeypatch.setattr(threads, "THREADS_PER_NAME_MAX", 1)
    with placed(scratch, sync="always") as place, crowd(place, "jobs", 2, monkeypatch):
        place.app.threads._last_step -= 2 * LATE_SECONDS
        stuck = place.ask("GET", "/live")
        place.push("mail")
        well = place.ask("GET", "/live")

    assert (stuck.status, well.status) == (503, 200)


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        (FileStore, "queue", "/api/v1/queues/jobs/count"),
        (FileQueue, "history", "/api/v1/queues/jobs/history"),
        (FileTopic, "records", "/api/v1/topics/jobs/records"),
        (FileStore, "queues", "/metrics"),
    ],
    ids=["opening", "lines", "records", "metrics"],
)
def test_whatever_hangs_of_one_thing_leaves_threads_for_the_others(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, kind: type, method: str, path: str
) -> None:
    """More ask than there are threads: opening it, reading it whole, or counting everything."""
    monkeypatch.setattr(threads, "THREADS_PER_NAME_MAX", 2)
    is_over, has_hung = threading.Event(), threading.Event()
    real: Callable[..., object] = getattr(kind, method)

    def hanging(subject: object, *args: object, **named: object) -> object:
        is_meant = getattr(subject, "name", args[0] if args else "jobs") == "jobs"
        if is_meant and threading.current_thread().name.startswith("segue-serve"):
            has_hung.set()
            is_over.wait(LIMIT_SECONDS)
        return real(subject, *args, **named)

    with placed(scratch, sync="always") as place:
        place.store.topic("jobs", partitions=1)
        place.store.queue("jobs").push(b"x")
        place.push("mail")
        monkeypatch.setattr(kind, method, hanging)
        with ThreadPoolExecutor(threads.THREADS_MAX + 2) as callers:
            asked = [callers.submit(place.ask, "GET", path) for _ in range(threads.THREADS_MAX + 2)]
            try:
                assert has_hung.wait(LIMIT_SECONDS)
                until(lambda: place.app.threads.pending == len(asked))
                pushed = place.push("mail")
            finally:
                is_over.set()
            answered = {each.result(LIMIT_SECONDS).status for each in asked}

    assert pushed.status == 200
    assert answered == {200}


# Much at once --------------------------------------------------------------------------------


@pytest.fixture
def place(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A store that is quick, for few messages at once."""
    monkeypatch.setattr(waiting, "QUICK_COUNT_MAX", MANY - 1)
    with placed(scratch) as place:
        yield place


def where(kind: object, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the threads that a function is called in from now on."""
    threads: list[str] = []
    real: Callable[..., object] = getattr(kind, name)

    def noted(*args: object, **named: object) -> object:
        threads.append(threading.current_thread().name)
        return real(*args, **named)

    monkeypatch.setattr(kind, name, noted)
    return threads


@pytest.mark.parametrize(("count", "is_apart"), [(MANY - 1, False), (MANY, True)])
@pytest.mark.parametrize(
    "draft", [{"body": "x"}, {"body": "x", "headers": {"a": "b"}}], ids=["plain", "headed"]
)
def test_a_push_of_many_messages_leaves_the_loop_to_others(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    draft: dict[str, object],
    count: int,
    is_apart: bool,
) -> None:
    """Few are pushed at once, without a thread being asked: that is what makes it quick."""
    threads = where(FileQueue, "push_many", monkeypatch)
    answer = place.ask("POST", messages("jobs"), {"messages": [draft] * count})

    assert answer.status == 200
    assert [thread.startswith("segue-serve") for thread in threads] == [is_apart]
    assert place.count("jobs")["ready"] == count


@pytest.mark.parametrize(("count", "is_apart"), [(MANY - 1, False), (MANY, True)])
def test_taking_and_settling_many_messages_leaves_the_loop_to_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int, is_apart: bool
) -> None:
    """Whoever takes a thousand at a time keeps nobody waiting who takes one."""
    place.store.queue("jobs").push_many([b"x"] * 2 * MANY)
    methods = ("pop_many", "lease_many", "ack_many")
    threads = {name: where(FileQueue, name, monkeypatch) for name in methods}
    telling = {name: where(routes, name, monkeypatch) for name in ("message_json", "job_json")}
    popped = place.ask("POST", "/api/v1/queues/jobs/pop", {"count": count}).json["messages"]
    jobs = place.ask("POST", "/api/v1/queues/jobs/lease", {"count": count}).json["jobs"]
    assert isinstance(popped, list)
    assert isinstance(jobs, list)
    receipts = [job["receipt"] for job in jobs]
    settled = place.ask("POST", "/api/v1/queues/jobs/ack", {"receipts": receipts})

    assert (len(popped), len(jobs), settled.status) == (count, count, 204)
    for name in methods:
        assert [each.startswith("segue-serve") for each in threads[name]] == [is_apart], name
    for name, noted in telling.items():
        assert {each.startswith("segue-serve") for each in noted} == {is_apart}, name


@pytest.mark.parametrize(("count", "is_apart"), [(MANY - 1, False), (MANY, True)])
def test_appending_many_records_leaves_the_loop_to_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int, is_apart: bool
) -> None:
    """As with messages."""
    place.store.topic("orders", partitions=1)
    threads = where(FileTopic, "append_many", monkeypatch)
    body = {"records": [{"value": "x"}] * count}
    places = place.ask("POST", "/api/v1/topics/orders/records", body).json["places"]

    assert isinstance(places, list)
    assert len(places) == count
    assert [thread.startswith("segue-serve") for thread in threads] == [is_apart]


@pytest.mark.parametrize(("size_bytes", "is_in_the_loop"), [(100, True), (1_000, False)])
def test_a_push_of_many_bytes_leaves_the_event_loop_to_others(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, is_in_the_loop: bool
) -> None:
    """However few messages they are in: writing them takes as long."""
    monkeypatch.setattr(waiting, "QUICK_BYTES_MAX", 500)
    names: list[str] = []
    real = FileQueue.push

    def push(queue: FileQueue, *args: object, **kwargs: object) -> object:
        names.append(threading.current_thread().name)
        return real(queue, *args, **kwargs)  # type: ignore[arg-type]

    with placed(scratch) as place:
        place.push("jobs")
        monkeypatch.setattr(FileQueue, "push", push)
        assert place.push("jobs", "x" * size_bytes).status == 200

    assert [name == "shared-server" for name in names] == [is_in_the_loop]
