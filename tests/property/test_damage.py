"""One flipped bit, anywhere: nothing wrong is returned, and it costs at most its own batch."""

import contextlib
import random
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from segue import Log
from segue.errors import CorruptPosition, Damage
from tests.conftest import TORTURE
from tests.property.specimen import (
    STATES,
    Answer,
    Specimen,
    State,
    ask,
    disk_in,
    expect_nothing_wrong,
    make_specimen,
)
from tests.unit.support import SMALL_SEGMENT_BYTES
from tests.waiting import LIMIT_SECONDS

CALLS = [
    [b"one"],
    [b""],
    [b"three", b"", b"five"],
    [b"six and a few bytes more"],
    # A segment ends here.
    [b"seven"],
    [b"eight", b"nine"],
    [b""],
    [b"eleven", b"", b"thirteen"],
]
SEGMENTS = ["000000000.q", "000000001.q"]
LIVE_BYTES = 96

states = pytest.mark.parametrize("state", STATES)


def make(scratch: Path, state: State) -> Specimen:
    return make_specimen(
        scratch / "original",
        state,
        calls=CALLS,
        segment_bytes=SMALL_SEGMENT_BYTES,
        segment_items=12,
        roll_after=4,
    )


def flips(specimen: Specimen, name: str, state: State, *, half: int) -> Iterator[tuple[int, int]]:
    """Yield position and bit: all of them, or as many as there is time for.

    In the short run each byte is flipped in one state and by one of the two tests that use this,
    which take one `half` each, 0 or 1. Only what holds a batch together is always flipped bit by
    bit.
    """
    used = specimen.used_positions(name)
    if TORTURE:
        yield from ((position, bit) for position in used for bit in range(8))
        return
    links = specimen.link_positions(name)
    yield from ((position, bit) for position in links for bit in range(8))
    for position in used[2 * STATES.index(state) + half :: 2 * len(STATES)]:
        yield position, position * 5 % 8


def flips_of_bytes(count: int, state: State) -> Iterator[tuple[int, int]]:
    for position in range(count):
        for bit in range(8):
            if TORTURE or (position + bit) % len(STATES) == STATES.index(state):
                yield position, bit


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


