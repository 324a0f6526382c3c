"""Servers that are killed under load, and clients that are: what was acknowledged stays, once."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest

from segue.stores.opening import open_redis
from segue.stores.redis import calls
from segue.stores.redis.calls import Calls
from segue.stores.redis.keys import base_key
from tests.crash.channel import Report
from tests.crash.processes import KILLED, ForkServer
from tests.crash.redis_users import (
    CAPACITY,
    LOCK,
    RING,
    TTL_SECONDS,
    Load,
    add_until_killed,
    fork_and_add,
    hold_lock,
    wait_for_lock,
)
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.redis_cluster import LASTING, RedisCluster
from tests.redis_proxy import Proxy
from tests.redis_sentinel import RedisSentinels
from tests.redis_server import LOOPBACK, RedisServer, eventually
from tests.waiting import LIMIT_SECONDS, random_pause

MOVE_SECONDS_MAX: Final = 0.04
WORKERS: Final = 3
LIFE_SECONDS_MAX: Final = 0.3
WAYS_TO_FAIL: Final = ["kill", "freeze"]
BREAKS: Final = 300 if TORTURE else 15
BREAK_SECONDS_MAX: Final = 0.3


# Servers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS_TO_FAIL)
def test_a_cluster_that_loses_a_master_keeps_what_a_replica_has(scratch: Path, how: str) -> None:
    """With `replicas=1`: a master fails under load, a replica takes over, the old one comes back.

    One that only hung wakes up with what it was sent, and with calls nobody waits for any more.
    """
    with RedisCluster(scratch) as cluster:
        key = base_key("segue", "ring", RING)
        victim = cluster.node_of(key)
        names = (f"mail-{number}" for number in range(1_000))
        queue = next(
            name for name in names if cluster.node_of(base_key("segue", "queue", name)) is victim
        )
        load = Load(cluster.url, queue=queue, options="&replicas=1")
        with load.running():
            load.wait_for_progress()
            _fail(victim, how)
            others = [node for node in cluster.nodes if node is not victim]
            eventually(lambda: cluster.node_of(key, asked=others[0]) is not victim, what="failover")
            if how == "kill":
                victim.restart()
            else:
                victim.thaw()
            cluster.wait_until_whole()
            load.wait_for_progress()
        load.check()


def test_a_slot_that_moves_to_another_node_takes_everything_along(scratch: Path) -> None:
    """Nobody works with a part of the keys: calls wait until all of them are there."""
    with RedisCluster(scratch, LASTING) as cluster, open_redis(cluster.url) as store:
        keys = [
            base_key("segue", "ring", RING),
            base_key("segue", "queue", "mail"),
            base_key("segue", "lock", LOCK),
        ]
        held = store.lock(LOCK, ttl=TTL_SECONDS).acquire()
        load = Load(cluster.url, queue="mail")
        chance = random.Random(new_seed())
        with load.running():
            for key in keys:
                load.wait_for_progress(20)
                before = cluster.node_of(key)
                after = cluster.move(key, pause=partial(random_pause, chance, MOVE_SECONDS_MAX))
                assert cluster.node_of(key) is after is not before
            load.wait_for_progress(20)
        load.check()
        held.release()

        assert store.lock(LOCK).acquire(wait=0).token > held.token


@pytest.mark.parametrize("how", WAYS_TO_FAIL)
def test_sentinels_that_replace_a_master_keep_what_a_replica_has(scratch: Path, how: str) -> None:
    with RedisSentinels(scratch) as sentinels:
        victim = sentinels.master()
        load = Load(sentinels.url, queue="mail", options="&replicas=1")
        with load.running():
            load.wait_for_progress()
            _fail(victim, how)
            eventually(lambda: sentinels.master() is not victim, what="another master")
            sentinels.settle()
            if how == "kill":
                sentinels.restart_as_replica(victim)
            else:
                victim.thaw()
                victim.ask("REPLICAOF", LOOPBACK, sentinels.master().port)
            load.wait_for_progress()
        load.check()


def _fail(server: RedisServer, how: str) -> None:
    if how == "kill":
        server.kill()
    else:
        server.freeze()


def test_a_server_that_syncs_what_it_says_keeps_it_through_a_kill(scratch: Path) -> None:
    """With `fsync=yes` and an append-only file."""
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with RedisServer(scratch / "server", settings) as server:
        load = Load(server.url, queue="mail", options="&fsync=yes")
        with load.running():
            for _ in range(3):
                load.wait_for_progress(30)
                server.restart()
            load.wait_for_progress(30)
        load.check()


def test_a_line_that_breaks_again_and_again_loses_and_doubles_nothing(scratch: Path) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    with (
        naming_seed(seed),
        RedisServer(scratch / "server") as server,
        Proxy(server.port) as proxy,
    ):
        load = Load(proxy.url, queue="mail", try_seconds=0.5)
        breaks = [proxy.cut_once, proxy.cut, proxy.freeze, proxy.lose_answer, proxy.lose_answer]
        with load.running():
            for _ in range(BREAKS):
                chance.choice(breaks)()
                random_pause(chance, BREAK_SECONDS_MAX)
                proxy.restore()
                load.wait_for_progress(chance.randrange(1, 5))
        load.check()


def test_a_frozen_replica_confirms_nothing(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is tried again is not taken for replicated because it was made before."""
    settings = {"repl-diskless-sync-delay": "0"}
    tries: list[Calls] = []

    def confirmation(impatient: Calls) -> tuple[str, int, int]:
        """Require a replica, which the server waits for only 100 ms. No client times out first."""
        tries.append(impatient)
        return "WAIT", 1, 100

    def monotonic() -> float:
        """Return a time after the last try as soon as there were three."""
        return time.monotonic() + LIMIT_SECONDS * (len(tries) >= 3)

    with (
        RedisServer(scratch / "master", settings) as master,
        RedisServer(
            scratch / "replica", {**settings, "replicaof": f"{LOOPBACK} {master.port}"}
        ) as replica,
    ):
        eventually(lambda: replica.facts("replication")["master_link_status"] == "up")
        options = f"replicas=1&timeout={LIMIT_SECONDS:g}&retry={LIMIT_SECONDS:g}"
        with (
            open_redis(f"{master.url}?{options}") as store,
            open_redis(f"{master.url}?{options}") as impatient,
        ):
            ring = store.ring(RING, capacity=CAPACITY)
            ring.enqueue(b"confirmed")
            replica.freeze()
            with monkeypatch.context() as patching:
                patching.setattr(Calls, "_confirmation", confirmation)
                patched = SimpleNamespace(monotonic=monotonic, sleep=lambda _: None)
                patching.setattr(calls, "time", patched)
                with pytest.raises(ConnectionError, match="on 0 of 1 replicas"):
                    impatient.ring(RING).enqueue(b"unconfirmed")
            replica.thaw()
            assert ring.enqueue(b"confirmed again") == 2


