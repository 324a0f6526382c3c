"""The ring on a server: what its callers see."""

import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from segue.delivery.message import Body
from segue.delivery.ring import DEFAULT_GROUP, RingShape, new_shape
from segue.errors import InvalidArgument, RingNotFound
from segue.log.options import Duration
from segue.stores.contract import Entry, RingInfo, RingMode, TransactionOutcome
from segue.stores.lock_blocks import ttl_from
from segue.stores.redis.ring_server import RingServer
from segue.stores.redis.ring_transaction import RedisTransaction
from segue.stores.ring_arguments import (
    TTL_SECONDS_DEFAULT,
    WAIT_SECONDS_DEFAULT,
    check_request,
    checked_body,
    checked_group,
    checked_txn_id,
    outcome_from,
    require_shape,
)

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore

OFFSET_MAX: Final = 1 << 53
"""Beyond that the server's functions cannot count."""


class RedisRing:
    """A ring on a server. Safe from any thread."""

    def __init__(self, server: RingServer, shape: RingShape) -> None:
        self.name = server.name
        self._server = server
        self._shape = shape

    # Steps ---------------------------------------------------------------------------------

    def enqueue(
        self,
        body: Body,
        txn_id: str | int | None = None,
        *,
        overwrite_if_full: bool = False,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> int:
        """Add an entry and return its offset. Raises RingFull, LockBusy."""
        return self._server.enqueue(
            checked_body(body),
            self._server.patience(wait),
            txn_id=checked_txn_id(txn_id),
            overwrite=bool(overwrite_if_full),
            capacity=self._shape.capacity,
        )

    def dequeue(
        self,
        txn_id: str | int | None = None,
        *,
        group: str = DEFAULT_GROUP,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises LockBusy."""
        owner = checked_txn_id(txn_id)
        return self._server.dequeue(checked_group(group), self._server.patience(wait), txn_id=owner)

    def transaction(
        self,
        txn_id: str | int | None = None,
        *,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> RedisTransaction:
        """Take the ring's lock for `ttl` and return the steps to be made. Raises LockBusy."""
        ttl_us = ttl_from(ttl)
        owner = checked_txn_id(txn_id) or secrets.token_hex(8)
        locked = self._server.lock(self._server.patience(wait), txn_id=owner, ttl_us=ttl_us)
        return RedisTransaction(self._server, locked, txn_id=owner)

    # Answers -------------------------------------------------------------------------------

    def get(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not, or no longer, there. No lock."""
        if type(offset) is not int:
            raise InvalidArgument(f"an offset is a whole number: {offset!r}")
        # Asked for all the same, so that a closed store says so.
        return self._server.get(offset if 0 <= offset < OFFSET_MAX else OFFSET_MAX)

    def info(self) -> RingInfo:
        """Return how the ring stands."""
        standing = self._server.standing()
        if standing is None:
            raise RingNotFound(name=self.name)
        return RingInfo(
            name=self.name,
            capacity=standing.capacity,
            entries_per_segment=standing.entries_per_segment,
            head_offset=standing.head,
            tail_offset=standing.tail,
            groups=MappingProxyType(standing.heads()),
            locked_by=standing.locked_by,
            token=standing.token,
        )

    def outcome(self, txn_id: str | int) -> TransactionOutcome | None:
        """Return what a recent transaction committed, or None if it is not known to have."""
        if txn_id is None:
            raise InvalidArgument("which transaction?")
        committed = self._server.outcome(checked_txn_id(txn_id))
        return None if committed is None else outcome_from(committed)

    # Groups --------------------------------------------------------------------------------

    def add_group(self, group: str, *, start: Literal["head", "tail"] = "head") -> None:
        """Let another group of consumers read on its own; one that is there stays as it is."""
        name = checked_group(group)
        if start not in {"head", "tail"}:
            raise InvalidArgument(f"start must be head or tail: {start!r}")
        self._server.add_group(name, start)

    def remove_group(self, group: str) -> bool:
        """Forget a group, so that it holds nothing back; tell whether it was there."""
        name = checked_group(group)
        if name == DEFAULT_GROUP:
            raise InvalidArgument(f"group {DEFAULT_GROUP} is always there")
        return self._server.remove_group(name)


def open_ring(
    store: "RedisStore",
    name: str,
    *,
    capacity: int | None,
    entries_per_segment: int | None,
    mode: RingMode,
) -> RedisRing:
    """Open a ring, or make it. Raises RingExists, RingNotFound, InvalidArgument."""
    check_request(capacity, entries_per_segment, mode)
    server = RingServer(store, name)
    standing = server.standing()
    if standing is not None:
        is_new = False
        shape = RingShape(
            capacity=standing.capacity, entries_per_segment=standing.entries_per_segment
        )
    elif mode == "open":
        raise RingNotFound(name=name)
    else:
        wanted = new_shape(capacity, entries_per_segment)
        store.register("ring", name)
        is_new, shape = server.create(wanted)
    if not is_new:
        require_shape(
            name, shape, capacity=capacity, entries_per_segment=entries_per_segment, mode=mode
        )
    return RedisRing(server, shape)


def ring_exists(store: "RedisStore", name: str) -> bool:
    """Tell whether there is such a ring."""
    return RingServer(store, name).standing() is not None
