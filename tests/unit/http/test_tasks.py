"""Tasks, schedules and workers over HTTP, without any code of theirs on the server."""

import http.client
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pytest

import segue
from segue.clock import system_clock
from segue.server.access import Grant
from segue.server.app import App as ServerApp
from segue.server.routes import ALL
from segue.server.routing import Role, Router
from segue.server.serving import ServerThread
from segue.server.task_desk import ExtraMissing
from segue.tasks import App, Worker
from segue.tasks.scheduling import Scheduler
from segue.tasks.worker.reports import WorkerReport, prepare_reports, send_report
from tests.contract.task_support import AT_ONCE, work, working
from tests.waiting import LIMIT_SECONDS

Json = dict[str, object]


@dataclass
class Place:
    """A directory, an App whose workers run on it, and a server before it."""

    app: App
    server: ServerThread

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Json]:
        """Return the status and what was answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, f"/api/v1{path}", data, dict(headers or {}))
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        return response.status, cast("Json", json.loads(text)) if text else {}

    def get(self, path: str) -> Json:
        """Return what is there. It must be."""
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def enqueue(self, body: Mapping[str, object], queue: str = "default") -> str:
        """Queue a call and return its id."""
        status, answer = self.ask("POST", f"/tasks/{queue}", body)
        assert status == 200, answer
        return str(answer["id"])


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    path = scratch / "data"
    with segue.open(path, sync="os") as store, App(path, sync="os", backoff=AT_ONCE) as app:

        @app.task
        def add(left: int, right: int = 2) -> int:
            return left + right

        @app.task(retries=0)
        def fail(word: str) -> None:
            raise ValueError(word)

        with ServerThread(ServerApp(store, Router(ALL))) as server:
            yield Place(app, server)


# Queueing and results --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [{"args": [1, 4]}, {"args": {"left": 1, "right": 4}}, {"kwargs": {"left": 3}}]
)
def test_a_call_is_queued_without_its_code(place: Place, call: Json) -> None:
    """By position or by name, as JSON that the server does not read."""
    task_id = place.enqueue({"task": "add", **call})
    before = place.get(f"/tasks/{task_id}")
    unfinished = place.ask("GET", f"/tasks/{task_id}/result")
    work(place.app)
    after = place.get(f"/tasks/{task_id}/result")

    assert (before["id"], before["task"], before["state"]) == (task_id, "add", "pending")
    assert before["args"] == call.get("args", call.get("kwargs"))
    assert unfinished == (204, {})
    assert (after["state"], after["result"], after["error"]) == ("completed", 5, None)
    assert place.app.result(task_id).get(timeout=0) == 5


def test_whoever_waits_is_told_when_the_task_is_finished(place: Place) -> None:
    task_id = place.enqueue({"task": "add", "args": [1]})
    with ThreadPoolExecutor(1) as threads, working(Worker(place.app, kind="thread")):
        waiting = threads.submit(place.ask, "GET", f"/tasks/{task_id}/result?wait=20")
        status, answer = waiting.result(LIMIT_SECONDS)

    assert (status, answer["result"]) == (200, 3)


def test_a_wait_that_is_over_is_204(place: Place) -> None:
    task_id = place.enqueue({"task": "add", "args": [1]})

    assert place.ask("GET", f"/tasks/{task_id}/result?wait=0.05") == (204, {})


def test_a_call_has_all_that_the_command_line_gives_it(place: Place) -> None:
    later_us = system_clock() + 3_600_000_000
    task_id = place.enqueue({"task": "add", "args": [1], "at_us": later_us, "priority": 3})
    record = place.get(f"/tasks/{task_id}")
    first = place.enqueue({"task": "add", "args": [2], "unique": "x"})
    again = place.enqueue({"task": "add", "args": [2], "unique": "x"})
    other = place.enqueue({"task": "fail", "args": ["x"], "unique": "x"})
    grouped = place.enqueue({"task": "add", "args": [1], "key": "ann"}, queue="slow")
    messages = {each.id: each for each in place.app.store.queue("slow").peek(5)}

    assert record["state"] == "scheduled"
    assert 0 <= cast("int", record["due_us"]) - later_us < 1_000_000
    assert first == again != other
    assert messages[grouped.partition("/")[2]].group == "add:ann"  # type: ignore[index]


def test_a_call_goes_on_with_the_trace_of_its_request(place: Place) -> None:
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    place.ask("POST", "/tasks/default", {"task": "add", "args": [1]}, headers=trace)
    (message,) = place.app.store.queue("default").peek(1)

    assert message.headers["traceparent"] == trace["traceparent"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task": ""},
        {"task": "a\nb"},
        {"task": "x" * 201},
        {"task": "add", "args": 1},
        {"task": "add", "args": [1], "kwargs": {}},
        {"task": "add", "kwargs": [1]},
        {"task": "add", "retries": -1},
        {"task": "add", "timeout": 0},
        {"task": "add", "delay": 1, "at_us": 1},
        {"task": "add", "prio": 1},
    ],
)
def test_a_call_that_makes_no_sense_is_400(place: Place, body: Json) -> None:
    assert place.ask("POST", "/tasks/default", body)[0] == 400
    assert place.app.store.queues() == []


# Looking and acting ----------------------------------------------------------------------------


def test_tasks_are_found_by_what_is_known_of_them(place: Place) -> None:
    done = place.enqueue({"task": "add", "args": [1]})
    dead = place.enqueue({"task": "fail", "args": ["disk full"]})
    work(place.app)
    waiting = place.enqueue({"task": "add", "args": [1]}, queue="slow")

    def ids(query: str) -> list[object]:
        return [each["id"] for each in cast("list[Json]", place.get(f"/tasks{query}")["tasks"])]

    assert ids("") == [waiting, dead, done] or ids("") == [dead, waiting, done]
    assert ids("?state=completed") == [done]
    assert ids(f"?error={quote('Disk Full')}") == [dead]
    assert ids("?task=add&queue=slow") == [waiting]
    assert ids("?limit=1&state=dead_letter") == [dead]
    assert ids(f"?since_us={system_clock() + 1_000_000}") == []
    assert place.ask("GET", "/tasks?state=lost")[0] == 400
    assert place.ask("GET", "/tasks?limit=0")[0] == 400


def test_tasks_of_other_queues_are_not_told_to_who_may_not_see_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles go by the names of queues, and so do lists."""
    place.enqueue({"task": "add", "args": [1]}, queue="ours")
    place.enqueue({"task": "add", "args": [1]}, queue="theirs")
    grant = Grant(name="us", roles=frozenset({Role.READ}), patterns=("our*",))
    monkeypatch.setattr(place.server.app.guard, "admit", lambda *_: grant)
    listed = cast("list[Json]", place.get("/tasks")["tasks"])

    assert [each["queue"] for each in listed] == ["ours"]
    assert place.ask("GET", "/tasks?queue=theirs")[0] == 403


