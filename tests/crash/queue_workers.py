"""What processes do to a queue until they are killed, each act told before and after."""

import random
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import segue
from segue import Item, Job, Queue, QueueRules
from segue.clock import system_ticks
from segue.errors import LeaseLost
from segue.log.options import SyncName
from segue.stores.contract import Outcome
from segue.stores.file import journal
from tests.crash.channel import Channel
from tests.crash.queue_reports import (
    ENDED,
    ENDING,
    LEASED,
    LEASING,
    LOST,
    POPPED,
    POPPING,
    PUSHED,
    PUSHING,
    WRONG,
    Diary,
)
from tests.waiting import random_pause

QUEUE: Final = "jobs"
PRIORITIES: Final = (0, 1, 5)
SEGMENT_ITEMS: Final = 32
CHECKPOINT_EVENTS: Final = 150
LEDGER_KEPT_BYTES: Final = 200_000
"""Small, all of them: lanes roll and are trimmed, ledgers are written down, all the time."""
RULES: Final = QueueRules(
    lease_ttl=0.2, max_deliveries=None, backoff_base=0, segment_items=SEGMENT_ITEMS
)
ACTS_MAX: Final = 100_000
RECEIPTS_KEPT: Final = 40
EXPIRED_KEPT: Final = 6
"""Few: soon after its lease has ended a message is in somebody else's hands."""
HOLD_SECONDS_MAX: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a process opens the store, and where it tells what it did."""

    root: Path
    diary: Path
    seed: int
    sync: SyncName = "os"
    backlog_max: int = 400
    checkpoint_events: int = CHECKPOINT_EVENTS

    def open(self) -> segue.Store:
        """Open the store, with checkpoints as often as the setting says."""
        vars(journal)["CHECKPOINT_EVENTS"] = self.checkpoint_events
        vars(journal)["LEDGER_KEPT_BYTES"] = LEDGER_KEPT_BYTES
        return segue.open(self.root, sync=self.sync, sync_interval_ms=5)


def push_until_killed(_: Channel, setting: Setting) -> None:
    """Push one or several messages at a time, over several priorities."""
    _run(setting, Pusher)


def work_until_killed(_: Channel, setting: Setting) -> None:
    """Lease, pop, ack, give back, and try receipts that must not count any more."""
    _run(setting, Worker)


def _run(setting: Setting, kind: "type[Pusher] | type[Worker]") -> None:
    diary = Diary(setting.diary)
    try:
        queue = setting.open().queue(QUEUE)
        user = kind(queue, diary, setting)
        for _ in range(ACTS_MAX):
            user.act()
    except BaseException:
        diary.note(WRONG, traceback.format_exc())
        raise


class Pusher:
    """Pushes, unless too much waits."""

    def __init__(self, queue: Queue, diary: Diary, setting: Setting) -> None:
        self._queue = queue
        self._diary = diary
        self._backlog_max = setting.backlog_max
        self._chance = random.Random(setting.seed)
        self._name = setting.diary.name
        self._number = 0

    def _body(self) -> str:
        self._number += 1
        return f"{self._name} {self._number} " + "x" * self._chance.randrange(60)

    def act(self) -> None:
        """Push once."""
        queue, chance = self._queue, self._chance
        if self._number % 16 == 0 and queue.count().total > self._backlog_max:
            chance.random()
            queue.lease_many(1, wait=0, ttl=0.01)  # Also a holder that never comes back.
            return
        if chance.random() < 0.6:
            body = self._body()
            self._diary.note(PUSHING, body)
            if chance.random() < 0.1:
                id_ = queue.push(body, priority=chance.choice(PRIORITIES), delay=0.01)
            else:
                id_ = queue.push(body.encode(), priority=chance.choice(PRIORITIES))
            self._diary.note(PUSHED, id_, body)
            return
        bodies = [self._body() for _ in range(chance.randrange(2, 12))]
        items = [Item(body=body, priority=chance.choice(PRIORITIES)) for body in bodies]
        self._diary.note(PUSHING, *bodies)
        ids = queue.push_many(items)
        self._diary.note(
            PUSHED, *[value for pair in zip(ids, bodies, strict=True) for value in pair]
        )


class Worker:
    """Leases and ends leases, and is sure of what it may not do any more."""

    def __init__(self, queue: Queue, diary: Diary, setting: Setting) -> None:
        self._queue = queue
        self._diary = diary
        self._chance = random.Random(setting.seed)
        self._expiring: deque[tuple[str, int]] = deque(maxlen=RECEIPTS_KEPT)
        self._expired: deque[str] = deque(maxlen=EXPIRED_KEPT)
        self._over: deque[str] = deque(maxlen=RECEIPTS_KEPT)

    def act(self) -> None:
        """Do one thing."""
        kind = self._chance.random()
        if kind < 0.04:
            self._pop()
        elif kind < 0.3:
            self._try_stale()
        else:
            self._lease()

    def _lease(self) -> None:
        chance = self._chance
        ttl = chance.choice((0.005, 0.03, 0.2))
        count = chance.choice((1, 1, 2, 7, 20))
        self._diary.note(LEASING)
        jobs = self._queue.lease_many(count, ttl=ttl, wait=chance.choice((0, 0.005)))
        ttl_us = round(ttl * 1_000_000)
        for job in jobs:
            self._diary.note(LEASED, job.id, job.attempt, job.token, ttl_us, job.text)
        expires_us = system_ticks() + ttl_us
        if chance.random() < 0.3:
            chance.shuffle(jobs)
        if chance.random() < 0.2:
            random_pause(chance, HOLD_SECONDS_MAX)  # Long enough to lose some of them.
        while jobs:
            kind = chance.random()
            if kind < 0.35:
                self._ack_many(jobs)
                return
            job = jobs.pop()
            if kind < 0.8:
                self._end("ack", job)
            elif kind < 0.86:
                self._end("fail", job)
            elif kind < 0.9:
                self._end("release", job)
            elif kind < 0.91:
                self._end("dead", job)
            else:
                self._expiring.append((job.receipt, expires_us))

    def _end(self, outcome: str, job: Job) -> None:
        receipt = job.receipt
        self._diary.note(ENDING, outcome, receipt)
        try:
            if outcome == "ack":
                self._queue.ack(job)
            else:
                self._queue.nack(job, outcome=_OUTCOMES[outcome], delay=self._delay())
        except LeaseLost:
            self._diary.note(LOST, receipt)
        else:
            self._diary.note(ENDED, outcome, receipt)
            self._over.append(receipt)

    def _delay(self) -> float | None:
        return self._chance.choice((None, 0, 0.004))

    def _ack_many(self, jobs: list[Job]) -> None:
        receipts = [job.receipt for job in jobs]
        self._diary.note(ENDING, "ack", *receipts)
        lost: tuple[str, ...] = ()
        try:
            self._queue.ack_many(jobs)
        except LeaseLost as error:
            lost = error.lost
            self._diary.note(LOST, *lost)
        held = [receipt for receipt in receipts if receipt not in lost]
        self._diary.note(ENDED, "ack", *held)
        self._over.extend(held)

    def _try_stale(self) -> None:
        """Use a receipt whose lease has ended for certain; only LeaseLost is right."""
        now_us = system_ticks()
        while self._expiring and self._expiring[0][1] < now_us:
            self._expired.append(self._expiring.popleft()[0])
        known = self._expired if self._chance.random() < 0.7 else self._over
        if not known:
            return
        receipt = self._chance.choice(known)
        try:
            match self._chance.randrange(4):
                case 0:
                    self._queue.ack(receipt)
                case 1:
                    self._queue.extend(receipt, ttl=1)
                case 2:
                    self._queue.nack(receipt, outcome="release")
                case _:
                    self._queue.ack_many([receipt])
        except LeaseLost:
            self._diary.note(LOST, "stale")
        else:
            self._diary.note(WRONG, f"stale receipt accepted: {receipt}")

    def _pop(self) -> None:
        count = self._chance.choice((1, 3))
        self._diary.note(POPPING, count)
        messages = self._queue.pop_many(count)
        told: list[object] = []
        for message in messages:
            told += [message.id, message.attempt, message.text]
        self._diary.note(POPPED, *told)


_OUTCOMES: Final[dict[str, Outcome]] = {"fail": "fail", "release": "release", "dead": "dead"}
