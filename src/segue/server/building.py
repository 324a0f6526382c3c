"""The application, built from what a command line or a program asks for."""

import itertools
from collections.abc import Collection
from pathlib import Path

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.log.disk import Disk
from segue.server.access import Guard, KnownTokens
from segue.server.access_log import AccessLog
from segue.server.app import App
from segue.server.audit import Audit
from segue.server.bodies import BODY_BYTES_MAX
from segue.server.health import Watchdog
from segue.server.operations import Operations
from segue.server.routes import ALL
from segue.server.routing import Router
from segue.stores.contract import Store


class CountingDisk(Disk):
    """A disk that counts how often it synced."""

    def __init__(self) -> None:
        self._next = itertools.count(1).__next__  # One step, so that no thread's is lost.
        self.syncs = 0

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.syncs = self._next()


def build_app(
    store: Store,
    *,
    tokens: Path | None = None,
    hosts: Collection[str] = (),
    cors_origins: Collection[str] = (),
    access_log: str | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
    has_audit: bool = True,
    is_read_only: bool = False,
    records_history: bool = False,
    disk: CountingDisk | None = None,
    clock: Clock = system_clock,
    ticks: Ticks = system_ticks,
) -> App:
    """Return the application for a store, which stays the caller's to close.

    Without `tokens`, and for as long as there is no such file, everybody gets in. `hosts` are the
    names the server goes by besides localhost. If it `is_read_only` nobody changes anything, and
    so there is no audit either. If it `records_history`, what becomes of the queues is kept in a
    topic of the store, unless another server does so. Raises UnsupportedFormat, OSError.
    """
    operations = Operations(
        Watchdog(store.queues),
        access_log=None if access_log is None else AccessLog(access_log),
        audit=Audit(store) if has_audit and not is_read_only else None,
        clock=clock,
    )
    if disk is not None:
        operations.syncs = lambda: disk.syncs
    guard = Guard(
        None if tokens is None else KnownTokens(tokens, clock=clock),
        hosts=hosts,
        cors_origins=cors_origins,
        is_read_only=is_read_only,
    )
    app = App(
        store,
        Router(ALL),
        ticks=ticks,
        guard=guard,
        operations=operations,
        clock=clock,
        records_history=records_history and not is_read_only,
    )
    app.bodies.bytes_max = body_bytes_max
    return app
