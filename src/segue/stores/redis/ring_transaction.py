"""A transaction on a ring of a server: its lock, its steps on paper, and one call to commit."""

from segue.delivery.ring import DEFAULT_GROUP
from segue.delivery.ring_draft import Draft
from segue.errors import ConnectionsBusy, NotReplicated, StoreUnavailable
from segue.stores.contract import Entry
from segue.stores.drafted import DraftedTransaction
from segue.stores.redis.ring_server import LockBroken, Locked, RingServer


class RedisTransaction(DraftedTransaction):
    """Several steps on a ring as one. For one thread at a time."""

    def __init__(self, server: RingServer, locked: Locked, *, txn_id: str) -> None:
        draft = Draft(locked.standing, name=server.name)
        super().__init__(server.name, draft, txn_id=txn_id, token=locked.token)
        self._server = server
        self._until_us = locked.until_us
        self._time_us = locked.time_us
        self._regrouped = locked.standing.regrouped
        self._is_unknown = False

    def dequeue(self, *, group: str = DEFAULT_GROUP) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises TransactionAborted.

        One that the transaction itself added has the time of its lock; the commit sets another.
        """
        self._require_lock()
        draft = self._draft
        head = draft.head(group)
        if head is None:
            return None
        entry: Entry | None = None
        if head < draft.committed_tail:
            entry = self._read(head, draft.committed_tail)
            if entry is None:
                # Else what cannot be read would fill the ring.
                draft.take(group, start=draft.committed_tail, stop=draft.committed_tail)
        if entry is None:
            entry = self._own_entry(group)
        if entry is not None:
            draft.take(group, start=entry.offset, stop=entry.offset + 1)
        return entry

    def _read(self, start: int, stop: int) -> Entry | None:
        try:
            return self._server.read(self.token, start=start, stop=stop)
        except LockBroken as broken:
            raise self._aborted(str(broken)) from None

    def _own_entry(self, group: str) -> Entry | None:
        head = self._draft.head(group)
        body = None if head is None else self._draft.own_body(head)
        if head is None or body is None:
            return None
        return Entry(offset=head, body=body, time_us=self._time_us)

    def commit(self) -> None:
        """Make all steps happen at once, or raise TransactionAborted and none has.

        After StoreUnavailable nobody knows whether they have, until it is tried again: what was
        committed is not committed twice. `NotReplicated` says that it was.
        """
        self._require_unfinished()
        try:
            self._commit()
        except LockBroken as broken:
            raise self._aborted(str(broken)) from None
        except NotReplicated:
            self._state = "committed"
            raise
        except ConnectionsBusy:
            raise
        except StoreUnavailable:
            self._is_unknown = True
            raise
        self._state = "committed"

    def _commit(self) -> None:
        while True:
            standing = self._server.commit(
                self._draft, token=self.token, txn_id=self.txn_id, regrouped=self._regrouped
            )
            if standing is None:
                return
            conflict = self._draft.conflict(standing)
            if conflict is not None:
                raise self._aborted(conflict)
            self._regrouped = standing.regrouped

    def abort(self) -> None:
        """Let go of the lock; nothing has happened. What is over stays as it is."""
        if self._state != "open":
            return
        self._state = "aborted"
        self._server.unlock(self.token)

    def _abort_quietly(self) -> None:
        if self._is_unknown:
            self._state = "aborted"
            return  # The server does not answer, and the lock ends without it.
        super()._abort_quietly()

    def _require_lock(self) -> None:
        """Raise TransactionAborted if others have taken over; until it expires nobody has."""
        self._require_unfinished()
        if self._server.ticks() >= self._until_us:
            self._read(0, 0)
