"""What a client holds when its server is killed and comes back: leases, locks, places, and steps.

What is the store's outlives the server. What the server alone had is asked for anew, or said to be
lost; nothing is silently done twice, or not at all.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.errors import LeaseLost, LockBusy, TransactionAborted
from segue.stores import heartbeat
from segue.stores.contract import Store
from segue.stores.http.lock import HttpHeldLock
from segue.stores.http.queue import HttpQueue
from tests.crash.processes import ForkServer
from tests.crash.replay import new_seed
from tests.crash.server_users import LONG_SECONDS, QUEUE, WAIT_SECONDS, ServeProcess
from tests.waiting import LIMIT_SECONDS, random_pause, wait_until

BEATS_PER_LEASE: Final = 36_000
"""Heartbeats every 0.1 s."""
PAUSE_SECONDS_MAX: Final = 0.4


@pytest.fixture
def server(scratch: Path, forks: ForkServer) -> Iterator[ServeProcess]:
    with ServeProcess(forks, scratch / "store", sync="os") as server:
        yield server


@pytest.fixture
def store(server: ServeProcess) -> Iterator[Store]:
    with segue.open(server.patient_url) as store:
        yield store


def count_calls(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, counts: Counter[str]
) -> None:
    """Count the calls of a method that return, in `counts[name]`."""
    original = getattr(owner, name)

    def counted(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        counts[name] += 1
        return result

    monkeypatch.setattr(owner, name, counted)


def restart(server: ServeProcess) -> None:
    """Kill it and start it again."""
    server.kill()
    server.start()


def test_leases_and_locks_are_kept_alive_through_a_restart(
    server: ServeProcess, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The background thread that renews both renews them at the new server, too."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", BEATS_PER_LEASE)
    renewed: Counter[str] = Counter()
    count_calls(monkeypatch, HttpQueue, "extend", renewed)
    count_calls(monkeypatch, HttpHeldLock, "renew", renewed)
    queue = store.queue(QUEUE)
    queue.push(b"long work")
    lock = store.lock("leader", ttl=LONG_SECONDS)
    with lock as held, queue.lease(ttl=LONG_SECONDS) as job:
        wait_until(lambda: renewed["extend"] > 0 and renewed["renew"] > 0, "both are renewed")
        restart(server)
        renewed.clear()
        # Twice: the first answer may have been that of the old server.
        wait_until(lambda: renewed["extend"] > 1 and renewed["renew"] > 1, "both are renewed again")
        job.check()
        with pytest.raises(LockBusy):
            store.lock("leader").acquire(wait=0)
        assert held.is_held

    assert queue.count().total == 0
    assert lock.holder() is None


def test_a_lease_can_be_settled_after_a_restart_and_only_once(
    server: ServeProcess, store: Store
) -> None:
    queue = store.queue(QUEUE)
    queue.push_many([b"1", b"2"])
    one, two = queue.lease_many(2, ttl=LONG_SECONDS)
    restart(server)
    queue.ack(one)
    queue.nack(two, outcome="release")

    with pytest.raises(LeaseLost):
        queue.ack(one.receipt)
    assert [message.body for message in queue.pop_many(9)] == [b"2"]


def test_who_waits_through_a_restart_is_served_after_it(server: ServeProcess, store: Store) -> None:
    """A long poll and a lock that somebody waits for: both wait on at the new server."""
    queue = store.queue(QUEUE)
    held = store.lock("leader", ttl=LONG_SECONDS).acquire()
    found: list[object] = []
    waiting = [
        threading.Thread(target=lambda: found.append(queue.pop(wait=WAIT_SECONDS))),
        threading.Thread(
            target=lambda: found.append(store.lock("leader").acquire(wait=WAIT_SECONDS))
        ),
    ]
    for thread in waiting:
        thread.start()
    server.wait_until_asked_to_wait()
    restart(server)
    queue.push(b"late")
    held.release()
    for thread in waiting:
        thread.join(LIMIT_SECONDS)

    assert len(found) == 2
    assert None not in found


def test_a_transaction_that_was_under_way_is_aborted_as_a_whole(
    server: ServeProcess, store: Store
) -> None:
    """The ring is free for others when the time of its lock is over."""
    ring = store.ring("bus", capacity=10)
    ring.enqueue(b"before")
    transaction = ring.transaction(ttl=LIMIT_SECONDS / 10)
    transaction.enqueue(b"never")
    restart(server)

    with pytest.raises(TransactionAborted):
        transaction.commit()
    with ring.transaction(wait=WAIT_SECONDS) as another:
        another.enqueue(b"after")
    assert [entry.body for entry in map(ring.get, range(5)) if entry] == [b"before", b"after"]


def test_a_producer_goes_on_after_a_restart_without_doubling(
    server: ServeProcess, store: Store
) -> None:
    topic = store.topic("orders", partitions=2)
    stopped = threading.Event()
    chance = random.Random(new_seed())

    def restart_twice() -> None:
        for _ in range(2):
            random_pause(chance, PAUSE_SECONDS_MAX)
            restart(server)
        stopped.set()

    killer = threading.Thread(target=restart_twice)
    with topic.producer("till") as producer:
        killer.start()
        number = 0
        while not stopped.is_set():
            producer.append(b"%d" % number, partition=number % 2)
            number += 1
        killer.join()
        for _ in range(5):
            producer.append(b"%d" % number, partition=number % 2)
            number += 1
    with topic.reader("check", start="earliest") as reader:
        values = [record.value for record in reader.poll(number + 10)]

    assert sorted(values, key=lambda value: int(value or b"-1")) == [
        b"%d" % each for each in range(number)
    ]


def test_readers_and_members_go_on_after_a_restart(server: ServeProcess, store: Store) -> None:
    """A reader from where it was, a member from what was committed, both without an error."""
    topic = store.topic("orders", partitions=1)
    topic.append_many([b"%d" % number for number in range(10)])
    lost: list[list[int]] = []
    with (
        topic.reader("audit", start="earliest") as reader,
        topic.group("billing").join(
            on_lost=lambda partitions: lost.append(list(partitions))
        ) as member,
    ):
        assert [record.value for record in reader.poll(4)] == [b"0", b"1", b"2", b"3"]
        polled: list[bytes | None] = []
        while len(polled) < 4:
            polled += [
                record.value for record in member.poll(4 - len(polled), timeout=LIMIT_SECONDS)
            ]
        member.commit()
        restart(server)
        read = [record.value for record in reader.poll(100)]
        again: list[bytes | None] = []
        while len(again) < 6:
            again += [record.value for record in member.poll(100, timeout=LIMIT_SECONDS)]
        member.commit()

    assert read == [b"%d" % number for number in range(4, 10)]
    assert again == [b"%d" % number for number in range(4, 10)]