def test_a_dead_task_is_shown_and_brought_back(place: Place) -> None:
    task_id = place.enqueue({"task": "fail", "args": ["disk full"]})
    work(place.app)
    dead = place.get(f"/tasks/{task_id}/result")
    retried = place.ask("POST", f"/tasks/{task_id}/retry")
    after = place.get(f"/tasks/{task_id}")
    again = place.ask("POST", f"/tasks/{task_id}/retry")

    assert (dead["state"], dead["error"]) == ("dead_letter", "ValueError: disk full")
    assert "disk full" in str(dead["traceback"])
    assert (retried, again) == ((200, {"retried": True}), (200, {"retried": False}))
    assert after["state"] == "retrying"


def test_a_task_is_cancelled(place: Place) -> None:
    task_id = place.enqueue({"task": "add", "args": [1]})
    cancelled = place.ask("POST", f"/tasks/{task_id}/cancel")
    work(place.app)
    again = place.ask("POST", f"/tasks/{task_id}/cancel")

    assert (cancelled, again) == ((200, {"cancelled": True}), (200, {"cancelled": False}))
    assert place.get(f"/tasks/{task_id}/result")["state"] == "cancelled"


@pytest.mark.parametrize("path", ["", "/result", "/cancel", "/retry"])
def test_a_task_that_is_not_known_is_404(place: Place, path: str) -> None:
    method = "POST" if path in {"/cancel", "/retry"} else "GET"
    for task_id in ("default/2-17", "never/0-0"):
        status, answer = place.ask(method, f"/tasks/{task_id}{path}")

        assert (status, answer["code"]) == (404, "task_not_found")


# Schedules and workers -------------------------------------------------------------------------


def test_schedules_are_listed_fired_and_forgotten(place: Place) -> None:
    add = place.app.tasks["add"]
    place.app.schedule("nightly", segue.tasks.Cron("0 3 * * *"), add, 1, 4)
    scheduler = Scheduler(place.app)
    scheduler.tick()
    scheduler.close()
    (schedule,) = cast("list[Json]", place.get("/schedules")["schedules"])
    status, fired = place.ask("POST", "/schedules/nightly/fire")
    work(place.app)

    assert (schedule["name"], schedule["task"], schedule["fired"]) == ("nightly", "add", 0)
    assert cast("int", schedule["next_us"]) > system_clock()
    assert (status, fired["schedule"], fired["task"]) == (200, "nightly", "add")
    assert place.get(f"/tasks/{fired['id']}/result")["result"] == 5
    assert place.ask("DELETE", "/schedules/nightly") == (200, {"removed": True})
    assert place.ask("DELETE", "/schedules/nightly") == (200, {"removed": False})
    assert place.get("/schedules") == {"schedules": []}
    status, problem = place.ask("POST", "/schedules/nightly/fire")
    assert (status, problem["code"]) == (404, "schedule_not_found")


def test_workers_tell_of_themselves(place: Place) -> None:
    now_us = system_clock()
    report = WorkerReport(
        worker="w",
        host="here",
        pid=1,
        kind="thread",
        state="running",
        at_us=now_us,
        started_us=now_us,
        queues=["default"],
        size=1,
        busy=0,
        min=1,
        max=1,
    )
    assert place.get("/workers") == {"workers": [], "silent": []}
    prepare_reports(place.app.store)
    send_report(place.app.store, report)
    (worker,) = cast("list[Json]", place.get("/workers")["workers"])

    assert (worker["worker"], worker["queues"], worker["slots"]) == ("w", ["default"], [])


def test_a_server_without_the_extra_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ExtraMissing("tasks need more than is installed")

    monkeypatch.setattr("segue.server.task_desk.require_tasks", missing)
    for method, path in (
        ("GET", "/tasks"),
        ("GET", "/tasks/default/0-0"),
        ("GET", "/tasks/default/0-0/result"),
        ("POST", "/tasks/default/0-0/cancel"),
        ("POST", "/tasks/default/0-0/retry"),
        ("GET", "/schedules"),
        ("POST", "/schedules/nightly/fire"),
        ("DELETE", "/schedules/nightly"),
        ("GET", "/workers"),
    ):
        status, answer = place.ask(method, path)
        assert (status, answer["code"]) == (501, "extra_missing"), path
    assert place.ask("POST", "/tasks/default", {"task": "add"})[0] == 501
