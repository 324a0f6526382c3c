"""A verb's answer as a value, and the three ways to show it: tables, plain lines, JSON.

A terminal gets tables, colour and rounded sizes. A pipe gets lines of tab-separated fields, exact
and never cut. `--json` gives one JSON object. Records are no answer in this sense: `payloads.py`
writes them.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final

from segue.cli.text import iso_time, visible
from segue.values import dataclass

Value = str | int | float | bool | None
Json = dict[str, "Json"] | list["Json"] | Value
NOTHING: Final = "-"


class Kind(Enum):
    """What a value is, which decides how people see it."""

    TEXT = "text"
    COUNT = "count"
    SIZE = "size"
    """In bytes."""
    TIME = "time"
    """In microseconds since 1970."""
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Column:
    """The name of a value and what it is. Not keyword-only: there are many and they read well."""

    key: str
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Single values, each under its name."""

    items: Sequence[tuple[Column, Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table. In plain lines each row begins with `mark`, if there is one."""

    name: str
    mark: str | None = None
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]


Section = Facts | Rows


def show(*sections: Section, as_json: bool) -> None:
    """Print an answer in the way that suits whoever reads it."""
    if as_json:
        document: dict[str, Json] = {}
        for section in sections:
            document.update(_as_json(section))
        show_json(document)
    elif is_terminal():
        # Imported here: loading rich takes longer than most commands.
        from segue.cli.tables import show_tables

        show_tables(sections)
    else:
        for section in sections:
            sys.stdout.writelines(_plain_lines(section))


def show_json(document: dict[str, Json]) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json_text(document) + "\n")


def show_value(value: Json, *, indent: bool) -> None:
    """Print any JSON value; over several lines if it should be and a person reads it."""
    sys.stdout.write(json_text(value, indent=indent and is_terminal()) + "\n")


def json_text(value: Json, *, indent: bool = False) -> str:
    """Return a JSON value as text that any file can hold."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if indent else None)
    try:
        text.encode()
    except UnicodeEncodeError:  # Half a character, which JSON can say and UTF-8 cannot.
        text = json.dumps(value, indent=2 if indent else None)
    return text


def show_line(line: str) -> None:
    """Print one line."""
    sys.stdout.write(line + "\n")


def is_terminal() -> bool:
    """Tell whether a person sees the output."""
    return sys.stdout.isatty()


@contextmanager
def progress(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal; yield what moves it on by a number."""
    if sys.stderr.isatty() and total > 0:
        from segue.cli.tables import progress_bar

        with progress_bar(doing, total) as advance:
            yield advance
    else:
        yield lambda count: None


def _as_json(section: Section) -> dict[str, Json]:
    if isinstance(section, Facts):
        return _exact_values(*zip(*section.items, strict=True))
    rows: list[Json] = [_exact_values(section.columns, row) for row in section.rows]
    return {section.name: rows}


def _exact_values(columns: Sequence[Column], values: Sequence[Value]) -> dict[str, Json]:
    return {
        column.key: _exact(column, value) for column, value in zip(columns, values, strict=True)
    }


def _exact(column: Column, value: Value) -> Value:
    return iso_time(value) if column.kind is Kind.TIME and isinstance(value, int) else value


def _plain_lines(section: Section) -> Iterator[str]:
    if isinstance(section, Facts):
        for column, value in section.items:
            yield f"{column.key}\t{_plain(column, value)}\n"
        return
    mark = [] if section.mark is None else [section.mark]
    for row in section.rows:
        cells = [_plain(*cell) for cell in zip(section.columns, row, strict=True)]
        yield "\t".join(mark + cells) + "\n"


def _plain(column: Column, value: Value) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(str(_exact(column, value)))
