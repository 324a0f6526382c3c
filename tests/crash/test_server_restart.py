"""What a client holds when its server is killed and comes back: leases, locks, places, and steps.

What is the store's outlives the server. What the server alone had is asked for anew, or said to be
lost; nothing is silently done twice, or not at all.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.errors import LeaseLost, LockBusy, TransactionAborted
from segue.stores.contract import Store
from tests.crash.server_users import END_SECONDS_MAX, QUEUE, ServeProcess

HELD_SECONDS: Final = 8.0
"""Longer than a server needs to begin on a busy machine."""


@pytest.fixture
def server(scratch: Path) -> Iterator[ServeProcess]:
    with ServeProcess(scratch / "store", sync="os") as server:
        yield server


@pytest.fixture
def store(server: ServeProcess) -> Iterator[Store]:
    with segue.open(server.patient_url) as store:
        yield store


def restart(server: ServeProcess) -> None:
    """Kill it and start it again."""
    server.kill()
    server.start()


def test_leases_and_locks_are_kept_alive_through_a_restart(
    server: ServeProcess, store: Store
) -> None:
    """Whoever works does not notice: what is renewed in the background is renewed again."""
    queue = store.queue(QUEUE)
    queue.push(b"long work")
    lock = store.lock("leader", ttl=HELD_SECONDS)
    with lock as held, queue.lease(ttl=HELD_SECONDS) as job:
        begun = time.monotonic()
        restart(server)
        time.sleep(max(0.0, begun + 1.2 * HELD_SECONDS - time.monotonic()))
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
    one, two = queue.lease_many(2, ttl=60)
    restart(server)
    queue.ack(one)
    queue.nack(two, outcome="release")

    with pytest.raises(LeaseLost):
        queue.ack(one.receipt)
    assert [message.body for message in queue.pop_many(9)] == [b"2"]


def test_who_waits_through_a_restart_is_served_after_it(server: ServeProcess, store: Store) -> None:
    """A long poll and a lock that somebody waits for: both wait on at the new server."""
    queue = store.queue(QUEUE)
    held = store.lock("leader", ttl=60).acquire()
    found: list[object] = []
    waiting = [
        threading.Thread(target=lambda: found.append(queue.pop(wait=END_SECONDS_MAX))),
        threading.Thread(
            target=lambda: found.append(store.lock("leader").acquire(wait=END_SECONDS_MAX))
        ),
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.3)
    restart(server)
    queue.push(b"late")
    held.release()
    for thread in waiting:
        thread.join(END_SECONDS_MAX)

    assert len(found) == 2
    assert None not in found


def test_a_transaction_that_was_under_way_is_aborted_as_a_whole(
    server: ServeProcess, store: Store
) -> None:
    """The ring is free for others when the time of its lock is over."""
    ring = store.ring("bus", capacity=10)
    ring.enqueue(b"before")
    transaction = ring.transaction(ttl=2)
    transaction.enqueue(b"never")
    restart(server)
    with pytest.raises(TransactionAborted):
        transaction.commit()

    with ring.transaction(wait=END_SECONDS_MAX) as another:
        another.enqueue(b"after")
    assert [entry.body for entry in map(ring.get, range(5)) if entry] == [b"before", b"after"]


def test_a_producer_goes_on_after_a_restart_without_doubling(
    server: ServeProcess, store: Store
) -> None:
    topic = store.topic("orders", partitions=2)
    stopped = threading.Event()

    def restart_twice() -> None:
        for _ in range(2):
            time.sleep(0.2)
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
            polled += [record.value for record in member.poll(4 - len(polled), timeout=5)]
        member.commit()
        restart(server)
        read = [record.value for record in reader.poll(100)]
        again: list[bytes | None] = []
        while len(again) < 6:
            again += [record.value for record in member.poll(100, timeout=5)]
        member.commit()

    assert read == [b"%d" % number for number in range(4, 10)]
    assert again == [b"%d" % number for number in range(4, 10)]
