"""What is ordered, and what is wrong with some of it. Pure: an order follows from its number."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

OPENING: Final = datetime(2026, 1, 31, 8, tzinfo=UTC)
DAY: Final = timedelta(hours=12)
CLOSING: Final = '{"item": "closing time"}'
"""The last record of the day. It is no order, and tells Spark that no hour is open any more."""
GARBLED_EACH: Final = 90
"""Of so many orders one comes with a line that nobody can read."""
GARBLED: Final = '{"order": "or'

_CUSTOMERS: Final = ("ada", "bob", "eve", "grace", "hedy", "joan", "linus", "mary")
_ITEMS: Final = ("apples", "bread", "cheese", "figs", "honey", "pears")
_CENTS: Final = (350, 220, 680, 590, 840, 410)
_RUSHES: Final = 3
"""How often a day the shop is full."""

FINE: Final = "fine"
SLOW: Final = "slow"
FLAKY: Final = "flaky"
REFUSED: Final = "refused"
BROKEN: Final = "broken"
_PAYMENTS_EACH: Final = {97: BROKEN, 61: REFUSED, 17: FLAKY, 11: SLOW}
"""How payments end that do not just work, and how rare they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order as the shop gets it."""

    order: str
    customer: str
    item: str
    cents: int
    payment: str

    def as_values(self) -> dict[str, str | int]:
        """Return it by name, as JSON has it."""
        return asdict(self)


def order_of(source: str, number: int) -> Order:
    """Return the order with a number: the same each time."""
    kind = number * 7 % len(_ITEMS)
    payment = next((how for each, how in _PAYMENTS_EACH.items() if number % each == each - 1), FINE)
    return Order(
        order=f"{source}-{number}",
        customer=_CUSTOMERS[number * 5 % len(_CUSTOMERS)],
        item=_ITEMS[kind],
        cents=_CENTS[kind] * (1 + number % 4),
        payment=payment,
    )


def placed_at(number: int, count: int) -> datetime:
    """Return when the order with a number of `count` was placed: most of them in a few rushes."""
    progress = number / count * _RUSHES
    rush = progress % 1
    return OPENING + DAY * ((int(progress) + rush * rush * (3 - 2 * rush)) / _RUSHES)


def has_garbled_line(number: int) -> bool:
    """Tell whether a line of noise comes with the order."""
    return number % GARBLED_EACH == GARBLED_EACH - 1
