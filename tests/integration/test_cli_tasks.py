"""`segue task` and `segue schedule`: what became of tasks, and what is done about it."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.cli.output import Json
from segue.tasks import Worker
from segue.tasks.loading import load_app
from tests.integration.cli_support import Answer, ask, on_a_terminal

APP: Final = """
from segue.tasks import App, current

app = App("data", sync="os")
app.queue("fast")

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task(retries=1, backoff=0.01)
def fail(why: str) -> None:
    raise ValueError(f"no good: {why}")

@app.task
def count_up(to: int) -> list[int]:
    current().progress(to)
    return list(range(to))

@app.task(schedule="0 3 * * * Europe/Berlin")
def nightly() -> str:
    return "done"
"""
ROOT: Final = Path(__file__).parents[2]

_numbers = count()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where an App is that nobody has imported yet; its store, "data", is there."""
    module = f"shop_of_test_{next(_numbers)}"
    (tmp_path / f"{module}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert ask("queue", "push", "data", "elsewhere", "no task", "--sync", "os").code == 0
    yield f"{module}:app"
    sys.modules.pop(module, None)


def done(*words: str | Path, stdin: bytes = b"") -> Answer:
    """Run a command that must succeed."""
    answer = ask(*words, stdin=stdin)
    assert (answer.code, answer.err) == (0, "")
    return answer


def enqueue(*words: str) -> str:
    """Queue a call and return its id."""
    return done("task", "enqueue", *words).lines[0]


def work(target: str) -> None:
    """Have all that waits be done, retries included."""
    while True:
        assert ask("worker", target, "--burst").code == 0
        counts = done("queue", "stats", "data", "default", "--json").json
        if not counts["ready"] and not counts["delayed"]:
            return


def record(task_id: str) -> dict[str, Json]:
    """Return all that is known of a task."""
    return done("task", "show", "data", task_id, "--json").json


def ids(*words: str) -> list[str]:
    """Return the ids of the tasks that `ls` lists."""
    return [fields[0] for fields in done("task", "ls", "data", *words).fields]


@contextmanager
def worker_beside(target: str) -> Iterator[None]:
    """A worker in a thread of this process."""
    with load_app(target) as app:
        worker = Worker(app)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()


# enqueue ---------------------------------------------------------------------------------------


def test_enqueue_by_the_app_checks_the_arguments(shop: str) -> None:
    """Against the signature, before anything is queued."""
    task_id = enqueue(shop, "add", '{"a": 1, "b": 2}')
    refused = [
        ask("task", "enqueue", shop, "add", arguments)
        for arguments in ('{"a": 1}', '["one", 2]', '{"a": 1, "b": 2, "c": 3}', "[1, 2, 3]")
    ]

    assert task_id == "default/2-0"
    assert [answer.code for answer in refused] == [ExitCode.USAGE] * 4
    assert all(answer.err.startswith("segue: task add: ") for answer in refused)
    assert ids() == [task_id]


def test_enqueue_by_the_store_asks_nobody(shop: str) -> None:
    """Whether there is such a task, its worker finds out."""
    by_name = enqueue("data", "add", '{"a": 1, "b": 2}')
    by_position = enqueue("data", "add", "[3, 4]")
    unknown = enqueue("data", "divide", "[1]")
    work(shop)

    assert (record(by_name)["result"], record(by_position)["result"]) == (3, 7)
    assert record(unknown)["state"] == "dead_letter"
    assert "there is no task divide" in str(record(unknown)["error"])


def test_arguments_may_come_from_standard_input(shop: str) -> None:
    """They may be longer than a command line."""
    answer = done("task", "enqueue", "data", "add", "-", "--json", stdin=b' {"a": 1,\n "b": 2}\n')
    task_id = str(answer.json["id"])

    assert answer.json == {"id": task_id, "task": "add"}
    assert record(task_id)["args"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("arguments", ["", "{", "3", '"text"', "null", "[1, 2"])
def test_arguments_are_a_json_object_or_list(shop: str, arguments: str) -> None:
    """Anything else is told where it is typed."""
    answer = ask("task", "enqueue", "data", "add", arguments)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert "ARGUMENTS" in answer.err


def test_what_is_not_there_is_not_made(shop: str, tmp_path: Path) -> None:
    """No store out of a typo, no call of a task that the App has not."""
    answers = [
        ask("task", "enqueue", "nowhere", "add"),
        ask("task", "enqueue", "no_module_of_ours:app", "add"),
        ask("task", "enqueue", shop, "divide"),
    ]

    assert [answer.code for answer in answers] == [ExitCode.NOT_FOUND] * 3
    assert "there is no module" in answers[1].err
    assert "the app has: add, count_up, fail, nightly" in answers[2].err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("by_app", [True, False])
def test_a_call_has_its_own_queue_priority_and_time(shop: str, by_app: bool) -> None:
    """Both ways of queuing say the same."""
    target = shop if by_app else "data"
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    urgent = enqueue(target, "add", "[1, 2]", "--queue", "fast", "--priority", "critical")
    delayed = enqueue(target, "add", "[1, 2]", "--delay", "1h")
    at = enqueue(target, "add", "[1, 2]", "--at", soon)
    late = enqueue(target, "add", "[1, 2]", "--at", "2020-01-31T08:00:00Z")

    assert urgent == "fast/0-0"
    assert [record(each)["state"] for each in (delayed, at)] == ["scheduled"] * 2
    assert record(late)["state"] == "pending"
    assert ask("task", "enqueue", target, "add", "--at", "soon").code == ExitCode.USAGE
    assert ask("task", "enqueue", target, "add", "--at", soon, "--delay", "1").code == 2


@pytest.mark.parametrize("by_app", [True, False])
def test_unique_and_key_mean_the_same_however_it_is_queued(shop: str, by_app: bool) -> None:
    """A call is queued once by its name; those of a key go one after another."""
    target = shop if by_app else "data"
    first = enqueue(target, "add", "[1, 2]", "--unique", "order-7", "--key", "ada")
    again = enqueue(target, "add", "[1, 2]", "--unique", "order-7")
    message = done("queue", "show", "data", "default", first.partition("/")[2], "--json").json

    assert first == again
    assert (message["key"], message["group"]) == ("add:order-7", "add:ada")


def test_the_result_can_be_waited_for(shop: str) -> None:
    """A failure is exit code 12, and nothing in time is 13."""
    with worker_beside(shop):
        result = done("task", "enqueue", "data", "count_up", "[3]", "--wait", "forever")
        both = done("task", "enqueue", "data", "add", "[1, 2]", "--wait", "1m", "--json")
        failed = ask("task", "enqueue", "data", "fail", '["x"]', "--wait", "forever")
    late = ask("task", "enqueue", "data", "add", "[1, 2]", "--wait", "50ms", "--json")

    assert result.lines == ["[0,1,2]"]
    assert (both.json["result"], both.json["state"]) == (3, "completed")
    assert (failed.code, failed.out) == (ExitCode.TASK_FAILED, b"")
    assert "failed after 2 attempts: ValueError: no good: x" in failed.err
    assert (late.code, late.out) == (ExitCode.TASK_UNFINISHED, b"")
    assert json.loads(late.err)["error"] == "ResultTimeout"


def test_a_cancelled_task_has_no_result_to_wait_for(shop: str) -> None:
    """Whoever waits with the App is told, too."""
    task_id = enqueue("data", "add", "[1, 2]", "--unique", "x")
    done("task", "cancel", "data", task_id)
    answer = ask("task", "enqueue", shop, "add", "[1, 2]", "--unique", "x", "--wait", "forever")

    assert (answer.code, answer.err) == (12, f"segue: task {task_id} was cancelled\n")


# ls and show -----------------------------------------------------------------------------------


def test_ls_lists_what_fits(shop: str) -> None:
    """By state, name, queue, error and time; what is no task is left out."""
    good, bad = enqueue("data", "add", "[1, 2]"), enqueue("data", "fail", '["disk full"]')
    work(shop)
    later = enqueue("data", "add", "[1, 2]", "--delay", "1h")
    other = enqueue("data", "add", "[1, 2]", "--queue", "other")

    assert ids() == [later, bad, other, good]
    assert ids("--state", "completed") == [good]
    assert ids("--state", "scheduled", "--state", "pending") == [later, other]
    assert ids("--task", "fail") == [bad]
    assert ids("--queue", "other") == [other]
    assert ids("--error", "Disk") == [bad]
    assert ids("--since", "1d") == [later, bad, other, good]
    assert ids("--since", "0") == []
    assert ids("--limit", "2") == [later, bad]


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"a": NaN}',
        b"[Infinity]",
        b'["\\ud800"]',
        '["\u00e9"]'.encode("utf-16"),
        b"\xef\xbb\xbf[1]",
    ],
)
def test_arguments_that_no_worker_could_read_are_not_queued(shop: str, arguments: bytes) -> None:
    """Python reads more than JSON: what was queued would be no task, and nobody would ever know."""
    answer = ask("task", "enqueue", "data", "add", "-", stdin=arguments)

    assert (answer.code, answer.lines) == (ExitCode.USAGE, [])
    assert "no worker could read them" in answer.err
    assert [row[0] for row in done("queue", "ls", "data").fields] == ["elsewhere"]


