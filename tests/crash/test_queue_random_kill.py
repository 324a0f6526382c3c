"""Eight workers and two pushers on one queue, killed at random and started again.

What each of them saw is written down before and after each act (`queue_reports.py`). In the end the
queue is drained, and everything that anybody saw must fit together.
"""

import logging
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from segue import Counts, Log, Queue
from segue.errors import QueueEmpty
from segue.log.options import SyncName
from tests.crash.channel import Channel
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.queue_reports import (
    ENDED,
    ENDING,
    LEASED,
    LEASING,
    Account,
    Diary,
    Lease,
)
from tests.crash.queue_workers import (
    CHECKPOINT_EVENTS,
    LEDGER_KEPT_BYTES,
    QUEUE,
    RULES,
    Setting,
    push_until_killed,
    work_until_killed,
)
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.waiting import random_pause, wait_until

logger = logging.getLogger(__name__)

KILLS: Final = 4_000 if TORTURE else 80
"""In all, shared out among the sync modes."""
KILLS_PER_QUEUE: Final = 104
SYNCS: Final[tuple[SyncName, ...]] = ("always", "interval", "os")
WORKERS: Final = 8
PUSHERS: Final = 2
ALL_AT_ONCE: Final = 0.03
"""How often everybody is killed: then whoever comes next is alone and recovers."""
PAUSE_SECONDS_MAX: Final = 0.08
LONG_SECONDS: Final = 3_600.0
DIRECTORY_BYTES_MAX: Final = 60_000_000
"""Two segments for each of six logs, hardly filled, and what is written ahead."""

Role = Callable[[Channel, Setting], None]


@pytest.mark.parametrize("sync", SYNCS)
def test_whoever_is_killed_every_message_is_settled_and_no_promise_broken(
    scratch: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch, sync: SyncName
) -> None:
    """C1 to C5, C9: at least once, attempts told, tokens that grow, in order, nothing left over."""
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", CHECKPOINT_EVENTS)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", LEDGER_KEPT_BYTES)
    seed = new_seed()
    kills = -(-KILLS // len(SYNCS))
    with naming_seed(seed):
        for first in range(0, kills, KILLS_PER_QUEUE):
            chance = random.Random(f"{seed} {sync} {first}")
            root = scratch / str(first)
            root.mkdir()
            run = Run(root, forks, sync, chance)
            run.kill_again_and_again(min(KILLS_PER_QUEUE, kills - first))
            run.check()
            shutil.rmtree(root)


class Run:
    """One queue and those who use it."""

    def __init__(
        self, root: Path, forks: ForkServer, sync: SyncName, chance: random.Random
    ) -> None:
        self._store = root / "store"
        self._diaries = root / "diaries"
        self._diaries.mkdir()
        self._forks = forks
        self._sync = sync
        self._chance = chance
        self._number = 0
        with self._setting().open() as store:
            store.queue(QUEUE, RULES)

    def _setting(self) -> Setting:
        self._number += 1
        return Setting(
            root=self._store,
            diary=self._diaries / f"{self._number:06d}",
            seed=self._chance.getrandbits(32),
            sync=self._sync,
        )

    def _start(self, role: Role) -> Child:
        return self._forks.start(role, self._setting())

    def kill_again_and_again(self, kills: int) -> None:
        """Keep everybody at work, killing now one and now all of them."""
        chance = self._chance
        roles: list[Role] = [
            *([work_until_killed] * WORKERS),
            *([push_until_killed] * PUSHERS),
        ]
        users = [self._start(role) for role in roles]
        try:
            done = 0
            while done < kills:
                random_pause(chance, PAUSE_SECONDS_MAX)
                victims = [chance.randrange(len(users))]
                if chance.random() < ALL_AT_ONCE:
                    victims = list(range(len(users)))
                self._kill([users[place] for place in victims])
                done += len(victims)
                for place in victims:
                    users[place] = self._start(roles[place])
            self._kill(users)
        finally:
            for user in users:
                if user.exit_code is None:
                    user.close()

    def _kill(self, victims: list[Child]) -> None:
        for victim in victims:
            victim.kill()
        for victim in victims:
            code = victim.join()
            victim.close()
            assert code == KILLED, f"ended by itself: {self._account().wrong}"

    def _account(self) -> Account:
        account = Account()
        account.read(self._diaries)
        return account

    # In the end ------------------------------------------------------------------------------

    def check(self) -> None:
        """Drain the queue and hold everything that was seen to the contract."""
        setting = self._setting()
        with setting.open() as store:
            queue = store.queue(QUEUE)
            drain(queue, Diary(setting.diary))
            assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=0)
            stats = queue.stats()
        account = self._account()
        logger.info(
            "random kill sync=%s pushed=%d messages=%d leases=%d stale_refused=%d",
            self._sync,
            len(account.pushed),
            len(account.leases),
            sum(map(len, account.leases.values())),
            account.stale_refused,
        )
        assert account.wrong == []
        check_settled(account)
        for leases in account.leases.values():
            check_deliveries(leases)
        check_order(account)
        assert stats.damaged == 0
        check_directory(self._store)


