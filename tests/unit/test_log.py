"""The log through its public door."""

from pathlib import Path

import pytest

import segue
from segue import Log
from segue.log.options import SyncName
from tests.unit.support import fill, offsets, payloads, small_log


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    """Records come back as they went in, also through another handle."""
    with Log(tmp_path / "log") as log:
        offsets = [log.append(b"one"), log.append_many([b"two", b"three"])]

    with Log(tmp_path / "log", read_only=True) as log:
        assert offsets == [0, 1]
        assert [record.payload for record in log.records()] == [b"one", b"two", b"three"]


def test_public_names_can_be_imported() -> None:
    """What the package lists is there."""
    assert [name for name in segue.__all__ if not hasattr(segue, name)] == []


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_an_append_can_be_read_at_once(directory: Path, sync: SyncName, exclusive: bool) -> None:
    """By the same handle and by another, before any flush."""
    with small_log(directory, sync=sync, exclusive=exclusive) as log:
        for number in range(10):
            assert log.append(b"%d" % number) == number
            assert log.next_offset == number + 1
            assert log.read(number).payload == b"%d" % number
            with Log(directory, read_only=True) as other:
                assert other.read(number).payload == b"%d" % number


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_flushing_changes_no_record(directory: Path, sync: SyncName) -> None:
    """It may be called at any time, on an empty log and twice."""
    with small_log(directory, sync=sync) as log:
        log.flush()
        written = fill(log, 5)
        log.flush()
        log.flush()

        assert payloads(log.records()) == written


def test_large_records_and_long_batches_come_back(directory: Path) -> None:
    """Sizes around the steps in which space is written ahead, and many records at once."""
    sizes = [0, 1, 255, 256, 257, 4_095, 16_383, 16_384, 16_385, 65_537, 300_000]
    with Log(directory, segment_bytes=1 << 20, sync="os") as log:
        for size in sizes:
            log.append(bytes([size % 251]) * size)
        log.append_many([b"%d" % number for number in range(5_000)])
        log.append_many([bytes(size) for size in sizes])

        found = payloads(log.records())
    assert found[: len(sizes)] == [bytes([size % 251]) * size for size in sizes]
    assert found[len(sizes) : -len(sizes)] == [b"%d" % number for number in range(5_000)]
    assert found[-len(sizes) :] == [bytes(size) for size in sizes]


def test_two_logs_know_nothing_of_each_other(scratch: Path) -> None:
    """Side by side or one in the other."""
    with small_log(scratch / "a") as a, small_log(scratch / "a" / "b") as b:
        fill(a, 6)
        fill(b, 2)

        assert (offsets(a.records()), offsets(b.records())) == ([0, 1, 2, 3, 4, 5], [0, 1])


def test_a_crash_between_two_steps_of_a_roll_is_forgotten(directory: Path) -> None:
    """A segment that never got its name, and half-written positions, are cleared away."""
    with small_log(directory) as log:
        fill(log, 3)
        log.reader("r").close()
    (directory / "000000001.q.new").write_bytes(b"half a segment")
    (directory / "readers" / "r.meta.77-1.tmp").write_bytes(b"half")
    with small_log(directory) as log:
        assert fill(log, 3, first=3)
        assert offsets(log.records()) == list(range(6))
    assert [path.name for path in directory.rglob("*.tmp")] == []
    assert [path.name for path in directory.rglob("*.new")] == []
