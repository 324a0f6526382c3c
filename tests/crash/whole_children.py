"""Children that append whole batches, some larger than the segments of their log."""

from pathlib import Path
from random import Random
from typing import Final

from segue import Log
from tests.crash.channel import Channel
from tests.crash.children import DONE
from tests.crash.killing_disk import KillingDisk, KillPoint
from tests.crash.workload import SEGMENT_ITEMS, Setting

SHAPES: Final = ((3, 50), (1, 20_000), (5, 1_200), (SEGMENT_ITEMS * 3, 10))
"""Records and their size: into the active segment, a larger one, a usual new one, a longer one."""


def batch(number: int) -> list[bytes]:
    """Return the payloads of batch `number`, the same each time."""
    count, size_bytes = SHAPES[number]
    return [Random(f"{number} {place}").randbytes(size_bytes) for place in range(count)]


def put_batch(log: Log, number: int) -> int:
    """Append batch `number` whole, in a turn, and return its offset once it is synced."""
    payloads, writer = batch(number), log.writer
    lengths = [len(payload) for payload in payloads]
    with writer.mutex:
        try:
            writer.begin()
            offset = writer.put_whole(lengths, b"".join(payloads), [number] * len(lengths))
        finally:
            writer.end(wrote=True)
    writer.sync(offset + len(lengths))
    return offset


def put_batches(channel: Channel, path: Path, setting: Setting, point: KillPoint | None) -> None:
    """Append every batch and report the offset of each."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        for number in range(len(SHAPES)):
            channel.report(put_batch(log, number))
    channel.report(DONE)
