"""The pure rules of retention: facts and a time in, ids out."""

from collections.abc import Sequence

import pytest

from segue.errors import InvalidArgument
from segue.log.layout import Offset, SegmentId
from segue.log.positions import SavedPosition
from segue.log.retention import RetentionLimits, SegmentFacts, segments_to_delete

NOW_US = 1_000_000


def segment(id_: int, *, end: int, size_bytes: int = 100, last_time_us: int = 0) -> SegmentFacts:
    return SegmentFacts(
        id=SegmentId(id_), end_offset=Offset(end), size_bytes=size_bytes, last_time_us=last_time_us
    )


def reader(segment_id: int, offset: int) -> SavedPosition:
    return SavedPosition(SegmentId(segment_id), Offset(offset))


SEGMENTS = [
    segment(5, end=10, last_time_us=100),
    segment(6, end=20, last_time_us=200),
    segment(8, end=40, last_time_us=300),
]
"""Ids begin anywhere and may have gaps; the active one, after 40, is not among them."""


def deleted(
    readers: Sequence[SavedPosition] = (),
    *,
    segments: Sequence[SegmentFacts] = tuple(SEGMENTS),
    age_us_max: int | None = None,
    bytes_max: int | None = None,
    lag_max: int | None = None,
) -> list[int]:
    return list(
        segments_to_delete(
            segments,
            readers,
            RetentionLimits(age_us_max=age_us_max, bytes_max=bytes_max, lag_max=lag_max),
            active_bytes=50,
            next_offset=Offset(45),
            now_us=NOW_US,
        )
    )


def test_no_readers_and_no_limits_delete_nothing() -> None:
    """The absence of readers is not their consent."""
    assert deleted() == []


@pytest.mark.parametrize(
    ("readers", "expected"),
    [
        ([reader(0, 0)], []),
        ([reader(5, 0)], []),
        ([reader(6, 10)], [5]),
        ([reader(7, 20)], [5, 6]),
        ([reader(8, 20)], [5, 6]),
        ([reader(9, 40)], [5, 6, 8]),
        ([reader(99, 999)], [5, 6, 8]),
        ([reader(9, 45), reader(6, 12)], [5]),
        ([reader(9, 45), reader(9, 45), reader(5, 3)], []),
    ],
)
def test_what_every_reader_has_left_behind_goes(
    readers: list[SavedPosition], expected: list[int]
) -> None:
    """Ids strictly below that of the slowest reader."""
    assert deleted(readers) == expected


@pytest.mark.parametrize(
    ("age_us_max", "expected"),
    [
        (NOW_US, []),
        (NOW_US - 100, []),
        (NOW_US - 101, [5]),
        (NOW_US - 201, [5, 6]),
        (NOW_US - 301, [5, 6, 8]),
        (0, [5, 6, 8]),
    ],
)
def test_segments_older_than_the_age_go(age_us_max: int, expected: list[int]) -> None:
    """With or without readers; equality stays."""
    assert deleted(age_us_max=age_us_max) == expected
    assert deleted([reader(5, 0)], age_us_max=age_us_max) == expected


def test_age_leaves_no_gap() -> None:
    """A segment behind a younger one stays: only the head of the log is trimmed."""
    jumbled = [segment(0, end=10, last_time_us=900_000), segment(1, end=20, last_time_us=5)]

    assert deleted(segments=jumbled, age_us_max=500_000) == []


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (350, []),
        (349, [5]),
        (250, [5]),
        (249, [5, 6]),
        (150, [5, 6]),
        (149, [5, 6, 8]),
        (0, [5, 6, 8]),
    ],
)
def test_the_oldest_go_beyond_the_size(bytes_max: int, expected: list[int]) -> None:
    """The active segment counts but never goes; equality stays."""
    assert deleted(bytes_max=bytes_max) == expected
    assert deleted([reader(5, 0)], bytes_max=bytes_max) == expected


@pytest.mark.parametrize(
    ("lag_max", "expected"),
    [
        (45, []),
        (36, []),
        (35, [5]),
        (26, [5]),
        (25, [5, 6]),
        (6, [5, 6]),
        (5, [5, 6, 8]),
        (0, [5, 6, 8]),
    ],
)
def test_a_late_reader_is_kept_to_the_lag(lag_max: int, expected: list[int]) -> None:
    """It holds back whole segments that reach into the last `lag_max` records, and no more."""
    assert deleted([reader(5, 0)], lag_max=lag_max) == expected


def test_a_reader_within_the_lag_is_respected() -> None:
    """The lag is a cap, not a right to take away what a reader still wants."""
    assert deleted([reader(6, 12)], lag_max=33) == [5]
    assert deleted([reader(6, 12)], lag_max=1_000) == [5]


def test_the_lag_alone_deletes_nothing() -> None:
    """It is about readers, and there are none."""
    assert deleted(lag_max=0) == []


def test_limits_add_up() -> None:
    """What goes for any reason goes; the others begin where it left off."""
    assert deleted([reader(6, 10)], age_us_max=NOW_US - 201) == [5, 6]
    assert deleted([reader(6, 10)], bytes_max=249) == [5, 6]
    assert deleted(age_us_max=NOW_US - 101, bytes_max=150) == [5, 6]


def test_an_empty_log_has_nothing_to_delete() -> None:
    """Nor do limits find anything."""
    assert deleted([reader(9, 9)], segments=[], age_us_max=0, bytes_max=0, lag_max=0) == []


@pytest.mark.parametrize("name", ["age_us_max", "bytes_max", "lag_max"])
def test_limits_are_not_negative(name: str) -> None:
    """A limit is valid once built."""
    with pytest.raises(InvalidArgument):
        RetentionLimits(**{name: -1})
