"""The index of tasks: derived from the events, and from nothing else."""

import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from segue.stores.contract import Store
from segue.stores.opening import open as open_store
from segue.tasks import App, State, TaskRecord, index_pages
from segue.tasks import index as index_module
from segue.tasks.events import NOTHING, EventLog, Happening, TaskEvent
from segue.tasks.index import FORGET_EVERY_US, TaskIndex
from segue.tasks.index_pages import Key, Wanted
from segue.tasks.index_rows import EVENTS_KEPT_FIRST, EVENTS_KEPT_LAST
from segue.tasks.index_tables import SCHEMA
from segue.testing import ManualClock
from segue.testing.clock import START_US
from tests.contract.task_support import manual_app, work
from tests.unit.support import failing_cases
from tests.waiting import LIMIT_SECONDS, wait_until

SECOND = 1_000_000
RAW = msgspec.Raw(b"0.5")


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
    """The index, which takes in all events before it answers."""
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


def recounted(index: TaskIndex) -> dict[tuple[str, str, State], int]:
    """Return what the counters should say, by going through all records."""
    return dict(Counter((each.queue, each.task, each.state) for each in index.find(limit=10_000)))


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

    assert [record.message_id for record in index.find()] == ["2-1", "2-0"]


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


def test_numbers_that_no_column_holds_are_no_event(log: EventLog, index: TaskIndex) -> None:
    """One of them would stop the index for good."""
    for number in (1 << 70, -(1 << 70), (1 << 63) - 1):
        log.topic.append(b'{"id": "default/2-9", "happened": "completed", "at_us": %d}' % number)
    log.append([event(0)])

    assert [record.message_id for record in index.find()] == ["2-0"]


# Counters ----------------------------------------------------------------------------------


