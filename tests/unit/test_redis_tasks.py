"""Tasks on a server: workers of every kind, schedules, and who asks, by the server's own clock."""

import importlib
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import segue
from segue.errors import ResultTimeout, TaskFailed
from segue.stores.redis.calls import Calls
from segue.tasks import App, Result, State, Worker, current
from segue.tasks.autoscaler import ScalingRules
from segue.tasks.scheduling import Scheduler
from segue.tasks.states import TERMINAL
from segue.tasks.worker import Kind, reports, settler, sources
from segue.tasks.worker.reports import read_reports
from segue.testing import ManualClock
from tests.contract.task_support import BurstWorker, manual_app, work, working
from tests.redis_server import LOOPBACK, RedisServer, shared_server
from tests.waiting import LIMIT_SECONDS, run_other_tasks, wait_until

DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}
PASSWORD: Final = "open-sesame"
MODULE: Final = """
import os
import threading

from segue.tasks import App

app = App({url!r}, retries=0)


@app.task
def words() -> list[str]:
    with open("/proc/self/cmdline", encoding="utf-8") as file:
        return file.read().split("\\0")


@app.task
def pid(number: int) -> int:
    return os.getpid()


@app.task(timeout=0.3)
def sleep_long() -> None:
    threading.Event().wait()
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A namespace of its own, empty again when the test is over."""
    namespace = f"tasks-{secrets.token_hex(8)}"
    yield f"{shared_server().url}?namespace={namespace}"
    with shared_server().client() as client:
        for key in client.scan_iter(f"{namespace}:*", count=10_000):
            client.unlink(key)


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """An App that goes by the clock on the wall."""
    with App(url, retries=1, backoff=0.01) as app:
        yield app


