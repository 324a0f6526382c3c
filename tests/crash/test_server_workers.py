"""Workers at a server that is killed under them and comes back: every task is done all the same."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from segue.tasks import State
from tests.crash.processes import ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.server_users import ServeProcess
from tests.crash.task_apps import STORE_VARIABLE, Tasks
from tests.crash.task_fleet import SIZES, Fleet
from tests.crash.test_redis_workers import TASKS, has_run, queue_all
from tests.waiting import LIMIT_SECONDS, wait_for_progress

KILLS: Final = 20 if TORTURE else 2
LEASE_SECONDS: Final = 2.0


@pytest.fixture
def server(scratch: Path, forks: ForkServer) -> Iterator[ServeProcess]:
    with ServeProcess(forks, scratch / "store", sync="os") as server:
        yield server


@pytest.fixture
def tasks(scratch: Path, server: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """The App, for the test itself; its store is behind the server."""
    monkeypatch.setenv(STORE_VARIABLE, server.patient_url)
    found = Tasks(scratch)
    found.accounts.prepare()
    with found.app:
        yield found


def test_a_server_that_is_killed_costs_no_task(
    scratch: Path, server: ServeProcess, tasks: Tasks
) -> None:
    """At least once, with a key of its own exactly once; and no worker ends."""
    seed = new_seed()
    chance = random.Random(seed)
    handles, expected = queue_all(tasks)
    with (
        naming_seed(seed),
        Fleet(scratch, lease_seconds=LEASE_SECONDS) as fleet,
        ThreadPoolExecutor(1) as producer,
    ):
        for kind in SIZES:
            fleet.start(kind)
        values = producer.submit(lambda: [each.get(timeout=LIMIT_SECONDS) for each in handles])
        for count in sorted(chance.sample(range(TASKS // 20, TASKS * 8 // 10), KILLS)):
            wait_for_progress(tasks.facts.count, partial(has_run, tasks, count))
            server.kill()
            server.start()

        assert values.result() == expected
        wait_for_progress(tasks.unsettled, tasks.is_settled)
        fleet.stop()
    found = tasks.app.desk.find(limit=2 * TASKS)
    sums: dict[str, int] = {}
    for number in range(TASKS)[2::3]:
        sums[f"account {number % 7}"] = sums.get(f"account {number % 7}", 0) + number

    assert {record.id for record in found} == {each.id for each in handles}
    assert {record.state for record in found} == {State.COMPLETED}
    assert tasks.accounts.read() == sums
    assert tasks.app.queue_for("default").count().dead == 0
