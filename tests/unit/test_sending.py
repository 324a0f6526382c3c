"""Sending a sealed segment to whatever takes bytes."""

import errno
import gzip
import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from segue import Log
from segue.errors import CorruptSegment, InvalidArgument, LogClosed, StorageError, StorageFull
from segue.log import sending
from segue.log.disk import Disk
from segue.log.sealed import read_sealed
from segue.log.segment import SegmentView
from segue.testing import FaultyDisk
from tests.unit.support import (
    destroy_header,
    no_descriptor_left_open,
    segment_ids,
    segment_path,
    small_log,
)

PAYLOADS = [b"one", b"", b"three" * 100]
ATTRS = [7, 0, (1 << 64) - 1]


@pytest.fixture
def log(directory: Path) -> Log:
    """A log whose segment 0 is sealed, and which is closed by whoever asks for it."""
    log = small_log(directory)
    log.append_many(PAYLOADS, attrs=ATTRS)
    log.roll()
    log.append(b"later")
    return log


def sent_bytes(directory: Path) -> bytes:
    """What a transfer of segment 0 consists of."""
    return segment_path(directory, 0).read_bytes()[: 8192 + sum(map(len, PAYLOADS))]


class ShortDisk(Disk):
    """Sends a few bytes at a time, as a busy socket takes them."""

    def send(self, fd: int, target: int, count_bytes: int, position: int) -> int:
        return super().send(fd, target, min(count_bytes, 1_000), position)


class Trickle:
    """Takes a few bytes at a time; has a descriptor that leads elsewhere, as a zip file's does."""

    def __init__(self, answer: Callable[[int], int | None]) -> None:
        self.taken = bytearray()
        self._answer = answer

    def write(self, data: memoryview, /) -> int | None:
        count = self._answer(len(data))
        self.taken += data[: len(data) if count is None else count]
        return count

    def fileno(self) -> int:
        raise AssertionError("who can be written to is not gone around")


def received(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65_536):
        pieces.append(piece)
    return b"".join(pieces)


def test_a_socket_gets_header_slots_and_payloads(log: Log, directory: Path) -> None:
    """And not the hole behind them; the count of bytes is returned."""
    ours, theirs = socket.socketpair()
    with log, ours, theirs:
        count = log.send_segment(0, ours)
        ours.shutdown(socket.SHUT_WR)

        assert received(theirs) == sent_bytes(directory)
        assert count == len(sent_bytes(directory))


def test_what_a_target_takes_in_pieces_arrives_whole(directory: Path) -> None:
    """A short write is gone on with where it ended."""
    with small_log(directory, disk=ShortDisk()) as log:
        log.append_many(PAYLOADS)
        log.roll()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            log.send_segment(0, ours)
            ours.shutdown(socket.SHUT_WR)
            assert received(theirs) == sent_bytes(directory)
    for answer in (lambda size: min(size, 999), lambda _: None):
        with small_log(directory) as log:
            target = Trickle(answer)

            assert log.send_segment(0, target) == len(sent_bytes(directory))
            assert target.taken == sent_bytes(directory)


def test_a_large_segment_is_sent_in_steps_through_a_small_pipe(directory: Path) -> None:
    """Whoever reads the other end gets every byte in order."""
    with Log(directory, sync="os") as log:
        log.append_many([os.urandom(100_000) for _ in range(30)])
        log.roll()
        reading, writing = os.pipe()
        found: list[bytes] = []

        def read_all() -> None:
            with os.fdopen(reading, "rb") as file:
                found.append(file.read())

        thread = threading.Thread(target=read_all)
        thread.start()
        with os.fdopen(writing, "wb") as pipe:
            count = log.send_segment(0, pipe)
        thread.join()

        assert found == [segment_path(directory, 0).read_bytes()[:count]]
        assert count > 3_000_000


