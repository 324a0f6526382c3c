"""Tasks in processes: these can be killed, by us and by themselves, and are replaced."""

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from segue.errors import AppNotFound, TaskCancelled
from segue.tasks import App, State, Worker
from segue.tasks.signature import RESULT_BYTES_MAX
from tests.contract.task_support import BurstWorker, check_intact, happenings, working
from tests.waiting import LIMIT_SECONDS, wait_until

MODULE: Final = """
import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from segue.tasks import App, Retry, current

app = App({root!r}, sync="os", retries=0)


@app.task
def pid(number: int = 0) -> int:
    return os.getpid()


@app.task
async def own_id() -> str:
    return current().id


@app.task
async def idle() -> None:
    await asyncio.Event().wait()


@app.task
def meet(place: str, count: int) -> int:
    Path(place, str(os.getpid())).touch()
    while len(os.listdir(place)) < count:
        threading.Event().wait(0.002)
    return os.getpid()


@app.task
def leave(code: int) -> None:
    os._exit(code)


@app.task(retries=1, backoff=0.01)
def leave_once() -> int:
    if current().attempt == 1:
        os._exit(9)
    return current().attempt


@app.task
def shoot() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def shoot_with_a_child(note: str) -> None:
    child = os.fork()
    if not child:
        threading.Event().wait()
    Path(note).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def exit_politely() -> None:
    sys.exit(3)


@app.task
def gobble(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


@app.task
def big(characters: int) -> str:
    return "x" * characters


@app.task
def odd() -> object:
    return {{1, 2}}


@app.task
def say(text: str) -> None:
    raise ValueError(text)


@app.task
def surrogate() -> None:
    raise ValueError("no file \\udcff")


@app.task
def wrong_wait() -> None:
    raise Retry(delay=-1)


@app.task(timeout=0.4)
def sleep_long() -> None:
    threading.Event().wait()


@app.task(timeout=0.4)
def spin() -> None:
    while True:
        pass


@app.task(timeout=0.4)
async def wait_long() -> None:
    await asyncio.Event().wait()


@app.task(timeout=None)
def stay(begun: str) -> None:
    current().progress("here")
    Path(begun).write_text(str(os.getpid()))
    threading.Event().wait()


@app.task
def loud() -> None:
    print("to the log of the worker")
"""


