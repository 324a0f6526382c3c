"""What the demo shows: progress bars, findings, and the table at its end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

Row = tuple[str, str, str]
NAME_WIDTH: Final = 34


class Bars:
    """Progress bars by their names, made when they are first moved."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def move(self, name: str, done: int, of: int) -> None:
        """Show how far something is."""
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(f"{name:<{NAME_WIDTH}}", total=of)
        self._progress.update(self._bars[name], completed=done, total=of)


class Screen:
    """A terminal gets colours and moving bars, anything else plain lines."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._console = Console(stderr=to_stderr, highlight=False)

    def act(self, title: str) -> None:
        """Begin another part of the story."""
        self._console.print(f"\n[bold]{title}[/]")

    def say(self, text: str) -> None:
        """Tell one finding."""
        self._console.print(f"  {text}", soft_wrap=True, markup=False)

    def fail(self, text: str) -> None:
        """Tell what is not as it should be."""
        self._console.print(f"  {text}", style="red", soft_wrap=True, markup=False)

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Show progress bars while the block runs; what they came to stays."""
        with Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        ) as progress:
            yield Bars(progress)

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """Show what came of it all."""
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)
