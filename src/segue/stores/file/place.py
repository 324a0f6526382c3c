"""Where a store's things lie, and how their logs are opened."""

from pathlib import Path

from segue.clock import Clock, Ticks
from segue.log import Log
from segue.log.disk import Disk, storage_errors
from segue.log.layout import checked_name, is_name
from segue.log.options import (
    SYNC_INTERVAL_MS_MAX,
    Duration,
    SyncName,
    check_limit,
    sync_from,
)
from segue.log.wake import Bell
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory and the way it is used."""

    root: Path
    sync: SyncName
    sync_interval_ms: int
    exclusive: bool
    allow_network: bool
    clock: Clock
    ticks: Ticks
    disk: Disk

    def __post_init__(self) -> None:
        sync_from(self.sync)
        check_limit("sync_interval_ms", self.sync_interval_ms, 1, SYNC_INTERVAL_MS_MAX)

    @property
    def is_durable(self) -> bool:
        """Whether what was pushed must outlast a power cut."""
        return self.sync != "os"

    @property
    def deferred_sync(self) -> SyncName:
        """How what may be lost to a power cut is synced: a lost ack is only a redelivery."""
        return "interval" if self.is_durable else "os"

    def path(self, kind: str, name: str) -> Path:
        """Return the directory of one thing. Raises InvalidName."""
        return self.root / kind / checked_name(name)

    def names(self, kind: str) -> list[str]:
        """Return the names of the things of one kind."""
        with storage_errors(f"listing {self.root}"):
            return [name for name in self.disk.names(self.root / kind) if is_name(name)]

    def log(
        self,
        path: Path,
        *,
        sync: SyncName | None = None,
        segment_items: int | None = None,
        segment_bytes: int | None = None,
        segment_age: Duration | None = None,
        bell: Bell | None = None,
    ) -> Log:
        """Open a log of the store."""
        return Log(
            path,
            exclusive=self.exclusive,
            sync=sync or self.sync,
            sync_interval_ms=self.sync_interval_ms,
            segment_items=segment_items,
            segment_bytes=segment_bytes,
            segment_age=segment_age,
            allow_network=self.allow_network,
            clock=self.clock,
            disk=self.disk,
            bell=bell,
        )
