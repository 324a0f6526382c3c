"""`segue serve` killed again and again under load, and started again on its port.

Clients do not notice, but for what nobody can know: a push whose answer died with the server is
made again, and an ack that was made already finds its lease gone.
"""

import logging
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from segue import Log
from segue.log.options import SyncName
from segue.stores.opening import open_directory
from tests.crash.channel import Report
from tests.crash.processes import Child, ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.server_users import (
    DONE,
    QUEUE,
    STOP,
    ServeProcess,
    push_until_told,
    work_until_told,
)
from tests.waiting import random_pause, wait_for_progress

logger = logging.getLogger(__name__)

KILLS: Final[dict[SyncName, int]] = {"os": 30, "always": 30} if TORTURE else {"os": 3, "always": 1}
PUSHERS: Final = 4
WORKERS: Final = 4
LIFE_SECONDS_MAX: Final = 0.6
AWAY_SECONDS_MAX: Final = 0.3
ROUNDS: Final = 20


@pytest.mark.parametrize("sync", list(KILLS))
def test_a_server_that_is_killed_keeps_what_it_said_and_its_clients_go_on(
    scratch: Path, forks: ForkServer, sync: SyncName
) -> None:
    """Acknowledged pushes are there, acknowledged acks stay, and no client sees an error."""
    seed = new_seed()
    chance = random.Random(f"{seed} {sync}")
    store = scratch / "store"
    with naming_seed(seed), ServeProcess(forks, store, sync=sync) as server, ExitStack() as closing:
        url = server.patient_url
        pushers = [
            Client(closing.enter_context(forks.start(push_until_told, url, number)))
            for number in range(PUSHERS)
        ]
        workers = [
            Client(closing.enter_context(forks.start(work_until_told, url))) for _ in range(WORKERS)
        ]
        clients = pushers + workers
        for client in clients:
            client.read_one()
        for _ in range(KILLS[sync]):
            read_reports(clients, chance, LIFE_SECONDS_MAX)
            server.kill()
            read_reports(clients, chance, AWAY_SECONDS_MAX)
            server.start()
        read_reports(clients, chance, LIFE_SECONDS_MAX)
        for client in clients:
            client.end()
        server.kill()

        pushed = {
            f"{number} {call}" for number, client in enumerate(pushers) for call in client.reports
        }
        told = [report for client in workers for report in client.reports]
        check(store, pushed, told, kills=KILLS[sync])


class Client:
    """One who uses the server, and what it has reported. Whose reports are not read is held up."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.reports: list[Report] = []

    def read_reports(self) -> None:
        """Read what there is. Raises EOFError if an error reached the client."""
        while self._child.has_report():
            self.read_one()

    def read_one(self) -> None:
        """Wait for the next report."""
        self.reports.append(self._child.read())

    def end(self) -> None:
        """Tell it to stop, and require that no error reached it."""
        self._child.tell(STOP)
        self.reports += self._child.read_rest()
        assert self._child.join() == 0, "an error reached the client; see its traceback"
        assert self.reports.pop() == DONE


def read_reports(clients: list[Client], chance: random.Random, seconds_max: float) -> None:
    """Read the reports of all clients for a random time, so that none of them blocks."""
    for _ in range(ROUNDS):
        random_pause(chance, seconds_max / ROUNDS)
        for client in clients:
            client.read_reports()


def check(store: Path, pushed: set[str], told: list[Report], *, kills: int) -> None:
    """Look at what is left without a server, and hold it to what clients were told."""
    acked, lost = Counter[str](), Counter[str]()
    ids: dict[str, set[str]] = {}
    for report in told:
        assert isinstance(report, list)
        how, body, id_ = map(str, report)
        (acked if how == "acked" else lost)[id_] += 1
        ids.setdefault(body, set()).add(id_)
    with open_directory(store, sync="os") as opened:
        queue = opened.queue(QUEUE)
        left: list[str] = []

        def is_drained() -> bool:
            for message in queue.pop_many(10_000):
                left.append(message.id)
                ids.setdefault(message.text, set()).add(message.id)
            return queue.count().total == 0

        wait_for_progress(lambda: len(left), is_drained)
        assert queue.count().dead == 0
    logger.info(
        "server killed kills=%d pushed=%d acked=%d lost=%d left=%d",
        *(kills, len(pushed), len(acked), len(lost), len(left)),
    )
    twice = {body for body, names in ids.items() if len(names) > 1}

    assert pushed <= set(ids), f"lost: {sorted(pushed - set(ids))[:10]}"
    assert len(set(ids) - pushed) <= PUSHERS, "pushed by nobody"
    assert len(twice) <= PUSHERS * kills, "pushed twice though it was answered"
    assert all(len(names) <= 1 + kills for names in ids.values())
    assert not set(acked) & set(left), "an ack was undone"
    assert max(acked.values(), default=1) == 1, "acked twice"
    assert len(left) == len(set(left))
    _check_logs(store)


def _check_logs(store: Path) -> None:
    for path in sorted({segment.parent for segment in store.rglob("*.q")}):
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == [], path
