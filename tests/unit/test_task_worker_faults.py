"""Bad messages and bad tasks: each is a dead letter with its cause, and work goes on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import segue
from segue.delivery.retry import Backoff
from segue.delivery.rules import SECONDS_MAX
from segue.errors import RecordTooLarge, TaskFailed
from segue.stores.file.store import FileStore
from segue.tasks import App, State, Worker, current
from segue.tasks.envelope import TASK_NAME_MAX
from segue.tasks.events import ERROR_CHARACTERS_MAX, TRACEBACK_CHARACTERS_MAX
from segue.tasks.worker import Kind
from segue.tasks.worker import worker as workers
from segue.testing import ManualClock
from tests.contract.task_support import check_intact, happenings, letters, manual_app, work
from tests.waiting import LIMIT_SECONDS

LONGEST_US = round(SECONDS_MAX * 1_000_000)
KINDS: list[Kind] = ["thread", "async"]


@dataclass
class Angry:
    """Something whose own code fails when it is read."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise RuntimeError("no database")


class Unspeakable(Exception):
    """An error that cannot be said."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Poison(BaseException):
    """Nothing that anybody would catch."""


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock()


@pytest.fixture
def app(scratch: Path, clock: ManualClock) -> Iterator[App]:
    """An App whose store must be intact when the test is over."""
    with manual_app(scratch / "data", clock) as app:
        yield app
    check_intact(scratch / "data")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Who runs the tasks; processes have tests of their own."""
    kind: Kind = request.param
    return kind


def push(app: App, body: bytes) -> str:
    """Push a message by hand, as another language would, and return the id of its task."""
    return f"default/{app.queue_for('default').push(body)}"


# Messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"task": 5}',
        b'{"args": {}}',
        b'{"task": "job", "retries": -1}',
        b'{"task": "job", "timeout": 0}',
        b'{"task": "job", "timeout": "soon"}',
        b"\xff\xfe",
        pytest.param(b'{"task":"job","args":' + b"[" * 100_000, id="brackets"),
        pytest.param(b'{"task":"job","x":' + b"[" * 100_000, id="other brackets"),
    ],
)
def test_a_message_that_is_no_task_is_a_dead_letter(app: App, body: bytes) -> None:
    """Anybody may push anything; what follows it is run all the same."""

    @app.task
    def job() -> int:
        return 1

    task_id = push(app, body)
    after = job.enqueue()
    work(app)
    (letter,) = letters(app)

    assert f"default/{letter.message.id}" == task_id
    assert letter.message.body == body
    assert letter.reason.startswith(("InvalidArgument:", "BadArguments:"))
    assert after.get(0) == 1


@pytest.mark.parametrize("field", ["task", "schedule"])
def test_a_name_as_long_as_a_message_takes_no_worker_with_it(app: App, field: str) -> None:
    """What is said of a message must fit where it is kept, whatever its sender wrote."""

    @app.task
    def fine() -> int:
        return 7

    with pytest.raises(RecordTooLarge) as too_large:
        push(app, bytes(64 << 20))
    start = b'{"task": "fine", "%s": "' % field.encode()
    length = too_large.value.size_bytes_max - len(start) - len(b'"}')
    bad = push(app, start + b"x" * length + b'"}')
    good = fine.enqueue()
    work(app)

    assert good.get(0) == 7
    assert [letter.reason for letter in letters(app)] == [
        f"InvalidArgument: the message is no task: a name has at most {TASK_NAME_MAX} characters"
    ]
    assert app.record(bad).state is State.DEAD_LETTER


def test_a_task_nobody_knows_is_a_dead_letter_that_names_those_there_are(app: App) -> None:
    """A worker with older code must not try it for ever."""

    @app.task
    def job() -> None: ...

    task_id = push(app, b'{"task": "newer"}')
    work(app)
    record = app.record(task_id)

    assert (record.state, record.task) == (State.DEAD_LETTER, "newer")
    assert record.error == "TaskNotFound: there is no task newer; the app has: job"


