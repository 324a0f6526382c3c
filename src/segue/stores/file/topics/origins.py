"""What a partition holds of producers and of adopted segments, so that nothing is there twice.

The records themselves say who made them. `origins.json` sums up all before `upto`, so that only
what came later has to be read again, and what retention deletes is not forgotten. It is brought
up to date before anything is deleted, and whenever a producer looks the partition up.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from segue.delivery.topic_record import (
    HAS_ADOPTION,
    HAS_PRODUCER,
    adoption_of,
    origin_of,
)
from segue.errors import CorruptManifest, Damage
from segue.log import Log
from segue.log.disk import Disk
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.file.claims import locked
from segue.stores.file.documents import number, read_document, write_document
from segue.values import dataclass

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
    staged: set[str] = field(default_factory=set)
    """Those of them that are asked for again only until their write is finished."""

    def read_on(self, log: Log, end: int) -> None:
        """Take in what the partition holds before `end`."""
        if self.upto > end:
            # A power cut took the end: what was read there is not there any more.
            self.last = {who: last for who, last in self.last.items() if last[1] < end}
            self.adopted = {digest: at for digest, at in self.adopted.items() if at < end}
            self.staged &= self.adopted.keys()
            self.upto = 0
        start = max(self.upto, log.first_offset)
        if start < end:
            for record in _marked(log, start, end):
                if record.attr & HAS_PRODUCER:
                    origin = origin_of(record)
                    if origin is not None and origin.sequence >= self.last_sequence(origin.number):
                        self.last[origin.number] = (origin.sequence, record.offset)
                if record.attr & HAS_ADOPTION:
                    digest = adoption_of(record)
                    if digest is not None:
                        self.adopted[digest.hex()] = record.offset
        self.upto = end
        while len(self.adopted) > ADOPTIONS_MAX:
            del self.adopted[next(iter(self.adopted))]

    def take_in_staged(self, digest: bytes, first: int, count: int) -> None:
        """Take in a segment that was adopted just now, of which all is known, without reading it.

        If others appended in between, it is read with what they did.
        """
        if self.upto == first:
            self.adopted[digest.hex()] = first
            self.staged.add(digest.hex())
            self.upto = first + count

    def forget_staged(self, unfinished: Collection[str]) -> None:
        """Forget the adoptions of writes that are finished: all but the `unfinished` ones."""
        for digest in self.staged.difference(unfinished):
            self.adopted.pop(digest, None)
            self.staged.discard(digest)

    def last_sequence(self, producer: int) -> int:
        """Return the last sequence number of a producer, -1 if there is none."""
        return self.last.get(producer, (-1, -1))[0]

    def to_dict(self) -> dict[str, object]:
        """Return the summary as it is kept."""
        return {
            "format": FORMAT,
            "upto": self.upto,
            "last": {str(producer): list(last) for producer, last in self.last.items()},
            "adopted": [list(pair) for pair in self.adopted.items()],
            "staged": sorted(self.staged),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Origins":
        """Return what `to_dict` gave. Raises ValueError, KeyError, TypeError, AttributeError."""
        return cls(
            upto=number(values["upto"]),
            last={
                number(int(producer)): (number(sequence), number(offset))
                for producer, (sequence, offset) in values["last"].items()
            },
            adopted={str(digest): number(at) for digest, at in values["adopted"]},
            staged=set(map(str, values.get("staged", ()))),
        )


def _marked(log: Log, start: int, end: int) -> Iterator[Record]:
    """Yield the records that say where they come from, passing over damage.

    By columns where they can be had: among millions of others there may be none.
    """
    try:
        import numpy as np

        for columns in log.columns(start, stop=end):
            for row in np.flatnonzero(columns.attr & np.uint64(HAS_PRODUCER | HAS_ADOPTION)):
                yield Record(
                    Offset(int(columns.offset[row])),
                    int(columns.time_us[row]),
                    int(columns.attr[row]),
                    columns.payload[int(row)].as_py(),
                )
            start = int(columns.offset[-1]) + 1
    except (ImportError, Damage):
        yield from log.records(max(start, log.first_offset), stop=end, on_damage="skip")


@contextmanager
def current_origins(log: Log, disk: Disk, *, sync: bool = True) -> Iterator[Origins]:
    """Give the origins of a partition, up to date and saved; nobody else adopts meanwhile.

    What is changed in the block is saved with it. Without `sync` a power cut may take back what is
    summed up here. Raises CorruptManifest: what is forgotten could be appended again.
    """
    with locked(log.path / LOCK, disk):
        # Nothing is summed up that a power cut could still take; what somebody has written but
        # not yet shown counts, too.
        end = log.writer.written
        if sync:
            log.flush()
        origins = _load(log.path / FILENAME, disk)
        before = origins.upto
        origins.read_on(log, end)
        if origins.upto != before:
            write_document(log.path / FILENAME, origins.to_dict(), disk, sync=sync)
        before = origins.upto
        yield origins
        if origins.upto != before:
            write_document(log.path / FILENAME, origins.to_dict(), disk, sync=sync)


def _load(path: Path, disk: Disk) -> Origins:
    try:
        values = read_document(path, disk, format_=FORMAT)
        return Origins() if values is None else Origins.from_dict(values)
    except (CorruptManifest, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            error.reason if isinstance(error, CorruptManifest) else f"it makes no sense: {error}"
        )
        raise CorruptManifest(
            path=path, reason=f"{reason}; delete it to go by the records that are left alone"
        ) from error