@pytest.mark.parametrize("mode", ["wb", "w+b", "ab"])
@pytest.mark.parametrize("buffering", [0, -1])
def test_a_file_keeps_the_order_of_what_is_written_around_it(
    log: Log, directory: Path, scratch: Path, mode: str, buffering: int
) -> None:
    """What its buffer held comes first, what is written later comes after; also when appending."""
    path = scratch / "copy"
    with log, path.open(mode, buffering=buffering) as file:
        file.write(b"before")
        log.send_segment(0, file)
        file.write(b"after")

    assert path.read_bytes() == b"before" + sent_bytes(directory) + b"after"


def test_objects_that_only_look_like_files_are_written_to(
    log: Log, directory: Path, scratch: Path
) -> None:
    """BytesIO has no descriptor, and that of a compressed file leads past the compression."""
    target, path = io.BytesIO(), scratch / "copy.gz"
    with log, gzip.open(path, "wb") as packed:
        log.send_segment(0, target)
        log.send_segment(0, packed)

    assert target.getvalue() == sent_bytes(directory)
    assert gzip.decompress(path.read_bytes()) == sent_bytes(directory)


@pytest.mark.parametrize("position", [0, 1, 4_096, 8_191, 8_200])
def test_a_broken_transfer_goes_on_from_a_position(
    log: Log, directory: Path, position: int
) -> None:
    """The rest is sent, and counted alone."""
    whole = sent_bytes(directory)
    target = io.BytesIO()
    with log:
        assert log.send_segment(0, target, position=position) == len(whole) - position
        assert log.send_segment(0, target, position=len(whole)) == 0

    assert target.getvalue() == whole[position:]


def test_a_position_outside_of_the_segment_is_refused(log: Log, directory: Path) -> None:
    """Nothing is sent."""
    target = io.BytesIO()
    with log:
        for position in (-1, len(sent_bytes(directory)) + 1):
            with pytest.raises(InvalidArgument, match="position must be from 0 to"):
                log.send_segment(0, target, position=position)

    assert target.getvalue() == b""


def test_only_sealed_segments_are_sent(log: Log) -> None:
    """The one that takes records must be rolled first; one that is not there is said to be so."""
    with log, no_descriptor_left_open():
        with pytest.raises(InvalidArgument, match=r"roll\(\) first"):
            log.send_segment(1, io.BytesIO())
        for id_ in (2, -1):
            with pytest.raises(InvalidArgument, match="no segment"):
                log.send_segment(id_, io.BytesIO())
    with pytest.raises(LogClosed):
        log.send_segment(0, io.BytesIO())


def test_a_segment_without_records_is_sent_as_well(directory: Path, scratch: Path) -> None:
    """It is sealed when a record comes that needs a larger one."""
    with small_log(directory):
        pass
    with Log(directory, segment_bytes=65_536, sync="os") as log:
        log.append(b"x" * 30_000)
        with (scratch / "copy").open("wb") as file:
            log.send_segment(0, file)
    with read_sealed(scratch / "copy", Disk()) as sealed:
        assert (sealed.count, bytes(sealed.data)) == (0, b"")


def test_a_log_open_to_read_sends_too(log: Log, directory: Path) -> None:
    """A backup needs no right to write."""
    target = io.BytesIO()
    with log, Log(directory, read_only=True) as reading:
        reading.send_segment(0, target)

    assert target.getvalue() == sent_bytes(directory)


def test_a_segment_is_not_deleted_while_it_is_sent(log: Log, directory: Path) -> None:
    """Neither by this handle nor by another, as by another process; afterwards it may go."""
    kept: list[int] = []

    class Cleaning(io.BytesIO):
        def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]
            kept.extend(log.trim(99))
            with small_log(directory) as other:
                kept.extend(other.trim(99))
            return super().write(data)

    with log:
        target = Cleaning()
        log.send_segment(0, target)

        assert kept == []
        assert target.getvalue() == sent_bytes(directory)
        assert log.trim(99) == [0]
        assert segment_ids(log) == [1]