def test_ls_has_fields_for_a_pipe_and_objects_for_programs(shop: str) -> None:
    """One line or object for each task."""
    enqueue("data", "fail", '["x"]')
    work(shop)
    ((task_id, task, state, attempt, _, error),) = done("task", "ls", "data").fields
    found = done("task", "ls", "data", "--json").json

    assert (task_id, task, state, attempt) == ("default/2-0", "fail", "dead_letter", "2")
    assert error == "ValueError: no good: x"
    assert (found["id"], found["args"]) == (task_id, ["x"])
    assert str(found["traceback"]).startswith("Traceback")


def test_times_that_no_calendar_has_are_shown_as_they_are(shop: str) -> None:
    """Anybody may append to the topic of tasks: one odd event must not hide all the others."""
    far_us = 1 << 61
    event: dict[str, Json] = {"id": "default/2-7", "happened": "completed", "task": "odd"}
    event |= dict.fromkeys(("at_us", "pushed_us", "expires_us"), far_us)
    with segue.open("data", sync="os") as store:
        store.topic("segue.tasks").append(json.dumps(event).encode(), key=b"default/2-7")

    assert done("task", "ls", "data").fields[0][4] == str(far_us)
    assert done("task", "ls", "data", "--json").json["updated"] == str(far_us)
    assert record("default/2-7")["pushed"] == str(far_us)
    assert str(far_us) in on_a_terminal("task", "show", "data", "default/2-7")


