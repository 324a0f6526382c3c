"""Sets of offsets, kept as runs."""

from segue.delivery.ranges import OffsetRanges


def ranges_of(*runs: tuple[int, int]) -> OffsetRanges:
    ranges = OffsetRanges()
    for start, stop in runs:
        ranges.add(start, stop)
    return ranges


def test_neighbours_become_one_run() -> None:
    """In whatever order they come: a million of them take the room of two numbers."""
    forward = ranges_of(*[(number, number + 1) for number in range(1_000)])
    backward = ranges_of(*[(number, number + 1) for number in reversed(range(1_000))])
    between = ranges_of((0, 5), (10, 15), (5, 10))

    assert forward.runs() == backward.runs() == [(0, 1_000)]
    assert between.runs() == [(0, 15)]


def test_what_overlaps_is_counted_once() -> None:
    """An offset is in the set or not."""
    ranges = ranges_of((0, 10), (5, 15), (0, 3), (12, 13))

    assert (ranges.runs(), len(ranges)) == ([(0, 15)], 15)


def test_removing_from_the_middle_leaves_both_ends() -> None:
    """One run becomes two."""
    ranges = ranges_of((0, 10))
    ranges.remove(4, 6)

    assert (ranges.runs(), len(ranges)) == ([(0, 4), (6, 10)], 8)
    assert (3 in ranges, 4 in ranges, 5 in ranges, 6 in ranges) == (True, False, False, True)


def test_removing_reaches_over_several_runs() -> None:
    """And over what is not there."""
    ranges = ranges_of((0, 4), (6, 8), (10, 14))
    ranges.remove(2, 12)
    ranges.remove(50, 60)

    assert (ranges.runs(), len(ranges)) == ([(0, 2), (12, 14)], 4)


def test_an_empty_set_has_no_first() -> None:
    """Nothing is in it, and nothing can be removed from it."""
    ranges = ranges_of((3, 3), (5, 4))
    ranges.remove(0, 100)

    assert (ranges.first, len(ranges), list(ranges), 0 in ranges) == (None, 0, [], False)


def test_the_first_is_the_lowest() -> None:
    """Whatever came first."""
    ranges = ranges_of((20, 30), (5, 6), (10, 12))
    first = ranges.first
    ranges.remove(5, 6)

    assert (first, ranges.first) == (5, 10)
