"""A sealed segment that comes from elsewhere: nothing in it is believed before all is checked.

What was received over a network or copied by hand is untrusted: it may be cut short, changed, of
another kind, or made to mislead. Every checksum is looked at, and that every payload lies where
the one before it ends. All of it in passes over columns, with no loop over records.
"""

import contextlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from segue.errors import CorruptRecord, CorruptSegment, Damage, InvalidArgument
from segue.log import slots
from segue.log.disk import Disk, storage_errors
from segue.log.layout import HEADER_BYTES, SLOT_BYTES, SegmentHeader, Summary
from segue.log.segment import SegmentView

_LONGS: Final = SLOT_BYTES // 8
_WORDS: Final = SLOT_BYTES // 4
_ATTR_LONG: Final = 1
_POSITION_WORD: Final = 4
_LENGTH_WORD: Final = 5
_FLAGS_BYTE: Final = 27
"""Where these lie in a slot: its second u64, its fifth and sixth u32, its 28th byte."""
_REMOVED_FLAG: Final = slots.REMOVED >> 24
_KNOWN_FLAGS: Final = frozenset(range((slots.KNOWN_FLAGS >> 24) + 1))
_KEPT: Final = bytes(not flags & _REMOVED_FLAG for flags in range(256))
_REMOVED: Final = bytes(flags & _REMOVED_FLAG for flags in range(256))


class SealedSegment:
    """The records of a sealed segment, column by column; removed ones are left out.

    Holds the file mapped until it is closed, and for as long after as somebody holds a part of
    `data`. The file must not be shortened meanwhile.
    """

    def __init__(
        self,
        view: SegmentView,
        summary: Summary,
        *,
        lengths: Sequence[int],
        attrs: "array[int]",
        data: memoryview,
    ) -> None:
        """Use `read_sealed`, which checks all this."""
        self._view = view
        self.header: SegmentHeader = view.header
        self.summary = summary
        self.count = len(lengths)
        """How many records there are, without those that were removed."""
        self.lengths = lengths
        self.attrs = attrs
        self.data = data
        """All payloads, side by side, in the mapped file."""

    def close(self) -> None:
        """Let go of the file. Closing twice is allowed."""
        with contextlib.suppress(BufferError):  # Somebody is at it just now.
            self.data.release()
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_sealed(path: Path, disk: Disk) -> SealedSegment:
    """Return the sealed segment in the file at `path`, every byte of it checked.

    The file may end where the payloads do. Raises CorruptSegment, CorruptRecord,
    UnsupportedFormat, StorageError, and InvalidArgument if the segment was never sealed.
    """
    with storage_errors(f"reading {path}"):
        view = SegmentView(path, disk)
    try:
        return _checked(view)
    except BaseException:
        view.close()
        raise


def _checked(view: SegmentView) -> SealedSegment:
    if len(view.view) < HEADER_BYTES:
        raise CorruptSegment(path=view.path, reason="it ends within its header")
    summary = view.summary()
    if summary is None:
        raise InvalidArgument(f"{view.path} was never sealed")
    start, end = view.header.payloads_position, summary.payloads_end
    if not start <= end <= len(view.view):
        raise CorruptSegment(path=view.path, reason=f"its payloads do not end at byte {end}")
    if not slots.is_intact(view.view, view.header, 0, summary.count, before=view.header.key):
        raise _first_damage(view, summary.count)
    table = view.view[HEADER_BYTES : HEADER_BYTES + summary.count * SLOT_BYTES]
    lengths = _column(table.cast("I"), "I", _LENGTH_WORD, _WORDS)
    attrs = _column(table.cast("Q"), "Q", _ATTR_LONG, _LONGS)
    _check_places(view, summary, table, lengths)
    flags = bytes(table[_FLAGS_BYTE::SLOT_BYTES])
    if not _KNOWN_FLAGS.issuperset(flags):
        raise CorruptSegment(path=view.path, reason="a slot has flags that nobody knows")
    if any(flags):
        if any(compress(lengths, flags.translate(_REMOVED))):
            raise CorruptSegment(path=view.path, reason="a record that was removed has bytes")
        kept = flags.translate(_KEPT)
        lengths, attrs = array("I", compress(lengths, kept)), array("Q", compress(attrs, kept))
    return SealedSegment(view, summary, lengths=lengths, attrs=attrs, data=view.view[start:end])


def _column(words: memoryview, code: str, place: int, step: int) -> "array[int]":
    """Return one field of every slot."""
    column = array(code, bytes(words.nbytes // step))  # As many items: the step counts words.
    memoryview(column)[:] = words[place::step]
    return column


def _check_places(
    view: SegmentView, summary: Summary, table: memoryview, lengths: "array[int]"
) -> None:
    """Raise unless the payloads lie side by side, from first to last, and end in the summary."""
    start, end = view.header.payloads_position, summary.payloads_end
    # First the sum: then no place on the way is beyond the end, whatever the lengths say.
    if sum(lengths) != end - start:
        raise CorruptSegment(path=view.path, reason="its payloads are not as long as it says")
    positions = _column(table.cast("I"), "I", _POSITION_WORD, _WORDS)
    expected = array("I", accumulate(lengths, initial=start))
    expected.pop()
    if positions != expected:
        raise CorruptSegment(path=view.path, reason="its payloads do not lie side by side")
    chain = slots.slot_at(view.view, summary.count - 1).after if summary.count else view.header.key
    if chain != summary.chain:
        raise CorruptSegment(path=view.path, reason="its summary is of other payloads")


def _first_damage(view: SegmentView, count: int) -> Damage:
    """Return the error that names the first batch that fails.

    It looks at each batch once and no further than that one: what was made to mislead could make
    a search for the next intact one last for days.
    """
    index, before = 0, view.header.key
    while index < count:
        stop = slots.batch_stop(view.view, index)
        if stop > count or not slots.is_intact(view.view, view.header, index, stop, before=before):
            return CorruptRecord(
                path=view.path,
                first_offset=view.first_offset + index,
                last_offset=view.first_offset + min(stop, count) - 1,
                position=slots.slot_position(index),
            )
        index, before = stop, slots.slot_at(view.view, stop - 1).after
    return CorruptSegment(path=view.path, reason="its batches do not lie side by side")
