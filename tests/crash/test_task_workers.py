"""Workers of tasks that are killed, stopped, poisoned or without a disk just where it matters."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from segue.errors import QueueEmpty, TaskFailed
from segue.tasks import State
from segue.tasks.events import TaskEvent
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.shared_clock import SharedClock
from tests.crash.stopping import stop, wait_until_stopped
from tests.crash.task_apps import CLOCK, LONG_SECONDS, POISON_RETRIES, Tasks, expire_leases
from tests.crash.task_workers import (
    SIZE,
    STOPS,
    work,
    work_and_die_before_the_ack,
    work_and_stop_before_the_event,
    work_limited,
    work_on_a_broken_disk,
    work_on_a_full_disk,
)
from tests.waiting import LIMIT_SECONDS, wait_until

JUMPS: Final = 3


@pytest.fixture
def tasks(scratch: Path) -> Iterator[Tasks]:
    """The App, for the test itself."""
    found = Tasks(scratch)
    with found.app:
        yield found


def end(child: Child) -> None:
    """Have a worker stop in order."""
    child.tell("end")
    assert child.join() == 0


def test_a_worker_killed_between_event_and_ack_has_its_task_run_again_and_recorded_once(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """The result is there at once; the second run says the same under the next attempt."""
    result = tasks.double.enqueue(21)
    with forks.start(work_and_die_before_the_ack, scratch, "dying", LONG_SECONDS) as child:
        assert child.join() == KILLED
    expire_leases(scratch)
    first = result.record()
    assert (first.state, first.attempt, result.get(timeout=0)) == (State.COMPLETED, 1, 42)
    assert [record.id for record in tasks.app.desk.find()] == [result.id]

    with forks.start(work, scratch, "living", LONG_SECONDS) as child:
        wait_until(tasks.is_settled, "it is acked")
        end(child)
    last = result.record()
    assert (last.state, last.attempt, last.worker) == (State.COMPLETED, 2, "living")
    assert result.get(timeout=0) == 42
    assert [record.state for record in tasks.app.desk.find()] == [State.COMPLETED]
    assert [fact.worker for fact in tasks.facts.read()] == ["dying", "living"]


def test_a_result_that_was_given_out_stays_though_its_worker_died_before_the_last_ack(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """With no tries left it is not run again; what is known of it holds: it was completed."""
    result = tasks.once.enqueue(21)
    with forks.start(work_and_die_before_the_ack, scratch, "dying", LONG_SECONDS) as child:
        assert child.join() == KILLED
    expire_leases(scratch)
    assert result.get(timeout=0) == 42

    with forks.start(work, scratch, "living", LONG_SECONDS) as child:
        wait_until(tasks.is_settled, "it is settled")
        end(child)
    assert result.get(timeout=0) == 42
    assert [record.state for record in tasks.app.desk.find()] == [State.COMPLETED]


def test_a_dead_letter_keeps_its_cause_though_its_worker_died_before_it_was_buried(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """What the task raised is why it is dead; that a worker died, too, explains nothing."""
    result = tasks.fail.enqueue()
    with forks.start(work_and_die_before_the_ack, scratch, "dying", LONG_SECONDS) as child:
        assert child.join() == KILLED
    expire_leases(scratch)
    with forks.start(work, scratch, "living", LONG_SECONDS) as child:
        wait_until(lambda: tasks.app.queue_for("default").count().dead == 1, "it is buried")
        end(child)

    with pytest.raises(TaskFailed, match="ValueError: there is no such account"):
        result.get(timeout=0)
    assert "ValueError" in result.record().traceback
    assert [fact.worker for fact in tasks.facts.read()] == ["dying"]


def test_a_worker_stopped_past_its_lease_has_its_late_result_dropped(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """The one who took over is who counts, before and after the late one speaks."""
    result = tasks.wait_once.enqueue(7)
    with forks.start(work_limited, scratch, "stopped", LONG_SECONDS, 1) as late:
        wait_until(lambda: bool(tasks.facts.read()), "the first run begins")
        stop(late.pid)
        expire_leases(scratch)
        with forks.start(work, scratch, "other", LONG_SECONDS) as other:
            assert result.get(timeout=LIMIT_SECONDS) == "try 2 of 7"
            tasks.open_gate()
            os.kill(late.pid, signal.SIGCONT)
            assert late.join() == 0
            end(other)

    record = result.record()
    assert (record.attempt, record.worker, record.result) == (2, "other", b'"try 2 of 7"')
    assert {event.attempt for event in completions(tasks)} == {2}
    assert [fact.worker for fact in tasks.facts.read()] == ["stopped", "other"]


def completions(tasks: Tasks) -> list[TaskEvent]:
    """Return what was said to be completed."""
    return [event for _, event in tasks.app.log.read(0) if event.happened == "completed"]


def test_a_worker_stopped_where_it_speaks_takes_back_what_it_says_late(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It saw its lease held, and then not: the ack is refused by its token, and it says so."""
    tasks.open_gate()
    result = tasks.wait_once.enqueue(7)
    with forks.start(work_and_stop_before_the_event, scratch, "stopped", LONG_SECONDS) as late:
        assert late.read() == STOPS
        wait_until_stopped(late.pid)
        expire_leases(scratch)
        with forks.start(work, scratch, "other", LONG_SECONDS) as other:
            wait_until(tasks.is_settled, "somebody else acks it")
            os.kill(late.pid, signal.SIGCONT)
            assert late.join() == 0
            end(other)

    record = result.record()
    assert (record.state, record.attempt, record.worker) == (State.COMPLETED, 2, "other")
    assert result.get(timeout=0) == "try 2 of 7"
    said = [(event.happened, event.attempt, event.worker) for _, event in tasks.app.log.read(0)]
    assert said == [
        ("completed", 2, "other"),
        ("completed", 1, "stopped"),
        ("lost", 1, "stopped"),
    ]
    assert [each.id for each in tasks.app.desk.find()] == [result.id]


