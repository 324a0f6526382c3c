"""What counts as a priority."""

from enum import IntEnum

import pytest

from segue.delivery.priority import NAMES, PRIORITY_MAX, priority_from
from segue.errors import InvalidArgument
from tests.unit.support import Index


class Level(IntEnum):
    """A number that is an int, too."""

    URGENT = 0


@pytest.mark.parametrize("number", [0, 1, 7, 1_000, PRIORITY_MAX])
def test_any_whole_number_from_zero_on_is_a_priority(number: int) -> None:
    """As far as it fits into the ledger."""
    assert priority_from(number) == number


def test_four_numbers_have_names() -> None:
    """critical comes first."""
    assert {name: priority_from(name) for name in NAMES} == {  # type: ignore[arg-type]
        "critical": 0,
        "high": 1,
        "normal": 2,
        "low": 3,
    }


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        0.0,
        1.5,
        float("nan"),
        -1,
        PRIORITY_MAX + 1,
        1 << 64,
        "0",
        "",
        "HIGH",
        " high",
        b"high",
        None,
        [],
        {},
        Index(0),
        Level.URGENT,
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_else_is(value: object) -> None:
    """What is refused is named."""
    with pytest.raises(InvalidArgument, match="priority must be"):
        priority_from(value)  # type: ignore[arg-type]