def test_a_state_that_is_none_is_refused(shop: str) -> None:
    """With those that there are."""
    answer = ask("task", "ls", "data", "--state", "broken")

    assert answer.code == ExitCode.USAGE
    assert "pending, scheduled, processing" in answer.err


def test_show_tells_all_that_is_known(shop: str) -> None:
    """What it was given, what became of it, and how that came."""
    task_id = enqueue("data", "count_up", "[3]")
    before = record(task_id)
    work(shop)
    after = record(task_id)

    assert (before["state"], before["started"], before["timeline"]) == ("pending", None, [])
    assert (after["task"], after["queue"], after["attempt"]) == ("count_up", "default", 1)
    assert (after["args"], after["progress"], after["result"]) == ([3], 3, [0, 1, 2])
    assert after["state"] == "completed"
    assert all(after[name] is not None for name in ("pushed", "started", "finished", "worker"))
    assert _happened(after)[-1] == "completed"


def test_show_has_the_tries_and_the_traceback(shop: str) -> None:
    """Lines of a pipe begin with what they are."""
    task_id = enqueue("data", "fail", '["x"]')
    work(shop)
    lines = done("task", "show", "data", task_id).fields

    assert _happened(record(task_id)) == ["retrying", "dead_letter"]
    assert [fields[2] for fields in lines if fields[0] == "event"] == [
        "pushed",
        "retrying",
        "dead_letter",
    ]
    assert ["error", "ValueError: no good: x"] in lines
    assert ["traceback", "ValueError: no good: x"] in lines


