"""Finding damage: what `verify` says, and what reading past it gives."""

from itertools import islice
from pathlib import Path

import pytest

from segue import Log
from segue.errors import CorruptRecord, CorruptSegment
from tests.unit.support import (
    SECOND_HEADER,
    contents,
    destroy_header,
    fill,
    flip_bit,
    offsets,
    segment_path,
    slot_position,
    small_log,
    traces,
)


@pytest.fixture
def directory(scratch: Path) -> Path:
    """A log of ten records over three segments, batches among them; closed, to be damaged."""
    directory = scratch / "log"
    with small_log(directory, segment_items=4) as log:
        fill(log, 2)
        log.append_many([b"batch 2", b"batch 3"])
        fill(log, 4, first=4)
        log.append_many([b"batch 8", b"batch 9"])
    return directory


def test_a_healthy_log_is_intact(directory: Path) -> None:
    """Every segment is checked and counted."""
    with Log(directory, read_only=True) as log:
        audits = list(log.verify())

    assert [audit.is_intact for audit in audits] == [True, True, True]
    assert [audit.id for audit in audits] == [0, 1, 2]
    assert [audit.path for audit in audits] == [segment_path(directory, id_) for id_ in range(3)]
    assert [(audit.first_offset, audit.end_offset) for audit in audits] == [(0, 4), (4, 8), (8, 10)]
    assert [audit.records for audit in audits] == [4, 4, 2]
    assert [audit.removed for audit in audits] == [0, 0, 0]
    assert [audit.sealed for audit in audits] == [True, True, False]
    assert [audit.payload_bytes for audit in audits] == [30, 32, 14]
    assert [audit.damaged for audit in audits] == [[], [], []]
    assert [audit.problem for audit in audits] == [None, None, None]


def test_an_empty_log_is_intact(scratch: Path) -> None:
    """Its one segment holds nothing, correctly."""
    with small_log(scratch / "new") as log:
        assert [(audit.is_intact, audit.records) for audit in log.verify()] == [(True, 0)]


def test_verifying_changes_nothing(directory: Path) -> None:
    """Neither on a healthy log nor on a damaged one, which raises nothing."""
    flip_bit(segment_path(directory, 0), slot_position(2))
    destroy_header(segment_path(directory, 1))
    before = (traces(directory), contents(directory))
    with Log(directory, read_only=True) as log:
        list(log.verify())

    assert (traces(directory), contents(directory)) == before


@pytest.mark.parametrize(
    ("id_", "slot", "damaged"),
    [
        (0, 0, (0, 0)),
        (0, 1, (1, 1)),
        (0, 2, (2, 3)),
        (0, 3, (2, 3)),
        (1, 3, (7, 7)),
        (2, 1, (8, 9)),
    ],
)
def test_a_damaged_slot_costs_its_batch(
    directory: Path, id_: int, slot: int, damaged: tuple[int, int]
) -> None:
    """Verify names the batch, reading it raises, skipping it gives all the others."""
    path = segment_path(directory, id_)
    flip_bit(path, slot_position(slot) + 5, 3)
    intact = [offset for offset in range(10) if not damaged[0] <= offset <= damaged[1]]
    with Log(directory, read_only=True) as log:
        (audit,) = [audit for audit in log.verify() if not audit.is_intact]
        assert audit.id == id_
        assert [(found.first_offset, found.last_offset) for found in audit.damaged] == [damaged]
        assert audit.damaged[0].position == slot_position(damaged[0] - (audit.first_offset or 0))

        assert offsets(log.records(on_damage="skip")) == intact
        for offset in range(10):
            if offset in intact:
                assert log.read(offset).offset == offset
            else:
                with pytest.raises(CorruptRecord) as raised:
                    log.read(offset)
                assert raised.value.path == path
                assert damaged[0] <= raised.value.first_offset <= offset
                assert offset <= raised.value.last_offset <= damaged[1]


def test_a_damaged_payload_costs_its_batch(directory: Path) -> None:
    """Bytes of a record that changed are never returned, those beside it are."""
    position = segment_path(directory, 0).read_bytes().index(b"batch 3")
    flip_bit(segment_path(directory, 0), position)
    with Log(directory, read_only=True) as log:
        assert offsets(log.records(on_damage="skip")) == [0, 1, 4, 5, 6, 7, 8, 9]
        with pytest.raises(CorruptRecord) as raised:
            list(log.records())

    assert (raised.value.first_offset, raised.value.last_offset) == (2, 3)
    assert "000000000.q" in str(raised.value)