def load(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that the processes of a worker find, too."""
    name = f"tasks_{secrets.token_hex(4)}"
    (place / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(place)
    return importlib.import_module(name)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_workers_run_tasks_sync_and_async(app: App, kind: Kind) -> None:
    """In threads and in an event loop: results, failures and records are as with files."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def negate(number: int) -> int:
        await run_other_tasks()
        return -number

    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("no good")

    doubled, negated, failed = double.map(range(20)), negate.map(range(20)), fail.enqueue()
    with working(Worker(app, kind=kind, min_size=4)):
        assert [each.get(LIMIT_SECONDS) for each in doubled] == [2 * number for number in range(20)]
        assert [each.get(LIMIT_SECONDS) for each in negated] == [-number for number in range(20)]
        with pytest.raises(TaskFailed, match="ValueError: no good"):
            failed.get(LIMIT_SECONDS)

    assert app.record(failed.id).state is State.DEAD_LETTER
    assert app.store.queue("default").count().total == 0


def test_a_worker_has_its_tasks_run_by_processes_that_do_not_show_the_password(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody on a machine sees how its processes were called."""
    with RedisServer(scratch / "server", {"requirepass": PASSWORD}) as server:
        url = f"redis://:{PASSWORD}@{LOOPBACK}:{server.port}/0"
        module = load(MODULE.format(url=url), scratch, monkeypatch)
        app: App = module.app
        words, slow = module.words.enqueue(), module.sleep_long.enqueue()
        pids = module.pid.map(range(6))
        BurstWorker(app, kind="process", min_size=2, burst=True).run()

        assert PASSWORD not in " ".join(words.get(0))
        assert os.getpid() not in {each.get(0) for each in pids}
        assert app.record(slow.id).error.startswith("TaskTimeout:")
        assert PASSWORD not in repr(app)
        assert PASSWORD not in app.store.url
        app.close()
    del sys.modules[module.__name__]


def test_whoever_waits_for_a_result_is_told(app: App) -> None:
    """At once, from another App on the same store; and no sooner than it is there."""
    gate = threading.Event()

    @app.task
    def hold() -> str:
        gate.wait(LIMIT_SECONDS)
        return "done"

    result = hold.enqueue()
    with App(app.url) as other, working(Worker(app)):
        with pytest.raises(ResultTimeout):
            other.result(result.id).get(0.05)
        gate.set()

        assert other.result(result.id).get(LIMIT_SECONDS) == "done"


def test_asking_for_a_task_takes_as_many_calls_however_many_queues_there_are(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list them asks the server for each: they may be on different nodes."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()
    asked: list[str] = []
    until_known = Calls._until_known

    def noting(calls: Calls, key: str, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401 - any
        asked.append(key)
        return until_known(calls, key, *args, **kwargs)

    monkeypatch.setattr(Calls, "_until_known", noting)
    counts = []
    for number in range(3):
        asked.clear()
        assert result.state is State.PENDING
        counts.append(len(asked))
        app.store.queue(f"other-{number}").push(b"")

    assert counts[1:] == counts[:1] * 2


def test_a_running_task_is_cancelled_by_another(app: App) -> None:
    """The worker learns of it from the store."""
    begun = threading.Event()

    @app.task(timeout=None)
    def stay() -> None:
        begun.set()
        while not current().is_cancelled:
            current()  # Where it can be stopped.

    result = stay.enqueue()
    with App(app.url) as other, working(Worker(app)):
        assert begun.wait(LIMIT_SECONDS)
        assert other.cancel(result.id)

        wait_until(lambda: other.record(result.id).state is State.CANCELLED)


def test_progress_and_metrics_of_a_worker_are_there_for_all_to_see(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As reports in the store; the worker that stopped is not among them."""
    monkeypatch.setattr(reports, "GONE_SECONDS", 600.0)
    gate = threading.Event()

    @app.task
    def climb() -> None:
        current().progress({"step": 2})
        gate.wait(LIMIT_SECONDS)

    result = climb.enqueue()
    with segue.open(url) as store, working(Worker(app, name="climber")):
        wait_until(lambda: app.record(result.id).progress == b'{"step":2}')
        wait_until(lambda: any(each.busy for each in read_reports(store, app.clock())))
        (report,) = read_reports(store, app.clock())
        gate.set()
        result.get(LIMIT_SECONDS)

    assert (report.worker, report.busy, report.queues) == ("climber", 1, ["default"])
    with segue.open(url) as store:
        assert read_reports(store, app.clock()) == []


def test_a_worker_grows_with_the_queue(app: App) -> None:
    """The autoscaler sees how much waits on the server."""
    gate = threading.Event()
    together = threading.Semaphore(0)

    @app.task
    def hold(number: int) -> int:
        together.release()
        gate.wait(LIMIT_SECONDS)
        return number

    results = hold.map(range(60))
    rules = ScalingRules(min_workers=1, max_workers=3, check_seconds=0.05)
    with working(Worker(app, scaling=rules)):
        assert all(together.acquire(timeout=LIMIT_SECONDS) for _ in range(2))
        gate.set()
        values = [each.get(LIMIT_SECONDS) for each in results]

    assert values == list(range(60))


def test_a_schedule_fires_once_however_many_watch(url: str) -> None:
    """One of them leads, by a lock on the server, and the others take over from its notes."""
    clock = ManualClock(1_700_000_040_000_000)
    apps = [manual_app(url, clock) for _ in range(3)]
    for each in apps:

        @each.task(schedule="every 1m")
        def beat() -> str:
            return "beat"

    watchers = [Scheduler(each) for each in apps]
    counts = []
    for seconds in (0, 60, 59, 1):
        clock.advance(seconds=seconds)
        for watcher in watchers:
            watcher.tick()
        counts.append(apps[0].store.queue("default").count().ready)
    watchers[0].close()
    clock.advance(seconds=60)
    for watcher in watchers[1:]:
        watcher.tick()
    work(apps[1])

    assert counts == [0, 1, 1, 2]
    assert len(apps[2].desk.find(states=[State.COMPLETED])) == 3
    for watcher in watchers[1:]:
        watcher.close()
    for each in apps:
        each.close()


def test_an_app_goes_on_in_a_process_that_was_forked(app: App) -> None:
    """With connections of its own: those of the parent stay the parent's."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    first = double.enqueue(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            double.enqueue(2)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    second = double.enqueue(3)
    work(app)

    assert status == 0
    assert (first.get(0), second.get(0)) == (2, 6)
    assert len(app.desk.find(task="double")) == 3


def test_the_index_of_a_store_on_a_server_makes_no_file(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory, and anew in each process."""
    monkeypatch.chdir(tmp_path)

    @app.task
    def double(number: int) -> int:
        return 2 * number

    result = double.enqueue(4)
    work(app)
    with App(app.url) as other:
        assert other.record(result.id).state is State.COMPLETED

    assert list(tmp_path.iterdir()) == []


def test_a_worker_outlasts_a_server_that_is_started_again(scratch: Path) -> None:
    """What the server kept goes on; a call that it did not answer is made again."""
    with RedisServer(scratch / "server", DURABLE) as server:
        done: list[int] = []
        with App(server.url) as app:

            @app.task
            def note(number: int) -> int:
                done.append(number)
                return number

            results = note.map(range(200))
            with working(Worker(app, min_size=2)):
                wait_until(lambda: len(done) > 20)
                server.restart()
                values = [each.get(LIMIT_SECONDS) for each in results]

            assert values == list(range(200))
            assert app.store.queue("default").count().total == 0


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize("queues", [1, 3])
def test_a_worker_waits_for_a_server_that_is_away_for_longer_than_a_call_is_tried(
    scratch: Path,
    kind: Kind,
    queues: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so, and goes on where it was: in the middle of tasks, of acks and of waiting."""
    monkeypatch.setattr(sources, "FULL_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(settler, "FULL_PAUSE_SECONDS", 0.05)
    is_away = threading.Event()
    with (
        RedisServer(scratch / "server", DURABLE) as server,
        App(f"{server.url}?retry=0.05&timeout=30", retries=9, backoff=0.01) as app,
    ):
        for number in range(queues):
            app.queue(f"queue-{number}")

        @app.task(queue="queue-0")
        def note(number: int) -> int:
            if number > 10:  # These run, or wait for a thread, when the server goes away.
                is_away.wait(LIMIT_SECONDS)
            return number

        results = [
            note.using(queue=f"queue-{number % queues}").enqueue(number) for number in range(60)
        ]
        with working(Worker(app, kind=kind, min_size=3, lease_ttl=5)):
            wait_until(lambda: any(each.record().state in TERMINAL for each in results))
            server.kill()
            is_away.set()
            wait_until(lambda: "nothing taken, will be tried again" in caplog.text)
            server.start(keep_port=True)
            wait_until(lambda: _is_all_done(results))
            values = [each.get(0) for each in results]
            idle = note.enqueue(99)
            wait_until(lambda: idle.record().state is State.COMPLETED)
        left = sum(app.store.queue(f"queue-{number}").count().total for number in range(queues))

    assert (values, left) == (list(range(60)), 0)


def _is_all_done(results: list[Result[int]]) -> bool:
    return all(each.record().state is State.COMPLETED for each in results)
