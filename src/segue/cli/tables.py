"""What a terminal gets: tables, colour and a progress bar. Loaded only where there is one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from segue.cli.output import NOTHING, Column, Facts, Kind, Rows, Section, Value
from segue.cli.text import human_seconds, human_size, human_time, visible

_RIGHT: Final = (Kind.COUNT, Kind.SIZE, Kind.SECONDS)
_STYLES: Final = {
    "intact": "green",
    "damaged": "bold red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}


def show_tables(sections: Sequence[Section]) -> None:
    """Print an answer for people. Long values are folded, never cut."""
    console = Console(highlight=False)
    for section in sections:
        if isinstance(section, Facts):
            console.print(facts_table(section))
        elif section.rows:
            console.print(Text(section.name, style="bold"))
            console.print(rows_table(section))


@contextmanager
def progress_bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error that goes away at the end; yield what moves it on."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(visible(doing), total=total)
        yield lambda count: bar.advance(task, count)


def facts_table(facts: Facts) -> Table:
    """Return single values as a table without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    titles = [_title(column) for column, _ in facts.items]
    for title, (column, value) in zip(titles, facts.items, strict=True):
        # With its unit where it takes that to tell two apart: keep seconds, keep bytes.
        own = title if titles.count(title) == 1 else column.key.replace("_", " ")
        table.add_row(own, _cell(column, value))
    return table


def rows_table(section: Rows) -> Table:
    """Return rows as a table, without the columns that say nothing."""
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, collapse_padding=True)
    # A column that says nothing only takes room from the others.
    places = [
        place
        for place in range(len(section.columns))
        if any(row[place] is not None for row in section.rows)
    ]
    for place in places:
        column = section.columns[place]
        table.add_column(
            _title(column),
            justify="right" if column.kind in _RIGHT else "left",
            no_wrap=column.kind is not Kind.TEXT,  # Half a number is worse than a narrow column.
            overflow="fold",
        )
    for row in section.rows:
        table.add_row(*(_cell(section.columns[place], row[place]) for place in places))
    return table


def _title(column: Column) -> str:
    return column.key.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def _cell(column: Column, value: Value) -> Text:
    if value is None:
        return Text(NOTHING, style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, str):
        return Text(visible(value), style=_STYLES.get(value, ""))
    if column.kind is Kind.TIME:
        return Text(human_time(int(value)))
    if column.kind is Kind.SIZE:
        return Text(human_size(value))
    if column.kind is Kind.SECONDS:
        return Text(human_seconds(value))
    return Text(f"{value:,}")
