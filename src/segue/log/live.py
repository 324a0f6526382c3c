"""The live words: what the processes that use a log tell each other, in one mapped page.

    word  0 magic · 1 boot · 2 first segment · 3 active segment · 4 written · 5 published
          6 waiting · 7 state · 8 slots and 9 payload bytes written ahead · 10 rewrites
          16 the layer above's

Each word is an aligned u64, stored whole, so a reader sees the old value or the new one. The file
is never synced and never believed after a restart of the machine: every word can be derived from
the segments. It lives outside the segments because a mapped store into a file that is being
synced costs more than the sync itself (docs/adr/0003).
"""

import mmap
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from segue.log.disk import Disk
from segue.log.layout import PAGE_BYTES, Offset, SegmentId

FILENAME: Final = "live"
FIRST: Final = 2
SEGMENT: Final = 3
WRITTEN: Final = 4
PUBLISHED: Final = 5
WAITING: Final = 6
STATE: Final = 7
SLOTS_READY: Final = 8
PAYLOADS_READY: Final = 9
REWRITES: Final = 10
"""Grows with each segment whose file is replaced: a mapping from before shows the old one. It is
odd while that happens, and stays so if whoever was at it is killed."""
OWN: Final = 16
"""The first of the words that belong to the layer above; whatever they hold after a restart."""

READY: Final = 0
FAILED: Final = 1
"""A value of the state word: nobody can say what is on disk, so nobody writes."""
ROLLING: Final = 2
"""A value of the state word: the active segment is being sealed, and must not be appended to."""

_REWRITES_MASK: Final = (1 << 63) - 2
_MAGIC: Final = int.from_bytes(b"SgLive01", "little")


class Live:
    """The mapped page. `words` is public: the hot paths index it directly."""

    __slots__ = ("_boot", "_disk", "_mapping", "fd", "words")

    def __init__(self, directory: Path, disk: Disk, *, read_only: bool) -> None:
        """Map the page, creating it when writing. Raises OSError if it is not there to read."""
        self._disk = disk
        self._boot = disk.boot_id()
        path = directory / FILENAME
        if read_only:
            self.fd = disk.open_to_read(path)
        else:
            self.fd = disk.open_to_write(path, create=True)
        try:
            if not read_only and disk.size(self.fd) < PAGE_BYTES:
                # Real zeros, not a hole: a store into a hole on a full disk is a SIGBUS.
                disk.write_at(self.fd, bytes(PAGE_BYTES), 0)
            map_page = disk.map_to_read if read_only else disk.map_to_write
            self._mapping: mmap.mmap = map_page(self.fd, PAGE_BYTES)
        except BaseException:
            disk.close(self.fd)
            raise
        self.words = memoryview(self._mapping).cast("Q")

    def is_current(self) -> bool:
        """Tell whether the words were written since the machine started."""
        return is_of_boot(self.words, self._boot)

    def enter_segment(self, segment: SegmentId) -> None:
        """Say that `segment` is the active one, with nothing written ahead in it."""
        self.words[SLOTS_READY] = 0
        self.words[PAYLOADS_READY] = 0
        self.words[SEGMENT] = segment

    def start(self, *, first: SegmentId, segment: SegmentId, next_offset: Offset) -> None:
        """Write every word anew, after recovery, while nobody else writes."""
        words = self.words
        words[0] = 0
        self.enter_segment(segment)
        words[1] = self._boot
        words[FIRST] = first
        words[WRITTEN] = next_offset
        words[PUBLISHED] = next_offset
        words[STATE] = READY
        # Never a value from before, which somebody who only reads may remember.
        words[REWRITES] = words[REWRITES] + 2 & _REWRITES_MASK
        words[0] = _MAGIC

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._disk.close, self.fd)
            with suppress(BufferError):
                self.words.release()
                self._mapping.close()


def is_of_boot(words: "Sequence[int] | memoryview[int]", boot: int) -> bool:
    """Tell whether words were written since the machine started, which is how `boot` numbers."""
    return words[0] == _MAGIC and boot != 0 and words[1] == boot
