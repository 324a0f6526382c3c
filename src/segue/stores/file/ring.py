"""The ring: what its callers see."""

import logging
import secrets
from collections.abc import Callable
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Self, TypeVar

from segue.delivery.message import Body, body_from
from segue.delivery.ring import DEFAULT_GROUP, RingState
from segue.delivery.ring_draft import Draft
from segue.delivery.ring_events import (
    Committed,
    GroupAdded,
    GroupRemoved,
    Locked,
    Unlocked,
    encode_event,
)
from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    OffsetTrimmed,
    RecordTooLarge,
    SegueError,
    TransactionAborted,
)
from segue.log.layout import checked_name
from segue.log.options import Duration
from segue.stores.contract import Entry, RingInfo, TransactionOutcome
from segue.stores.file.ring_core import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_ENTRIES_MAX,
    RingCore,
)
from segue.stores.file.turns import Patience, Turn, ttl_from

logger = logging.getLogger(__name__)

TXN_ID_CHARACTERS_MAX: Final = 200
GROUPS_MAX: Final = 100
WAIT_SECONDS_DEFAULT: Final = 0.3
"""The ancestor's three tries, 100 ms apart."""
TTL_SECONDS_DEFAULT: Final = 0.2

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
        data = _checked_body(body)
        owner = _checked_txn_id(txn_id)

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
        owner = _checked_txn_id(txn_id)

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
        owner = _checked_txn_id(txn_id) or secrets.token_hex(8)

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
        owner = _checked_txn_id(txn_id)
        with self._core.seeing() as state:
            committed = state.outcome(owner)
        return None if committed is None else _outcome_from(committed)

    # Groups --------------------------------------------------------------------------------

    def add_group(self, group: str, *, start: Literal["head", "tail"] = "head") -> None:
        """Let another group of consumers read on its own; one that is there stays as it is."""
        name = _checked_group(group)
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
        name = _checked_group(group)
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


class FileTransaction:
    """Several steps on a ring as one. For one thread at a time."""

    def __init__(self, core: RingCore, draft: Draft, *, txn_id: str, token: int) -> None:
        self._core = core
        self._draft = draft
        self._state: Literal["open", "committed", "aborted"] = "open"
        self._bytes = 0
        self.txn_id = txn_id
        self.token = token

    def enqueue(self, body: Body, *, overwrite_if_full: bool = False) -> int:
        """Add an entry and return the offset it will have.

        Raises RingFull, TransactionAborted if the lock is known to be lost, and BatchTooLarge
        beyond what one commit can hold.
        """
        data = _checked_body(body)
        if len(self._draft.bodies) >= TRANSACTION_ENTRIES_MAX:
            raise BatchTooLarge(f"a transaction adds at most {TRANSACTION_ENTRIES_MAX} entries")
        if self._bytes + len(data) > TRANSACTION_BYTES_MAX:
            raise BatchTooLarge(f"a transaction adds at most {TRANSACTION_BYTES_MAX} bytes")
        self._require_lock()
        offset = self._draft.enqueue(data, overwrite_if_full=overwrite_if_full)
        self._bytes += len(data)
        return offset

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

    def _require_unfinished(self) -> None:
        if self._state == "committed":
            raise InvalidArgument(f"transaction {self.txn_id} is committed already")
        if self._state == "aborted":
            raise self._aborted("it was ended before")

    def _check_lock(self, state: RingState) -> None:
        """Raise TransactionAborted if others have taken over; expiry alone does no harm."""
        if not _holds(state, self.token):
            raise self._aborted("its lock expired and was broken")

    def _aborted(self, reason: str) -> TransactionAborted:
        return TransactionAborted(ring=self._core.name, txn_id=self.txn_id, reason=reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return
        if kind is not None:
            self._abort_quietly()
            return
        try:
            self.commit()
        except BaseException:
            self._abort_quietly()
            raise

    def _abort_quietly(self) -> None:
        """Let go if that can be done: another error is on its way, and the lock expires anyway."""
        try:
            self.abort()
        except SegueError as error:
            logger.warning("transaction %s keeps its lock reason=%s", self.txn_id, error)


def _holds(state: RingState, token: int) -> bool:
    lock = state.lock()
    return lock is not None and lock.token == token


def _outcome_from(committed: Committed) -> TransactionOutcome:
    commit, first = committed.commit, committed.first_offset
    return TransactionOutcome(
        txn_id=commit.txn_id,
        token=commit.token,
        enqueued=range(first, first + commit.count),
        dequeued=MappingProxyType(
            {taken.group: range(taken.start, taken.stop) for taken in commit.taken}
        ),
    )


def _checked_body(body: Body) -> bytes:
    data = body_from(body)
    if len(data) > TRANSACTION_BYTES_MAX:
        raise RecordTooLarge(size_bytes=len(data), size_bytes_max=TRANSACTION_BYTES_MAX)
    return data


def _checked_txn_id(txn_id: str | int | None) -> str:
    """Return a transaction id as text, "" for none. Raises InvalidArgument."""
    if txn_id is None:
        return ""
    if isinstance(txn_id, bool) or not isinstance(txn_id, str | int):
        raise InvalidArgument(f"a transaction id is text or a whole number: {txn_id!r}")
    text = str(txn_id)
    if not 0 < len(text) <= TXN_ID_CHARACTERS_MAX:
        raise InvalidArgument(
            f"a transaction id has 1 to {TXN_ID_CHARACTERS_MAX} characters: {text[:40]!r}"
        )
    return text


def _checked_group(group: str) -> str:
    if not isinstance(group, str):
        raise InvalidArgument(f"a group is named by text: {group!r}")
    return checked_name(group)
