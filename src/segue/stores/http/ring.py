"""The ring behind a server: what its callers see."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from segue.delivery.message import Body
from segue.delivery.ring import DEFAULT_GROUP, RingShape, new_shape
from segue.errors import (
    ConnectionsBusy,
    InvalidArgument,
    LockBusy,
    NotReplicated,
    RingNotFound,
    SessionGone,
    StoreUnavailable,
    TransactionAborted,
    UnsupportedServer,
)
from segue.log.layout import checked_name
from segue.log.options import Duration
from segue.stores.contract import Entry, RingInfo, RingMode, TransactionOutcome
from segue.stores.drafted import TransactionBlock
from segue.stores.http.calls import Calls, path_of
from segue.stores.http.patience import Patience, waited
from segue.stores.http.wire.base import text_or_bytes
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.rings import (
    AddGroup,
    Begin,
    Begun,
    Dequeue,
    Enqueue,
    EntryJson,
    OutcomeJson,
    Place,
    RingJson,
    Shape,
    StepBody,
    Take,
)
from segue.stores.lock_blocks import ttl_from
from segue.stores.ring_arguments import (
    TTL_SECONDS_DEFAULT,
    WAIT_SECONDS_DEFAULT,
    check_request,
    checked_body,
    checked_group,
    checked_txn_id,
    require_shape,
)

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

T = TypeVar("T")


class HttpRing:
    """A ring behind a server. Safe from any thread."""

    def __init__(self, store: "HttpStore", name: str) -> None:
        self.name = name
        self._store = store
        self._path = path_of("rings", name)

    @property
    def calls(self) -> Calls:
        """What asks the server. Raises StoreClosed."""
        self._store.require_open()
        return self._store.calls

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
        text, data = text_or_bytes(checked_body(body))
        owner = checked_txn_id(txn_id) or None

        def add(step: float) -> int:
            asked = Enqueue(
                body=text,
                body_base64=data,
                overwrite_if_full=bool(overwrite_if_full),
                txn_id=owner,
                wait=step,
            )
            return self.calls.post(f"{self._path}/enqueue", asked, Place, wait=step).offset

        return _in_turn(add, Patience(wait))

    def dequeue(
        self,
        txn_id: str | int | None = None,
        *,
        group: str = DEFAULT_GROUP,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises LockBusy."""
        owner = checked_txn_id(txn_id) or None
        named = checked_group(group)

        def take(step: float) -> Entry | None:
            asked = Dequeue(group=named, txn_id=owner, wait=step)
            path = f"{self._path}/dequeue"
            found = self.calls.post_or_none(path, asked, EntryJson, wait=step)
            return None if found is None else found.entry()

        return _in_turn(take, Patience(wait))

    def transaction(
        self,
        txn_id: str | int | None = None,
        *,
        ttl: Duration = TTL_SECONDS_DEFAULT,
        wait: Duration | None = WAIT_SECONDS_DEFAULT,
    ) -> "HttpTransaction":
        """Take the ring's lock for `ttl` and return the steps to be made. Raises LockBusy."""
        length = ttl_from(ttl) / 1_000_000
        owner = checked_txn_id(txn_id) or None

        def begin(step: float) -> HttpTransaction:
            asked = Begin(txn_id=owner, ttl=length, wait=step)
            begun = self.calls.post(f"{self._path}/transactions", asked, Begun, wait=step)
            return HttpTransaction(self, begun)

        return _in_turn(begin, Patience(wait))

    # Answers -------------------------------------------------------------------------------

    def get(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not, or no longer, there. No lock."""
        if type(offset) is not int:
            raise InvalidArgument(f"an offset is a whole number: {offset!r}")
        found = self.calls.get_or_none(f"{self._path}/entries/{offset}", EntryJson)
        return None if found is None else found.entry()

    def info(self) -> RingInfo:
        """Return how the ring stands."""
        return self.calls.get(self._path, RingJson).info()

    def outcome(self, txn_id: str | int) -> TransactionOutcome | None:
        """Return what a recent transaction committed, or None if it is not known to have."""
        if txn_id is None:
            raise InvalidArgument("which transaction?")
        path = f"{self._path}/outcomes{path_of(checked_txn_id(txn_id))}"
        found = self.calls.get_or_none(path, OutcomeJson)
        return None if found is None else found.outcome()

    # Groups --------------------------------------------------------------------------------

    def add_group(self, group: str, *, start: Literal["head", "tail"] = "head") -> None:
        """Let another group of consumers read on its own; one that is there stays as it is."""
        path = self._group_path(group)
        if start not in {"head", "tail"}:
            raise InvalidArgument(f"start must be head or tail: {start!r}")
        self.calls.tell(path, AddGroup(start=start), method="PUT")

    def remove_group(self, group: str) -> bool:
        """Forget a group, so that it holds nothing back; tell whether it was there."""
        return self.calls.delete(self._group_path(group), Removed).removed

    def _group_path(self, group: str) -> str:
        return f"{self._path}/groups{path_of(checked_group(group))}"

    # For transactions ------------------------------------------------------------------------

    def path_of_session(self, session: str) -> str:
        """Return where a transaction is."""
        return f"{self._path}/transactions{path_of(session)}"


class HttpTransaction(TransactionBlock):
    """Several steps on a ring as one, which the server keeps. For one thread at a time."""

    def __init__(self, ring: HttpRing, begun: Begun) -> None:
        super().__init__(ring.name, txn_id=begun.txn_id, token=begun.token)
        self._of = ring
        self._is_in_doubt = False
        """Whether nobody knows which steps it consists of."""
        self._is_unknown = False
        """Whether nobody knows if it is committed."""
        self._path = ring.path_of_session(begun.session)

    def enqueue(self, body: Body, *, overwrite_if_full: bool = False) -> int:
        """Add an entry and return the offset it will have.

        Raises RingFull, TransactionAborted if the lock is lost, and BatchTooLarge beyond what one
        commit can hold.
        """
        text, data = text_or_bytes(checked_body(body))
        self._require_unfinished()
        asked = StepBody(body=text, body_base64=data, overwrite_if_full=bool(overwrite_if_full))
        return self._made(lambda: self._of.calls.post(f"{self._path}/enqueue", asked, Place)).offset

    def dequeue(self, *, group: str = DEFAULT_GROUP) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises TransactionAborted."""
        self._require_unfinished()
        asked = Take(group=checked_group(group))
        path = f"{self._path}/dequeue"
        found = self._made(lambda: self._of.calls.post_or_none(path, asked, EntryJson))
        return None if found is None else found.entry()

    def _made(self, step: Callable[[], T]) -> T:
        """Return what a step answers; one that gets no answer may have been made, or not."""
        try:
            return step()
        except SessionGone as gone:
            raise self._gone() from gone
        except ConnectionsBusy:
            raise
        except (StoreUnavailable, UnsupportedServer):
            self._is_in_doubt = True
            raise

    def _require_unfinished(self) -> None:
        super()._require_unfinished()
        if self._is_in_doubt:
            # An entry that it took would be gone, and nobody would have seen it.
            raise self._aborted("a step of it got no answer")

    def commit(self) -> None:
        """Make all steps happen at once, or raise TransactionAborted and none has.

        After StoreUnavailable nobody knows whether they have, until it is tried again: what was
        committed is not committed twice. `NotReplicated` says that it was.
        """
        self._require_unfinished()
        try:
            self._of.calls.tell(f"{self._path}/commit")
        except SessionGone as gone:
            # It may have been this very commit that ended it, if its answer was lost.
            outcome = self._of.outcome(self.txn_id)
            if outcome is None or outcome.token != self.token:
                raise self._gone() from gone
        except NotReplicated:
            self._state = "committed"
            raise
        except ConnectionsBusy:
            raise
        except StoreUnavailable:
            self._is_unknown = True
            raise
        self._state = "committed"

    def abort(self) -> None:
        """Let go of the lock; nothing has happened. What is over stays as it is."""
        if self._state != "open":
            return
        self._state = "aborted"
        try:
            self._of.calls.tell(f"{self._path}/abort")
        except SessionGone:
            return

    def _abort_quietly(self) -> None:
        if self._is_unknown:
            self._state = "aborted"
            return  # The server does not answer, and the lock ends without it.
        super()._abort_quietly()

    def _gone(self) -> TransactionAborted:
        return self._aborted("its lock expired and was broken, or the server began anew")


def open_ring(
    store: "HttpStore",
    name: str,
    *,
    capacity: int | None,
    entries_per_segment: int | None,
    mode: RingMode,
) -> HttpRing:
    """Open a ring, or make it. Raises RingExists, RingNotFound, InvalidArgument."""
    ring = HttpRing(store, checked_name(name))
    check_request(capacity, entries_per_segment, mode)
    path = path_of("rings", name)
    shape = Shape(capacity=capacity, entries_per_segment=entries_per_segment)
    if mode == "create":
        new_shape(capacity, entries_per_segment)
        store.calls.post(path, shape, RingJson)
        return ring
    if mode == "open_or_create" and capacity is not None:
        store.calls.tell(path, shape, method="PUT")
        return ring
    # Whoever only takes part needs no right to make rings.
    try:
        info = ring.info()
    except RingNotFound:
        if mode == "open":
            raise
        new_shape(capacity, entries_per_segment)
        raise
    found = RingShape(capacity=info.capacity, entries_per_segment=info.entries_per_segment)
    require_shape(
        name, found, capacity=capacity, entries_per_segment=entries_per_segment, mode=mode
    )
    return ring


def _in_turn(step: Callable[[float], T], patience: Patience) -> T:
    """Make a step, asking again while a transaction holds the ring. Raises LockBusy."""
    while True:
        try:
            return waited(patience, step)
        except LockBusy:
            if patience.is_over:
                raise
