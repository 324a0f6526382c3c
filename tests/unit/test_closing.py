"""Closing a log, and using it afterwards."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from segue import Log
from segue.errors import LogClosed
from segue.log.options import SyncName
from tests.unit.support import failing_cases, fill, no_descriptor_left_open, offsets, small_log
from tests.waiting import LIMIT_SECONDS, wait_until

reads: dict[str, Callable[[Log], object]] = {
    "read": lambda log: log.read(0),
    "records": lambda log: list(log.records()),
    "records from": lambda log: list(log.records(0)),
    "follow": lambda log: list(log.follow(timeout=0)),
    "columns": lambda log: list(log.columns()),
    "wait": lambda log: log.wait(0, timeout=0),
    "resolve": lambda log: log.resolve(0),
    "offset_at": lambda log: log.offset_at(datetime(2020, 1, 1, tzinfo=UTC)),
    "reader": lambda log: log.reader("new"),
    "readers": lambda log: log.readers(),
    "first_offset": lambda log: log.first_offset,
    "next_offset": lambda log: log.next_offset,
    "size_bytes": lambda log: log.size_bytes,
    "len": len,
    "segments": lambda log: log.segments(),
    "verify": lambda log: list(log.verify()),
}
writes: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.append(b"x"),
    "append bytearray": lambda log: log.append(bytearray(b"x")),
    "append_many": lambda log: log.append_many([b"x"]),
    "append nothing": lambda log: log.append_many([]),
    "flush": lambda log: log.flush(),
    "roll": lambda log: log.roll(),
    "trim": lambda log: log.trim(0),
    "cleanup": lambda log: log.cleanup(),
    "repair": lambda log: log.repair(),
    "remove_reader": lambda log: log.remove_reader("r"),
}


@pytest.mark.parametrize(
    ("exclusive", "sync"), [(False, "always"), (True, "interval"), (True, "os")]
)
def test_a_closed_log_is_of_no_use(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """Every call says so, and changes nothing."""
    log = small_log(directory, exclusive=exclusive, sync=sync)
    fill(log, 5)
    log.reader("r").close()
    log.close()

    def check(use: Callable[[Log], object]) -> None:
        for _ in range(2):
            with pytest.raises(LogClosed):
                use(log)

        with Log(directory, read_only=True) as again:
            assert again.next_offset == 5
            assert list(again.readers()) == ["r"]

    assert failing_cases(check, reads | writes) == []


@pytest.mark.parametrize("use", reads.values(), ids=reads.keys())
def test_a_closed_read_only_log_is_of_no_use(directory: Path, use: Callable[[Log], object]) -> None:
    """As one that could write."""
    with small_log(directory) as log:
        fill(log, 5)
    log = Log(directory, read_only=True)
    assert log.next_offset == 5
    log.close()
    with pytest.raises(LogClosed):
        use(log)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_closing_twice_is_allowed(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """And leaves no file open."""
    with no_descriptor_left_open():
        log = small_log(directory, exclusive=exclusive, sync=sync)
        fill(log, 10)
        log.read(0)
        with log.reader("r") as reader:
            list(reader)
        list(log.records())
        log.close()
        log.close()
        with log:
            pass


def test_closing_a_read_only_log_leaves_no_file_open(directory: Path) -> None:
    """Twice, too."""
    with small_log(directory) as log:
        fill(log, 10)
    with no_descriptor_left_open():
        log = Log(directory, read_only=True)
        assert offsets(log.records()) == list(range(10))
        log.read(5)
        log.close()
        log.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_iterations_end_when_the_log_is_closed(directory: Path, read_only: bool) -> None:
    """A generator from before says that the log was closed, whether begun or not."""
    with small_log(directory) as log:
        fill(log, 10)
    with no_descriptor_left_open():
        log = Log(directory, read_only=read_only, sync="os")
        begun, fresh = log.records(), log.records()
        next(begun)
        log.close()
        with pytest.raises(LogClosed):
            list(fresh)
        with pytest.raises(LogClosed):
            list(begun)


@pytest.mark.parametrize("read_only", [False, True])
def test_readers_end_when_the_log_is_closed(directory: Path, read_only: bool) -> None:
    """They are told so at their next step; closing them still works."""
    with small_log(directory) as log:
        fill(log, 10)
    with no_descriptor_left_open():
        log = Log(directory, read_only=read_only, sync="os")
        reader = log.reader("r")
        assert len(reader.read(2)) == 2
        log.close()
        uses: list[Callable[[], object]] = [
            lambda: list(reader),
            reader.read,
            lambda: reader.read(timeout=0.01),
            lambda: list(reader.follow(timeout=0.01)),
            lambda: reader.seek("earliest"),
            lambda: reader.lag,
        ]
        for use in uses:
            with pytest.raises(LogClosed):
                use()
        reader.close()


def test_a_reader_closed_in_its_own_loop_opens_nothing_again(directory: Path) -> None:
    """The iteration ends or says so; no segment stays pinned behind it."""
    with small_log(directory) as log:
        fill(log, 10)
        log.read(0)
        with no_descriptor_left_open():
            reader = log.reader("r")
            seen = []
            try:
                for record in reader:
                    seen.append(record.offset)
                    reader.close()
            except LogClosed:
                pass

            assert len(seen) <= 4


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_closing_while_others_append_loses_nothing(
    directory: Path, exclusive: bool, sync: SyncName
) -> None:
    """Each append returns an offset that holds its record, or says that the log is closed."""
    log = small_log(directory, exclusive=exclusive, sync=sync, segment_items=50)
    appended: dict[int, bytes] = {}
    errors: list[BaseException] = []
    barrier = threading.Barrier(5)

    def work(number: int) -> None:
        barrier.wait()
        try:
            for step in range(100_000):
                payload = b"%d %d" % (number, step)
                appended[log.append(payload)] = payload
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    wait_until(lambda: len(appended) >= 20)
    log.close()
    for thread in threads:
        thread.join(timeout=LIMIT_SECONDS)

    assert [type(error) for error in errors] == [LogClosed] * 4
    with Log(directory, read_only=True) as again:
        found = {record.offset: record.payload for record in again.records()}
    assert appended.items() <= found.items()


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_closing_syncs_what_is_not(directory: Path, sync: SyncName) -> None:
    """Whatever the mode, a clean close leaves nothing to a power cut."""
    synced: list[int] = []
    log = small_log(directory, sync=sync)
    fill(log, 3)
    disk = log._disk
    sync_data = disk.sync_data

    def spy(fd: int) -> None:
        synced.append(fd)
        sync_data(fd)

    disk.sync_data = spy  # type: ignore[method-assign]
    log.close()

    assert len(synced) >= 1


def test_who_begins_to_wait_as_the_log_is_closed_is_told_by_what_it_waits_for(
    directory: Path,
) -> None:
    """The bell is gone; what is asked for says that the log is closed, and not the bell."""
    log = small_log(directory)
    bell = log.writer.bell
    log.close()
    waiter = bell.waiter()

    assert waiter.wait(lambda: True, 0)
    with pytest.raises(LogClosed):
        waiter.wait(lambda: log.next_offset > 0, None)
    waiter.close()
