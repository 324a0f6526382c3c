"""`segue worker` and `segue top`: mostly in processes of their own, with real signals."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.cli.output import Json, Rows
from segue.cli.top import look
from segue.cli.top_frame import sections
from segue.clock import system_clock, system_ticks
from segue.stores.opening import open_directory
from segue.tasks.worker import reports
from tests.integration.cli_support import COMMAND, Answer, ask, fast_command
from tests.integration.server_support import Failures
from tests.waiting import LIMIT_SECONDS, wait_until

APP: Final = """
import logging
import os
import time
from pathlib import Path
from segue.tasks import App

app = App("data", sync="os")

@app.task
def add(a: int, b: int) -> int:
    logging.getLogger("shop").info("adding %d and %d", a, b)
    return a + b

@app.task
async def add_async(a: int, b: int) -> int:
    return a + b

@app.task(timeout=600)
def wait_at_gate() -> str:
    with Path("began").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not Path("gate").exists():
        time.sleep(0.01)
    return "through"

@app.task(retries=0)
def leave(code: int) -> None:
    os._exit(code)

@app.task(queue="mail")
def send() -> None: ...
"""


AGE_US: Final = 3_600_000_000


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an App in the module "shop", and a store "data" to be; we are in it."""
    (tmp_path / "shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    assert ask("queue", "push", "data", "elsewhere", "x").code == 0
    return tmp_path


def enqueue(task: str, arguments: str = "{}", *words: str) -> str:
    """Queue a call in the store and return its id."""
    answer = ask("task", "enqueue", "data", task, arguments, *words)
    assert (answer.code, answer.err) == (0, "")
    return answer.lines[0]


def record(task_id: str, store: str = "data") -> dict[str, Json]:
    """Return all that is known of a task."""
    return ask("task", "show", store, task_id, "--json").json


@contextmanager
def working(*words: str, is_forked: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of "shop", with files in place of its pipes: its children may outlive it.

    A forked command ends a moment after the client that is killed: not for tests about SIGKILL.
    """
    with Path("out").open("wb") as out, Path("err").open("wb") as err:
        # Processes of a worker start from its main module, so that has to be the usual one.
        command = [fast_command()] if is_forked and "process" not in words else COMMAND
        process = subprocess.Popen(
            [*command, "worker", "shop:app", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_SECONDS)


def end_of(process: subprocess.Popen[bytes]) -> Answer:
    """Wait for a worker and return what it said."""
    code = process.wait(LIMIT_SECONDS)
    return Answer(code=code, out=Path("out").read_bytes(), err=Path("err").read_text())


def worked(*words: str) -> Answer:
    """Run a worker to its end."""
    with working(*words) as process:
        return end_of(process)


def asked_elsewhere(commands: list[list[str]]) -> list[Answer]:
    """Run commands one after the other in one new process, which may import modules from here."""
    code = (
        "import json, sys\n"
        "from tests.integration.cli_support import ask\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    done = ask(*words)\n"
        "    print(json.dumps([done.code, done.out.decode(), done.err]))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    return [Answer(code=code, out=out.encode(), err=err) for code, out, err in lines]


def later() -> int:
    """Return a time after which every lease here has expired."""
    return system_clock() + AGE_US


def later_ticks() -> int:
    """Return the same for the clock that measures durations."""
    return system_ticks() + AGE_US


def has_begun() -> bool:
    """Tell whether a task is at the gate."""
    return Path("began").exists() and bool(Path("began").read_text())


def is_draining() -> bool:
    """Tell whether a worker has said so, however long ago that was."""
    with segue.open("data", sync="os") as store:
        reports = store.topic("segue.workers").records("earliest")
        return any(b'"state":"draining"' in (report.value or b"") for report in reports)


def seen() -> dict[str, Json]:
    """Return what `top` sees."""
    return ask("top", "data", "--json", "--every", "100ms").json


def worker_seen() -> dict[str, Json]:
    """Return what `top` sees of the only worker; nothing if there is none."""
    workers = seen()["workers"]
    assert isinstance(workers, list)
    first = workers[0] if workers else {}
    assert isinstance(first, dict)
    return first


# Ending ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(shop: Path, number: int) -> None:
    """What runs is finished, what waits is left, and the exit code is 0."""
    first, second = enqueue("wait_at_gate"), enqueue("wait_at_gate")
    with working("--max", "1", "--json") as process:
        wait_until(has_begun)
        process.send_signal(number)
        wait_until(is_draining)
        Path("gate").touch()
        answer = end_of(process)

    assert answer.code == 0
    assert answer.json["completed"] == 1
    assert record(first)["result"] == "through"
    assert record(second)["state"] == "pending"


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_second_signal_gives_back_what_runs(shop: Path, kind: str) -> None:
    """It is as if the task had never been taken."""
    task_id = enqueue("wait_at_gate")
    with working("--kind", kind, "--max", "1", "--json") as process:
        wait_until(has_begun)
        process.send_signal(signal.SIGTERM)
        wait_until(is_draining)
        process.send_signal(signal.SIGTERM)
        answer = end_of(process)

    assert (answer.code, answer.json["completed"]) == (0, 0)
    assert "giving back what still runs" in answer.err
    assert (record(task_id)["state"], record(task_id)["attempt"]) == ("pending", 0)


def test_the_task_of_a_killed_worker_is_done_by_the_next(shop: Path) -> None:
    """Once its lease has ended, as a second attempt."""
    task_id = enqueue("wait_at_gate")
    with working("--lease", "600s", is_forked=False) as process:
        wait_until(has_begun)
        process.kill()
        process.wait(LIMIT_SECONDS)
    with open_directory(shop / "data", clock=later, ticks=later_ticks) as store:
        assert store.queue("default").count().ready == 1  # Its lease has expired by this clock.
    Path("gate").touch()
    answer = worked("--limit", "1", "--json")

    assert (answer.code, answer.json["completed"]) == (0, 1)
    assert (record(task_id)["state"], record(task_id)["attempt"]) == ("completed", 2)


def test_burst_ends_when_nothing_is_left(shop: Path) -> None:
    """With a summary on standard output, and what it works on on standard error."""
    ids = [enqueue("add", f"[{number}, 1]") for number in range(5)]
    answer = worked("--burst", "--name", "ada")

    assert answer.code == 0
    facts = dict(answer.fields)
    assert (facts["worker"], facts["completed"], facts["dead"]) == ("ada", "5", "0")
    assert facts.keys() >= {"retried", "cancelled", "wait_p50_ms", "wait_p99_ms", "run_p50_ms"}
    assert "segue: store data, 1 to " in answer.err
    assert "segue: working worker=ada queues=default,mail\n" in answer.err
    assert [record(task_id)["result"] for task_id in ids] == [1, 2, 3, 4, 5]


def test_once_runs_one_task(shop: Path) -> None:
    """And leaves the next one for the next."""
    enqueue("add", "[1, 2]")
    enqueue("add", "[3, 4]")
    first, second, third = (worked("--once", "--json") for _ in range(3))

    assert [each.code for each in (first, second, third)] == [0, 0, ExitCode.EMPTY]
    assert [each.json["completed"] for each in (first, second, third)] == [1, 1, 0]


def test_once_does_not_wait_for_a_queue_that_is_paused(shop: Path) -> None:
    """Nothing can be taken now, so there is nothing."""
    enqueue("add", "[1, 2]")
    ask("queue", "pause", "data", "default")
    answer = worked("--once")

    assert (answer.code, answer.out) == (ExitCode.EMPTY, b"")
    assert "paused" in answer.err


# What it is given ------------------------------------------------------------------------------


def test_a_process_that_ends_is_the_failure_of_its_task_alone(shop: Path) -> None:
    """Others are run by a new process."""
    task_id, other = enqueue("leave", "[7]"), enqueue("add", "[1, 2]")
    answer = worked("--kind", "process", "--max", "1", "--burst", "--json")

    assert (answer.code, answer.json["completed"], answer.json["dead"]) == (0, 1, 1)
    assert record(task_id)["error"] == "WorkerDied: its process ended with exit code 7"
    assert record(other)["result"] == 3


def test_async_tasks_run_in_an_event_loop(shop: Path) -> None:
    """Plain ones beside it."""
    ids = [enqueue("add_async", "[1, 2]"), enqueue("add", "[3, 4]")]
    answer = worked("--kind", "async", "--burst")

    assert answer.code == 0
    assert [record(task_id)["result"] for task_id in ids] == [3, 7]


def test_only_the_queues_that_are_named_are_worked_on(shop: Path) -> None:
    """Also such as no task goes to by itself."""
    ids = [
        enqueue("send", "{}", "--queue", "mail"),
        enqueue("add", "[1, 2]", "--queue", "urgent"),
        enqueue("add", "[1, 2]"),
    ]
    answer = worked("--queues", "mail, urgent", "--burst")

    assert "queues=mail,urgent" in answer.err
    assert [record(each)["state"] for each in ids] == ["completed", "completed", "pending"]


def test_another_store_than_the_apps_own(shop: Path) -> None:
    """For tests, and for settings at run time."""
    ask("queue", "push", "other", "elsewhere", "x")
    task_id = ask("task", "enqueue", "other", "add", "[1, 2]").lines[0]
    answer = worked("--store", "other", "--burst")

    assert (answer.code, record(task_id, "other")["result"]) == (0, 3)
    assert "segue: store other" in answer.err


def test_verbose_shows_what_tasks_log(shop: Path) -> None:
    """With who says it; otherwise only what the worker says of itself."""
    enqueue("add", "[1, 2]")
    told = worked("--burst", "--verbose").err
    enqueue("add", "[1, 2]")
    quiet = worked("--burst").err
    enqueue("add", "[1, 2]")
    as_json = worked("--burst", "--json").err

    assert "segue: info shop: adding 1 and 2\n" in told
    assert "adding" not in quiet
    assert all("info" in json.loads(line) for line in as_json.splitlines())


def test_prometheus_is_answered(shop: Path) -> None:
    """On this machine alone, for as long as the worker works."""
    enqueue("add", "[1, 2]")
    with working("--metrics", "0") as process:
        wait_until(lambda: "metrics at" in Path("err").read_text())
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", Path("err").read_text())
        assert found is not None
        wanted = 'segue_tasks_completed_total{queue="default",task="add"} 1.0'

        def is_counted() -> bool:
            with urllib.request.urlopen(found[0], timeout=LIMIT_SECONDS) as page:
                return wanted in page.read().decode()

        wait_until(is_counted)
        process.send_signal(signal.SIGTERM)
        answer = end_of(process)

    assert answer.code == 0


CANNOT_BE_HAD: Final = {
    "nowhere:app": "there is no module 'nowhere'; looked in",
    "shop.py": "'shop.py' is a file; give the module as Python imports it, such as shop:app",
    "shop:nobody": "shop has no 'nobody'; its Apps are: app",
    "shop:add": "shop:add is no App but a Task",
    "wrong:app": "wrong cannot be imported: ZeroDivisionError: division by zero",
    "needy:app": "needy imports 'missing_thing', which is not installed (needy.py, line 1)",
}


def test_an_app_that_cannot_be_had_is_told_exactly(shop: Path) -> None:
    """In one line, with exit code 3."""
    (shop / "wrong.py").write_text("1 / 0\n")
    (shop / "needy.py").write_text("import missing_thing\n")
    commands = [["worker", app, "--burst"] for app in CANNOT_BE_HAD]
    failures = Failures()
    for done, (app, said) in zip(asked_elsewhere(commands), CANNOT_BE_HAD.items(), strict=True):
        with failures.case(app):
            assert (done.code, done.out) == (ExitCode.NOT_FOUND, b"")
            assert done.err.startswith(f"segue: {said}")
            assert done.err.count("\n") == 1

    failures.check()


DOES_NOT_FIT: Final = {
    "--memory 1GiB": "needs --kind process",
    "--once --limit 3": "one task, one slot",
    "--queues mail,": "no list of names",
    "--min 5 --max 2": "max",
    "--drain soon": "no duration",
    "--kind goroutine": "thread",
}


def test_what_does_not_fit_is_refused(shop: Path) -> None:
    """Before anything is taken."""
    task_id = enqueue("add", "[1, 2]")
    commands = [["worker", "shop:app", "--burst", *words.split()] for words in DOES_NOT_FIT]
    failures = Failures()
    for answer, (words, said) in zip(asked_elsewhere(commands), DOES_NOT_FIT.items(), strict=True):
        with failures.case(words):
            assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
            assert said in answer.err

    failures.check()
    assert record(task_id)["state"] == "pending"


# top -------------------------------------------------------------------------------------------


def test_top_shows_who_works_on_what(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that a worker with a task is not to be stopped, while an idle one may be."""
    monkeypatch.setattr(reports, "GONE_SECONDS", 600.0)
    task_id = enqueue("wait_at_gate")
    with working("--name", "ada", "--min", "2", "--max", "3") as process:
        wait_until(has_begun)
        wait_until(lambda: worker_seen().get("running") == "wait_at_gate")
        busy = seen()
        plain = ask("top", "data", "--every", "100ms").fields
        Path("gate").touch()
        wait_until(lambda: worker_seen().get("safe_to_stop") is True)
        idle = seen()
        process.send_signal(signal.SIGTERM)
        end_of(process)

    assert busy["safe_to_stop"] is False
    (worker,) = _rows(busy, "workers")
    assert worker.items() >= {"worker": "ada", "min": 2, "max": 3, "size": 2, "busy": 1}.items()
    (running,) = _rows(busy, "running")
    assert (running["id"], running["worker"]) == (task_id, "ada")
    queues = {str(row["queue"]): row for row in _rows(busy, "queues")}
    assert (queues["default"]["leased"], queues["elsewhere"]["ready"]) == (1, 1)
    assert ["safe_to_stop", "no"] in plain
    assert ["worker", "ada", "running"] in [fields[:3] for fields in plain]
    assert ["running", task_id] in [fields[:2] for fields in plain]
    assert busy["decisions"] == []
    assert idle["safe_to_stop"] is True
    (counted,) = _rows(idle, "tasks")
    assert (counted["task"], counted["completed"]) == ("wait_at_gate", 1)


def test_top_tells_what_came_and_went_between_two_looks(shop: Path) -> None:
    """Whatever became of it meanwhile: what died is still there, what was purged is not."""
    with segue.open("data", sync="os") as store:
        queue = store.queue("moving")
        queue.push_many([b"x"] * 3)
        before = look(store)
        queue.push_many([b"x"] * 10)
        queue.pop_many(4)
        queue.lease(owner="somebody").bury("bad")
        now = look(store)
    tables = [each for each in sections(shop, before, now) if isinstance(each, Rows)]
    columns = [column.key for column in tables[0].columns]
    (row,) = [
        dict(zip(columns, each, strict=True)) for each in tables[0].rows if each[0] == "moving"
    ]
    seconds = (now.ticks_us - before.ticks_us) / 1_000_000

    assert row["in_per_second"] == pytest.approx(10 / seconds, abs=0.001)
    assert row["out_per_second"] == pytest.approx(4 / seconds, abs=0.001)


def test_top_without_workers(shop: Path) -> None:
    """Queues are there all the same; nobody speaks against stopping."""
    found = ask("top", "data", "--once", "--every", "100ms", "--json").json

    assert (found["workers"], found["tasks"], found["safe_to_stop"]) == ([], [], True)
    assert [row["queue"] for row in _rows(found, "queues")] == ["elsewhere"]
    assert ask("top", "data", "--every", "1ms").code == ExitCode.USAGE
    assert ask("top", "nowhere").code == ExitCode.NOT_FOUND


def test_it_is_not_safe_to_stop_while_a_lease_is_out(shop: Path) -> None:
    """Whoever has it may be a worker that does not get around to reporting."""
    assert ask("queue", "lease", "data", "elsewhere").code == 0

    assert seen()["safe_to_stop"] is False


def test_top_on_a_terminal_goes_on_until_interrupted(shop: Path) -> None:
    """Then it ends quietly, as tail does."""
    terminal, process_side = pty.openpty()
    process = subprocess.Popen(
        [fast_command(), "top", "data", "--every", "100ms"],
        stdin=process_side,
        stdout=process_side,
        stderr=process_side,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(process_side)
    shown = bytearray()
    try:
        while shown.count(b"elsewhere") < 2:
            shown += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # How a terminal says that nobody is at its other side any longer.
    finally:
        os.close(terminal)
        code = process.wait(LIMIT_SECONDS)

    assert code == ExitCode.INTERRUPTED
    assert b"Traceback" not in shown


def _rows(document: dict[str, Json], name: str) -> list[dict[str, Json]]:
    rows = document[name]
    assert isinstance(rows, list)
    return [row for row in rows if isinstance(row, dict)]
