"""What the demo came to, and whether that is what it must be. Pure: facts in, rows out."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.demo.evidence import Totals
from examples.demo.orders import has_garbled_line, order_of

CLEAN: Final = "clean"
REVENUE: Final = "revenue"
FATES: Final = "fates"
ARCHIVE: Final = "archive"
RESULT: Final = "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the pipeline came to."""

    clean: int
    """Orders in the topic of clean ones."""
    revenue: Sequence[tuple[int, str, int]]
    """Hour, item and cents, as the topic of sums has them."""
    kept: int
    """Orders in Parquet,"""
    kept_once: int
    """and how many of them are different ones."""
    fates: Mapping[str, int]
    """Orders by what became of them."""
    dead_cents: Mapping[str, int]
    """What was not earned, by what its letter says."""
    archived: int
    in_table: int
    """Records in the archive and what came since, as one table."""
    segments_before: int
    segments_after: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A message that was in the hands of a killed worker, and how it came back."""

    work: str
    after_seconds: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How the queue stood at a moment."""

    at: float
    waiting: int
    sent: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Two numbers that must be the same, and how they came about."""

    name: str
    expected: int
    found: int

    @property
    def is_right(self) -> bool:
        """Tell whether they are."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the last table, the page and the exit code go by."""

    totals: Totals
    orders: Mapping[str, int]
    """How many orders each producer was to send."""
    dead_orders: int
    reasons: Counter[str]
    """Dead letters by what they say."""
    records: int
    """In the topic of orders, as it told itself."""
    returns: Sequence[Return]
    samples: Sequence[Sample]
    result: Result
    verified: int
    """Records that were checked, byte by byte, at the end."""
    driver_kills: int
    seconds: float

    def checks(self) -> Sequence[Check]:
        """Return what must hold, of the queue and of Spark."""
        sent = sum(self.orders.values())
        numbers = [(source, n) for source, count in self.orders.items() for n in range(count)]
        garbled = sum(has_garbled_line(number) for _, number in numbers)
        cents = sum(order_of(source, number).cents for source, number in numbers)
        result = self.result
        return (
            Check(
                name="sent, and done or dead",
                expected=sum(self.totals.sent.values()),
                found=self.totals.done + self.totals.dead,
            ),
            Check(name="lost", expected=0, found=len(self.totals.lost)),
            Check(name="run again for no reason", expected=0, found=self.totals.unexplained),
            Check(
                name="orders in the topic, noise and the closing included",
                expected=sent + garbled + 1,
                found=self.records,
            ),
            Check(name="Spark drivers killed", expected=1, found=self.driver_kills),
            Check(name="clean orders, after that", expected=sent, found=result.clean),
            Check(
                name="cents in the sums by the hour",
                expected=cents,
                found=sum(each[2] for each in result.revenue),
            ),
            Check(name="orders in Parquet", expected=sent, found=result.kept),
            Check(name="different orders in Parquet", expected=sent, found=result.kept_once),
            Check(
                name="orders that found their dead letter",
                expected=self.dead_orders,
                found=result.fates.get("dead", 0),
            ),
            Check(name="archived", expected=self.records, found=result.archived),
            Check(
                name="archive and live topic as one table",
                expected=self.records,
                found=result.in_table,
            ),
        )

    def wrong(self) -> Sequence[str]:
        """Return what does not hold, in words."""
        wrong = [
            f"{check.name}: {check.found:,} instead of {check.expected:,}"
            for check in self.checks()
            if not check.is_right
        ]
        if self.result.segments_after >= self.result.segments_before:
            wrong.append("retention freed nothing")
        if not self.returns:
            wrong.append("the killed worker had nothing in its hands")
        return wrong

    def rows(self) -> Sequence[tuple[str, str, str]]:
        """Return the table at the end: what, how many, and where that comes from."""
        totals, result = self.totals, self.result
        by_source = ", ".join(f"{count:,} {source}" for source, count in totals.sent.items())
        why = ", ".join(f"{count:,}: {reason}" for reason, count in totals.repeated.items())
        revenue = sum(each[2] for each in result.revenue) / 100
        return (
            ("sent", f"{sum(totals.sent.values()):,}", by_source),
            ("done", f"{totals.done:,}", f"in {totals.runs:,} runs"),
            ("retried", f"{totals.retried:,}", "and then done, or dead"),
            ("dead letters", f"{totals.dead:,}", "refused, hopeless, or deadly"),
            ("lost", f"{len(totals.lost):,}", ""),
            ("duplicate runs", f"{sum(totals.repeated.values()):,}", why),
            ("unexplained duplicates", f"{totals.unexplained:,}", ""),
            ("back from the killed worker", f"{len(self.returns):,}", self._slowest()),
            (
                "through Spark, once each",
                f"{result.clean:,}",
                f"drivers killed on the way: {self.driver_kills}",
            ),
            (
                "in Parquet, once each",
                f"{result.kept_once:,}",
                f"{result.fates.get('dead', 0):,} joined with their dead letters",
            ),
            ("revenue", f"{revenue:,.2f}", f"in {len(result.revenue):,} sums by hour and item"),
            (
                "archived",
                f"{result.archived:,}",
                self._freed(),
            ),
            ("checked at the end", f"{self.verified:,}", "records, every byte of them"),
            ("seconds", f"{self.seconds:.0f}", ""),
        )

    def _freed(self) -> str:
        result = self.result
        count = result.segments_before - result.segments_after
        return (
            f"retention freed {count:,} of {result.segments_before:,} segments,"
            f" {result.freed_bytes:,} bytes"
        )

    def _slowest(self) -> str:
        if not self.returns:
            return ""
        return f"the last after {max(each.after_seconds for each in self.returns):.1f} s"

    def as_values(self) -> dict[str, object]:
        """Return the totals for a program."""
        totals, result = self.totals, self.result
        return {
            "sent": sum(totals.sent.values()),
            "done": totals.done,
            "retried": totals.retried,
            "dead": totals.dead,
            "lost": len(totals.lost),
            "duplicates": dict(totals.repeated),
            "returned": len(self.returns),
            "clean": result.clean,
            "in_parquet": result.kept_once,
            "archived": result.archived,
            "segments_freed": result.segments_before - result.segments_after,
            "driver_kills": self.driver_kills,
            "wrong": list(self.wrong()),
        }

    def next_commands(self, kept: Path | None) -> Sequence[str]:
        """Return three commands that work here and now."""
        python = _short(Path(sys.executable))
        command = python.with_name("segue")
        store = _short(kept) if kept else "data"
        return (
            f"{command} doctor",
            f"{python} examples/quickstart.py",
            f"{command} dash {shlex.quote(str(store))}",
        )


def _short(path: Path) -> Path:
    return Path(os.path.relpath(path))