def test_what_is_not_known_is_not_found(shop: str) -> None:
    """Neither a task that never was, nor a queue; an id must be one."""
    codes = [
        ask("task", "show", "data", name).code
        for name in ("default/2-99", "nowhere/2-0", "elsewhere/0-7", "rubbish")
    ]

    assert codes == [ExitCode.NOT_FOUND] * 3 + [ExitCode.USAGE]
    assert ask("task", "show", "nowhere", "default/2-0").code == ExitCode.NOT_FOUND


def test_a_terminal_gets_tables(shop: str) -> None:
    """With the traceback line by line."""
    task_id = enqueue("data", "fail", '["x"]')
    work(shop)

    assert "dead_letter" in on_a_terminal("task", "ls", "data")
    assert "raise ValueError" in on_a_terminal("task", "show", "data", task_id)


# retry and cancel ------------------------------------------------------------------------------


def test_dead_tasks_come_back_by_their_ids(shop: str) -> None:
    """Those that are none are left, and those that nobody knows are exit code 3."""
    bad, good = enqueue("data", "fail", '["x"]'), enqueue("data", "add", "[1, 2]")
    work(shop)
    answer = ask("task", "retry", "data", bad, good, "default/2-99", "--json")
    state = record(bad)["state"]
    work(shop)

    assert answer.code == ExitCode.NOT_FOUND
    assert answer.json == {
        "retried": 1,
        "tasks": [{"id": bad}],
        "left": [{"id": good, "state": "completed"}],
    }
    assert json.loads(answer.err)["error"] == "TaskNotFound"
    assert state != "dead_letter"
    assert _happened(record(bad)) == ["retrying", "dead_letter"] * 2


def test_dead_tasks_come_back_by_what_fits(shop: str) -> None:
    """By task, queue and error; --dry-run only lists them."""
    full, lost = enqueue("data", "fail", '["disk full"]'), enqueue("data", "fail", '["lost"]')
    unknown = enqueue("data", "divide")
    work(shop)
    dry = done("task", "retry", "data", "--task", "fail", "--dry-run").fields
    still = ids("--state", "dead_letter")
    by_error = done("task", "retry", "data", "--error", "disk").lines
    by_queue = done("task", "retry", "data", "--queue", "default", "--limit", "1").lines

    assert sorted(dry) == [["matched", full], ["matched", lost], ["retried", "0"]]
    assert sorted(still) == sorted([full, lost, unknown])
    assert by_error == ["retried\t1", f"task\t{full}"]
    assert by_queue[0] == "retried\t1"
    assert len(ids("--state", "dead_letter")) == 1


def test_a_cancelled_task_does_not_run(shop: str) -> None:
    """What is finished is left, a dead letter, too."""
    waiting, good = enqueue("data", "add", "[1, 2]"), enqueue("data", "add", "[3, 4]")
    cancelled = done("task", "cancel", "data", "-", stdin=waiting.encode() + b"\n").lines
    dead = enqueue("data", "fail", '["x"]')
    work(shop)
    answer = done("task", "cancel", "data", waiting, good, dead)

    assert cancelled == ["cancelled\t1", f"task\t{waiting}"]
    assert record(waiting)["state"] == "cancelled"
    assert answer.fields == [
        ["cancelled", "0"],
        ["left", waiting, "cancelled"],
        ["left", good, "completed"],
        ["left", dead, "dead_letter"],
    ]


