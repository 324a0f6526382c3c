"""A real cluster on the loopback: three masters, three replicas."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import redis
from redis.crc import key_slot

from tests.ports import free_port
from tests.redis_server import LOOPBACK, RedisServer
from tests.waiting import LIMIT_SECONDS, wait_until

MASTERS: Final = 3
SLOTS: Final = 16_384
NODE_TIMEOUT_MS: Final = 1_000
MOVED_MAX: Final = 2
"""How many keys of a slot are moved at once: few, so that the others stay behind for a while."""
MOVE_TIMEOUT_MS: Final = round(LIMIT_SECONDS * 1_000)
LASTING: Final = {"cluster-node-timeout": str(round(LIMIT_SECONDS * 1_000))}
"""Settings for tests without a failover: a node that stalls does not count as failed."""
SETTINGS: Final = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": str(NODE_TIMEOUT_MS),
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
    # A replica stays where it is, however many others a master has.
    "cluster-allow-replica-migration": "no",
    # How old a replica's data may be counts in node timeouts, which are short here.
    "cluster-replica-validity-factor": "0",
}


class RedisCluster:
    """Six servers. Close it, or use it in a `with` statement."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.nodes = [_node(directory / f"node-{number}", settings) for number in range(6)]

    @property
    def masters(self) -> list[RedisServer]:
        """Those that begin as masters."""
        return self.nodes[:MASTERS]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://{hosts}"

    def start(self) -> "RedisCluster":
        """Start all nodes, make them a cluster, and wait until all of them agree that it is one."""
        for number, node in enumerate(self.nodes):
            node.start()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            bus = node.settings["cluster-port"]
            self.nodes[0].ask("CLUSTER", "MEET", LOOPBACK, node.port, bus)
        bounds = [SLOTS * number // MASTERS for number in range(MASTERS + 1)]
        for node, first, stop in zip(self.masters, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, stop - 1)
        wait_until(
            lambda: all(self._knows_all(node) for node in self.nodes),
            "all met",
            ignoring=(redis.RedisError, OSError),
        )
        for master, replica in zip(self.masters, self.nodes[MASTERS:], strict=True):
            replica.ask("CLUSTER", "REPLICATE", str(master.ask("CLUSTER", "MYID")))
        self.wait_until_whole()
        return self

    def _knows_all(self, node: RedisServer) -> bool:
        said = str(node.ask("CLUSTER", "NODES"))
        return len(said.splitlines()) == len(self.nodes) and "handshake" not in said

    def wait_until_whole(self) -> None:
        """Return once every slot has a master, and every node that runs is in touch."""
        wait_until(self._is_whole, "cluster is whole", ignoring=(redis.RedisError, OSError))

    def _is_whole(self) -> bool:
        running = [node for node in self.nodes if node.is_running]
        roles = [node.facts("replication") for node in running]
        return (
            all("cluster_state:ok" in str(node.ask("CLUSTER", "INFO")) for node in running)
            and sum(role["role"] == "master" for role in roles) == MASTERS
            and all(
                role["master_link_status"] == "up" for role in roles if role["role"] != "master"
            )
            and sum(
                cast("int", role["connected_slaves"]) for role in roles if role["role"] == "master"
            )
            == len(running) - MASTERS
        )

    def node_of(self, key: str, *, asked: RedisServer | None = None) -> RedisServer:
        """Return the master that has `key` now, as one of the nodes says."""
        slot = key_slot(key.encode())
        asked = asked or next(node for node in self.nodes if node.is_running)
        ranges = cast("list[list[object]]", asked.ask("CLUSTER", "SLOTS"))
        for first, last, master, *_ in ranges:
            if cast("int", first) <= slot <= cast("int", last):
                port = cast("list[object]", master)[1]
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has {key}")

    def move(self, key: str, *, pause: Callable[[], None] = lambda: None) -> RedisServer:
        """Move the slot of `key` to another master, key by key; return that master.

        `pause` is called when half of the keys are here and half there.
        """
        slot = key_slot(key.encode())
        source = self.node_of(key)
        target = next(node for node in self.masters if node is not source)
        source_id, target_id = (str(node.ask("CLUSTER", "MYID")) for node in (source, target))
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while names := cast("list[str]", source.ask("CLUSTER", "GETKEYSINSLOT", slot, MOVED_MAX)):
            where = (LOOPBACK, target.port, "", 0, MOVE_TIMEOUT_MS)
            source.ask("MIGRATE", *where, "KEYS", *names)
            pause()
        for node in (target, source, *self.masters):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        return target

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> "RedisCluster":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _node(directory: Path, settings: dict[str, str] | None) -> RedisServer:
    bus = {"cluster-port": str(free_port())}
    return RedisServer(directory, {**SETTINGS, **bus, **(settings or {})})
