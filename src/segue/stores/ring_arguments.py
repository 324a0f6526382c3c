"""What callers of a ring hand in, checked before anything is touched; the same on every store."""

from types import MappingProxyType
from typing import Final

from segue.delivery.message import Body, body_from
from segue.delivery.ring import RingShape, check_shape
from segue.delivery.ring_events import Committed
from segue.errors import InvalidArgument, RecordTooLarge, RingExists
from segue.log.layout import SEGMENT_BYTES_DEFAULT, checked_name
from segue.stores.contract import RingMode, TransactionOutcome

MODES: Final = ("open_or_create", "create", "open")
TXN_ID_CHARACTERS_MAX: Final = 200
GROUPS_MAX: Final = 100
WAIT_SECONDS_DEFAULT: Final = 0.3
"""The ancestor's three tries, 100 ms apart."""
TTL_SECONDS_DEFAULT: Final = 0.2
TRANSACTION_ENTRIES_MAX: Final = 10_000
"""A commit is one batch, and a batch fits in a segment."""
TRANSACTION_BYTES_MAX: Final = SEGMENT_BYTES_DEFAULT - 64 * 1024
"""What the bodies of one transaction may take up, with room for what stands before them."""


def check_request(capacity: int | None, entries_per_segment: int | None, mode: RingMode) -> None:
    """Raise InvalidArgument for what no ring can be asked for."""
    if mode not in MODES:
        raise InvalidArgument(f"mode must be one of {', '.join(MODES)}: {mode!r}")
    check_shape(capacity, entries_per_segment)


def require_shape(
    name: str,
    shape: RingShape,
    *,
    capacity: int | None,
    entries_per_segment: int | None,
    mode: RingMode,
) -> None:
    """Raise RingExists or InvalidArgument if the ring there is is not the one asked for."""
    if mode == "create":
        raise RingExists(name=name)
    shape.require(capacity, entries_per_segment)


def checked_body(body: Body) -> bytes:
    """Return a body as bytes. Raises InvalidArgument, RecordTooLarge."""
    data = body_from(body)
    if len(data) > TRANSACTION_BYTES_MAX:
        raise RecordTooLarge(size_bytes=len(data), size_bytes_max=TRANSACTION_BYTES_MAX)
    return data


def checked_txn_id(txn_id: str | int | None) -> str:
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


def checked_group(group: str) -> str:
    """Return the name of a group. Raises InvalidArgument."""
    if not isinstance(group, str):
        raise InvalidArgument(f"a group is named by text: {group!r}")
    return checked_name(group)


def outcome_from(committed: Committed) -> TransactionOutcome:
    """Return what a caller wants to know of a commit."""
    commit, first = committed.commit, committed.first_offset
    return TransactionOutcome(
        txn_id=commit.txn_id,
        token=commit.token,
        enqueued=range(first, first + commit.count),
        dequeued=MappingProxyType(
            {taken.group: range(taken.start, taken.stop) for taken in commit.taken}
        ),
    )
