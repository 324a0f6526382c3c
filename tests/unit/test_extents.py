"""What a log says of the parts of its segments, from headers alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segue import Log


@pytest.fixture
def log(scratch: Path) -> Iterator[Log]:
    """Four segments, the last one open; each record is as long as its offset says."""
    with Log(scratch, sync="os", segment_items=10) as log:
        for size in range(35):
            log.append(b"x" * size)
        yield log


def test_extents_are_cut_where_segments_begin(log: Log) -> None:
    """Each part lies in one segment, and says how many bytes it has."""
    extents = list(log.extents(5, 25))

    assert [(each.start, each.stop) for each in extents] == [(5, 10), (10, 20), (20, 25)]
    assert [each.size_bytes for each in extents] == [
        sum(range(5, 10)),
        sum(range(10, 20)),
        sum(range(20, 25)),
    ]


def test_extents_may_be_asked_for_within_extents(log: Log) -> None:
    """Nothing is held while the caller looks at one."""
    inner = [list(log.extents(each.start, each.stop)) for each in log.extents(0, 35)]

    assert [[(each.start, each.stop) for each in parts] for parts in inner] == [
        [(0, 10)],
        [(10, 20)],
        [(20, 30)],
        [(30, 35)],
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, 35), second=st.integers(0, 35))
def test_extents_cover_every_offset_once(log: Log, first: int, second: int) -> None:
    """Whatever is asked for, and in order."""
    start, stop = min(first, second), max(first, second)
    extents = list(log.extents(start, stop))

    assert [offset for low, high, _ in extents for offset in range(low, high)] == [
        *range(start, stop)
    ]
    assert sum(extent.size_bytes for extent in extents) == sum(range(start, stop))
