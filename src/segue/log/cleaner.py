"""Deleting segments: `retention.py` says which may go, this makes them go."""

import logging
from pathlib import Path

from segue.errors import CorruptPosition, Damage
from segue.log.catalog import DELETED_SUFFIX, list_leftovers, list_segments
from segue.log.disk import Disk, storage_errors
from segue.log.horizon import Horizon
from segue.log.layout import Offset, SegmentId
from segue.log.live import FIRST, Live
from segue.log.positions import Positions, SavedPosition
from segue.log.retention import SegmentFacts

logger = logging.getLogger(__name__)


class Cleaner:
    """Works on one log. The caller keeps every other writer away."""

    def __init__(self, directory: Path, horizon: Horizon, live: Live, disk: Disk) -> None:
        self._directory = directory
        self._horizon = horizon
        self._live = live
        self._disk = disk

    def sealed(self) -> list[SegmentFacts]:
        """Return what retention may look at: sealed segments, up to the first that is not."""
        catalog = self._horizon.catalog
        active = self._horizon.active()
        facts = []
        for id_ in list_segments(self._directory, self._disk):
            try:
                header, summary = catalog.read_page(id_)
            except Damage:
                break  # Never deleted on doubt, nor what lies behind it.
            if summary is None or id_ == active:
                break
            with storage_errors(f"measuring {catalog.path(id_)}"):
                size_bytes = self._disk.file_bytes(catalog.path(id_))
            facts.append(
                SegmentFacts(
                    id=id_,
                    end_offset=Offset(header.first_offset + summary.count),
                    size_bytes=size_bytes,
                    last_time_us=summary.last_time_us,
                )
            )
        return facts

    def clear_leftovers(self) -> None:
        """Delete what somebody had renamed to be deleted when he was stopped."""
        with storage_errors(f"deleting segments of {self._directory}"):
            for path in list_leftovers(self._directory, self._disk, DELETED_SUFFIX):
                self._disk.unlink(path)

    def delete(self, ids: list[SegmentId]) -> list[SegmentId]:
        """Delete segments from the oldest on, stopping at one that a reader has open.

        Each is renamed first, so that it is gone at once and for good, however long it takes to
        delete what it held.
        """
        deleted: list[SegmentId] = []
        disk = self._disk
        with storage_errors(f"deleting segments of {self._directory}"):
            for id_ in ids:
                path = self._horizon.catalog.path(id_)
                aside = path.with_name(path.name + DELETED_SUFFIX)
                fd = disk.open_to_read(path)
                try:
                    if not disk.try_lock(fd):
                        break
                    # Said first: whoever looks from here on is told that it is gone.
                    self._live.words[FIRST] = id_ + 1
                    try:
                        disk.rename(path, aside)
                    except OSError:
                        self._live.words[FIRST] = id_
                        raise
                    # One by one: a power cut must not take a later one and leave an earlier.
                    disk.sync_directory(self._directory)
                    disk.unlink(aside)
                finally:
                    disk.close(fd)
                deleted.append(id_)
        if deleted:
            logger.info("deleted path=%s first=%d last=%d", self._directory, ids[0], deleted[-1])
        return deleted


def protected_positions(positions: Positions) -> list[SavedPosition]:
    """Return where every reader stands; one that cannot be read protects everything."""
    return [_protected(positions, name) for name in positions.names()]


def _protected(positions: Positions, name: str) -> SavedPosition:
    try:
        saved = positions.load(name)
    except CorruptPosition as error:
        logger.warning("unreadable position protects everything reason=%s", error)
        saved = None
    return saved or SavedPosition(SegmentId(0), Offset(0))
