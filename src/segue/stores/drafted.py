"""Transactions on rings: what ends them, and steps that are on paper until they are committed."""

import logging
from types import TracebackType
from typing import Literal, Self

from segue.delivery.message import Body
from segue.delivery.ring_draft import Draft
from segue.errors import BatchTooLarge, InvalidArgument, SegueError, TransactionAborted
from segue.stores.ring_arguments import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_ENTRIES_MAX,
    checked_body,
)

logger = logging.getLogger(__name__)


class TransactionBlock:
    """A transaction as a block: committed at its end, or aborted if an exception ends it."""

    def __init__(self, ring: str, *, txn_id: str, token: int) -> None:
        self._ring = ring
        self._state: Literal["open", "committed", "aborted"] = "open"
        self.txn_id = txn_id
        self.token = token

    def commit(self) -> None:
        """Make all steps happen at once, or raise TransactionAborted and none has."""
        raise NotImplementedError

    def abort(self) -> None:
        """Let go of the lock; nothing has happened. What is over stays as it is."""
        raise NotImplementedError

    def _require_unfinished(self) -> None:
        if self._state == "committed":
            raise InvalidArgument(f"transaction {self.txn_id} is committed already")
        if self._state == "aborted":
            raise self._aborted("it was ended before")

    def _aborted(self, reason: str) -> TransactionAborted:
        return TransactionAborted(ring=self._ring, txn_id=self.txn_id, reason=reason)

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


class DraftedTransaction(TransactionBlock):
    """Several steps on a ring as one. For one thread at a time."""

    def __init__(self, ring: str, draft: Draft, *, txn_id: str, token: int) -> None:
        super().__init__(ring, txn_id=txn_id, token=token)
        self._draft = draft
        self._bytes = 0

    def enqueue(self, body: Body, *, overwrite_if_full: bool = False) -> int:
        """Add an entry and return the offset it will have.

        Raises RingFull, TransactionAborted if the lock is known to be lost, and BatchTooLarge
        beyond what one commit can hold.
        """
        data = checked_body(body)
        if len(self._draft.bodies) >= TRANSACTION_ENTRIES_MAX:
            raise BatchTooLarge(f"a transaction adds at most {TRANSACTION_ENTRIES_MAX} entries")
        if self._bytes + len(data) > TRANSACTION_BYTES_MAX:
            raise BatchTooLarge(f"a transaction adds at most {TRANSACTION_BYTES_MAX} bytes")
        self._require_lock()
        offset = self._draft.enqueue(data, overwrite_if_full=overwrite_if_full)
        self._bytes += len(data)
        return offset

    def _require_lock(self) -> None:
        """Raise TransactionAborted if others are known to have taken over."""
        raise NotImplementedError
