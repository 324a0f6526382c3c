"""Files of format version 1 are read for ever, and version 1 is still what is written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from segue import Log
from segue.errors import RecordRemoved
from segue.log.options import SyncName
from tests.golden.decoder import decode_segment
from tests.golden.generate import EXPECTED, HERE, SEGMENT_ITEMS, files_of, write_log
from tests.unit.support import SMALL_SEGMENT_BYTES, contents, moment

GOLDEN = HERE / "v1"
SIZE_BYTES_MAX = 200_000


class ExpectedRecord(TypedDict):
    offset: int
    time_us: int
    attr: int
    payload: str


class ExpectedSegment(TypedDict):
    id: int
    first_offset: int
    count: int
    sealed: bool
    created_us: int


class Expected(TypedDict):
    format_version: int
    first_offset: int
    next_offset: int
    removed: list[int]
    readers: dict[str, list[int]]
    segments: list[ExpectedSegment]
    records: list[ExpectedRecord]
    sha256: dict[str, str]


Row = tuple[int, int, int, bytes]


@pytest.fixture(scope="module")
def expected() -> Expected:
    loaded: Expected = json.loads((GOLDEN / EXPECTED).read_text())
    return loaded


@pytest.fixture
def golden(scratch: Path) -> Path:
    """A copy of the golden log, to open as one likes."""
    return Path(shutil.copytree(GOLDEN, scratch / "golden"))


def expected_rows(expected: Expected) -> list[Row]:
    return [
        (record["offset"], record["time_us"], record["attr"], bytes.fromhex(record["payload"]))
        for record in expected["records"]
    ]


def rows(log: Log) -> list[Row]:
    return [(r.offset, r.time_us, r.attr, r.payload) for r in log.records()]


def test_golden_files_are_read(golden: Path, expected: Expected) -> None:
    """Without writing anything: every record, reader and segment is as it was."""
    before = contents(golden)
    with Log(golden, read_only=True) as log:
        assert rows(log) == expected_rows(expected)
        assert (log.first_offset, log.next_offset) == (
            expected["first_offset"],
            expected["next_offset"],
        )
        for record in expected["records"]:
            assert log.read(record["offset"]).payload.hex() == record["payload"]
        for offset in expected["removed"]:
            with pytest.raises(RecordRemoved):
                log.read(offset)
        assert {name: list(saved) for name, saved in log.readers().items()} == expected["readers"]
        assert [audit for audit in log.verify() if not audit.is_intact] == []
        assert [
            (info.id, info.first_offset, info.count, info.sealed, info.created_us)
            for info in log.segments()
        ] == [
            (s["id"], s["first_offset"], s["count"], s["sealed"], s["created_us"])
            for s in expected["segments"]
        ]
    assert contents(golden) == before


def test_golden_readers_resume(golden: Path, expected: Expected) -> None:
    """Files of 8, 16 and 24 bytes name the places they always did."""
    offsets = [record["offset"] for record in expected["records"]]
    with Log(golden, read_only=True) as log:
        for name, (_, offset) in expected["readers"].items():
            with log.reader(name) as reader:
                assert [record.offset for record in reader] == [n for n in offsets if n >= offset]


def test_golden_times_are_found(golden: Path, expected: Expected) -> None:
    """By bisection, over all segments."""
    with Log(golden, read_only=True) as log:
        for record in expected["records"]:
            found = log.offset_at(moment(record["time_us"]))
            assert log.offset_at(moment(record["time_us"] + 1)) > record["offset"]
            assert found <= record["offset"]


def test_golden_files_are_columns(golden: Path, expected: Expected) -> None:
    """The same records, without a loop."""
    pytest.importorskip("pyarrow")
    with Log(golden, read_only=True) as log:
        found = [
            row
            for stretch in log.columns()
            for row in zip(
                stretch.offset.tolist(),
                stretch.time_us.tolist(),
                stretch.attr.tolist(),
                stretch.payload.to_pylist(),
                strict=True,
            )
        ]
    assert found == expected_rows(expected)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_golden_logs_are_continued(
    golden: Path, expected: Expected, sync: SyncName, exclusive: bool
) -> None:
    """A writer of today goes on at the next offset, in the same segment, with the same limits."""
    before = {name: data for name, data in contents(golden).items() if name.endswith(".q")}
    with Log(golden, sync=sync, exclusive=exclusive) as log:
        assert rows(log) == expected_rows(expected)
        assert log.append(b"more") == expected["next_offset"]
        log.append_many([b"and", b"more"])
        assert len(log.segments()) == len(expected["segments"])
        for _ in range(2 * SEGMENT_ITEMS):
            log.append(b"still more")
        assert len(log.segments()) > len(expected["segments"])
    with Log(golden, sync=sync) as log:
        assert rows(log)[: len(expected["records"])] == expected_rows(expected)
        assert log.next_offset == expected["next_offset"] + 3 + 2 * SEGMENT_ITEMS
        assert [audit for audit in log.verify() if not audit.is_intact] == []
    sealed = [f"{s['id']:09d}.q" for s in expected["segments"] if s["sealed"]]
    after = contents(golden)
    assert {name: after[name] for name in sealed} == {name: before[name] for name in sealed}


def test_a_second_reader_agrees(expected: Expected) -> None:
    """One that was written from the description of the format finds the same."""
    found: list[Row] = []
    removed: list[int] = []
    for segment in expected["segments"]:
        decoded = decode_segment(GOLDEN / f"{segment['id']:09d}.q")
        assert (decoded.id, decoded.first_offset, decoded.count, decoded.sealed) == (
            segment["id"],
            segment["first_offset"],
            segment["count"],
            segment["sealed"],
        )
        assert decoded.bytes_max == SMALL_SEGMENT_BYTES
        found += decoded.rows
        removed += decoded.removed

    assert found == expected_rows(expected)
    assert removed == expected["removed"]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_the_same_bytes_are_written_today(scratch: Path, sync: SyncName) -> None:
    """Whatever the sync mode. If this fails the format has changed: see generate.py."""
    write_log(scratch / "log", sync=sync)
    written = dict(files_of(scratch / "log"))
    golden = dict(files_of(GOLDEN))

    assert list(written) == list(golden)
    assert [name for name in golden if written[name] != golden[name]] == []


def test_the_same_bytes_are_written_without_the_compiled_twin(scratch: Path) -> None:
    """Python alone writes the same format."""
    code = (
        "import sys, pathlib; from tests.golden.generate import write_log;"
        "from segue.log.hot import COMPILED; assert not COMPILED;"
        "write_log(pathlib.Path(sys.argv[1]), sync='os')"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(scratch / "log")],
        env={**os.environ, "SEGUE_PURE_PYTHON": "1"},
        cwd=HERE.parent.parent,
        check=True,
    )

    assert files_of(scratch / "log") == files_of(GOLDEN)


def test_golden_files_are_small_and_as_they_were(expected: Expected) -> None:
    """Nobody has touched them since they were generated."""
    import hashlib

    found = files_of(GOLDEN)
    assert {name: hashlib.sha256(data).hexdigest() for name, data in found} == expected["sha256"]
    assert sum(len(data) for _, data in found) < SIZE_BYTES_MAX
