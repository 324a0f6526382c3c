"""What a partition holds of producers and of adopted segments, so that nothing is there twice.

The records themselves say who made them. `origins.json` sums up all before `upto`, so that only
what came later has to be read again, and what retention deletes is not forgotten. It is brought
up to date before anything is deleted, and whenever a producer opens the partition.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from segue.delivery.topic_record import (
    HAS_ADOPTION,
    HAS_PRODUCER,
    adoption_of,
    origin_of,
)
from segue.log import Log
from segue.log.disk import Disk, storage_errors

logger = logging.getLogger(__name__)

FILENAME: Final = "origins.json"
LOCK: Final = "origins.lock"
FORMAT: Final = 1
ADOPTIONS_MAX: Final = 65_536
"""How many adoptions of a partition are remembered, the latest ones."""


@dataclass(slots=True)
class Origins:
    """The last sequence number of every producer, and where adopted segments begin."""

    upto: int = 0
    """All before this offset is taken into account."""
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Sequence number and offset, by producer."""
    adopted: dict[str, int] = field(default_factory=dict)
    """Offset, by the digest of the adoption key in hexadecimal, oldest first."""

    def read_on(self, log: Log) -> None:
        """Take in what the partition holds by now."""
        if self.upto > log.next_offset:
            # A power cut took the end: what was read there is not there any more.
            self._forget_from(log.next_offset)
            self.upto = 0
        start = max(self.upto, log.first_offset)
        for record in log.records(start, on_damage="skip"):
            if record.attr & HAS_PRODUCER:
                origin = origin_of(record)
                if origin is not None and origin.sequence >= self.last_sequence(origin.number):
                    self.last[origin.number] = (origin.sequence, record.offset)
            if record.attr & HAS_ADOPTION:
                digest = adoption_of(record)
                if digest is not None:
                    self.adopted[digest.hex()] = record.offset
            start = record.offset + 1
        self.upto = start
        while len(self.adopted) > ADOPTIONS_MAX:
            del self.adopted[next(iter(self.adopted))]

    def _forget_from(self, end: int) -> None:
        self.last = {who: last for who, last in self.last.items() if last[1] < end}
        self.adopted = {digest: at for digest, at in self.adopted.items() if at < end}

    def last_sequence(self, number: int) -> int:
        """Return the last sequence number of a producer, -1 if there is none."""
        return self.last.get(number, (-1, -1))[0]

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "upto": self.upto,
                "last": {str(number): list(last) for number, last in self.last.items()},
                "adopted": self.adopted,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Origins":
        """Return what `to_json` wrote. Raises ValueError for anything else."""
        try:
            values = json.loads(data)
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}")
            return cls(
                upto=int(values["upto"]),
                last={
                    int(number): (int(sequence), int(offset))
                    for number, (sequence, offset) in values["last"].items()
                },
                adopted={str(digest): int(at) for digest, at in values["adopted"].items()},
            )
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a summary of origins: {error!r}") from error


@contextmanager
def current_origins(log: Log, disk: Disk) -> Iterator[Origins]:
    """Give the origins of a partition, up to date and saved; nobody else adopts meanwhile."""
    with storage_errors(f"locking {log.path}"):
        fd = disk.open_to_write(log.path / LOCK, create=True)
    try:
        with storage_errors(f"locking {log.path}"):
            disk.lock(fd)
        # What somebody has written but not yet shown counts, too.
        log.flush()
        origins = _load(log, disk)
        before = origins.upto
        origins.read_on(log)
        if origins.upto != before:
            with storage_errors(f"writing {log.path / FILENAME}"):
                disk.replace_file(log.path / FILENAME, origins.to_json(), sync=True)
                disk.sync_directory(log.path)
        yield origins
    finally:
        disk.close(fd)


def _load(log: Log, disk: Disk) -> Origins:
    path = log.path / FILENAME
    with storage_errors(f"reading {path}"):
        try:
            fd = disk.open_to_read(path)
        except FileNotFoundError:
            return Origins()
        try:
            data = disk.read_at(fd, disk.size(fd), 0)
        finally:
            disk.close(fd)
    try:
        return Origins.from_json(data)
    except ValueError as error:
        logger.warning("origins are read from the log anew path=%s reason=%s", path, error)
        return Origins()