@pytest.fixture
def module(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with an App, as its user would have it; imported here and by the processes."""
    root = scratch / "code"
    root.mkdir()
    name = f"tasks_{root.parent.name.replace('-', '_')}"
    (root / f"{name}.py").write_text(MODULE.format(root=str(scratch / "data")))
    monkeypatch.syspath_prepend(root)
    module = importlib.import_module(name)
    yield module
    module.app.close()
    del sys.modules[name]
    check_intact(scratch / "data")


@pytest.fixture
def app(module: ModuleType) -> App:
    found = module.app
    assert isinstance(found, App)
    return found


def enqueue(app: App, task: str, arguments: bytes = b"{}") -> str:
    return app.enqueue(task, arguments).id


def is_gone(pid: int) -> bool:
    """Tell whether a process is no more, or is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_a_process_may_end_in_any_way_and_the_next_task_has_another(app: App) -> None:
    """Each is a failure that says how; what comes after it is run."""
    ids = {
        "exit": enqueue(app, "leave", b"[7]"),
        "zero": enqueue(app, "leave", b"[0]"),
        "again": enqueue(app, "leave_once"),
        "kill": enqueue(app, "shoot"),
        "polite": enqueue(app, "exit_politely"),
        "result": enqueue(app, "odd"),
        "error": enqueue(app, "say", b'["no"]'),
        "surrogate": enqueue(app, "surrogate"),
        "wait": enqueue(app, "wrong_wait"),
        "print": enqueue(app, "loud"),
        "last": enqueue(app, "own_id"),
    }
    BurstWorker(app, kind="process", burst=True).run()
    BurstWorker(app, kind="process", burst=True).run()  # What waited to be tried again.
    errors = {name: app.record(task_id).error for name, task_id in ids.items()}

    assert errors["exit"] == "WorkerDied: its process ended with exit code 7"
    assert errors["zero"] == "WorkerDied: its process ended with exit code 0"
    assert errors["kill"] == "WorkerDied: its process was ended by SIGKILL"
    assert errors["polite"] == "SystemExit: 3"
    assert errors["result"].startswith("BadResult:")
    assert errors["error"] == "ValueError: no"
    assert errors["surrogate"].startswith("ValueError: no file ")
    assert errors["wait"]
    assert app.result(ids["again"]).get(0) == 2
    assert app.record(ids["print"]).state is State.COMPLETED
    assert app.result(ids["last"]).get(0) == ids["last"]
    assert "raise ValueError(text)" in app.record(ids["error"]).traceback


def test_a_process_that_dies_is_missed_whatever_it_leaves_behind(app: App, scratch: Path) -> None:
    """A child that it forked has its socket, and says nothing: nobody waits for that one."""
    note = scratch / "child"
    dead = enqueue(app, "shoot_with_a_child", b'["%s"]' % str(note).encode())
    after = enqueue(app, "pid")
    BurstWorker(app, kind="process", burst=True).run()

    assert app.record(dead).error == "WorkerDied: its process was ended by SIGKILL"
    assert app.record(after).state is State.COMPLETED
    assert is_gone(int(note.read_text()))


def test_processes_are_used_again_and_are_not_ours(app: App) -> None:
    """As many as there are slots, and none of them is the worker."""
    ids = [enqueue(app, "pid", b"[%d]" % number) for number in range(8)]
    BurstWorker(app, kind="process", burst=True, min_size=2).run()
    pids = {app.result(task_id).get(0) for task_id in ids}

    assert 1 <= len(pids) <= 2
    assert all(isinstance(pid, int) and is_gone(pid) for pid in pids)


def test_a_task_that_takes_too_long_is_killed_whatever_it_does(app: App) -> None:
    """Asleep, busy or waiting; and not only given up: its process is gone."""
    ids = [enqueue(app, name) for name in ("sleep_long", "spin", "wait_long")]
    after = enqueue(app, "pid")
    BurstWorker(app, kind="process", burst=True).run()

    for task_id in ids:
        record = app.record(task_id)
        assert record.state is State.DEAD_LETTER
        assert record.error == "TaskTimeout: it took longer than 0.4 s"
    assert app.record(after).state is State.COMPLETED


def test_a_running_task_is_killed_if_it_is_cancelled(app: App, scratch: Path) -> None:
    """At once, and its progress was seen before."""
    begun = scratch / "begun"
    result = app.enqueue("stay", b'["%s"]' % str(begun).encode())
    with working(Worker(app, kind="process")):
        wait_until(lambda: begun.exists() and begun.read_text() != "")
        wait_until(lambda: result.progress == "here")
        pid = int(begun.read_text())
        is_cancelled = result.cancel()
        with pytest.raises(TaskCancelled):
            result.get(LIMIT_SECONDS)
        wait_until(lambda: is_gone(pid))
        after = app.enqueue("pid").get(LIMIT_SECONDS)

    assert is_cancelled
    assert isinstance(after, int)
    assert after != pid


def test_a_task_that_is_cancelled_while_its_process_starts_takes_no_worker_with_it(
    app: App,
) -> None:
    """Nobody may be told that the App cannot be found, only because somebody was fast."""
    result = app.enqueue("idle", b"[]")
    with working(Worker(app, kind="process")):
        wait_until(lambda: result.state is State.PROCESSING)
        result.cancel()
        with pytest.raises(TaskCancelled):
            result.get(LIMIT_SECONDS)
        after = app.enqueue("pid").get(LIMIT_SECONDS)

    assert isinstance(after, int)


def test_too_much_memory_is_an_error_of_the_task_that_wants_it(app: App) -> None:
    """MemoryError, as Python says it; the process and its other tasks live on."""
    before = enqueue(app, "pid")
    greedy = enqueue(app, "gobble", b"[4000]")
    modest = enqueue(app, "gobble", b"[1]")
    after = enqueue(app, "pid")
    BurstWorker(app, kind="process", burst=True, memory_bytes=1 << 30).run()

    assert app.record(greedy).error_type == "MemoryError"
    assert app.result(modest).get(0) == 1 << 20
    assert app.result(before).get(0) == app.result(after).get(0)


def test_a_result_comes_whole_or_not_at_all(app: App) -> None:
    """As large as may be kept; a larger one is a dead letter that says so."""
    fits = enqueue(app, "big", b"[%d]" % (RESULT_BYTES_MAX - 2))
    exceeds = enqueue(app, "big", b"[%d]" % (RESULT_BYTES_MAX - 1))
    BurstWorker(app, kind="process", burst=True).run()

    assert app.result(fits).get(0) == "x" * (RESULT_BYTES_MAX - 2)
    assert app.record(exceeds).error_type == "BadResult"


def test_a_worker_that_is_stopped_now_gives_back_what_runs(app: App, scratch: Path) -> None:
    """Without counting it as a try; its process is gone."""
    begun = scratch / "begun"
    result = app.enqueue("stay", b'["%s"]' % str(begun).encode())
    with working(Worker(app, kind="process")) as worker:
        wait_until(lambda: begun.exists() and begun.read_text() != "")
        pid = int(begun.read_text())
        worker.stop(now=True)
    status = app.store.queue("default").browse()[0]

    assert is_gone(pid)
    assert result.state is State.PENDING
    assert (status.state, status.tries) == ("ready", 0)
    assert happenings(app, result.id)[-1] == "pending"


def test_a_message_with_numbers_beyond_reason_takes_no_worker_with_it(app: App) -> None:
    """Anybody may push anything."""
    queue = app.queue_for("default")
    queue.push(b'{"task": "pid", "retries": 100000000000000000000000000}')
    queue.push(b'{"task": "pid", "timeout": 1e300}')
    after = enqueue(app, "pid")
    BurstWorker(app, kind="process", burst=True).run()

    assert app.record(after).state is State.COMPLETED
    assert queue.count().total == 0


def test_an_app_that_no_process_could_find_is_refused(scratch: Path) -> None:
    """When the worker is made: processes import the App by its module and name."""
    with App(scratch / "nowhere", sync="os") as app:

        @app.task
        def job() -> None: ...

        with pytest.raises(AppNotFound, match="module"):
            Worker(app, kind="process")


def test_a_module_that_processes_cannot_import_ends_the_worker_with_the_reason(
    app: App, module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """It could do nothing but fail every task; none is lost."""
    caplog.set_level(logging.CRITICAL, "segue")
    assert module.__file__ is not None
    Path(module.__file__).write_text("raise RuntimeError('half saved')\n")
    task_id = enqueue(app, "pid")

    with pytest.raises(AppNotFound, match="half saved"):
        Worker(app, kind="process", drain=1).run()
    assert app.record(task_id).state is State.PENDING


def test_many_processes_run_at_the_same_time(app: App, scratch: Path) -> None:
    """Each of these tasks ends only when both have begun."""
    place = scratch / "place"
    place.mkdir()
    ids = [enqueue(app, "meet", b'["%s",2]' % str(place).encode()) for _ in range(2)]
    BurstWorker(app, kind="process", min_size=2, burst=True).run()

    assert len({app.result(task_id).get(0) for task_id in ids}) == 2
