"""The index of tasks: derived from the events, and from nothing else."""

import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from segue.stores.contract import Store
from segue.stores.opening import open as open_store
from segue.tasks import App, State, TaskRecord
from segue.tasks.events import NOTHING, EventLog, Happening, TaskEvent
from segue.tasks.index import FORGET_EVERY_US, SCHEMA, TaskIndex
from segue.testing import ManualClock
from segue.testing.clock import START_US
from tests.contract.task_support import manual_app, work

SECOND = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock()


@pytest.fixture
def store(scratch: Path, clock: ManualClock) -> Iterator[Store]:
    with open_store(scratch / "data", sync="os", clock=clock, ticks=clock.ticks) as store:
        yield store


@pytest.fixture
def log(store: Store) -> EventLog:
    """The events, of which there are none yet."""
    log = EventLog(store)
    log.prepare(3_600)
    return log


@pytest.fixture
def path(scratch: Path) -> Path:
    """Where the database is."""
    return scratch / "index" / "tasks.sqlite3"


@pytest.fixture
def index(log: EventLog, path: Path, clock: ManualClock) -> Iterator[TaskIndex]:
    index = TaskIndex(log, path, clock)
    yield index
    index.close()


def event(
    number: int,
    happened: Happening = "completed",
    *,
    queue: str = "default",
    task: str = "job",
    at_us: int = 0,
    attempt: int = 1,
    worker: str = "w",
    error: str = "",
    expires_us: int = 0,
    result: bytes = b"",
) -> TaskEvent:
    return TaskEvent(
        id=f"{queue}/2-{number}",
        happened=happened,
        at_us=START_US + at_us,
        task=task,
        attempt=attempt,
        worker=worker,
        error=error,
        expires_us=expires_us,
        result=msgspec.Raw(result) if result else NOTHING,
    )


def get(index: TaskIndex, number: int) -> TaskRecord:
    found = index.get(f"default/2-{number}")
    assert found is not None
    return found


# Finding -----------------------------------------------------------------------------------


def test_an_event_is_known_as_soon_as_it_is_there(log: EventLog, index: TaskIndex) -> None:
    """Whoever asks reads what has come since."""
    before = index.get("default/2-0")
    log.append([event(0, result=b"5")])
    first = index.get("default/2-0")
    log.append([event(1)])

    assert before is None
    assert first is not None
    assert (first.state, first.result) == (State.COMPLETED, b"5")
    assert get(index, 1).state is State.COMPLETED


def test_tasks_are_found_by_state_name_queue_error_and_time(
    log: EventLog, index: TaskIndex
) -> None:
    """And by all of them together; those that changed last come first."""
    log.append(
        [
            event(0, at_us=10),
            event(1, "dead_letter", at_us=20, error="ValueError: No Such File"),
            event(2, "retrying", at_us=30, task="mail", error="OSError: 100%_sure"),
            event(3, queue="default0", at_us=40),
            event(4, queue="defaul", at_us=50),
            event(5, "cancelled", at_us=60, queue="default.tenant.ann"),
        ]
    )

    def ids(**conditions: object) -> list[str]:
        found = index.find(**conditions)  # type: ignore[arg-type]
        return [record.message_id for record in found]

    assert ids() == ["2-5", "2-4", "2-3", "2-2", "2-1", "2-0"]
    assert ids(states=[State.COMPLETED, State.RETRYING]) == ["2-4", "2-3", "2-2", "2-0"]
    assert ids(task="mail") == ["2-2"]
    assert ids(queue="default") == ["2-2", "2-1", "2-0"]
    assert ids(queue="default.tenant.ann") == ["2-5"]
    assert ids(error="no such") == ["2-1"]
    assert ids(error="%_") == ["2-2"]
    assert ids(error="'; DROP TABLE tasks; --") == []
    assert ids(since_us=START_US + 20, until_us=START_US + 40) == ["2-2", "2-1"]
    assert ids(limit=2) == ["2-5", "2-4"]
    assert ids(limit=2, skip=4) == ["2-1", "2-0"]
    assert ids(
        states=[State.DEAD_LETTER], queue="default", error="file", since_us=START_US + 20
    ) == ["2-1"]
    assert index.counts() == {
        ("job", State.COMPLETED): 3,
        ("job", State.DEAD_LETTER): 1,
        ("job", State.CANCELLED): 1,
        ("mail", State.RETRYING): 1,
    }


# Taking in events --------------------------------------------------------------------------


def test_a_later_attempt_is_not_overtaken_by_an_earlier_one(
    log: EventLog, index: TaskIndex
) -> None:
    """Whoever lost its lease may still say something."""
    log.append([event(0, attempt=2, result=b"2"), event(0, "dead_letter", attempt=1, error="x")])

    assert (get(index, 0).state, get(index, 0).result) == (State.COMPLETED, b"2")


