"""Appending: what is taken, what is refused, and that a refusal writes nothing."""

from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from segue import Log
from segue.errors import BatchTooLarge, InvalidArgument, RecordTooLarge
from segue.log.options import SyncName
from tests.unit.support import (
    SMALL_PAYLOAD_BYTES,
    SMALL_SEGMENT_BYTES,
    Index,
    ManualClock,
    contents,
    failing_cases,
    offsets,
    payloads,
    segment_ids,
    small_log,
)

ATTR_MAX = (1 << 64) - 1

modes = pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
syncs = pytest.mark.parametrize("sync", ["always", "interval", "os"])


@modes
@syncs
def test_offsets_count_records_from_zero(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """An offset is the number of records before it, whether they came singly or in batches."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        given = [
            log.append(b"a"),
            log.append_many([b"b", b"c"]),
            log.append(b"d"),
            log.append_many([b"e"]),
            log.append_many([b"f", b"g", b"h"]),
        ]

        assert given == [0, 1, 3, 4, 5]
        assert offsets(log.records()) == list(range(8))
        assert payloads(log.records()) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
        assert (log.first_offset, log.next_offset, len(log)) == (0, 8, 8)


@modes
@pytest.mark.parametrize(
    "payload",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(b"m-e-m-o-r-y")[::2],
        memoryview(array("H", [1, 2, 3])),
        type("Child", (bytes,), {})(b"a subclass"),
        b"",
        bytearray(),
        bytes(range(256)) * 4,
    ],
    ids=lambda payload: f"{type(payload).__name__}-{len(payload)}",
)
def test_anything_that_is_bytes_is_a_payload(
    directory: Path, exclusive: bool, payload: bytes | bytearray | memoryview
) -> None:
    """A payload comes back as plain bytes of the same content, however it was handed in."""
    with small_log(directory, exclusive=exclusive) as log:
        log.append(payload)
        log.append_many([payload, b"between", payload])
        read = [record.payload for record in log.records()]

        assert read == [bytes(payload), bytes(payload), b"between", bytes(payload)]
        assert {type(item) for item in read} == {bytes}


@modes
def test_a_buffer_may_be_reused_after_an_append(directory: Path, exclusive: bool) -> None:
    """The log has taken its copy when the call returns."""
    buffer = bytearray(b"first")
    with small_log(directory, exclusive=exclusive) as log:
        log.append(buffer)
        buffer[:] = b"other"
        log.append_many([buffer])
        buffer[:] = b"third"

        assert payloads(log.records()) == [b"first", b"other"]


@modes
@pytest.mark.parametrize("payload", ["text", 5, None, ["list"], array("B", b"array")])
def test_what_is_not_bytes_is_refused(directory: Path, exclusive: bool, payload: object) -> None:
    """A string has no bytes until somebody chooses an encoding; nothing is written."""
    with small_log(directory, exclusive=exclusive) as log:
        log.append(b"before")
        before = contents(directory)
        with pytest.raises(InvalidArgument):
            log.append(payload)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            log.append_many([b"good", payload])  # type: ignore[list-item]

        assert contents(directory) == before
        assert log.next_offset == 1


@modes
@syncs
def test_attrs_are_64_bits_of_the_callers(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """The whole range of an unsigned 64-bit number is kept; without one an attr is 0."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        log.append(b"none")
        log.append(b"most", attr=ATTR_MAX)
        log.append_many([b"a", b"b", b"c"], attrs=[0, 1 << 63, ATTR_MAX])
        log.append_many([b"d", b"e"])

        assert [record.attr for record in log.records()] == [
            0,
            ATTR_MAX,
            0,
            1 << 63,
            ATTR_MAX,
            0,
            0,
        ]


@modes
@syncs
def test_an_attr_beyond_64_bits_is_refused(
    directory: Path, exclusive: bool, sync: SyncName
) -> None:
    """An attr that does not fit is an error of the caller; nothing is written."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        log.append(b"before")
        before = contents(directory)

        def check(attr: object) -> None:
            with pytest.raises(InvalidArgument):
                log.append(b"x", attr=attr)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                log.append_many([b"x", b"y"], attrs=[0, attr])  # type: ignore[list-item]
            assert contents(directory) == before

        assert failing_cases(check, [-1, ATTR_MAX + 1, 1.5, "1", None]) == []
        assert log.append(b"after") == 1
        assert payloads(log.records()) == [b"before", b"after"]


@modes
@syncs
def test_a_number_that_is_no_int_is_taken_or_refused(
    directory: Path, exclusive: bool, sync: SyncName
) -> None:
    """As NumPy's are: in every mode alike, singly or in a batch, and never by another error."""
    outcomes = set()
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        appends: list[Callable[[], int]] = [
            lambda: log.append(b"x", attr=Index(7)),  # type: ignore[arg-type]
            lambda: log.append_many([b"x"], attrs=[Index(7)]),  # type: ignore[list-item]
            lambda: log.append_many([b"x", b"y"], attrs=[Index(7), 7]),  # type: ignore[list-item]
        ]
        for append in appends:
            try:
                append()
                outcomes.add("taken")
            except InvalidArgument:
                outcomes.add("refused")

        assert len(outcomes) == 1
        assert {record.attr for record in log.records()} <= {7}


@pytest.mark.parametrize("attrs", [[], [1], [1, 2, 3]])
def test_a_batch_has_as_many_attrs_as_payloads(directory: Path, attrs: list[int]) -> None:
    """Attrs that cannot be matched to payloads are refused."""
    with small_log(directory) as log:
        with pytest.raises(InvalidArgument):
            log.append_many([b"a", b"b"], attrs=attrs)

        assert log.next_offset == 0


@modes
@syncs
def test_an_empty_batch_writes_nothing(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """It returns the offset the next record will have."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        assert log.append_many([]) == 0
        log.append(b"a")
        before = contents(directory)

        assert log.append_many([]) == 1
        assert log.append_many(iter(())) == 1
        assert contents(directory) == before


def test_a_batch_may_come_from_a_generator(directory: Path) -> None:
    """Any iterable will do."""
    with small_log(directory) as log:
        log.append_many(b"%d" % number for number in range(3))

        assert payloads(log.records()) == [b"0", b"1", b"2"]


def test_empty_payloads_are_records(directory: Path) -> None:
    """A record without bytes takes an offset and is read like any other."""
    with small_log(directory) as log:
        log.append(b"")
        log.append_many([b"", b"x", b""])

        assert payloads(log.records()) == [b"", b"", b"x", b""]
        assert [log.read(offset).payload for offset in range(4)] == [b"", b"", b"x", b""]


@modes
@syncs
@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_a_record_that_fits_no_segment_is_refused(
    directory: Path, exclusive: bool, sync: SyncName, make: Callable[[int], bytes | bytearray]
) -> None:
    """The error names both sizes, and not a byte of the directory has changed."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        log.append(b"before")
        before = contents(directory)
        with pytest.raises(RecordTooLarge) as refused:
            log.append(make(SMALL_PAYLOAD_BYTES + 1))

        assert contents(directory) == before
        assert refused.value.size_bytes == SMALL_PAYLOAD_BYTES + 1
        assert refused.value.size_bytes_max == SMALL_PAYLOAD_BYTES
        assert log.append(make(SMALL_PAYLOAD_BYTES)) == 1


@modes
@syncs
@pytest.mark.parametrize(
    "batch",
    [[b"x"] * 5, [b"x" * SMALL_PAYLOAD_BYTES, b"x"], [b"x" * (SMALL_PAYLOAD_BYTES + 1)]],
    ids=["items", "bytes", "one record"],
)
def test_a_batch_that_fits_no_segment_is_refused(
    directory: Path, exclusive: bool, sync: SyncName, batch: list[bytes]
) -> None:
    """One batch lives in one segment; a larger one is refused whole, before anything changes."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        log.append(b"before")
        before = contents(directory)
        with pytest.raises(BatchTooLarge):
            log.append_many(batch)

        assert contents(directory) == before
        assert log.append_many([b"x" * (SMALL_PAYLOAD_BYTES - 3), b"x", b"x", b"x"]) == 1


def test_a_batch_that_never_ends_is_refused(directory: Path) -> None:
    """No more of an iterator is taken than could be stored."""

    def endless(taken: list[int]) -> "object":
        while True:
            taken.append(1)
            yield b"x"

    taken: list[int] = []
    with small_log(directory) as log:
        with pytest.raises(BatchTooLarge):
            log.append_many(endless(taken))  # type: ignore[arg-type]

        assert len(taken) == 5


def test_a_refusal_does_not_roll_a_full_segment(directory: Path) -> None:
    """An append that is refused leaves no new segment behind, however full the active one is."""
    with small_log(directory, segment_items=1) as log:
        log.append(b"fills it")
        before = contents(directory)
        for _ in range(2):
            with pytest.raises(InvalidArgument):
                log.append(b"x", attr=-1)
            with pytest.raises(InvalidArgument):
                log.append_many([b"x"], attrs=[-1])
            with pytest.raises(RecordTooLarge):
                log.append(bytes(SMALL_PAYLOAD_BYTES + 1))

        assert contents(directory) == before
        assert segment_ids(log) == [0]


def test_a_refusal_does_not_roll_an_old_segment(directory: Path, clock: ManualClock) -> None:
    """Nor when the active segment is past its age."""
    with Log(
        directory, segment_bytes=SMALL_SEGMENT_BYTES, segment_age=1, sync="os", clock=clock
    ) as log:
        log.append(b"old")
        clock.advance(seconds=10)
        before = contents(directory)
        with pytest.raises(RecordTooLarge):
            log.append(bytes(SMALL_PAYLOAD_BYTES + 1))
        with pytest.raises(InvalidArgument):
            log.append(b"x", attr=-1)
        with pytest.raises(InvalidArgument):
            log.append_many([b"x"], attrs=[-1])

        assert contents(directory) == before
        assert segment_ids(log) == [0]


@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "bytearray"])
def test_what_fits_does_not_depend_on_its_type(
    directory: Path, make: Callable[[int], bytes | bytearray]
) -> None:
    """A log reopened with smaller segments takes or refuses a record, not a type."""
    with Log(directory, segment_bytes=65_536, sync="os") as log:
        log.append(b"in a roomy segment")
    with small_log(directory) as log:
        refused = []
        for payload in (bytes(5_000), make(5_000)):
            try:
                log.append(payload)
                refused.append(False)
            except RecordTooLarge:
                refused.append(True)

        assert refused[0] == refused[1]