def drain(queue: Queue, diary: Diary) -> None:
    """Redrive the dead letters, lease and ack until nothing is left."""

    def drain_what_is_ready() -> bool:
        while True:
            queue.redrive()
            diary.note(LEASING)
            try:
                job = queue.lease(ttl=LONG_SECONDS, wait=0)
            except QueueEmpty:
                counts = queue.count()
                return counts.total + counts.dead == 0
            ttl_us = round(LONG_SECONDS * 1_000_000)
            diary.note(LEASED, job.id, job.attempt, job.token, ttl_us, job.text)
            diary.note(ENDING, "ack", job.receipt)
            job.ack()
            diary.note(ENDED, "ack", job.receipt)

    wait_until(drain_what_is_ready, "the queue is empty")


def check_settled(account: Account) -> None:
    """Assert that what was pushed was settled, once, and that nothing else was delivered."""
    missing = []
    for body, id_ in account.pushed.items():
        leases = account.leases.get(id_, [])
        if id_ in account.popped:
            assert account.popped[id_][0] == body
        elif not any("ack" in lease.tried for lease in leases):
            missing.append(id_)
        assert {lease.body for lease in leases} <= {body}, f"{id_} has another body"
    assert len(missing) <= account.unknown_pops, f"lost: {missing}"
    bodies: dict[str, str] = {}
    delivered = [(id_, lease.body) for id_, leases in account.leases.items() for lease in leases]
    for id_, body in delivered + [(id_, popped[0]) for id_, popped in account.popped.items()]:
        assert body in account.intended, f"{id_} was never pushed: {body!r}"
        assert bodies.setdefault(body, id_) == id_, f"{body!r} is there twice"


def check_deliveries(leases: list[Lease]) -> None:
    """Assert of the leases of one message what holds for each two in a row."""
    acked = [lease for lease in leases if lease.ended_as == "ack"]
    assert len(acked) <= 1, acked
    assert not acked or acked[0] is leases[-1], f"delivered after it was acked: {leases}"
    for first, second in pairwise(leases):
        assert first.token < second.token, (first, second)
        assert first.attempt < second.attempt or "release" in first.tried, (first, second)
        # Its deadline was set after it was asked for; who ended it early had begun to by then.
        held_until_us = first.asked_us + first.ttl_us
        if first.tried and first.ending_us is not None:
            held_until_us = min(held_until_us, first.ending_us)
        assert second.got_us >= held_until_us, f"held twice: {first} {second}"


def check_order(account: Account) -> None:
    """Assert that first deliveries of a priority come in the order of pushes."""
    firsts: dict[str, list[Lease]] = {}
    holders: dict[int, str] = {}
    for leases in account.leases.values():
        lane, _ = leases[0].place
        if leases[0].attempt == 1 and lane != "later":
            firsts.setdefault(lane, []).append(leases[0])
        for lease in leases:
            assert holders.setdefault(lease.token, lease.holder) == lease.holder
    for deliveries in firsts.values():
        by_token = sorted(deliveries, key=lambda lease: (lease.token, lease.place))
        offsets = [lease.place[1] for lease in by_token]
        assert offsets == sorted(offsets)


def check_directory(root: Path) -> None:
    """Assert that every log is intact and that nothing is kept that nobody needs."""
    logs = sorted({path.parent for path in root.rglob("*.q")})
    assert logs
    for path in logs:
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == []
    files = [path for path in root.rglob("*") if path.is_file()]
    size_bytes = sum(path.stat().st_blocks * 512 for path in files)
    assert size_bytes <= DIRECTORY_BYTES_MAX, sorted(map(str, files))
    assert not any("quarantine" in path.parts for path in files)