class Tries:
    """Goes through many flips and reports all that failed, not only the first."""

    FAILURES_MAX = 20

    def __init__(self, specimen: Specimen, directory: Path, name: str) -> None:
        self._specimen = specimen
        self._directory = directory
        self._name = name
        self._failures: list[str] = []

    def each(self, flips: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield position and bit of each flip once the log lies there with it."""
        for position, bit in flips:
            self._specimen.lay_out(self._directory)
            data = flipped(self._specimen.files[self._name], position, bit)
            (self._directory / self._name).write_bytes(data)
            yield position, bit
        assert self._failures == []

    @contextlib.contextmanager
    def checking(self, position: int, bit: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            lines = str(error).splitlines() or [""]
            self._failures.append(
                f"bit {bit} of byte {position} of {self._name}: {type(error).__name__} {lines[0]}"
            )
            if len(self._failures) == self.FAILURES_MAX:
                raise AssertionError("\n".join(self._failures)) from error


def open_twice(specimen: Specimen, directory: Path, state: State) -> Answer:
    """Open, ask and close twice; the answers must agree."""
    answers = []
    for _ in range(2):
        with specimen.open(directory, state) as log:
            answers.append(ask(log, len(specimen.records)))

    assert answers[0] == answers[1]
    return answers[0]


def expect_at_most_lost(
    specimen: Specimen, answer: Answer, hit: range, *, may_be_cut: bool
) -> None:
    """Check that only the records in `hit` are gone, and that somebody is told."""
    expect_nothing_wrong(specimen, answer)
    assert answer.first_offset == 0
    if may_be_cut and hit and answer.next_offset == hit.start:
        before = specimen.records[: hit.start]
        assert (answer.raised, answer.plain, answer.skipped_to) == (None, before, before)
        return
    assert answer.skipped_to == [record for record in specimen.records if record.offset not in hit]
    assert answer.next_offset == len(specimen.records)
    assert {offset for offset, found in answer.read.items() if isinstance(found, str)} == set(hit)
    if hit:
        assert answer.raised == "CorruptRecord"
        assert answer.plain == specimen.records[: hit.start]
        assert not answer.intact


@pytest.mark.parametrize("name", SEGMENTS, ids=["sealed", "active"])
@states
def test_one_flipped_bit_in_a_segment_costs_at_most_its_batch(
    scratch: Path, state: State, name: str
) -> None:
    """Both openings agree, all other records are read, the damage is reported, appending goes on.

    Only in the active segment, and only after a crash and a restart, when nothing is left that
    knows better, may a batch be taken for one that was never finished. Then it and what follows
    is cut (docs/adr/0007), and kept in quarantine if an intact batch is among it.
    """
    specimen = make(scratch, state)
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, name)
    for position, bit in tries.each(flips(specimen, name, state, half=0)):
        with tries.checking(position, bit):
            hit = specimen.hit_by(name, position)
            may_be_cut = state == "crashed, restarted" and name == SEGMENTS[-1]
            answer = open_twice(specimen, directory, state)
            expect_at_most_lost(specimen, answer, hit, may_be_cut=may_be_cut)
            if may_be_cut and hit and hit != specimen.last_batch():
                assert list((directory / "quarantine").iterdir()) or not answer.intact
            with specimen.open(directory, state) as log:
                assert log.append(b"next") == answer.next_offset
                assert log.read(answer.next_offset).payload == b"next"


@pytest.mark.parametrize("name", SEGMENTS, ids=["sealed", "active"])
@states
def test_a_flipped_bit_is_seen_without_repairing_anything(
    scratch: Path, state: State, name: str
) -> None:
    """Who opens only to read gets the same records and the same report as who opens to write."""
    specimen = make(scratch, state)
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, name)
    for position, bit in tries.each(flips(specimen, name, state, half=1)):
        with tries.checking(position, bit):
            hit = specimen.hit_by(name, position)
            may_be_cut = state == "crashed, restarted" and name == SEGMENTS[-1]
            with Log(directory, read_only=True, disk=disk_in(state)) as log:
                answer = ask(log, len(specimen.records))
            expect_at_most_lost(specimen, answer, hit, may_be_cut=may_be_cut)


@pytest.mark.parametrize("name", ["index.meta", "live"])
@states
def test_a_flipped_bit_beside_the_segments_costs_nothing(
    scratch: Path, state: State, name: str
) -> None:
    """The hint is no evidence, and the live words are derived anew by whoever opens alone."""
    specimen = make(scratch, state)
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, name)
    for position, bit in tries.each(
        flips_of_bytes(16 if name == "index.meta" else LIVE_BYTES, state)
    ):
        with tries.checking(position, bit):
            answer = open_twice(specimen, directory, state)
            expect_at_most_lost(specimen, answer, range(0), may_be_cut=False)
            assert answer.intact
            with specimen.open(directory, state) as log:
                assert log.append(b"next") == len(specimen.records)


@states
def test_a_flipped_bit_in_the_live_words_misleads_no_reader(scratch: Path, state: State) -> None:
    """Who only reads must believe them, but returns nothing wrong and always comes to an end."""
    specimen = make(scratch, state)
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, "live")
    for position, bit in tries.each(flips_of_bytes(LIVE_BYTES, state)):
        with (
            tries.checking(position, bit),
            within(seconds=LIMIT_SECONDS),
            Log(directory, read_only=True, disk=disk_in(state)) as log,
            contextlib.suppress(Damage, LookupError),
        ):
            expect_nothing_wrong(specimen, ask(log, len(specimen.records)))


@states
def test_a_flipped_bit_in_a_readers_position_is_told_to_that_reader(
    scratch: Path, state: State
) -> None:
    """It never begins anywhere else; the log and its records do not mind."""
    specimen = make(scratch, state)
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, "readers/reader.meta")
    for position, bit in tries.each(flips_of_bytes(24, state)):
        with tries.checking(position, bit), specimen.open(directory, state) as log:
            with pytest.raises(CorruptPosition):
                log.reader("reader")
            assert list(log.records()) == specimen.records
            assert log.cleanup() == []
            assert log.repair().readers == ["reader"]


@pytest.mark.parametrize("name", SEGMENTS, ids=["sealed", "active"])
@states
def test_bytes_of_another_log_do_not_pass_for_this_ones(
    scratch: Path, state: State, name: str
) -> None:
    """What a recycled block may still hold, with checksums that were valid there, is damage."""
    specimen, other = make(scratch / "a", state), make(scratch / "b", state)
    directory = scratch / "damaged"
    specimen.lay_out(directory)
    (directory / name).write_bytes(specimen.files[name][:4096] + other.files[name][4096:])
    foreign = {offset for batch in specimen.batches[name] for offset in batch.offsets}
    with specimen.open(directory, state) as log:
        answer = ask(log, len(specimen.records))

        assert foreign.isdisjoint(record.offset for record in answer.plain)
        assert isinstance(answer.read[min(foreign)], str)
        assert state == "crashed, restarted" or not answer.intact


@contextlib.contextmanager
def within(*, seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer: what never ends must not stop the run."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


STRIDE = 53 if TORTURE else 499
"""A segment has half a million bits, and an opening takes 2 ms: this is a sample of them."""
LARGE_BYTES = 65_536


@pytest.mark.parametrize("state", ["closed", "closed, restarted"])
@pytest.mark.parametrize("name", SEGMENTS, ids=["sealed", "active"])
def test_bits_of_a_larger_segment(scratch: Path, name: str, state: State) -> None:
    """The same for a segment of 64 KiB, the unused bytes included; other bytes in each long run."""
    calls = [[bytes([number]) * (number * 37 % 300)] * (1 + number % 4) for number in range(120)]
    specimen = make_specimen(
        scratch / "original",
        state,
        calls=calls,
        segment_bytes=LARGE_BYTES,
        segment_items=400,
        roll_after=60,
    )
    directory = scratch / "damaged"
    tries = Tries(specimen, directory, name)
    first = random.randrange(STRIDE) if TORTURE else 0
    flips = (
        (position, bit)
        for position in range(first, LARGE_BYTES, STRIDE)
        for bit in (range(8) if TORTURE else (position * 5 % 8,))
    )
    for position, bit in tries.each(flips):
        with tries.checking(position, bit), specimen.open(directory, state) as log:
            hit = specimen.hit_by(name, position)
            kept = [record for record in specimen.records if record.offset not in hit]
            assert list(log.records(on_damage="skip")) == kept
            assert all(audit.is_intact for audit in log.verify()) or hit or position < 4096
            assert log.next_offset == len(specimen.records)
