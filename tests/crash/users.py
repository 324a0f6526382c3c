"""What processes do that use one log at the same time, for tests that kill few of them."""

import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from zlib import crc32

from segue import Log, Reader, SegueError
from tests.crash.channel import Channel
from tests.crash.workload import Attempts, Setting, Writer
from tests.waiting import LIMIT_SECONDS, random_pause

READY: Final = "ready"
COMMIT_EVERY_ITEMS: Final = 37
PAUSE_SECONDS_MAX: Final = 0.004


def digest_of(payloads: Iterable[bytes], *, digest: int = 0) -> int:
    """Return one number for all of `payloads` in this order."""
    for payload in payloads:
        digest = crc32(payload, digest)
    return digest


def acknowledged_digest(attempts: Iterable[Attempts]) -> list[int]:
    """Return how many records were acknowledged, and their digest in the order of offsets."""
    calls = [
        (offset, tried.writer, number)
        for tried in attempts
        for number, offset in enumerate(tried.acknowledged)
    ]
    count = digest = 0
    for offset, writer, number in sorted(calls, key=lambda call: call[0]):
        assert offset == count, f"offset {count} was acknowledged to nobody"
        payloads = writer.call(number)
        digest = digest_of(payloads, digest=digest)
        count += len(payloads)
    return [count, digest]


def append_calls(
    channel: Channel, path: Path, setting: Setting, writer: Writer, calls: int
) -> None:
    """Append `calls` times once told to, and report each offset."""
    with setting.open(path) as log:
        channel.report(READY)
        channel.wait_for_order()
        for number in range(calls):
            channel.report(writer.append(log, number))


def follow_log(channel: Channel, path: Path, setting: Setting | None, total: int) -> None:
    """Read `total` records as they come; report how many came and their digest.

    Without a setting the log is opened to read only.
    """
    count = digest = 0
    with Log(path, read_only=True) if setting is None else setting.open(path) as log:
        channel.report(READY)
        while count < total:
            assert log.wait(count, timeout=LIMIT_SECONDS), f"nothing after {count}"
            for record in log.records(count):
                assert record.offset == count, f"{record.offset} came instead of {count}"
                count, digest = count + 1, crc32(record.payload, digest)
    channel.report([count, digest])


def follow_as(channel: Channel, path: Path, setting: Setting, name: str, total: int) -> None:
    """Read `total` records as reader `name`, committing now and then; report as `follow_log`."""
    count = digest = 0
    with setting.open(path) as log, log.reader(name) as reader:
        channel.report(READY)
        for record in reader.follow(timeout=LIMIT_SECONDS):
            assert record.offset == count, f"{record.offset} came instead of {count}"
            count, digest = count + 1, crc32(record.payload, digest)
            if count % COMMIT_EVERY_ITEMS == 0 or count == total:
                reader.commit()
            if count == total:
                break
    channel.report([count, digest])


def clean_up_until_told(channel: Channel, path: Path, setting: Setting) -> None:
    """Delete what readers have left behind, again and again; report how many segments went."""
    deleted = 0
    chance = random.Random(os.getpid())
    with setting.open(path) as log:
        channel.report(READY)
        while not channel.has_order():
            deleted += len(log.cleanup())
            random_pause(chance, PAUSE_SECONDS_MAX)
    channel.report(deleted)


def tell_when_woken(channel: Channel, path: Path, setting: Setting, times: int) -> None:
    """Wait for one record after another and report the monotonic nanoseconds of each wake-up."""
    with setting.open(path) as log:
        for _ in range(times):
            channel.report(READY)
            assert log.wait(log.next_offset, timeout=LIMIT_SECONDS)
            channel.report(time.monotonic_ns())


def wait_idle(channel: Channel, path: Path, setting: Setting | None, seconds: float) -> None:
    """Wait for nothing and report how many microseconds of processor time that took."""
    with Log(path, read_only=True) if setting is None else setting.open(path) as log:
        channel.report(READY)
        before_ns = time.process_time_ns()
        assert not log.wait(log.next_offset, timeout=seconds)
        channel.report((time.process_time_ns() - before_ns) // 1000)


def hold(channel: Channel, path: Path, setting: Setting) -> None:
    """Keep the log open until told to close it."""
    with setting.open(path) as log:
        channel.report(log.append(b"held"))
        channel.wait_for_order()
    channel.report(READY)
    channel.wait_for_order()


def hold_first_segment(channel: Channel, path: Path) -> None:
    """Stand in the first segment with an open reader; when told, read on and report how far."""
    with Log(path, read_only=True) as log:
        records = log.records()
        channel.report(next(records).offset)
        channel.wait_for_order()
        channel.report(1 + sum(1 for _ in records))
        channel.wait_for_order()


def use_after_fork(channel: Channel, path: Path, setting: Setting) -> None:
    """Fork with the log open and a reader in its first segment.

    Report what happens to each use of them in the forked process, which then closes them and lives
    on until this one ends. Then, order by order: append, report the offset, close, report it.
    """
    with setting.open(path) as log, log.reader("ann") as reader:
        log.append(b"before the fork")
        reader.read(1)
        alive, parent = os.pipe()
        if os.fork() == 0:
            os.close(parent)
            channel.report([_outcome(use) for use in _uses(log, reader)])
            reader.close()
            log.close()
            channel.report(READY)
            os.read(alive, 1)
            os._exit(0)
        channel.wait_for_order()
        channel.report(log.append(b"after the fork"))
        channel.wait_for_order()
    channel.report(READY)
    channel.wait_for_order()
    os.close(parent)


def _uses(log: Log, reader: Reader) -> list[Callable[[], object]]:
    return [
        lambda: log.append(b"from the child"),
        lambda: log.append_many([b"from", b"the child"]),
        log.flush,
        log.roll,
        lambda: log.next_offset,
        lambda: log.read(0),
        lambda: list(log.records()),
        lambda: log.wait(0, timeout=0),
        lambda: log.reader("bob"),
        lambda: log.trim(1),
        log.cleanup,
        lambda: list(log.verify()),
        log.repair,
        lambda: reader.read(1),
        lambda: list(reader),
        reader.commit,
    ]


def _outcome(use: Callable[[], object]) -> str:
    try:
        use()
    except SegueError as error:
        return type(error).__name__
    return "went through"
