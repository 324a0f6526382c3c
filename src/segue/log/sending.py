"""Handing a sealed segment on to whatever takes bytes: a file, a pipe, a socket, an object.

The system copies where it can, without the bytes ever coming up here. Whether it can is decided
by what the target is and not by whether it has a descriptor: writing to that of a compressed file
or of an encrypted socket would go past what makes it one.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from segue.errors import CorruptSegment, InvalidArgument
from segue.log.disk import Disk, storage_error
from segue.log.layout import Position, SegmentId, segment_filename
from segue.log.segment import SegmentView

SEND_STEP_BYTES: Final = 8 << 20
"""What one call sends at most, so that a signal is heard in between."""
WRITE_STEP_BYTES: Final = 1 << 20

Write = Callable[[memoryview], int]


@runtime_checkable
class Writable(Protocol):
    """Takes bytes, and returns how many if not all."""

    def write(self, data: memoryview, /) -> int | None: ...


@runtime_checkable
class HasFileno(Protocol):
    """Has a descriptor, as a socket does."""

    def fileno(self) -> int: ...


def send_segment(
    directory: Path, id_: SegmentId, target: Writable | HasFileno, *, position: int, disk: Disk
) -> int:
    """Send a sealed segment from `position` to the end of its payloads; return how many bytes.

    Raises InvalidArgument if it is not there or not sealed or nothing can be sent to the target,
    StorageError if that takes no more, CorruptSegment if the file ends too early.
    """
    path = directory / segment_filename(id_)
    try:
        view = SegmentView(path, disk)
    except FileNotFoundError:
        raise InvalidArgument(f"there is no segment {id_} in {directory}") from None
    try:
        view.pin()
        if view.header.id != id_:
            raise CorruptSegment(path=path, reason=f"it is segment {view.header.id}")
        summary = view.summary()
        if summary is None:
            raise InvalidArgument(f"segment {id_} still takes records: call roll() first")
        if not 0 <= position <= summary.payloads_end:
            raise InvalidArgument(f"position must be from 0 to {summary.payloads_end}: {position}")
        return _send(view, target, Position(position), summary.payloads_end)
    finally:
        view.close()


def _send(
    view: SegmentView, target: Writable | HasFileno, position: Position, end: Position
) -> int:
    start = position
    send = _sender(view, target)
    while position < end:
        with _naming(view, position):
            sent = send(position, end)
        if sent == 0:
            raise CorruptSegment(path=view.path, reason=f"it ends before byte {end}")
        position = Position(position + sent)
    return position - start


def _sender(view: SegmentView, target: Writable | HasFileno) -> Callable[[Position, Position], int]:
    """Return what sends some of the bytes between two positions and tells how many."""
    with _naming(view, 0):
        if isinstance(target, io.BufferedWriter | io.BufferedRandom):
            if isinstance(target.raw, io.FileIO):
                target.flush()  # What was written before comes before.
                return _by_descriptor(view, target.raw)
        elif isinstance(target, io.FileIO):
            return _by_descriptor(view, target)
    if isinstance(target, HasFileno) and not isinstance(target, Writable):
        return _by_descriptor(view, target)
    return _by_writing(view, writer_to(target))


def _by_descriptor(view: SegmentView, target: HasFileno) -> Callable[[Position, Position], int]:
    def send(position: Position, end: Position) -> int:
        # Asked each time: the target may be closed meanwhile, and its number be another's.
        return view.send(target.fileno(), min(end - position, SEND_STEP_BYTES), position)

    return send


def _by_writing(view: SegmentView, write: Write) -> Callable[[Position, Position], int]:
    def send(position: Position, end: Position) -> int:
        with view.view[position : min(end, position + WRITE_STEP_BYTES)] as piece:
            return write(piece) if piece else 0

    return send


def writer_to(target: Writable | HasFileno) -> Write:
    """Return what takes some bytes and tells how many. Raises InvalidArgument if nothing does."""
    if isinstance(target, Writable):

        def write(piece: memoryview) -> int:
            written = target.write(piece)
            if written is None and isinstance(target, io.RawIOBase):
                raise BlockingIOError(errno.EAGAIN, "it takes nothing just now")
            return len(piece) if written is None else written

        return write
    if isinstance(target, HasFileno):
        # Asked each time: the target may be closed meanwhile, and its number be another's.
        return lambda piece: os.write(target.fileno(), piece)
    raise InvalidArgument(
        f"bytes are sent to what has write() or fileno(), not to {type(target).__name__}"
    )


@contextmanager
def _naming(view: SegmentView, position: int) -> Iterator[None]:
    """Say up to where a transfer came that broke."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgument(f"nothing can be sent there: {error}") from error
    except OSError as error:
        raise storage_error(f"sending {view.path} from byte {position} on", error) from error
