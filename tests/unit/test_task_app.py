"""Declaring tasks and queues, and the App's hold on its store."""

import asyncio
import functools
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

import segue
from segue.delivery.retry import Backoff
from segue.errors import BadArguments, InvalidArgument, InvalidName, ResultTimeout, TaskNotFound
from segue.tasks import App, AsyncTask, Cron, Every, State, Task
from segue.tasks.envelope import TASK_NAME_MAX
from segue.tasks.events import EventLog
from segue.testing import ManualClock
from tests.contract.task_support import manual_app, work
from tests.waiting import LIMIT_SECONDS

P = ParamSpec("P")
R = TypeVar("R")


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock()


@pytest.fixture
def app(scratch: Path, clock: ManualClock) -> Iterator[App]:
    with manual_app(scratch / "data", clock) as app:
        yield app


# Declaring ---------------------------------------------------------------------------------


def test_a_task_is_what_its_function_and_the_app_say(app: App) -> None:
    """Defaults are the documented ones."""

    @app.task
    def plain() -> None: ...

    rules = plain.rules

    assert isinstance(plain, Task)
    assert (rules.name, rules.queue, rules.priority) == ("plain", "default", 2)
    assert (rules.retries, rules.timeout, rules.result_ttl) == (3, 30.0, 7 * 86_400.0)
    assert (rules.backoff.base_us, rules.backoff.cap_us) == (1_000_000, 300_000_000)
    assert (rules.unique, rules.key, rules.schedule) == (None, None, None)
    assert app.find_task("plain") is plain


def test_what_the_app_says_goes_for_tasks_that_say_nothing_else(scratch: Path) -> None:
    """And no further."""
    app = App(
        scratch,
        queue="mine",
        retries=1,
        timeout=timedelta(minutes=1),
        backoff=2,
        result_ttl=timedelta(hours=1),
    )

    @app.task
    def one() -> None: ...

    @app.task(retries=0, timeout=5, queue="other", result_ttl=60, backoff=Backoff(jitter=0))
    async def two() -> None: ...

    assert (one.rules.queue, one.rules.retries, one.rules.timeout) == ("mine", 1, 60.0)
    assert (one.rules.backoff.base_us, one.rules.result_ttl) == (2_000_000, 3_600.0)
    assert (two.rules.queue, two.rules.retries, two.rules.timeout) == ("other", 0, 5.0)
    assert (two.rules.backoff.jitter, two.rules.result_ttl) == (0, 60.0)
    assert isinstance(two, AsyncTask)
    assert app.queue_names() == ["mine", "other"]


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    """Nobody could tell which a message means; the first stays."""

    @app.task
    def job() -> int:
        return 1

    with pytest.raises(InvalidArgument, match="job already"):

        @app.task(name="job")
        def other() -> int:
            return 2

    assert app.find_task("job") is job


@pytest.mark.parametrize("name", ["", " ", "new\nline", "x" * (TASK_NAME_MAX + 1), "nul\x00"])
def test_a_name_that_is_none_is_refused(app: App, name: str) -> None:
    """It stands in lists and logs."""
    with pytest.raises(InvalidArgument):
        app.task(name=name)(lambda: None)


def test_a_function_without_a_name_needs_one(app: App) -> None:
    """A callable object, or part of a function; with a name it is a task as any other."""

    class Adder:
        def __call__(self, number: int) -> int:
            return number + 1

    def add(left: int, right: int) -> int:
        return left + right

    with pytest.raises(InvalidArgument, match="name="):
        app.task(Adder())
    results = [
        app.task(name="object")(Adder()).enqueue(1),
        app.task(name="partial")(functools.partial(add, 5)).enqueue(2),
    ]
    work(app)

    assert [result.get(0) for result in results] == [2, 7]


@pytest.mark.parametrize(
    "settings",
    [
        {"retries": -1},
        {"retries": 1_001},
        {"timeout": 0},
        {"timeout": -1},
        {"backoff": -1},
        {"result_ttl": -1},
        {"unique": 0},
        {"unique": -5},
        {"priority": "urgent"},
        {"queue": "no/queue"},
        {"rate": "fast"},
        {"rate": 0},
        {"rate": -1},
        {"rate": True},
        {"rate": "10/y"},
        {"burst": 0},
        {"concurrency": 0},
        {"key": "nobody"},
        {"schedule": "now and then"},
        {"schedule": "every 1s", "missed": "some"},
    ],
    ids=str,
)
def test_a_task_that_makes_no_sense_is_refused(app: App, settings: dict[str, object]) -> None:
    """When it is declared, and not when it first runs; nothing of it is left."""
    with pytest.raises(InvalidArgument):
        app.task(name="job", **settings)(lambda: None)  # type: ignore[call-overload]

    assert app.tasks == {}
    assert app.schedules == {}