def test_what_was_lost_is_taken_back(log: EventLog, index: TaskIndex) -> None:
    """If it is what was said last, and by the same worker."""
    log.append(
        [
            event(0, result=b"1", worker="slow"),
            event(0, "lost", worker="slow"),
            event(1, result=b"1", worker="slow"),
            event(1, attempt=2, result=b"2", worker="quick"),
            event(1, "lost", worker="slow"),
        ]
    )

    assert (get(index, 0).state, get(index, 0).result) == (State.RETRYING, None)
    assert get(index, 0).finished_us == 0
    assert (get(index, 1).state, get(index, 1).result) == (State.COMPLETED, b"2")


def test_progress_is_that_of_the_attempt_at_work(log: EventLog, index: TaskIndex) -> None:
    """And stays when the task is done."""
    log.append([event(0, "processing", attempt=2)])
    for attempt, told in ((2, b"0.5"), (1, b"0.9")):
        log.append(
            [
                TaskEvent(
                    id="default/2-0",
                    happened="progress",
                    at_us=START_US,
                    attempt=attempt,
                    progress=msgspec.Raw(told),
                )
            ]
        )
    during = get(index, 0).progress
    log.append([event(0, attempt=2)])

    assert during == b"0.5"
    assert get(index, 0).progress == b"0.5"


def test_what_is_no_event_is_passed_over(log: EventLog, index: TaskIndex) -> None:
    """Anybody may append to a topic."""
    log.append([event(0)])
    for nonsense in (b"", b"{", b"5", b'{"id": "x", "happened": "eaten", "at_us": 1}', b"\xff"):
        log.topic.append(nonsense, key="default/2-9")
    log.append([event(1)])

    assert [record.message_id for record in index.find()] == ["2-0", "2-1"]


def test_a_record_is_forgotten_when_its_time_is_over(
    log: EventLog, index: TaskIndex, clock: ManualClock
) -> None:
    """At once; the file is cleaned up later. Those that do not say when have a week."""
    log.append([event(0, expires_us=clock() + 10 * SECOND), event(1)])
    before = len(index.find())
    clock.advance(seconds=11)
    after = [record.message_id for record in index.find()]
    clock.advance(seconds=FORGET_EVERY_US / SECOND)

    assert (before, after) == (2, ["2-1"])
    assert index.get("default/2-0") is None
    assert index.counts() == {("job", State.COMPLETED): 1}
    assert [record.message_id for record in index.find()] == ["2-1"]


# The file ----------------------------------------------------------------------------------


def test_the_index_is_made_anew_when_it_was_deleted(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock
) -> None:
    """It holds nothing that the events do not."""
    log.append([event(number) for number in range(10)])
    before = index.find()
    index.close()
    for file in path.parent.iterdir():
        file.unlink()
    after = TaskIndex(log, path, clock)

    assert after.find() == before
    assert len(before) == 10
    after.close()


def test_whoever_has_the_index_open_goes_on_when_it_is_deleted(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock
) -> None:
    """So does whoever comes after."""
    log.append([event(0)])
    index.catch_up()
    for file in path.parent.iterdir():
        file.unlink()
    other = TaskIndex(log, path, clock)
    log.append([event(1)])

    assert len(index.find()) == len(other.find()) == 2
    other.close()


