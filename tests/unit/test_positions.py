"""The bytes of `readers/<name>.meta` and `index.meta`."""

import struct
from itertools import product
from pathlib import Path
from zlib import crc32

import pytest

from segue.errors import CorruptPosition
from segue.log.options import SyncName
from tests.unit.support import (
    contents,
    failing_cases,
    fill,
    flip_bit,
    offsets,
    slot_position,
    small_log,
)


def test_a_readers_file_is_the_pair_and_a_check(directory: Path) -> None:
    """{segment u64, offset u64}, then a magic number and the CRC-32 of the pair."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", 9).close()

        pair = struct.pack("<QQ", 2, 9)
        expected = pair + b"SgRd" + struct.pack("<I", crc32(pair))
        assert (directory / "readers" / "r.meta").read_bytes() == expected


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (struct.pack("<Q", 6), 6),
        (struct.pack("<Q", 0), 0),
        (struct.pack("<QQ", 1, 6), 6),
        (struct.pack("<QQ", 0, 10), 10),
    ],
    ids=["8 bytes", "8 zeros", "16 bytes", "16 bytes at the end"],
)
def test_files_of_earlier_versions_are_read(directory: Path, data: bytes, position: int) -> None:
    """Eight bytes mean an offset in segment 0, sixteen the pair without a check."""
    with small_log(directory) as log:
        fill(log, 10)
        (directory / "readers").mkdir(mode=0o700)
        (directory / "readers" / "old.meta").write_bytes(data)
        with log.reader("old") as reader:
            assert reader.position == position
            assert offsets(reader) == list(range(position, 10))
            reader.commit()

        assert len((directory / "readers" / "old.meta").read_bytes()) == 24


def test_an_8_byte_file_protects_segment_0(directory: Path) -> None:
    """It says nothing of segments, so nothing is deleted until the reader commits anew."""
    with small_log(directory) as log:
        fill(log, 10)
        (directory / "readers").mkdir(mode=0o700)
        (directory / "readers" / "old.meta").write_bytes(struct.pack("<Q", 9))
        before = log.cleanup()
        with log.reader("old") as reader:
            reader.commit()

        assert before == []
        assert log.cleanup() == [0, 1]


@pytest.mark.parametrize("size", [0, 1, 7, 9, 15, 17, 23, 25, 100])
def test_a_file_of_any_other_size_is_damaged(directory: Path, size: int) -> None:
    """The reader is told, and an explicit start is the way out."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", 9).close()
        meta = directory / "readers" / "r.meta"
        meta.write_bytes(meta.read_bytes().ljust(100, b"\0")[:size])
        with pytest.raises(CorruptPosition) as raised:
            log.reader("r")
        with pytest.raises(CorruptPosition):
            log.readers()
        assert raised.value.path == meta

        log.reader("r", "latest").close()
        assert log.readers() == {"r": (2, 10)}


def test_a_flipped_bit_in_a_readers_file_is_damage(directory: Path) -> None:
    """Never another position: that would skip records or deliver them twice."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("r", 9).close()
        meta = directory / "readers" / "r.meta"
        intact = meta.read_bytes()

        def check(position: int, bit: int) -> None:
            meta.write_bytes(intact)
            flip_bit(meta, position, bit)
            with pytest.raises(CorruptPosition):
                log.reader("r")

        assert len(intact) == 24
        assert failing_cases(check, product(range(24), range(8))) == []
        meta.write_bytes(intact)
        with log.reader("r") as reader:
            assert reader.position == 9


def test_a_damaged_position_protects_everything(directory: Path) -> None:
    """Nobody knows what that reader still wants, so nothing is deleted on its account."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("fine", "latest").close()
        log.reader("damaged", "latest").close()
        flip_bit(directory / "readers" / "damaged.meta", 3)

        assert log.cleanup() == []
        log.remove_reader("damaged")
        assert log.cleanup() == [0, 1]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_the_index_is_16_bytes_that_name_the_next_slot(directory: Path, sync: SyncName) -> None:
    """{segment u64, position u64}, little-endian, after a flush and after closing."""
    index = directory / "index.meta"
    with small_log(directory, sync=sync) as log:
        fill(log, 9)
        log.flush()
        assert index.read_bytes() == struct.pack("<QQ", 2, slot_position(1))
        log.append_many([b"a", b"b"])
    assert index.read_bytes() == struct.pack("<QQ", 2, slot_position(3))
    with small_log(directory, sync=sync) as log:
        fill(log, 1)
        log.roll()
    assert index.read_bytes() == struct.pack("<QQ", 3, slot_position(0))


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"short",
        struct.pack("<QQ", 0, 0),
        struct.pack("<QQ", 1, slot_position(0)),
        struct.pack("<QQ", 1, slot_position(0) + 1),
        struct.pack("<QQ", 1, slot_position(1)),
        struct.pack("<QQ", 1, slot_position(3)),
        struct.pack("<QQ", 1, slot_position(4)),
        struct.pack("<QQ", 1, slot_position(1 << 40)),
        struct.pack("<QQ", 0, slot_position(2)),
        struct.pack("<QQ", 77, slot_position(2)),
        struct.pack("<QQ", (1 << 64) - 1, (1 << 64) - 1),
        bytes(17),
        None,
    ],
    ids=repr,
)
def test_the_index_is_a_hint_and_never_evidence(directory: Path, hint: bytes | None) -> None:
    """Whatever it says, or if it is gone: the log opens with the same records."""
    with small_log(directory) as log:
        written = fill(log, 5)
        log.append_many([b"x", b"y"])
    index = directory / "index.meta"
    index.unlink()
    if hint is not None:
        index.write_bytes(hint)
    segments = {name: data for name, data in contents(directory).items() if name.endswith(".q")}
    with small_log(directory) as log:
        assert [record.payload for record in log.records()] == [*written, b"x", b"y"]
        assert log.append(b"z") == 7
        assert list(segments) == [name for name in contents(directory) if name.endswith(".q")]


def test_an_impossible_index_does_not_keep_an_empty_log_shut(directory: Path) -> None:
    """Nor may it choose the number of the first segment to be one that cannot exist."""
    directory.mkdir()
    (directory / "index.meta").write_bytes(struct.pack("<QQ", 1 << 63, slot_position(0)))
    with small_log(directory) as log:
        assert log.append(b"x") == 0
