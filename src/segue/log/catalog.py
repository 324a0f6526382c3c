"""Which segments a log has, and which of them holds an offset or a time.

Only ids are kept for every segment; headers and mappings are read when needed and a bounded
number of them kept, so memory does not grow with the log.
"""

import contextlib
import re
from bisect import bisect_right
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from segue.errors import CorruptSegment, Damage
from segue.log.disk import Disk, reading_errors, storage_errors
from segue.log.layout import (
    HEADER_BYTES,
    Offset,
    SegmentHeader,
    SegmentId,
    Summary,
    decode_header,
    decode_summary,
    segment_filename,
    segment_id,
)
from segue.log.segment import SegmentView

HEADERS_MAX: Final = 4096
"""How many headers are remembered."""
VIEWS_MAX: Final = 64
"""How many segments stay mapped for reads by offset."""
NEW_SUFFIX: Final = ".new"
"""Of a segment that is being written."""
DELETED_SUFFIX: Final = ".deleted"
"""Of a segment that is no longer part of the log."""

_LEFTOVER = re.compile(r"(\d{9,}\.q)(?:\.[0-9a-f]+)?(\.new|\.deleted)")


def list_segments(directory: Path, disk: Disk) -> list[SegmentId]:
    """Return the ids of the segments in `directory`, in order."""
    with storage_errors(f"listing {directory}"):
        ids = [segment_id(name) for name in disk.names(directory)]
    return sorted(id_ for id_ in ids if id_ is not None)


def list_leftovers(directory: Path, disk: Disk, *suffixes: str) -> list[Path]:
    """Return the files with one of `suffixes` that somebody who was stopped may have left."""
    found = []
    for name in disk.names(directory):
        match = _LEFTOVER.fullmatch(name)
        if match and match[2] in suffixes and segment_id(match[1]) is not None:
            found.append(directory / name)
    return found


def read_page(directory: Path, id_: SegmentId, disk: Disk) -> tuple[SegmentHeader, Summary | None]:
    """Return the header of segment `id_`, and its summary if it is sealed.

    Raises CorruptSegment, UnsupportedFormat, FileNotFoundError.
    """
    path = directory / segment_filename(id_)
    with reading_errors(path):
        page = disk.read_file(path, HEADER_BYTES)
    header = decode_header(page, path=path)
    if header.id != id_:
        raise CorruptSegment(path=path, reason=f"it is segment {header.id} under a wrong name")
    return header, decode_summary(page, header)


class Catalog:
    """The segments of one log as one process sees them. The caller serialises calls."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._headers: OrderedDict[SegmentId, SegmentHeader] = OrderedDict()
        self._views: OrderedDict[SegmentId, SegmentView] = OrderedDict()
        self.ids: list[SegmentId] = []
        self.refresh()

    def refresh(self) -> None:
        """List the directory again."""
        self.ids = list_segments(self._directory, self._disk)

    def path(self, id_: SegmentId) -> Path:
        return self._directory / segment_filename(id_)

    def follow(self, first: SegmentId, active: SegmentId) -> None:
        """Take in what other processes added at the end and removed at the front."""
        ids = self.ids
        if not ids or ids[-1] > active or ids[-1] + 1 < active:
            self.refresh()
        elif ids[-1] < active:
            ids.append(active)
        if self.ids and self.ids[0] < first:
            del self.ids[: bisect_right(self.ids, first - 1)]
            for id_ in [id_ for id_ in self._views if id_ < first]:
                self._views.pop(id_).close()

    def header(self, id_: SegmentId) -> SegmentHeader:
        """Return the header of a segment. Raises CorruptSegment, FileNotFoundError."""
        header = self._headers.get(id_)
        if header is None:
            header, _ = self.read_page(id_)
            self._headers[id_] = header
            if len(self._headers) > HEADERS_MAX:
                self._headers.popitem(last=False)
        return header

    def read_page(self, id_: SegmentId) -> tuple[SegmentHeader, Summary | None]:
        """Read header and summary from disk. Raises CorruptSegment, FileNotFoundError."""
        return read_page(self._directory, id_, self._disk)

    def first_offset(self, place: int) -> Offset | None:
        """Return where the segment at `place` in `ids` begins; None if it cannot be read."""
        try:
            return self.header(self.ids[place]).first_offset
        except (Damage, FileNotFoundError):
            return None

    def find(self, offset: Offset) -> SegmentId | None:
        """Return the last readable segment that begins at or before `offset`."""
        low, high = 0, len(self.ids) - 1
        found: SegmentId | None = None
        while low <= high:
            middle = probe = (low + high) // 2
            begins = self.first_offset(probe)
            while begins is None and probe > low:
                probe -= 1  # Damaged: judge by the nearest readable one before it.
                begins = self.first_offset(probe)
            if begins is None:
                low = middle + 1
            elif begins <= offset:
                found, low = self.ids[probe], middle + 1
            else:
                high = probe - 1
        return found

    def view(self, id_: SegmentId) -> SegmentView:
        """Return the segment mapped, from the few that are kept so."""
        view = self._views.get(id_)
        if view is None:
            view = self._views[id_] = SegmentView(self.path(id_), self._disk)
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)[1].close()
        else:
            self._views.move_to_end(id_)
        return view

    def drop_view(self, id_: SegmentId) -> None:
        """Let go of a mapping, so that the file is looked at anew."""
        view = self._views.pop(id_, None)
        if view is not None:
            view.close()

    def drop_views(self) -> None:
        """Let go of every mapping."""
        for id_ in list(self._views):
            self.drop_view(id_)

    def forget(self, ids: list[SegmentId]) -> None:
        """Drop what is remembered of segments that are gone or rewritten."""
        for id_ in ids:
            self._headers.pop(id_, None)
            self.drop_view(id_)
            with contextlib.suppress(ValueError):
                self.ids.remove(id_)

    def close(self) -> None:
        with ExitStack() as closing:
            while self._views:
                closing.callback(self._views.popitem()[1].close)
