"""What writers append in these tests, and the check that a log holds exactly that.

Every payload names its writer, the call it was part of and its place in that call; the rest of it
follows from those. So whoever finds a record can tell whether it was ever attempted, whether it is
whole, and what must stand next to it.
"""

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from segue import Log, Record
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.log.positions import SavedPosition
from tests.crash.replay import TORTURE

SEGMENT_BYTES: Final = 16 * 1024
SEGMENT_ITEMS: Final = 64
"""Small, so that the log rolls all the time."""
SYNC_INTERVAL_MS: Final = 5

_BATCH_BYTES_MAX: Final = 7_000
_NAME = struct.Struct("<IIHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the processes of a test open the log."""

    sync: SyncName = "always"
    exclusive: bool = False

    def open(self, path: Path, *, disk: Disk | None = None) -> Log:
        """Open the log at `path` to write."""
        return Log(
            path,
            sync=self.sync,
            exclusive=self.exclusive,
            sync_interval_ms=SYNC_INTERVAL_MS,
            segment_bytes=SEGMENT_BYTES,
            segment_items=SEGMENT_ITEMS,
            disk=disk,
        )

    def __str__(self) -> str:
        return f"{self.sync}-{'exclusive' if self.exclusive else 'shared'}"


SYNC_NAMES: Final[tuple[SyncName, ...]] = ("always", "interval", "os")
SHARED: Final = [Setting(sync=sync) for sync in SYNC_NAMES]
SETTINGS: Final = SHARED + [Setting(sync=sync, exclusive=True) for sync in SYNC_NAMES]


def settings_in_short_run(*chosen: Setting) -> list[Setting]:
    """Return `chosen`, or all settings in the long run.

    A kill takes nothing back, synced or not. So each family of kill points has one or two settings
    of its own in the short run, and all families together have all of them.
    """
    return list(SETTINGS if TORTURE else chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One sequence of append calls, the same each time it is asked for."""

    id: int
    seed: int

    def call(self, number: int) -> list[bytes]:
        """Return the payloads of call `number`: one record, or a batch."""
        chance = random.Random(f"{self.seed} {self.id} {number}")
        sizes = _sizes(chance)
        filler = chance.randbytes(sum(sizes))
        payloads, start = [], 0
        for index, size in enumerate(sizes):
            name = _NAME.pack(self.id, number, index, len(sizes))
            payloads.append(name + filler[start : start + size])
            start += size
        return payloads

    def append(self, log: Log, number: int) -> int:
        """Make call `number` and return the offset it got."""
        payloads = self.call(number)
        if len(payloads) == 1:
            return log.append(payloads[0], attr=number)
        return log.append_many(payloads, attrs=[number] * len(payloads))


def _sizes(chance: random.Random) -> list[int]:
    kind = chance.random()
    if kind < 0.55:
        return [chance.randrange(200)]
    if kind < 0.65:
        return [chance.randrange(500, 4_000)]
    count = chance.randrange(2, 40 if kind < 0.9 else SEGMENT_ITEMS + 1)
    size_max = _BATCH_BYTES_MAX // count - _NAME.size
    return [chance.randrange(min(size_max, 300)) for _ in range(count)]


@dataclass(slots=True, kw_only=True)
class Attempts:
    """What one writer was told: the offset of each call that returned, in order."""

    writer: Writer
    acknowledged: list[int] = field(default_factory=list)
    in_flight_max: int = 1
    """How many more calls may have been under way when it stopped."""


def check_records(
    records: Sequence[Record], attempts: Iterable[Attempts], *, first_offset: int = 0
) -> None:
    """Assert that `records` are what was acknowledged and nothing that was not attempted.

    Each acknowledged call is there once, whole, at its offset and in its writer's order; at most
    the call under way stands behind them, whole too.
    """
    known = {tried.writer.id: tried for tried in attempts}
    found = dict.fromkeys(known, 0)
    offsets = [record.offset for record in records]
    assert offsets == list(range(first_offset, first_offset + len(records)))
    place = 0
    while place < len(records):
        record = records[place]
        assert len(record.payload) >= _NAME.size, f"phantom at offset {record.offset}"
        writer_id, number, index, _ = _NAME.unpack_from(record.payload)
        assert writer_id in known, f"phantom at offset {record.offset}: writer {writer_id}"
        assert (number, index) == (found[writer_id], 0), (
            f"offset {record.offset} holds record {index} of call {number} by writer {writer_id}, "
            f"whose next call is {found[writer_id]}"
        )
        tried = known[writer_id]
        payloads = tried.writer.call(number)
        stored = records[place : place + len(payloads)]
        assert [other.payload for other in stored] == payloads, f"altered at {record.offset}"
        assert {other.attr for other in stored} == {number}
        if number < len(tried.acknowledged):
            assert record.offset == tried.acknowledged[number]
        found[writer_id] += 1
        place += len(payloads)
    for writer_id, tried in known.items():
        acknowledged = len(tried.acknowledged)
        assert acknowledged <= found[writer_id] <= acknowledged + tried.in_flight_max, (
            f"writer {writer_id}: {acknowledged} calls acknowledged, {found[writer_id]} found"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a log says of itself, to compare two of them."""

    first_offset: int
    next_offset: int
    records: list[Record]
    damage: list[str]
    readers: dict[str, SavedPosition]


def contents_of(log: Log) -> Contents:
    """Return what `log` holds, read past any damage."""
    damage = []
    for audit in log.verify():
        damage += [f"{lost.first_offset}-{lost.last_offset}" for lost in audit.damaged]
        damage += [] if audit.problem is None else [f"{audit.id}: {audit.problem}"]
    return Contents(
        first_offset=log.first_offset,
        next_offset=log.next_offset,
        records=list(log.records(on_damage="skip")),
        damage=damage,
        readers=log.readers(),
    )


def check_intact(log: Log) -> None:
    """Assert that `verify` finds nothing wrong, and every offset accounted for."""
    audits = list(log.verify())
    wrong = [audit for audit in audits if not audit.is_intact]
    assert not wrong, wrong
    assert sum(audit.records for audit in audits) == len(log)
