"""A real master with a replica on the loopback, and the sentinels that watch them."""

from pathlib import Path
from typing import Final, cast

import redis

from tests.redis_server import LOOPBACK, RedisServer
from tests.waiting import LIMIT_SECONDS, wait_until

SERVICE: Final = "main"
SENTINELS: Final = 3
DOWN_AFTER_MS: Final = 500
LASTING_MS: Final = round(LIMIT_SECONDS * 1_000)
"""For tests without a failover: a server that stalls does not count as down."""
FAILOVER_TIMEOUT_MS: Final = 2_000
SETTINGS: Final = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class RedisSentinels:
    """Two servers and three sentinels. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str] | None = None,
        *,
        down_after_ms: int = DOWN_AFTER_MS,
    ) -> None:
        self._directory = directory
        self._down_after_ms = down_after_ms
        self.servers = [
            RedisServer(directory / f"server-{number}", {**SETTINGS, **(settings or {})})
            for number in range(2)
        ]
        self.sentinels: list[RedisServer] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def start(self) -> "RedisSentinels":
        """Start all of them, and wait until they know each other."""
        master, replica = self.servers
        master.start()
        replica.start()
        replica.ask("REPLICAOF", LOOPBACK, master.port)
        wait_until(
            lambda: replica.facts("replication")["master_link_status"] == "up",
            ignoring=(redis.RedisError, OSError),
        )
        for number in range(SENTINELS):
            place = self._directory / f"sentinel-{number}"
            self.sentinels.append(_sentinel(place, master, down_after_ms=self._down_after_ms))
        wait_until(
            lambda: all(map(_knows_all, self.sentinels)),
            "sentinels know each other",
            ignoring=(redis.RedisError, OSError),
        )
        return self

    def master(self) -> RedisServer:
        """Return who most sentinels say is the master."""
        ports = [
            int(cast("list[str]", sentinel.ask("SENTINEL", "get-master-addr-by-name", SERVICE))[1])
            for sentinel in self.sentinels
            if sentinel.is_running
        ]
        port = max(set(ports), key=ports.count)
        return next(server for server in self.servers if server.port == port)

    def settle(self) -> None:
        """Have no other failover: on a busy machine a server may seem to be down."""
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", LASTING_MS)

    def restart_as_replica(self, server: RedisServer) -> None:
        """Start a server that was the master as the replica of who is now."""
        # Sentinels would do it, after they have looked on for ten seconds.
        server.settings["replicaof"] = f"{LOOPBACK} {self.master().port}"
        server.restart()

    def close(self) -> None:
        """End all of them."""
        for each in (*self.sentinels, *self.servers):
            each.kill()

    def __enter__(self) -> "RedisSentinels":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _sentinel(directory: Path, master: RedisServer, *, down_after_ms: int) -> RedisServer:
    directory.mkdir(parents=True)
    file = directory / "sentinel.conf"
    file.write_text(
        f"sentinel monitor {SERVICE} {LOOPBACK} {master.port} {SENTINELS // 2 + 1}\n"
        f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
        f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}\n"
        f"sentinel parallel-syncs {SERVICE} 1\n"
    )
    server = RedisServer(directory)
    server.arguments = [str(file), "--sentinel"]
    server.settings = {}
    return server.start()


def _knows_all(sentinel: RedisServer) -> bool:
    said = sentinel.ask("SENTINEL", "master", SERVICE)
    # Pairs in a list, for clients that speak the older protocol.
    facts = said if isinstance(said, dict) else dict(_pairs(cast("list[str]", said)))
    return facts["num-slaves"] == "1" and facts["num-other-sentinels"] == str(SENTINELS - 1)


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))