@pytest.mark.parametrize("damage", ["garbage", "empty", "half", "text", "random", "headless"])
def test_the_index_is_made_anew_when_it_is_damaged(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock, damage: str
) -> None:
    """However it came about; nobody hears of it."""
    log.append([event(number, error="e" * 500) for number in range(200)])
    before = index.find(limit=500)
    index.close()
    data = path.read_bytes()
    noise = random.Random(7).randbytes(len(data))
    path.write_bytes(
        {
            "garbage": noise,
            "empty": b"",
            "half": data[: len(data) // 2],
            "text": b"not a database\n",
            "random": data[:100] + noise[100:],
            "headless": noise[:4096] + data[4096:],
        }[damage]
    )
    after = TaskIndex(log, path, clock)

    assert after.find(limit=500) == before
    assert len(before) == 200
    after.close()


@pytest.mark.parametrize("table", ["tasks", "tasks_by_state", "tasks_by_time"])
def test_the_index_is_made_anew_when_one_of_its_pages_is_damaged(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock, table: str
) -> None:
    """Also if it is found only when it is asked."""
    log.append([event(number, error="e" * 500) for number in range(200)])
    before = index.find(limit=500)
    index.close()
    database = sqlite3.connect(path)
    (size,) = database.execute("PRAGMA page_size").fetchone()
    (page,) = database.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone()
    database.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(data)
    after = TaskIndex(log, path, clock)

    assert after.find(limit=500) == before
    assert after.find(states=[State.COMPLETED], limit=500) == before
    assert after.get("default/2-7") is not None
    after.close()


def test_the_index_of_another_version_is_made_anew(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock
) -> None:
    """Newer or older: the events are the same."""
    log.append([event(0)])
    index.catch_up()
    index.close()
    database = sqlite3.connect(path)
    database.execute("DROP TABLE tasks")
    database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    database.commit()
    database.close()
    after = TaskIndex(log, path, clock)

    assert len(after.find()) == 1
    after.close()


def test_the_index_of_other_events_is_made_anew(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock, scratch: Path
) -> None:
    """A store that was restored from a backup has fewer of them."""
    log.append([event(number) for number in range(10)])
    index.catch_up()
    index.close()
    with open_store(scratch / "backup", sync="os") as older:
        older_log = EventLog(older)
        older_log.prepare(3_600)
        older_log.append([event(100)])
        after = TaskIndex(older_log, path, clock)

        assert [record.message_id for record in after.find()] == ["2-100"]
        after.close()


def test_an_index_that_has_no_place_is_kept_in_memory(
    log: EventLog, scratch: Path, clock: ManualClock
) -> None:
    """A directory nobody may write to is no reason not to answer."""
    (scratch / "file").write_text("no directory")
    for path in (None, scratch / "file" / "tasks.sqlite3"):
        index = TaskIndex(log, path, clock)
        log.append([event(0)])

        assert len(index.find()) == 1
        index.close()


# Together ----------------------------------------------------------------------------------


def test_many_may_ask_at_once(log: EventLog, path: Path, clock: ManualClock) -> None:
    """Threads of one index, and indexes of one file, while events come."""
    indexes = [TaskIndex(log, path, clock) for _ in range(3)]
    errors: list[BaseException] = []
    done = threading.Event()

    def ask(index: TaskIndex) -> None:
        try:
            while not done.is_set():
                index.find(limit=5)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(index,)) for index in indexes for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(100):
        log.append([event(number)])
    done.set()
    for thread in threads:
        thread.join(30)

    assert errors == []
    assert [len(index.find(limit=500)) for index in indexes] == [100] * 3
    for index in indexes:
        index.close()


ASK = """
import sys
from segue.tasks import App
with App(sys.argv[1], sync="os") as app:
    for _ in range(50):
        found = app.desk.find(limit=1000)
    print(len(found), sorted({record.state.value for record in found}))
"""


def test_processes_share_the_index(scratch: Path) -> None:
    """Two that make it at the same time, and one that has it open."""
    with App(scratch / "data", sync="os") as app:

        @app.task(retries=0)
        def job(number: int) -> int:
            return 1 // (number % 4)

        job.map(range(100))
        work(app, size=2)
        app.desk.find()
        for file in (scratch / "data" / "index").iterdir():
            file.unlink()
        children = [
            subprocess.Popen(
                [sys.executable, "-c", ASK, str(scratch / "data")],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        ours = len(app.desk.find(limit=1000))
        said = [child.communicate(timeout=60)[0].strip() for child in children]

    assert ours == 100
    assert said == ["100 ['completed', 'dead_letter']"] * 2


# The desk ----------------------------------------------------------------------------------


def test_whoever_looks_for_tasks_finds_those_that_wait_and_those_that_are_done(
    scratch: Path, clock: ManualClock
) -> None:
    """Waiting ones from their queues, finished ones from the events; by the same words."""
    with manual_app(scratch / "data", clock) as app:
        app.queue("other")

        @app.task(retries=0)
        def bad(number: int) -> None:
            raise ValueError(f"number {number}")

        @app.task(retries=3)
        def again() -> None:
            raise OSError("busy")

        @app.task
        def good() -> None: ...

        dead = bad.enqueue(1)
        retrying = again.enqueue()
        done = good.enqueue()
        work(app, queues=["default"])
        waiting = good.using(queue="other").enqueue()
        scheduled = good.using(delay=60).enqueue()
        cancelled = good.enqueue()
        cancelled.cancel()
        app.store.queue("default").push(b"no task at all")

        def found(**conditions: object) -> set[str]:
            records = app.desk.find(**conditions)  # type: ignore[arg-type]
            assert len({record.id for record in records}) == len(records)
            return {record.id for record in records}

        everything = {dead.id, retrying.id, done.id, waiting.id, scheduled.id, cancelled.id}
        assert found() == everything
        for state, result_id in (
            (State.DEAD_LETTER, dead.id),
            (State.RETRYING, retrying.id),
            (State.COMPLETED, done.id),
            (State.PENDING, waiting.id),
            (State.SCHEDULED, scheduled.id),
            (State.CANCELLED, cancelled.id),
        ):
            assert found(states=[state]) == {result_id}, state
        assert found(queue="other") == {waiting.id}
        assert found(queue="nowhere") == set()
        assert found(task="good") == {done.id, waiting.id, scheduled.id, cancelled.id}
        assert found(error="NUMBER 1") == {dead.id}
        assert found(error="busy") == {retrying.id}
        assert len(app.desk.find(limit=2)) == 2
        assert found(since_us=clock() + 1) == set()
