"""The logs that somebody has looked at: some are remembered, and each is given to one at a time."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from segue.log.disk import Disk, storage_errors
from segue.log.outline import Outline

OUTLINES_KEPT: Final = 512
"""How many logs are remembered; each has a file open."""
SEGMENTS_KEPT: Final = 100_000
"""Of how many segments something is remembered, of all logs together."""


class Outlines:
    """The logs that were looked at last. Safe from any thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._boot = disk.boot_id()
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, Outline] = OrderedDict()
        self._weight = 0

    @contextmanager
    def look(self, path: Path) -> Iterator[Outline | None]:
        """Give the log at `path` as it is now, None if there is none; one thread at a time.

        Nothing is made by that. Raises StorageError.
        """
        with storage_errors(f"looking at {path}"):
            outline = self._found(path)
            try:
                with outline.lock:
                    outline.refresh()
                    yield outline if outline.has_segments else None
            finally:
                self._give_back(outline)

    def _found(self, path: Path) -> Outline:
        with self._lock:
            outline = self._by_path.get(path)
            if outline is not None and not outline.is_same():
                self._drop(path)
                outline = None
            if outline is None:
                outline = self._by_path[path] = Outline(path, self._disk, self._boot)
            self._by_path.move_to_end(path)
            outline.users += 1
            return outline

    def _give_back(self, outline: Outline) -> None:
        with self._lock:
            outline.users -= 1
            if self._by_path.get(outline.path) is not outline:
                if not outline.users:
                    outline.close()
                return
            self._weight -= outline.weight
            outline.weight = outline.remembered()
            self._weight += outline.weight
            if not outline.has_segments:
                self._drop(outline.path)
            while len(self._by_path) > OUTLINES_KEPT or self._weight > SEGMENTS_KEPT:
                self._drop(next(iter(self._by_path)))

    def _drop(self, path: Path) -> None:
        outline = self._by_path.pop(path)
        self._weight -= outline.weight
        if not outline.users:
            outline.close()

    def close(self) -> None:
        """Let go of every log; of those that somebody looks at, once that is over."""
        with self._lock:
            while self._by_path:
                self._drop(next(iter(self._by_path)))