def test_counters_say_what_a_recount_would(
    log: EventLog, index: TaskIndex, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each batch, whatever happened to which task and whatever was forgotten."""
    monkeypatch.setattr(index_module, "BATCH_EVENTS", 7)
    monkeypatch.setattr(index_module, "FORGET_ROWS_MAX", 3)
    chance = random.Random(11)
    happenings = get_args(Happening)
    for _ in range(30):
        log.append(
            [
                event(
                    chance.randrange(20),
                    chance.choice(happenings),
                    queue=chance.choice(("default", "mail")),
                    task=chance.choice(("job", "other")),
                    attempt=chance.randint(1, 3),
                    expires_us=clock() + chance.randrange(1, 300) * SECOND,
                )
                for _ in range(chance.randrange(25))
            ]
        )
        clock.advance(seconds=61)

        assert index.counts_by_queue() == recounted(index)
    assert index.counts_by_queue()
    clock.advance(seconds=1_000)
    assert index.counts_by_queue() == {}


# Pages -------------------------------------------------------------------------------------

FILTERS = [
    Wanted(),
    Wanted(states=(State.COMPLETED,)),
    Wanted(states=(State.COMPLETED, State.CANCELLED)),
    Wanted(task="mail"),
    Wanted(states=(State.CANCELLED,), task="mail"),
    Wanted(queues=frozenset({"default"})),
    Wanted(queues=frozenset({"default", "other"}), task="mail"),
    Wanted(queues=frozenset()),
    Wanted(error="BUSY"),
    Wanted(states=(State.RETRYING,), error="busy", task="job", queues=frozenset({"other"})),
    Wanted(since_us=START_US + 5, until_us=START_US + 12),
    Wanted(states=(State.COMPLETED,), until_us=START_US + 12),
]


def fill(log: EventLog, count: int) -> None:
    """Append events of all kinds, several at the same time."""
    chance = random.Random(5)
    log.append(
        [
            event(
                number,
                chance.choice(("completed", "cancelled", "retrying")),
                queue=chance.choice(("default", "other", "third")),
                task=chance.choice(("job", "mail")),
                at_us=number // 7,
                error=chance.choice(("", "OSError: busy", "ValueError: no")),
            )
            for number in range(count)
        ]
    )


def fits(wanted: Wanted, record: TaskRecord) -> bool:
    return (
        (not wanted.states or record.state in wanted.states)
        and wanted.task in (None, record.task)
        and (wanted.queues is None or record.queue in wanted.queues)
        and (wanted.error is None or wanted.error.lower() in record.error.lower())
        and (wanted.since_us is None or record.updated_us >= wanted.since_us)
        and (wanted.until_us is None or record.updated_us < wanted.until_us)
    )


def test_pages_together_are_the_whole_list(
    log: EventLog, index: TaskIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record once, the latest first, by whatever order of the database they are found."""
    fill(log, 100)
    monkeypatch.setattr(index_pages, "QUEUES_MERGED_MAX", 1)
    everything = index.find(limit=1_000)

    def check(wanted: Wanted, limit: int) -> None:
        expected = sorted(
            (each for each in everything if fits(wanted, each)),
            key=lambda each: (each.updated_us, each.id),
            reverse=True,
        )
        found: list[TaskRecord] = []
        behind: Key | None = None
        for _ in range(200):
            page, behind = index.page(wanted, behind=behind, limit=limit)
            assert len(page) <= limit
            found += page
            if behind is None:
                break

        assert found == expected

    assert len(everything) == 100
    assert failing_cases(check, product(FILTERS, [1, 3, 1_000])) == []


def test_a_page_looks_at_so_many_records_and_goes_on_with_the_next(
    log: EventLog, index: TaskIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is rare takes more pages, and none of them takes longer."""
    log.append([event(number, at_us=number, error="OSError: busy") for number in range(95)])
    log.append([event(1_000, at_us=-1, error="ValueError: rare")])
    monkeypatch.setattr(index_pages, "ROWS_LOOKED_MAX", 10)
    pages: list[list[TaskRecord]] = []
    behind: Key | None = None
    while behind is not None or not pages:
        page, behind = index.page(Wanted(error="rare"), behind=behind, limit=5)
        pages.append(page)

    assert [len(page) for page in pages] == [0] * 9 + [1]


def test_a_page_looks_no_further_after_its_deadline(log: EventLog, index: TaskIndex) -> None:
    """It says where to go on."""
    log.append([event(number, error="OSError: busy") for number in range(2_000)])
    page, behind = index.page(Wanted(error="rare"), limit=500, deadline=0.0)

    assert page == []
    assert behind is not None


@pytest.mark.parametrize("wanted", FILTERS)
def test_every_page_is_found_by_an_index_of_the_database(
    log: EventLog, index: TaskIndex, wanted: Wanted
) -> None:
    """Nothing is sorted, and no table gone through: a million records cost as much as a hundred."""
    fill(log, 100)
    index.catch_up()
    database = index._database
    assert database is not None
    asked: list[str] = []
    database.set_trace_callback(asked.append)
    index.page(wanted, behind=(START_US + 12, "x"), limit=10)
    database.set_trace_callback(None)
    questions = [question for question in asked if " FROM tasks " in question]

    assert questions or wanted.queues == frozenset()
    for question in questions:
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {question}")]
        assert all(step.startswith("SEARCH tasks USING") for step in plan), (question, plan)
        assert " id IN (" not in question or "PRIMARY KEY" in plan[0], (question, plan)


# The events of a task ----------------------------------------------------------------------


def happened_to(log: EventLog, index: TaskIndex, number: int) -> tuple[list[str], bool]:
    offsets, is_whole = index.offsets_of(f"default/2-{number}")
    return [each.happened for each in log.at(offsets)], is_whole


def test_the_events_of_a_task_are_found_again(log: EventLog, index: TaskIndex) -> None:
    """In their order: also those that changed nothing; of progress the last."""
    log.append([event(0, "processing"), event(1), event(0, "progress")])
    log.append([event(0, "progress"), event(0, "retrying"), event(0, "lost", worker="other")])
    log.append([event(0, attempt=2), event(0, "dead_letter", attempt=1)])

    assert happened_to(log, index, 0) == (
        ["processing", "progress", "retrying", "lost", "completed", "dead_letter"],
        True,
    )
    assert index.offsets_of("default/2-0")[0] == [0, 3, 4, 5, 6, 7]
    assert happened_to(log, index, 1) == (["completed"], True)
    assert happened_to(log, index, 2) == ([], True)


def test_of_many_events_the_first_and_the_last_are_found(log: EventLog, index: TaskIndex) -> None:
    """A task that is tried for ever takes no more room than others."""
    log.append([event(0, "retrying", attempt=number) for number in range(200)])
    offsets, is_whole = index.offsets_of("default/2-0")

    assert offsets == [*range(EVENTS_KEPT_FIRST), *range(200 - EVENTS_KEPT_LAST, 200)]
    assert not is_whole


def test_events_of_a_queue_that_was_removed_are_not_those_of_its_successor(
    log: EventLog, index: TaskIndex
) -> None:
    """Ids come again; the time of the push tells them apart."""
    old = msgspec.structs.replace(event(0, result=b"1"), pushed_us=START_US, progress=RAW)
    new = msgspec.structs.replace(event(0, "processing"), pushed_us=START_US + 1)
    log.append([old])
    index.catch_up()
    log.append([new])

    assert happened_to(log, index, 0) == (["processing"], True)
    assert get(index, 0).progress is None


def test_events_are_forgotten_with_the_record(
    log: EventLog, index: TaskIndex, clock: ManualClock
) -> None:
    """Nobody is told of a task whose time is over."""
    log.append([event(0, expires_us=clock() + SECOND)])
    before = happened_to(log, index, 0)
    clock.advance(seconds=2 * FORGET_EVERY_US / SECOND)

    assert before == (["completed"], True)
    assert happened_to(log, index, 0) == ([], True)


# Patience ----------------------------------------------------------------------------------


@pytest.fixture
def hasty(
    log: EventLog, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TaskIndex]:
    """An index that answers at once, however much there is to take in."""
    monkeypatch.setattr(index_module, "BATCH_EVENTS_IMPATIENT", 10)
    index = TaskIndex(log, path, clock, patience_seconds=0.0)
    yield index
    index.close()


def test_whoever_is_in_a_hurry_is_told_how_much_is_missing(
    log: EventLog, hasty: TaskIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is as of the events so far."""
    monkeypatch.setattr(hasty, "_have_followed", lambda: None)
    log.append([event(number) for number in range(35)])
    found = [(len(hasty.find(limit=100)), hasty.behind) for _ in range(3)]

    assert found == [(10, 25), (20, 15), (30, 5)]


def test_a_thread_goes_on_with_what_is_left(log: EventLog, hasty: TaskIndex) -> None:
    """Nobody has to ask again for that, and it ends when all is done."""
    log.append([event(number) for number in range(1_000)])
    first = hasty.get("default/2-999")
    left = hasty.catch_up(60)

    assert first is None
    assert left == 0
    assert len(hasty.find(limit=2_000)) == 1_000
    wait_until(lambda: hasty._follower is None)


@pytest.mark.parametrize("patience_seconds", [None, 60.0])
def test_nobody_waits_for_events_that_come_meanwhile(
    log: EventLog,
    path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    patience_seconds: float | None,
) -> None:
    """An answer is as of when it was asked for: workers may never be done."""
    index = TaskIndex(log, path, clock, patience_seconds=patience_seconds)
    take_in = index._take_in
    calls: list[int] = []

    def and_more(database: sqlite3.Connection, end: int) -> None:
        take_in(database, end)
        calls.append(end)
        assert len(calls) < 100
        log.append([event(len(calls))])

    monkeypatch.setattr(index, "_take_in", and_more)
    log.append([event(0)])

    assert len(index.find()) == 1
    assert (calls, index.behind) == ([1], 0)
    index.close()


def test_closing_does_not_wait_until_all_is_taken_in(
    log: EventLog, hasty: TaskIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is taken in when it is asked for again."""
    log.append([event(number) for number in range(500)])
    with monkeypatch.context() as patched:
        patched.setattr(index_module, "PAUSE_SECONDS", 3_600.0)
        hasty.get("default/2-0")
        hasty.close()
    threads = {thread.name for thread in threading.enumerate()}

    assert "segue-task-index" not in threads
    assert hasty.behind == 490
    assert hasty.catch_up(60) == 0


def test_whoever_is_in_a_hurry_does_not_wait_for_another_process(
    log: EventLog, hasty: TaskIndex, path: Path
) -> None:
    """Which takes in the same events; meanwhile the answer is as of those before."""
    log.append([event(0)])
    hasty.catch_up(60)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    log.append([event(1)])
    during = len(hasty.find()), hasty.behind
    other.execute("ROLLBACK")
    other.close()

    assert during == (1, 1)
    assert hasty.catch_up(60) == 0
    assert len(hasty.find()) == 2


# The file ----------------------------------------------------------------------------------


def test_looking_at_a_store_without_tasks_makes_no_index(
    store: Store, path: Path, clock: ManualClock
) -> None:
    """It is made with the first event."""
    log = EventLog(store)
    index = TaskIndex(log, path, clock)
    found = index.find(), index.counts()
    is_there = path.parent.exists()
    log.append([event(0)])

    assert found == ([], {})
    assert not is_there
    assert len(index.find()) == 1
    assert path.exists()
    index.close()


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


@pytest.mark.parametrize("table", ["tasks", "tasks_by_state", "tasks_by_queue"])
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
    assert after.find(queue="default", limit=500) == before
    assert after.get("default/2-7") is not None
    after.close()


@pytest.mark.parametrize("version", [1, SCHEMA + 1])
def test_the_index_of_another_version_is_made_anew(
    log: EventLog, index: TaskIndex, path: Path, clock: ManualClock, version: int
) -> None:
    """Newer or older: the events are the same."""
    log.append([event(0)])
    index.catch_up()
    index.close()
    database = sqlite3.connect(path)
    database.execute("DROP TABLE tasks")
    database.execute("DROP TABLE counts")
    database.execute(f"PRAGMA user_version = {version}")
    database.commit()
    database.close()
    after = TaskIndex(log, path, clock)

    assert len(after.find()) == 1
    assert after.counts() == {("job", State.COMPLETED): 1}
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
        thread.join(LIMIT_SECONDS)

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
        said = [child.communicate(timeout=LIMIT_SECONDS)[0].strip() for child in children]

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
