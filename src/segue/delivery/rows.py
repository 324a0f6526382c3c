"""Small records as JSON arrays: written whole, read value by value, each as what it must be."""

import json
from collections.abc import Sequence
from typing import cast

Value = int | str | Sequence["Value"]


class Row:
    """The values of a record in order. What a later version adds behind them does not matter."""

    def __init__(self, values: object) -> None:
        """Raises ValueError if `values` are no list."""
        if not isinstance(values, list):
            raise ValueError("not a row")
        self._values = iter(cast("list[object]", values))

    def integer(self) -> int:
        """Return the next value. Raises ValueError if it is no whole number."""
        value = next(self._values, None)
        if type(value) is not int:
            raise ValueError(f"not a whole number: {value!r}")
        return value

    def text(self) -> str:
        """Return the next value. Raises ValueError if it is no text."""
        value = next(self._values, None)
        if not isinstance(value, str):
            raise ValueError(f"not a text: {value!r}")
        return value

    def rows(self) -> "list[Row]":
        """Return the rows that the next value holds. Raises ValueError if it holds none."""
        values = next(self._values, None)
        if not isinstance(values, list):
            raise ValueError("not a list of rows")
        return [Row(value) for value in cast("list[object]", values)]


def pack_row(kind: str, values: Sequence[Value]) -> bytes:
    """Return a record as bytes: its kind, then its values."""
    return json.dumps([kind, *values], separators=(",", ":")).encode()


def unpack_row(payload: bytes) -> tuple[str, Row]:
    """Return the kind of a record and its values. Raises ValueError if it is none."""
    row = Row(cast("object", json.loads(payload)))
    return row.text(), row