def test_a_task_that_cannot_be_scheduled_is_not_declared(app: App) -> None:
    """A schedule has no arguments to give; corrected, it is no duplicate."""

    def needs(number: int) -> None: ...

    with pytest.raises(BadArguments):
        app.task(name="job", schedule="every 1m")(needs)

    assert app.tasks == {}
    app.task(name="job")(needs)


def test_limits_are_rules_of_a_queue_so_that_a_task_with_any_has_its_own(app: App) -> None:
    """Called as the task is; in the queue's rules when it is first used."""

    @app.task(rate="120/m", burst=5, concurrency=7)
    def limited() -> None: ...

    @app.task(key="user", concurrency=2, unique=60)
    def keyed(user: str) -> None: ...

    rules = app.queue_for("limited").rules
    keyed_rules = app.queue_for("keyed").rules

    assert (limited.rules.queue, keyed.rules.queue) == ("limited", "keyed")
    assert (rules.rate, rules.rate_burst, rules.max_leases) == (2.0, 5, 7)
    assert (keyed_rules.group_concurrency, keyed_rules.max_leases) == (2, None)
    assert keyed_rules.dedup_window == 60


def test_tasks_that_share_a_queue_share_its_limits_or_are_refused(app: App) -> None:
    """Two rates for one queue: one of them would be a lie."""

    @app.task(queue="shared", rate=5)
    def one() -> None: ...

    @app.task(queue="shared", rate="300/m")
    def same() -> None: ...

    with pytest.raises(InvalidArgument, match=r"of task (one|same)"):

        @app.task(queue="shared", rate=6)
        def other() -> None: ...

    assert "other" not in app.tasks


def test_a_weight_takes_no_limit_away(app: App) -> None:
    """What is not said is left as it was; the same limit twice is no conflict."""

    @app.task(queue="one", concurrency=2)
    def job() -> None: ...

    app.queue("one", weight=5)
    app.queue("two", weight=5, concurrency=2)

    @app.task(queue="two", concurrency=2)
    def other() -> None: ...

    assert app.queue_for("one").rules.max_leases == 2
    assert app.weight_of("one") == app.weight_of("two") == 5


def test_a_queue_lets_its_tasks_have_all_their_tries(app: App) -> None:
    """It would otherwise give them up by itself."""

    @app.task(retries=100)
    def job() -> None: ...

    job.enqueue()
    deliveries = app.store.queue("default").rules.max_deliveries

    assert deliveries is None or deliveries >= 101


def test_a_task_that_is_declared_late_has_all_its_tries_too(app: App) -> None:
    """The queue may be open already, by another task."""

    @app.task
    def first() -> None: ...

    first.enqueue()

    @app.task(retries=100)
    def late() -> None: ...

    late.enqueue()
    deliveries = app.store.queue("default").rules.max_deliveries

    assert deliveries is None or deliveries >= 101


def test_shares_are_of_queues_and_of_tenants(scratch: Path) -> None:
    """A tenant's share is of its queue's."""
    app = App(scratch, weights={"gold": 4})
    app.queue("mail", weight=3)

    assert app.weight_of("default") == 1
    assert app.weight_of("mail") == 3
    assert app.weight_of("mail.tenant.gold") == 12
    assert app.weight_of("mail.tenant.other") == 3
    with pytest.raises(InvalidArgument):
        App(scratch, weights={"bad": 0})
    with pytest.raises(InvalidName):
        App(scratch, weights={"no/tenant": 1})


# Schedules ---------------------------------------------------------------------------------


