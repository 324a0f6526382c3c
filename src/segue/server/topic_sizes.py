"""What the topics of a directory take up, by the sizes of their files.

Not by asking the topics: that would open every partition of each, and keep it open.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from segue.clock import Ticks
from segue.stores.file.store import TOPICS, FileStore

LOOK_SECONDS: Final = 30.0
"""How often the sizes are looked at."""
SHARE: Final = 20
"""Looking takes at most one part in so many of the time."""
FILES_MAX: Final = 50_000
"""How many files are looked at in one go. Topics beyond them keep the size they last had."""
BLOCK_BYTES: Final = 512
"""What the system counts in when it says what a file takes up."""


class TopicSizes:
    """The sizes of all topics. For one thread at a time, but `bytes_by_name`."""

    def __init__(self, store: FileStore, ticks: Ticks) -> None:
        self._store = store
        self._ticks = ticks
        self._due_us = 0
        self.bytes_by_name: dict[str, int] = {}

    def look(self) -> None:
        """Look at the files anew, if that is due. Raises SegueError."""
        begun_us = self._ticks()
        if begun_us < self._due_us:
            return
        found: dict[str, int] = {}
        left = FILES_MAX
        for name in self._store.topics():
            if left <= 0:
                found[name] = self.bytes_by_name.get(name, 0)
                continue
            found[name], count = size_of(self._store.place.path(TOPICS, name), left)
            left -= count
        self.bytes_by_name = found
        taken_us = self._ticks() - begun_us
        self._due_us = begun_us + max(int(LOOK_SECONDS * 1_000_000), taken_us * SHARE)


def size_of(path: Path, files_max: int) -> tuple[int, int]:
    """Return what a directory takes up on the device, and how many entries were looked at for it.

    What goes while we look does not count.
    """
    size_bytes = count = 0
    directories: list[str | Path] = [path]
    while directories and count < files_max:
        with suppress(FileNotFoundError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    size_bytes += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    return size_bytes, count
