"""Two servers on one directory, and programs beside them that use it without any."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.errors import LeaseLost
from segue.stores.opening import open_directory
from tests.crash.processes import KILLED, ForkServer
from tests.crash.replay import new_seed
from tests.crash.server_users import (
    DONE,
    LONG_SECONDS,
    QUEUE,
    STOP,
    WAIT_SECONDS,
    ServeProcess,
    lease_and_wait,
    push_until_told,
    work_until_told,
)
from tests.waiting import random_pause

LIFE_SECONDS_MAX: Final = 0.4


@pytest.fixture
def servers(scratch: Path, forks: ForkServer) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """Two servers of one store."""
    store = scratch / "store"
    with (
        ServeProcess(forks, store, sync="os") as one,
        ServeProcess(forks, store, sync="os") as other,
    ):
        yield one, other


def test_what_is_pushed_through_one_server_is_had_through_the_other(
    servers: tuple[ServeProcess, ServeProcess], scratch: Path
) -> None:
    """In order, with what a direct process pushes between them."""
    one, other = servers
    with (
        segue.open(one.url) as first,
        segue.open(other.url) as second,
        open_directory(scratch / "store", sync="os") as beside,
    ):
        queues = [store.queue(QUEUE) for store in (first, second, beside)]
        for number in range(30):
            queues[number % 3].push(b"%d" % number)
        found = []
        for number in range(30):
            job = queues[(number + 1) % 3].lease(ttl=LONG_SECONDS)
            queues[(number + 2) % 3].ack(job.receipt)
            found.append(job.body)

        assert found == [b"%d" % number for number in range(30)]
        assert [queue.count().total for queue in queues] == [0, 0, 0]


@pytest.mark.parametrize("pusher", ["server", "process"])
def test_who_waits_at_one_server_is_woken_by_a_push_elsewhere(
    servers: tuple[ServeProcess, ServeProcess], forks: ForkServer, scratch: Path, pusher: str
) -> None:
    one, other = servers
    where = one.url if pusher == "server" else str(scratch / "store")
    with (
        forks.start(lease_and_wait, other.url, LONG_SECONDS) as waiter,
        segue.open(where, sync="os") as store,
    ):
        assert waiter.read() == "waiting"
        other.wait_until_asked_to_wait()
        store.queue(QUEUE).push(b"at last")
        report = waiter.read()

        assert isinstance(report, list)
        assert report[0] == "at last"


def test_who_waits_at_a_server_that_is_killed_gets_no_message_that_nobody_has(
    servers: tuple[ServeProcess, ServeProcess], forks: ForkServer
) -> None:
    """A message that comes after the kill is there for those at the other server."""
    one, other = servers
    with forks.start(lease_and_wait, one.patient_url, LONG_SECONDS) as waiter:
        assert waiter.read() == "waiting"
        one.wait_until_asked_to_wait()
        one.kill()
        with segue.open(other.url) as store:
            store.queue(QUEUE).push(b"for whoever is there")
            job = store.queue(QUEUE).lease(wait=WAIT_SECONDS)
            job.ack()
            store.queue(QUEUE).push(b"for who waits")
            one.start()
            report = waiter.read()

    assert job.body == b"for whoever is there"
    assert isinstance(report, list)
    assert report[0] == "for who waits"


def test_leases_of_a_dead_server_are_settled_through_the_other(
    servers: tuple[ServeProcess, ServeProcess],
) -> None:
    """A lease is the store's, and not the server's through which it was taken."""
    one, other = servers
    with segue.open(f"{one.url}?retry=0") as first, segue.open(other.url) as second:
        first.queue(QUEUE).push_many([b"1", b"2", b"3", b"4"])
        jobs = first.queue(QUEUE).lease_many(3, ttl=LONG_SECONDS)
        one.kill()
        queue = second.queue(QUEUE)
        queue.ack(jobs[0].receipt)
        queue.nack(jobs[1].receipt, outcome="release")
        queue.extend(jobs[2].receipt, ttl=LONG_SECONDS)
        counts = queue.count()

        assert (counts.ready, counts.leased, counts.dead) == (2, 1, 0)
        with pytest.raises(LeaseLost):
            queue.ack(jobs[0].receipt)
        assert [message.body for message in queue.pop_many(9)] == [b"2", b"4"]


def test_one_of_two_servers_killed_under_load_loses_nothing(
    servers: tuple[ServeProcess, ServeProcess], forks: ForkServer, scratch: Path
) -> None:
    """Those at the other, and a process without any, go on; those at the dead one, too, later."""
    one, other = servers
    places = [one.patient_url, other.patient_url, str(scratch / "store")]
    pushers = [forks.start(push_until_told, url, number) for number, url in enumerate(places)]
    workers = [forks.start(work_until_told, url) for url in places]
    told: dict[int, list[object]] = {}
    chance = random.Random(new_seed())
    try:
        firsts = [child.read() for child in pushers]
        random_pause(chance, LIFE_SECONDS_MAX)
        one.kill()
        random_pause(chance, LIFE_SECONDS_MAX)
        one.start()
        for child in pushers + workers:
            child.tell(STOP)
        for number, child in enumerate(pushers + workers):
            told[number] = [*child.read_rest()]
            assert child.join() == 0, "an error reached the client; see its traceback"
            assert told[number].pop() == DONE
    finally:
        for child in pushers + workers:
            child.close()
    pushed = {
        f"{number} {call}" for number, first in enumerate(firsts) for call in [first, *told[number]]
    }
    taken = [report for number in range(3, 6) for report in told[number]]
    seen = {str(report[1]): str(report[2]) for report in taken if isinstance(report, list)}
    acked = [report[2] for report in taken if isinstance(report, list) and report[0] == "acked"]
    with segue.open(other.url) as store:
        queue = store.queue(QUEUE)
        left = []
        while queue.count().total:
            left += queue.pop_many(1_000, wait=WAIT_SECONDS)

    assert pushed <= set(seen) | {message.text for message in left}
    assert len(acked) == len(set(acked))
    assert not set(acked) & {message.id for message in left}


def test_a_client_that_is_killed_leaves_its_lease_to_the_next(
    servers: tuple[ServeProcess, ServeProcess], forks: ForkServer
) -> None:
    """The lease ends by the store's clock, whoever the server was."""
    one, other = servers
    with segue.open(other.url) as store, forks.start(lease_and_wait, one.url, 0.5) as client:
        queue = store.queue(QUEUE)
        assert client.read() == "waiting"
        queue.push(b"1")
        client.read()
        client.kill()
        assert client.join() == KILLED
        job = queue.lease(wait=WAIT_SECONDS)

        assert (job.body, job.attempt) == (b"1", 2)
        job.ack()