# Clients -----------------------------------------------------------------------------------


@pytest.fixture
def server(scratch: Path) -> Iterator[RedisServer]:
    with RedisServer(scratch / "server") as server:
        yield server


def test_clients_that_are_killed_lose_nothing_they_were_told(
    forks: ForkServer, server: RedisServer
) -> None:
    """At most the call that was under way is there without having been reported, and once."""
    seed = new_seed()
    chance = random.Random(seed)
    with open_redis(server.url) as store:
        ring = store.ring(RING, capacity=CAPACITY)
        queue = store.queue("mail")
        reports: list[list[Report]] = []
        with naming_seed(seed):
            for _ in range(3):
                with ExitStack() as closing:
                    children = [
                        closing.enter_context(
                            forks.start(add_until_killed, server.url, "mail", len(reports) + number)
                        )
                        for number in range(WORKERS)
                    ]
                    told = [[child.read()] for child in children]
                    random_pause(chance, LIFE_SECONDS_MAX)
                    for child in children:
                        child.kill()
                    for child, part in zip(children, told, strict=True):
                        assert child.join() == KILLED
                        reports.append(part + child.read_rest())
            bodies = [
                entry.body
                for offset in range(ring.info().tail_offset)
                if (entry := ring.get(offset))
            ]
            pushed = []
            while messages := queue.pop_many(1_000):
                pushed += [message.body for message in messages]

            assert len(bodies) == ring.info().tail_offset == len(set(bodies))
            assert len(pushed) == len(set(pushed))
            for worker, part in enumerate(reports):
                told_offsets = cast("list[list[int]]", part)
                assert [bodies[offset] for _, offset in told_offsets] == [
                    b"%d %d" % (worker, call) for call, _ in told_offsets
                ]
                for found in (bodies, pushed):
                    of_worker = sum(body.startswith(b"%d " % worker) for body in found)
                    assert of_worker - len(part) in {0, 1}


def test_a_lock_whose_holder_was_killed_is_free_when_it_expires(
    forks: ForkServer, server: RedisServer
) -> None:
    with (
        open_redis(server.url) as store,
        forks.start(hold_lock, server.url, 0.3) as holder,
    ):
        token = holder.read_number()
        holder.kill()
        held = store.lock(LOCK).acquire(wait=LIMIT_SECONDS)

        assert held.token > token


def test_who_waits_behind_one_that_was_killed_waiting_gets_the_lock(
    forks: ForkServer, server: RedisServer
) -> None:
    """A wake-up that goes to the dead is not the last one."""
    with open_redis(server.url) as store, ExitStack() as closing:
        held = store.lock(LOCK, ttl=TTL_SECONDS).acquire()
        children = []
        for count in (1, 2):
            child = closing.enter_context(forks.start(wait_for_lock, server.url))
            children.append(child)
            assert child.read_number() == 0
            eventually(partial(_is_waited_for, server, by=count), what="it waits")
        first, second = children
        first.kill()
        held.release()

        assert second.read_number() > held.token


def _is_waited_for(server: RedisServer, *, by: int) -> bool:
    key = base_key("segue", "lock", LOCK)
    return server.ask("ZCARD", f"{key}:waiting_lock") == by


def test_a_forked_child_has_connections_of_its_own(forks: ForkServer, server: RedisServer) -> None:
    """Nothing of the parent's is read by the child, and both go on."""
    with forks.start(fork_and_add, server.url, 50) as child:
        assert child.read_number() == 0
        assert child.join() == 0
    with open_redis(server.url) as store:
        ring = store.ring(RING)
        bodies = [entry.body for offset in range(101) if (entry := ring.get(offset))]

    assert sorted(bodies) == sorted([b"before"] + [b"child"] * 50 + [b"parent"] * 50)