def test_arguments_that_do_not_fit_make_a_dead_letter(app: App, kind: Kind) -> None:
    """Trying again would not help; the function is not called."""
    ran: list[int] = []

    @app.task(retries=5)
    def job(number: int) -> None:
        ran.append(number)

    bodies = [
        b'{"task": "job", "args": {"number": "five"}}',
        b'{"task": "job", "args": {"other": 5}}',
        b'{"task": "job"}',
        b'{"task": "job", "args": [1, 2]}',
        b'{"task": "job", "args": null}',
        b'{"task": "job", "args": {"number": "\xff"}}',
    ]
    ids = [push(app, body) for body in bodies]
    good = push(app, b'{"task": "job", "args": [7]}')
    work(app, kind=kind)
    records = [app.record(task_id) for task_id in ids]

    assert {record.state for record in records} == {State.DEAD_LETTER}
    assert {record.error_type for record in records} == {"BadArguments"}
    assert app.record(good).state is State.COMPLETED
    assert ran == [7]


def test_a_type_whose_own_code_fails_takes_no_worker_with_it(app: App, kind: Kind) -> None:
    """It is the task's error."""

    @app.task(retries=0, timeout=LIMIT_SECONDS)
    def job(angry: Angry) -> None: ...

    task_id = push(app, b'{"task": "job", "args": {"angry": {"value": -1}}}')
    work(app, kind=kind)
    record = app.record(task_id)

    assert record.state is State.DEAD_LETTER
    assert "no database" in record.error


def test_an_annotation_that_is_no_type_takes_no_worker_with_it(app: App, kind: Kind) -> None:
    """Some write prose there; the call is a dead letter, or refused."""

    def function(size: int = 1) -> int:
        return size

    function.__annotations__ = {"size": "the size, in metres"}
    app.task(name="job", retries=0, timeout=LIMIT_SECONDS)(function)
    task_id = push(app, b'{"task": "job"}')
    work(app, kind=kind)

    assert app.record(task_id).state is State.DEAD_LETTER


def test_what_a_message_has_of_its_own_counts(app: App) -> None:
    """Retries of one call, whoever wrote it."""

    @app.task(retries=5)
    def job() -> int:
        return current().retries

    task_id = push(app, b'{"task": "job", "retries": 2, "timeout": 600.5, "unknown": true}')
    huge = push(app, b'{"task": "job", "retries": 100000000000000000000000000}')
    work(app)

    assert app.result(task_id).get(0) == 2
    assert app.result(huge).state in (State.COMPLETED, State.DEAD_LETTER)


# Results -----------------------------------------------------------------------------------


def test_a_result_that_cannot_be_written_makes_a_dead_letter(app: App, kind: Kind) -> None:
    """Running it again would give the same; its error says which type it was."""

    @app.task(retries=5)
    def plain(what: str) -> object:
        return {"set": {1}, "bytes": b"x", "object": object(), "nan": float("nan")}[what]

    @app.task(retries=5)
    def typed() -> int:
        result: object = "text"
        return result  # type: ignore[return-value]

    results = plain.map(["set", "bytes", "object", "nan"])
    ids = [*(result.id for result in results), typed.enqueue().id]
    work(app, kind=kind)

    for task_id in ids:
        record = app.record(task_id)
        assert (record.state, record.error_type) == (State.DEAD_LETTER, "BadResult")
        assert happenings(app, task_id) == ["dead_letter"]


# Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        StopIteration(5),
        RecursionError("deep"),
        MemoryError(),
        Poison("x"),
        Unspeakable(),
        ExceptionGroup("both", [ValueError("a"), TypeError("b")]),
        ValueError("nul \x00 and newline\n"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_task_raises_is_its_failure(app: App, kind: Kind, error: BaseException) -> None:
    """The worker goes on with the next."""

    @app.task(retries=0)
    def bad() -> None:
        raise error

    @app.task
    def good() -> int:
        return 1

    failed, done = bad.enqueue(), good.enqueue()
    work(app, kind=kind)

    assert failed.state is State.DEAD_LETTER
    assert failed.record().error_type == type(error).__name__
    assert done.get(0) == 1


def test_an_error_with_text_that_is_none_takes_no_worker_with_it(app: App, kind: Kind) -> None:
    """Names of files may hold bytes that are no UTF-8; Python says them with lone surrogates."""

    @app.task(retries=0)
    def job() -> None:
        raise ValueError("no file \udcff\udcfe")

    result = job.enqueue()
    work(app, kind=kind)

    assert result.state is State.DEAD_LETTER
    assert result.record().error.startswith("ValueError: no file ")


def test_a_long_error_is_cut_and_a_long_traceback_keeps_its_end(app: App) -> None:
    """What is kept has a limit; the end of a traceback says the most."""

    @app.task(retries=0)
    def job(depth: int) -> None:
        if depth:
            job(depth - 1)
        raise ValueError("x" * 10_000)

    result = job.enqueue(5)
    work(app)

    with pytest.raises(TaskFailed) as caught:
        result.get(0)
    assert len(caught.value.error) == ERROR_CHARACTERS_MAX
    assert len(caught.value.traceback) <= TRACEBACK_CHARACTERS_MAX
    assert caught.value.traceback.endswith("x\n")


def test_progress_that_is_no_json_is_an_error_of_the_task(app: App) -> None:
    """Where it is said."""

    @app.task(retries=0)
    def job() -> None:
        current().progress({1: 2})

    result = job.enqueue()
    work(app)

    assert result.record().error.startswith("InvalidArgument: progress:")


# Settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "fibre"},
        {"min_size": 0},
        {"min_size": 3, "max_size": 2},
        {"limit": 0},
        {"drain": -1},
        {"lease_ttl": 0},
        {"memory_bytes": 1 << 30},
        {"kind": "async", "memory_bytes": 1 << 30},
    ],
    ids=str,
)
def test_a_worker_that_makes_no_sense_is_refused(app: App, settings: dict[str, object]) -> None:
    """Before it takes anything."""

    @app.task
    def job() -> None: ...

    with pytest.raises(ValueError, match=r"must|memory"):
        Worker(app, **settings)  # type: ignore[arg-type]


def test_a_worker_needs_something_to_work_on(app: App) -> None:
    """An App without tasks has no queues."""
    with pytest.raises(ValueError, match="no tasks"):
        Worker(app)


def test_tasks_where_no_worker_looks_are_told_of_and_no_queue_stays_open_for_it(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open queue is a dozen files: those of others would leave none for the tasks."""
    monkeypatch.setattr(workers, "STRANDED_OPEN_MAX", 2)

    @app.task
    def job() -> int:
        return 1

    others = [f"other-{number}" for number in range(3)]
    with segue.open(app.url, clock=app.clock, ticks=app.ticks) as store:
        for name in others:
            store.queue(name).push(b'{"task": "job"}')
        store.queue("foreign").push(b'{"task": "of another App"}')
    result = job.enqueue()
    work(app)
    store = app.store

    assert result.get(0) == 1
    assert sorted(words for words in caplog.messages if "not worked on" in words) == sorted(
        f"tasks lie in a queue not worked on queue={name} task=job" for name in others
    )
    assert isinstance(store, FileStore)
    assert store.queues_open == 1


def test_a_wait_that_chance_makes_too_long_is_the_longest_there_is(app: App) -> None:
    """The worker goes on. A little less than a hundred years, and a little more by chance."""

    @app.task(retries=1, backoff=Backoff(base_us=LONGEST_US, cap_us=LONGEST_US, jitter=1e-9))
    def later() -> None:
        raise ValueError("not now")

    @app.task
    def now() -> int:
        return 1

    failed = [later.enqueue() for _ in range(20)]
    after = now.enqueue()
    work(app)

    assert after.get(0) == 1
    assert {result.state for result in failed} == {State.RETRYING}