def test_a_socket_that_does_not_wait_is_its_owners_to_wait_for(directory: Path) -> None:
    """The error names the byte to go on from."""
    with Log(directory, sync="os") as log:
        log.append(bytes(4_000_000))
        log.roll()
        ours, theirs = socket.socketpair()
        with ours, theirs, no_descriptor_left_open():
            ours.setblocking(False)
            with pytest.raises(StorageError, match=r"from byte \d+ on") as caught:
                log.send_segment(0, ours)

            assert isinstance(caught.value.__cause__, BlockingIOError)


def test_a_target_that_is_gone_is_an_error_of_the_storage(log: Log) -> None:
    """A closed pipe, a file nobody may write to; closed objects are the caller's mistake."""
    with log, no_descriptor_left_open():
        reading, writing = os.pipe()
        os.close(reading)
        pipe = os.fdopen(writing, "wb", buffering=0)
        with pipe, pytest.raises(StorageError, match="Broken pipe"):
            log.send_segment(0, pipe)
        with Path("/dev/null").open("rb", buffering=0) as file, pytest.raises(StorageError):
            log.send_segment(0, file)
        closed = io.BytesIO()
        closed.close()
        for target in (pipe, closed):
            with pytest.raises(InvalidArgument, match="closed file"):
                log.send_segment(0, target)
        with pytest.raises(InvalidArgument, match="not to str"):
            log.send_segment(0, "path")  # type: ignore[arg-type]


def test_a_full_disk_at_the_other_end_is_said_to_be_one(directory: Path, scratch: Path) -> None:
    """The log itself is none the worse."""
    disk = FaultyDisk()
    with small_log(directory, disk=disk) as log, (scratch / "copy").open("wb") as file:
        log.append(b"one")
        log.roll()
        disk.fail(operation="send", error=errno.ENOSPC)
        with pytest.raises(StorageFull):
            log.send_segment(0, file)

        assert log.append(b"two") == 1


def test_a_file_that_is_too_short_is_not_sent_as_if_it_were_whole(scratch: Path) -> None:
    """What is missing is damage and not an end."""
    directory = scratch / "damaged"
    with small_log(directory) as log, (scratch / "copy").open("wb") as file:
        log.append(b"one" * 100)
        log.roll()
        os.truncate(segment_path(directory, 0), 8_200)
        for target in (file, io.BytesIO()):
            with pytest.raises(CorruptSegment, match="ends before"):
                log.send_segment(0, target)


def test_a_segment_without_a_header_is_not_sent(scratch: Path) -> None:
    """Nobody could say what it is."""
    directory = scratch / "damaged"
    with small_log(directory) as log:
        log.append(b"one")
        log.roll()
        log.append(b"two")
        log.roll()
        segment_path(directory, 1).replace(segment_path(directory, 7))
        destroy_header(segment_path(directory, 0))
        with pytest.raises(CorruptSegment):
            log.send_segment(0, io.BytesIO())
        with pytest.raises(CorruptSegment, match="it is segment 1"):
            log.send_segment(7, io.BytesIO())


def test_what_was_sent_can_be_read_as_a_segment(log: Log, scratch: Path) -> None:
    """A sealed file may end where its payloads do."""
    path = scratch / "copy"
    with log, path.open("wb") as file:
        log.send_segment(0, file)
    view = SegmentView(path, Disk())

    summary = view.summary()
    assert summary is not None
    assert view.check(0, summary.count) == 3
    assert [record.payload for record in view.records(0, summary.count)] == PAYLOADS
    view.close()


def test_steps_are_bounded(log: Log, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are, nothing is lost between them."""
    monkeypatch.setattr(sending, "WRITE_STEP_BYTES", 1_000)
    monkeypatch.setattr(sending, "SEND_STEP_BYTES", 1_000)
    target = io.BytesIO()
    ours, theirs = socket.socketpair()
    with log, ours, theirs:
        log.send_segment(0, target)
        log.send_segment(0, ours)
        ours.close()

        assert target.getvalue() == received(theirs) == sent_bytes(directory)