def test_a_task_that_kills_its_workers_is_a_dead_letter_and_the_others_go_on(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It costs as many workers as it has tries, and the cause names what happened."""
    before = tasks.once.using(retries=POISON_RETRIES + 1).map(range(5))
    poison = tasks.poison.enqueue()
    after = tasks.once.using(retries=POISON_RETRIES + 1).map(range(5, 10))
    for number in range(POISON_RETRIES + 1):
        with forks.start(work, scratch, f"poisoned-{number}", LONG_SECONDS) as child:
            assert child.join() == KILLED
        expire_leases(scratch)
    with forks.start(work, scratch, "living", LONG_SECONDS) as child:
        values = [each.get(timeout=LIMIT_SECONDS) for each in (*before, *after)]
        with pytest.raises(TaskFailed, match=r"WorkerDied: delivered 3 times"):
            poison.get(timeout=LIMIT_SECONDS)
        wait_until(tasks.is_settled, "all is settled")
        end(child)

    assert values == [2 * number for number in range(10)]
    tries = [fact.attempt for fact in tasks.facts.read() if fact.id == poison.id]
    assert tries == [1, 2, 3]
    letters = list(tasks.app.queue_for("default").dead_letters())
    assert [f"default/{letter.message.id}" for letter in letters] == [poison.id]
    assert letters[0].reason.startswith("WorkerDied: ")
    dead = tasks.app.desk.find(states=[State.DEAD_LETTER])
    assert [(record.id, record.error_type) for record in dead] == [(poison.id, "WorkerDied")]


# Disks ------------------------------------------------------------------------------------------


def test_while_the_disk_is_full_leases_are_kept_and_nothing_runs_twice(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """Results wait for room, for longer than a lease lasts, and then arrive; once each."""
    results = tasks.double.map(range(SIZE))
    ids = {result.id for result in results}
    queue = tasks.app.queue_for("default")
    with forks.start(work_on_a_full_disk, scratch, "full", LONG_SECONDS) as full:
        wait_for_renewals(full, ids)
        for _ in range(JUMPS):
            SharedClock(scratch / CLOCK).advance(seconds=0.6 * LONG_SECONDS)
            wait_for_renewals(full, ids)
            with pytest.raises(QueueEmpty):
                queue.lease(wait=0)
        full.tell("there is room")
        values = [each.get(timeout=LIMIT_SECONDS) for each in results]
        wait_until(tasks.is_settled, "all is acked")
        full.read_rest()
        assert full.join() == 0

    assert values == [2 * number for number in range(SIZE)]
    assert set(Counter(fact.id for fact in tasks.facts.read()).values()) == {1}


def wait_for_renewals(worker: Child, ids: set[str]) -> None:
    """Return as soon as each lease was renewed twice. The first time may have begun before."""
    renewed: Counter[str] = Counter()
    while any(renewed[each] < 2 for each in ids):
        renewed[str(worker.read())] += 1


def test_a_worker_whose_disk_fails_stops_with_the_error_and_another_finishes_its_work(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It acks nothing it could not say; its leases end, and the tasks are run elsewhere."""
    results = tasks.double.map(range(6))
    with forks.start(work_on_a_broken_disk, scratch, "broken", LONG_SECONDS) as broken:
        assert broken.read_rest() == ["input/output error"]
        assert broken.join() == 0
    assert not tasks.is_settled()
    expire_leases(scratch)

    with forks.start(work, scratch, "other", LONG_SECONDS) as other:
        values = [each.get(timeout=LIMIT_SECONDS) for each in results]
        wait_until(tasks.is_settled, "all is acked")
        end(other)
    assert values == [0, 2, 4, 6, 8, 10]
    assert {event.worker for event in completions(tasks)} == {"other"}