def test_a_schedule_is_text_a_duration_or_a_value(app: App) -> None:
    """Under the task's name, or under one of its own with arguments."""

    @app.task(schedule="0 3 * * *")
    def nightly() -> None: ...

    @app.task(schedule=timedelta(minutes=5))
    def often() -> None: ...

    @app.task
    def mail(to: str, urgent: bool = False) -> None: ...

    app.schedule("mail-boss", Every(60), mail, "boss", True)

    assert app.schedules["nightly"].when == Cron("0 3 * * *")
    assert app.schedules["often"].when == Every(300)
    assert app.schedules["mail-boss"].arguments == b'{"to":"boss","urgent":true}'
    assert app.schedules["mail-boss"].task == "mail"
    with pytest.raises(InvalidArgument, match="already"):
        app.schedule("nightly", 5, nightly)
    with pytest.raises(BadArguments):
        app.schedule("bad", 5, mail)
    assert sorted(app.schedules) == ["mail-boss", "nightly", "often"]


# The store ---------------------------------------------------------------------------------


def test_nothing_is_opened_before_it_is_needed(scratch: Path) -> None:
    """Importing a module with tasks touches no disk."""
    app = App(scratch / "data")

    @app.task
    def job() -> None: ...

    job.using(delay=5)
    app.close()

    assert not (scratch / "data").exists()


def test_an_app_that_was_closed_opens_again_when_it_is_needed(app: App) -> None:
    """Closing twice is allowed."""

    @app.task
    def job() -> int:
        return 1

    result = job.enqueue()
    app.close()
    app.close()

    assert result.state is State.PENDING


def test_whoever_waits_in_an_event_loop_asks_the_store_in_another_thread(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may take its time: neither opening it nor asking it may hold up the loop."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()
    app.close()
    asked_by: list[int] = []

    def noted(act: Callable[P, R]) -> Callable[P, R]:
        def noting(*args: P.args, **kwargs: P.kwargs) -> R:
            asked_by.append(threading.get_ident())
            return act(*args, **kwargs)

        return noting

    monkeypatch.setattr("segue.tasks.opened.open", noted(segue.open))
    monkeypatch.setattr(EventLog, "end", noted(EventLog.end))
    with pytest.raises(ResultTimeout):
        asyncio.run(result.get_async(0))

    assert len(asked_by) > 1
    assert threading.get_ident() not in asked_by


def test_whoever_waits_in_an_event_loop_waits_no_longer_than_asked_for(app: App) -> None:
    """As who waits in a thread: the error is a TimeoutError, and no reason to go on."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()

    for seconds in (0, 0.01):
        with pytest.raises(ResultTimeout, match="is pending"):
            asyncio.run(asyncio.wait_for(result.get_async(seconds), LIMIT_SECONDS))


def test_an_app_may_go_on_with_another_store(app: App, scratch: Path) -> None:
    """As tests and settings need it; what was queued stays where it was."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()
    app.use(scratch / "other")

    assert job.enqueue().id == result.id  # The first of another store.
    app.use(scratch / "data")
    assert app.store.queue("default").count().ready == 1


def test_a_forked_child_opens_the_store_anew(app: App) -> None:
    """What the parent has open is the parent's."""

    @app.task
    def job(number: int) -> None: ...

    job.enqueue(1)
    parent = app.store
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        try:
            result = job.enqueue(2)
            os.write(writing, f"{result.id} {app.store is not parent}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)

    assert said == "default/2-1 True"
    assert app.store is parent
    assert app.store.queue("default").count().ready == 2


def test_a_task_is_not_pickled(app: App) -> None:
    """Its name is what travels."""

    @app.task
    def job() -> None: ...

    with pytest.raises(TypeError, match="job"):
        pickle.dumps(job)


def test_what_things_are_called_in_a_debugger(app: App) -> None:
    """Enough to know them by."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()

    assert repr(job) == "<Task job queue=default>"
    assert repr(result) == f"<Result {result.id}>"
    assert "tasks=1" in repr(app)


def test_a_task_nobody_declared_is_not_found(app: App) -> None:
    """With those there are."""
    with pytest.raises(TaskNotFound, match="none"):
        app.find_task("job")


def test_a_burst_without_a_rate_is_refused(tmp_path: Path) -> None:
    """It would be taken, and mean nothing."""
    app = App(tmp_path)

    with pytest.raises(InvalidArgument, match="without a rate"):
        app.task(burst=5)
    with pytest.raises(InvalidArgument, match="without a rate"):
        app.queue("mail", burst=5)
    app.queue("mail", rate=10)
    app.queue("mail", burst=5)
