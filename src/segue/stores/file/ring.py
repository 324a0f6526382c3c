"""The ring: what its callers see."""

import secrets
from collections.abc import Callable
from types import MappingProxyType
from typing import Literal, TypeVar

from segue.delivery.message import Body
from segue.delivery.ring import DEFAULT_GROUP, RingState
from segue.delivery.ring_draft import Draft
from segue.delivery.ring_events import (
    GroupAdded,
    GroupRemoved,
    Locked,
    Unlocked,
    encode_event,
)
from segue.errors import InvalidArgument, OffsetTrimmed
from segue.log.options import Duration
from segue.stores.contract import Entry, RingInfo, TransactionOutcome
from segue.stores.drafted import DraftedTransaction
from segue.stores.file.ring_core import RingCore
from segue.stores.file.turns import Patience, Turn
from segue.stores.lock_blocks import ttl_from
from segue.stores.ring_arguments import (
    GROUPS_MAX,
    TTL_SECONDS_DEFAULT,
    WAIT_SECONDS_DEFAULT,
    checked_body,
    checked_group,
    checked_txn_id,
    outcome_from,
)

_T = TypeVar("_T")


class FileRing:
    """A ring in a directory. Safe from any thread."""

    def __init__(self, core: RingCore) -> None:
        self._core = core
        self.name = core.name

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
        data = checked_body(body)
        owner = checked_txn_id(txn_id)

        def add(turn: Turn, draft: Draft, token: int) -> int:
            offset = draft.enqueue(data, overwrite_if_full=overwrite_if_full)
            self._core.write(turn, draft, token=token, txn_id=owner)
            return offset

        return self._alone(add, Patience(wait))

    def dequeue(
        self,
        txn_id: str | int | None = None,
        *,
        group: str = DEFAULT_GROUP,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises LockBusy."""
        owner = checked_txn_id(txn_id)

        def take(turn: Turn, draft: Draft, token: int) -> Entry | None:
            entry = self._core.take(draft, group)
            if draft.has_steps:
                self._core.write(turn, draft, token=token, txn_id=owner)
            return entry

        return self._alone(take, Patience(wait))

    def _alone(self, step: Callable[[Turn, Draft, int], _T], patience: Patience) -> _T:
        """Make a step while no transaction holds the ring. Raises LockBusy."""
        core = self._core
        while True:
            with core.turn() as turn:
                with core.seeing() as state:
                    holder = core.holder(state)
                    draft = Draft(state, name=self.name)
                    token = state.token + 1
                if holder is None:
                    result = step(turn, draft, token)
                    break
                since = core.extent()
            core.wait(holder, patience, since=since)
        core.tend()
        return result

    def transaction(
        self,
        txn_id: str | int | None = None,
        *,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> "FileTransaction":
        """Take the ring's lock for `ttl` and return the steps to be made. Raises LockBusy."""
        core = self._core
        ttl_us = ttl_from(ttl)
        owner = checked_txn_id(txn_id) or secrets.token_hex(8)

        def lock(turn: Turn, draft: Draft, token: int) -> FileTransaction:
            now_us = core.place.ticks()
            locked = Locked(
                token=token,
                txn_id=owner,
                since_us=now_us,
                deadline_us=now_us + ttl_us,
                boot=core.boot,
            )
            turn.put(encode_event(locked))
            return FileTransaction(core, draft, txn_id=owner, token=token)

        return self._alone(lock, Patience(wait))

    # Answers -------------------------------------------------------------------------------

    def get(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not, or no longer, there. No lock."""
        if type(offset) is not int:
            raise InvalidArgument(f"an offset is a whole number: {offset!r}")
        with self._core.seeing() as state:
            if not state.head <= offset < state.tail:
                return None
        return self._core.read(offset)

    def info(self) -> RingInfo:
        """Return how the ring stands."""
        core = self._core
        with core.seeing() as state:
            holder = core.holder(state)
            heads = state.heads()
            return RingInfo(
                name=self.name,
                capacity=core.shape.capacity,
                entries_per_segment=core.shape.entries_per_segment,
                head_offset=min(heads.values()),
                tail_offset=state.tail,
                groups=MappingProxyType(heads),
                locked_by=None if holder is None else holder.txn_id,
                token=state.token,
            )

    def outcome(self, txn_id: str | int) -> TransactionOutcome | None:
        """Return what a recent transaction committed, or None if it is not known to have."""
        if txn_id is None:
            raise InvalidArgument("which transaction?")
        owner = checked_txn_id(txn_id)
        with self._core.seeing() as state:
            committed = state.outcome(owner)
        return None if committed is None else outcome_from(committed)

    # Groups --------------------------------------------------------------------------------

    def add_group(self, group: str, *, start: Literal["head", "tail"] = "head") -> None:
        """Let another group of consumers read on its own; one that is there stays as it is."""
        name = checked_group(group)
        if start not in {"head", "tail"}:
            raise InvalidArgument(f"start must be head or tail: {start!r}")
        core = self._core
        with core.turn() as turn:
            with core.seeing() as state:
                if state.group_id(name) is not None:
                    return
                if len(state.heads()) >= GROUPS_MAX:
                    raise InvalidArgument(f"a ring has at most {GROUPS_MAX} groups")
                added = GroupAdded(
                    name=name,
                    id=state.token + 1,
                    head=state.head if start == "head" else state.tail,
                )
            turn.put(encode_event(added), durable=core.syncs_at_once)

    def remove_group(self, group: str) -> bool:
        """Forget a group, so that it holds nothing back; tell whether it was there."""
        name = checked_group(group)
        if name == DEFAULT_GROUP:
            raise InvalidArgument(f"group {DEFAULT_GROUP} is always there")
        core = self._core
        with core.turn() as turn:
            with core.seeing() as state:
                id_ = state.group_id(name)
            if id_ is None:
                return False
            removed = GroupRemoved(name=name, id=id_)
            turn.put(encode_event(removed), durable=core.syncs_at_once)
        return True


class FileTransaction(DraftedTransaction):
    """Several steps on a ring as one. For one thread at a time."""

    def __init__(self, core: RingCore, draft: Draft, *, txn_id: str, token: int) -> None:
        super().__init__(core.name, draft, txn_id=txn_id, token=token)
        self._core = core

    def dequeue(self, *, group: str = DEFAULT_GROUP) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises TransactionAborted."""
        self._require_lock()
        try:
            return self._core.take(self._draft, group)
        except OffsetTrimmed as error:  # Others went on just now, and deleted what we read.
            raise self._aborted("its lock expired and was broken") from error

    def commit(self) -> None:
        """Make all steps happen at once, or raise TransactionAborted and none has.

        May be tried again after StorageFull, when nothing has happened either.
        """
        self._require_unfinished()
        with self._core.turn() as turn:
            with self._core.seeing() as state:
                self._check_lock(state)
                conflict = self._draft.conflict(state)
            if conflict is not None:
                raise self._aborted(conflict)
            self._core.write(turn, self._draft, token=self.token, txn_id=self.txn_id)
            self._state = "committed"
        self._core.tend()

    def abort(self) -> None:
        """Let go of the lock; nothing has happened. What is over stays as it is."""
        if self._state != "open":
            return
        self._state = "aborted"
        with self._core.turn() as turn:
            with self._core.seeing() as state:
                is_ours = _holds(state, self.token)
            if is_ours:
                turn.put(encode_event(Unlocked(token=self.token)))

    def _require_lock(self) -> None:
        self._require_unfinished()
        with self._core.seeing() as state:
            self._check_lock(state)

    def _check_lock(self, state: RingState) -> None:
        """Raise TransactionAborted if others have taken over; expiry alone does no harm."""
        if not _holds(state, self.token):
            raise self._aborted("its lock expired and was broken")


def _holds(state: RingState, token: int) -> bool:
    lock = state.lock()
    return lock is not None and lock.token == token