def test_iteration_yields_what_comes_before_the_damage(directory: Path) -> None:
    """And raises when it gets there, each time it is tried."""
    flip_bit(segment_path(directory, 1), slot_position(2))
    with Log(directory, read_only=True) as log:
        records = log.records()
        assert offsets(islice(records, 6)) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(CorruptRecord):
            next(records)
        with pytest.raises(CorruptRecord):
            list(log.records(6))
        assert offsets(log.records(7)) == [7, 8, 9]


def test_a_reader_counts_what_it_skipped(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Skipping is a choice, and it is warned of."""
    flip_bit(segment_path(directory, 0), slot_position(2))
    flip_bit(segment_path(directory, 1), slot_position(0))
    with small_log(directory) as log, log.reader("r", on_damage="skip") as reader:
        assert offsets(reader) == [0, 1, 5, 6, 7, 8, 9]
        assert reader.skipped == 3
        assert (reader.position, reader.lag) == (10, 0)

    assert caplog.text.count("skipped damage") == 2


def test_a_reader_stays_in_front_of_damage(directory: Path) -> None:
    """It raises again until somebody decides; seeking past it is one way."""
    flip_bit(segment_path(directory, 1), slot_position(0))
    with small_log(directory) as log, log.reader("r") as reader:
        assert offsets(reader.read()) == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                reader.read()
            assert reader.position == 4
        reader.seek(5)
        assert offsets(reader) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("copy", [0, SECOND_HEADER])
@pytest.mark.parametrize("at", [0, 9, 20, 512, 530], ids=lambda at: f"at {at}")
def test_one_copy_of_the_header_is_enough(directory: Path, copy: int, at: int) -> None:
    """Everything is readable, and verify says that a copy is damaged."""
    flip_bit(segment_path(directory, 1), copy + at)
    with Log(directory, read_only=True) as log:
        assert offsets(log.records()) == list(range(10))
        audits = list(log.verify())

    assert [audit.is_intact for audit in audits] == [True, False, True]
    assert "header" in (audits[1].problem or "")
    assert audits[1].records == 4


@pytest.mark.parametrize("how", ["destroyed", "missing", "truncated", "empty"])
def test_a_segment_that_cannot_be_read_hides_no_other(directory: Path, how: str) -> None:
    """Reading by offset says which offsets are gone; skipping goes on after them."""
    damage(segment_path(directory, 1), how)
    with small_log(directory) as log:
        assert not all(audit.is_intact for audit in log.verify())
        assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 3, 8, 9]
        with pytest.raises(CorruptSegment):
            list(log.records())
        for offset in range(10):
            if 4 <= offset < 8:
                with pytest.raises(CorruptSegment):
                    log.read(offset)
            else:
                assert log.read(offset).offset == offset
        assert (log.first_offset, log.next_offset) == (0, 10)


@pytest.mark.parametrize("how", ["destroyed", "truncated", "empty"])
def test_a_damaged_first_segment_is_not_passed_over_in_silence(directory: Path, how: str) -> None:
    """It was not trimmed: whoever reads from the earliest record on is told."""
    damage(segment_path(directory, 0), how)
    with small_log(directory) as log:
        with pytest.raises(CorruptSegment):
            list(log.records())
        with pytest.raises(CorruptSegment):
            log.read(0)
        assert offsets(log.records(on_damage="skip")) == [4, 5, 6, 7, 8, 9]


def test_a_header_damaged_under_an_open_log_hides_no_other_segment(scratch: Path) -> None:
    """What was remembered of the header must not lead skipping past intact segments."""
    directory = scratch / "open"
    with small_log(directory) as log:
        fill(log, 14)
        assert len(list(log.records())) == 14
        destroy_header(segment_path(directory, 1))
        with pytest.raises(CorruptSegment):
            list(log.records())

        assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 3, *range(8, 14)]


def test_appending_goes_on_after_damage(directory: Path) -> None:
    """A damaged log takes records, under new offsets."""
    flip_bit(segment_path(directory, 2), slot_position(0))
    destroy_header(segment_path(directory, 1))
    with small_log(directory) as log:
        assert log.append(b"new") == 10
        assert log.read(10).payload == b"new"
    with small_log(directory) as log:
        assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 3, 10]


def damage(path: Path, how: str) -> None:
    if how == "destroyed":
        destroy_header(path)
    elif how == "missing":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(0 if how == "empty" else 60)
            if how == "truncated":
                file.truncate(59)
