"""What the child processes of these tests do. Each reports what was acknowledged to it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from zlib import crc32

from tests.crash.channel import Channel
from tests.crash.killing_disk import KillingDisk, KillPoint
from tests.crash.workload import Setting, Writer

CALLS_MAX: Final = 5_000
"""A child that nobody kills ends all the same."""
DONE: Final = "done"
REMOVED: Final = "removed"
KEPT_EVERY: Final = 3
READER: Final = "ann"
WAIT_SECONDS: Final = 0.001


def append_until_killed(channel: Channel, path: Path, setting: Setting, writer: Writer) -> None:
    """Append call after call and report the offset of each."""
    log = setting.open(path)
    for number in range(CALLS_MAX):
        channel.report(writer.append(log, number))


def append_from_threads_until_killed(
    channel: Channel, path: Path, setting: Setting, writers: list[Writer]
) -> None:
    """Append from one thread per writer at once; report the id of the writer and the offset."""
    log = setting.open(path)

    def append(writer: Writer) -> None:
        for number in range(CALLS_MAX):
            channel.report([writer.id, writer.append(log, number)])

    with ThreadPoolExecutor(len(writers)) as threads:
        list(threads.map(append, writers))


def append_and_read_in_turn(channel: Channel, path: Path, setting: Setting, writer: Writer) -> None:
    """Append as many calls as each order says, reporting each offset, and read on after them.

    The order 0 ends it, with a report of how many records were read and their digest.
    """
    number = count = digest = 0
    with setting.open(path) as log:
        while (calls := channel.wait_for_order()) != 0:
            assert isinstance(calls, int)
            for _ in range(calls):
                channel.report(writer.append(log, number))
                number += 1
            for record in log.records(count):
                assert record.offset == count
                count, digest = count + 1, crc32(record.payload, digest)
        for record in log.records(count):
            count, digest = count + 1, crc32(record.payload, digest)
    channel.report([count, digest])


def append_and_roll(
    channel: Channel,
    path: Path,
    setting: Setting,
    writer: Writer,
    *,
    calls: int,
    point: KillPoint | None,
) -> None:
    """Open, append `calls` times, roll, append once more, close; report each offset."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        for number in range(calls):
            channel.report(writer.append(log, number))
        log.flush()
        log.roll()
        channel.report(writer.append(log, calls))
    channel.report(DONE)


def open_and_close(channel: Channel, path: Path, setting: Setting, point: KillPoint | None) -> None:
    """Open, which recovers, and close."""
    setting.open(path, disk=KillingDisk(point)).close()
    channel.report(DONE)


def clean_up_and_trim(
    channel: Channel, path: Path, setting: Setting, trim_to: int, point: KillPoint | None
) -> None:
    """Delete what readers have left behind, then what lies before `trim_to`; report the ids."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        channel.report([int(id_) for id_ in log.cleanup()])
        channel.report([int(id_) for id_ in log.trim(trim_to)])
    channel.report(DONE)


def read_and_commit(
    channel: Channel, path: Path, setting: Setting, step: int, point: KillPoint | None
) -> None:
    """Read on in steps as `READER` and report each position that was committed."""
    with setting.open(path, disk=KillingDisk(point)) as log, log.reader(READER) as reader:
        channel.report(reader.position)
        while reader.read(step):
            reader.commit()
            channel.report(reader.position)
    channel.report(DONE)


def repair(channel: Channel, path: Path, setting: Setting, point: KillPoint | None) -> None:
    """Set all damage aside."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        log.repair()
    channel.report(DONE)


def wait_in_vain(channel: Channel, path: Path, setting: Setting, point: KillPoint | None) -> None:
    """Wait a moment for a record that does not come."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        log.wait(log.next_offset, timeout=WAIT_SECONDS)
    channel.report(DONE)


def remove_and_clean_up(
    channel: Channel, path: Path, setting: Setting, trim_to: int, point: KillPoint | None
) -> None:
    """Remove every record but each `KEPT_EVERY`-th, then delete what lies before `trim_to`."""
    with setting.open(path, disk=KillingDisk(point)) as log:
        log.remove_records(lambda record: record.offset % KEPT_EVERY == 0)
        channel.report(REMOVED)
        log.trim(trim_to)
    channel.report(DONE)
