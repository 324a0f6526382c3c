"""A segment file that ends too early, at any byte: what is whole is kept, what is gone is told."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from segue.errors import CorruptSegment
from tests.conftest import TORTURE
from tests.property.specimen import (
    STATES,
    Answer,
    Specimen,
    State,
    ask,
    expect_nothing_wrong,
    make_specimen,
)
from tests.property.test_damage import CALLS, SEGMENTS
from tests.unit.support import HEADER_BYTES, SMALL_SEGMENT_BYTES

UNUSED_STRIDE = 29
"""One in so many unused bytes is cut at in the long run."""
HEADER_COPY_BYTES = 60
"""Whoever has this much of the file can tell which segment it was."""


def points(specimen: Specimen, name: str, state: State) -> Iterable[int]:
    """Every length at which something ends, or as many as there is time for.

    Then every state takes other bytes; only the ends of slots, payloads and links are always tried.
    """
    size_bytes = len(specimen.files[name])
    if TORTURE:
        first = random.randrange(UNUSED_STRIDE)
        return sorted({*specimen.used_positions(name), *range(first, size_bytes, UNUSED_STRIDE)})
    edges = {HEADER_COPY_BYTES - 1, HEADER_COPY_BYTES, HEADER_BYTES - 1, HEADER_BYTES}
    edges.update(specimen.link_positions(name))
    for batch in specimen.batches[name]:
        for span in batch.spans:
            edges.update((span.stop - 1, span.stop))
    used = specimen.used_positions(name)[STATES.index(state) :: 2 * len(STATES)]
    return sorted(edges | set(used) | set(range(0, size_bytes, 1021)))


def surviving(specimen: Specimen, name: str, cut: int) -> set[int]:
    """Return the offsets whose bytes are all still there."""
    kept = {
        offset
        for other, batches in specimen.batches.items()
        if other != name
        for batch in batches
        for offset in batch.offsets
    }
    for batch in specimen.batches[name]:
        if batch.end <= cut:
            kept.update(batch.offsets)
    return kept


def expect_the_whole_ones(specimen: Specimen, answer: Answer, name: str, cut: int) -> None:
    expect_nothing_wrong(specimen, answer)
    found = {record.offset for record in answer.skipped_to}
    assert found <= surviving(specimen, name, cut)
    if cut >= HEADER_COPY_BYTES:
        assert found == surviving(specimen, name, cut)
    else:
        assert found >= surviving(specimen, name, 0)


@pytest.mark.parametrize("state", STATES)
def test_a_sealed_segment_cut_anywhere_keeps_what_is_whole(scratch: Path, state: State) -> None:
    """It is sealed, so what is missing is damage: told to whoever reads it, and to verify."""
    specimen = make_small(scratch, state)
    name = SEGMENTS[0]
    failures = []
    for cut in points(specimen, name, state):
        try:
            answer = open_cut(specimen, scratch / "damaged", state, name, cut)
            expect_the_whole_ones(specimen, answer, name, cut)
            assert answer.next_offset == len(specimen.records)
            lost = len(specimen.records) - len(answer.skipped_to)
            assert answer.raised in ((None,) if not lost else ("CorruptRecord", "CorruptSegment"))
            assert not (lost and answer.intact)
        except Exception as error:  # noqa: BLE001 - all of them are reported at the end
            failures.append(f"cut at {cut}: {type(error).__name__} {str(error).splitlines()[:1]}")
    assert failures[:20] == []


@pytest.mark.parametrize("state", STATES)
def test_an_active_segment_cut_anywhere_keeps_what_is_whole(scratch: Path, state: State) -> None:
    """And takes records again.

    What was certainly there, because a process of this boot published it, is not forgotten: its
    offsets are not given to others, and whoever reads them is told. After a restart only the hint
    could know, and that is no evidence.
    """
    specimen = make_small(scratch, state)
    name = SEGMENTS[1]
    failures = []
    for cut in points(specimen, name, state):
        try:
            answer = open_cut(specimen, scratch / "damaged", state, name, cut)
            expect_the_whole_ones(specimen, answer, name, cut)
            if not state.endswith("restarted"):
                lost = len(specimen.records) - len(answer.skipped_to)
                assert answer.next_offset == len(specimen.records), "offsets are given again"
                assert not (lost and answer.intact), "the loss is not reported"
        except Exception as error:  # noqa: BLE001 - all of them are reported at the end
            failures.append(f"cut at {cut}: {type(error).__name__} {str(error).splitlines()[:1]}")
    assert failures[:20] == []


@pytest.mark.parametrize("cut", [0, 1, HEADER_COPY_BYTES - 1, HEADER_COPY_BYTES])
@pytest.mark.parametrize("state", STATES)
def test_an_only_segment_that_was_cut_does_not_make_offsets_anew(
    scratch: Path, state: State, cut: int
) -> None:
    """A log that lost everything says so, or goes on where it was; it does not start over.

    Unless nobody can know: after a restart, with a header that names an empty segment.
    """
    may_forget = ["crashed, restarted"]
    if cut == HEADER_COPY_BYTES:
        may_forget.append("closed, restarted")
    specimen = make_specimen(
        scratch / "original",
        state,
        calls=[[b"one"], [b"two", b"three"]],
        segment_bytes=SMALL_SEGMENT_BYTES,
        segment_items=12,
        roll_after=None,
    )
    specimen.lay_out(scratch / "damaged")
    path = scratch / "damaged" / SEGMENTS[0]
    with path.open("r+b") as file:
        file.truncate(cut)
    try:
        with specimen.open(scratch / "damaged", state) as log:
            next_offset = log.append(b"next")
            assert next_offset == 3 or state in may_forget
    except CorruptSegment as error:
        assert error.path == path  # noqa: PT017 - either outcome will do


def make_small(scratch: Path, state: State) -> Specimen:
    return make_specimen(
        scratch / "original",
        state,
        calls=CALLS,
        segment_bytes=SMALL_SEGMENT_BYTES,
        segment_items=12,
        roll_after=4,
    )


def open_cut(specimen: Specimen, directory: Path, state: State, name: str, cut: int) -> Answer:
    """Cut a segment, open twice, append in between; the first two answers must agree."""
    specimen.lay_out(directory)
    (directory / name).write_bytes(specimen.files[name][:cut])
    answers = []
    for _ in range(2):
        with specimen.open(directory, state) as log:
            answers.append(ask(log, len(specimen.records)))
    assert answers[0] == answers[1]
    with specimen.open(directory, state) as log:
        assert log.append(b"next") == answers[0].next_offset
        assert log.read(answers[0].next_offset).payload == b"next"
    return answers[0]


STRIDE = 353 if TORTURE else 40_009
"""An opening of such a segment takes 8 ms: this is a sample of the million lengths."""
LARGE_BYTES = 1 << 20


@pytest.mark.parametrize("state", ["closed", "closed, restarted"])
@pytest.mark.parametrize("name", SEGMENTS, ids=["sealed", "active"])
def test_lengths_of_a_large_segment(scratch: Path, name: str, state: State) -> None:
    """The same for a segment of 1 MiB, cut at many bytes; at other ones in each long run."""
    calls = [[bytes([number % 256]) * (number * 37 % 3000)] for number in range(1_200)]
    specimen = make_specimen(
        scratch / "original",
        state,
        calls=calls,
        segment_bytes=LARGE_BYTES,
        segment_items=700,
        roll_after=600,
    )
    first = random.randrange(STRIDE) if TORTURE else 0
    for cut in range(LARGE_BYTES - 1 - first, HEADER_BYTES, -STRIDE):
        specimen.lay_out(scratch / "damaged")
        with (scratch / "damaged" / name).open("r+b") as file:
            file.truncate(cut)
        with specimen.open(scratch / "damaged", state) as log:
            found = list(log.records(on_damage="skip"))
            kept = surviving(specimen, name, cut)
            whole = [record for record in specimen.records if record.offset in kept]
            assert found == whole, f"cut at {cut}"
