"""Opening a ring and making one: it exists once its ledger says so."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from segue.delivery.ring import RingShape, RingState, new_shape
from segue.delivery.ring_events import Created, decode_event, encode_event
from segue.errors import CorruptSegment, LogNotFound, RingNotFound
from segue.log import Log
from segue.log.layout import PAGE_BYTES, SEGMENT_BYTES_DEFAULT, SLOT_BYTES
from segue.stores.contract import RingMode
from segue.stores.file.place import Place
from segue.stores.file.ring_core import RingCore
from segue.stores.file.turns import Follower, turn_on
from segue.stores.ring_arguments import TRANSACTION_ENTRIES_MAX, check_request, require_shape

LEDGER: Final = "ledger"
ENTRIES: Final = "entries"


def open_ring(
    name: str,
    path: Path,
    place: Place,
    *,
    capacity: int | None,
    entries_per_segment: int | None,
    mode: RingMode,
) -> RingCore:
    """Open the ring at `path`, or make it. Raises RingExists, RingNotFound, InvalidArgument."""
    check_request(capacity, entries_per_segment, mode)
    if not place.disk.exists(path / LEDGER):
        if mode == "open":
            raise RingNotFound(name=name)
        new_shape(capacity, entries_per_segment)  # Before anything is written.
    with ExitStack() as undo:
        ledger = place.log(path / LEDGER, sync=place.deferred_sync)
        undo.callback(ledger.close)
        shape = _established(name, place, ledger, capacity, entries_per_segment, mode)
        items = max(shape.entries_per_segment, TRANSACTION_ENTRIES_MAX)
        slots_bytes = -(-items * SLOT_BYTES // PAGE_BYTES) * PAGE_BYTES
        entries = place.log(
            path / ENTRIES,
            segment_items=items,
            segment_bytes=SEGMENT_BYTES_DEFAULT + slots_bytes,
            bell=ledger.writer.bell,
        )
        undo.callback(entries.close)
        core = RingCore(name, place, shape, ledger=ledger, entries=entries)
        core.note_boot()
        undo.pop_all()
    return core


def _established(
    name: str,
    place: Place,
    ledger: Log,
    capacity: int | None,
    entries_per_segment: int | None,
    mode: RingMode,
) -> RingShape:
    """Return the shape of the ring, which exists from here on."""
    with turn_on(ledger) as turn:
        shape = _shape_in(ledger)
        if shape is not None:
            require_shape(
                name,
                shape,
                capacity=capacity,
                entries_per_segment=entries_per_segment,
                mode=mode,
            )
            return shape
        if mode == "open":
            raise RingNotFound(name=name)
        shape = new_shape(capacity, entries_per_segment)
        created = Created(
            capacity=shape.capacity,
            entries_per_segment=shape.entries_per_segment,
            boot=place.disk.boot_id(),
        )
        turn.put(encode_event(created))
        turn.sync()
    ledger.flush()  # Also its names, which mode "os" does not sync.
    return shape


def _shape_in(ledger: Log) -> RingShape | None:
    """Return the shape that the ledger tells, None if it is empty. Raises CorruptSegment."""
    state = RingState(first_offset=0)
    follower = Follower(ledger)
    try:
        for record in follower.records():
            event = decode_event(record.payload)
            if event is not None:
                state.apply(event, offset=record.offset)
    finally:
        follower.close()
    if state.shape is None and ledger.next_offset > 0:
        raise CorruptSegment(path=ledger.path, reason="nothing is left that tells the ring's size")
    return state.shape


def ring_exists(path: Path, place: Place) -> bool:
    """Tell whether there is a ring at `path`; half-made ones do not count."""
    try:
        with Log(
            path / LEDGER, read_only=True, allow_network=place.allow_network, disk=place.disk
        ) as ledger:
            return ledger.next_offset > 0
    except LogNotFound:
        return False