def test_many_are_cancelled_only_with_a_yes(shop: str) -> None:
    """Without a terminal to ask on that is --yes; --dry-run needs none."""
    wanted = [enqueue("data", "add", f"[{number}, 1]") for number in range(3)]
    enqueue("data", "count_up", "[1]")
    refused = ask("task", "cancel", "data", "--task", "add")
    dry = done("task", "cancel", "data", "--task", "add", "--dry-run").fields
    no = on_a_terminal("task", "cancel", "data", "--task", "add", typed="n\n")
    states = {record(each)["state"] for each in wanted}
    answer = done("task", "cancel", "data", "--task", "add", "--yes", "--json")

    assert refused.code == ExitCode.USAGE
    assert [fields[-1] for fields in dry] == ["0", *wanted]
    assert "Cancel 3 tasks?" in no
    assert states == {"pending"}
    assert answer.json["cancelled"] == 3
    assert {record(each)["state"] for each in wanted} == {"cancelled"}


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_either_ids_or_what_fits(shop: str, verb: str) -> None:
    """Neither nothing nor both: it would be unclear what is meant."""
    assert ask("task", verb, "data").code == ExitCode.USAGE
    assert ask("task", verb, "data", "default/2-0", "--task", "add").code == ExitCode.USAGE


# schedule --------------------------------------------------------------------------------------


def test_schedules_are_listed_once_a_worker_has_met_them(shop: str) -> None:
    """With when they fire next."""
    before = done("schedule", "ls", "data")
    ask("worker", shop, "--burst")
    (fields,) = done("schedule", "ls", "data").fields
    (found,) = done("schedule", "ls", "data", "--json").json_rows["schedules"]

    assert before.lines == []
    assert fields[:5] == ["nightly", "0 3 * * * Europe/Berlin", "nightly", "default", "-"]
    assert fields[6:] == ["0", "-"]
    assert datetime.fromisoformat(str(found["next"])) > datetime.now(UTC)


def test_a_schedule_can_be_fired_by_hand(shop: str) -> None:
    """Each time anew; when it fires by itself stays as it was."""
    ask("worker", shop, "--burst")
    before = done("schedule", "ls", "data").lines
    first = done("schedule", "run", "data", "nightly").lines[0]
    second = done("schedule", "run", "data", "nightly", "--json").json
    work(shop)

    assert second == {"schedule": "nightly", "task": "nightly", "id": "default/2-1"}
    assert (record(first)["result"], record(first)["schedule"]) == ("done", "nightly")
    assert record("default/2-1")["state"] == "completed"
    assert done("schedule", "ls", "data").lines == before


def test_a_schedule_can_be_forgotten(shop: str) -> None:
    """What is not there is exit code 3."""
    ask("worker", shop, "--burst")
    removed = done("schedule", "rm", "data", "nightly").lines

    assert removed == ["removed\tnightly"]
    assert done("schedule", "ls", "data").lines == []
    assert ask("schedule", "rm", "data", "nightly").code == ExitCode.NOT_FOUND
    assert ask("schedule", "run", "data", "nightly").code == ExitCode.NOT_FOUND
    assert ask("schedule", "ls", "nowhere").code == ExitCode.NOT_FOUND


# Help ------------------------------------------------------------------------------------------

VERBS: Final = (
    "worker",
    "top",
    *(f"task {verb}" for verb in ("ls", "show", "enqueue", "retry", "cancel")),
    *(f"schedule {verb}" for verb in ("ls", "run", "rm")),
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_told_with_an_example(verb: str) -> None:
    """In its help and on the page."""
    answer = done(*verb.split(), "--help")

    assert f"segue {verb} " in answer.out.decode().partition("Example")[2]
    assert f"    segue {verb} " in (ROOT / "docs" / "cli-tasks.md").read_text()


def test_without_the_extra_it_is_told_in_a_line(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by a traceback."""
    for name in [name for name in sys.modules if name.startswith("segue.tasks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    answers = [
        ask("task", "ls", "data"),
        ask("worker", shop),
        ask("top", "data"),
        ask("schedule", "ls", "data"),
    ]

    assert {answer.code for answer in answers} == {ExitCode.STORAGE}
    assert all('pip install "segue[tasks]"' in answer.err for answer in answers)


def _happened(document: dict[str, Json]) -> list[Json]:
    timeline = document["timeline"]
    assert isinstance(timeline, list)
    return [event["happened"] for event in timeline if isinstance(event, dict)]
