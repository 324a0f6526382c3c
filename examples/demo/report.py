"""The outcome as one HTML page: tables and plots, nothing to fetch."""

from collections import defaultdict
from pathlib import Path

from examples.demo.outcome import Outcome
from segue.spark.jobs.report_page import Bars, Lines, Note, Section, Table, page


def write_report(outcome: Outcome, path: Path) -> None:
    """Write the page, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(outcome), encoding="utf-8")


def _page(outcome: Outcome) -> str:
    facts = [(name, f"{count} ({why})" if why else count) for name, count, why in outcome.rows()]
    sections = (
        _queue(outcome),
        _killed(outcome),
        _revenue(outcome),
        _dead(outcome),
        _checks(outcome),
    )
    return page("Segue: the demo", facts, sections)


def _queue(outcome: Outcome) -> Section:
    moments = {int(sample.at): sample for sample in outcome.samples}
    series = {
        "sent": [(at, float(sample.sent)) for at, sample in moments.items()],
        "done": [(at, float(sample.done)) for at, sample in moments.items()],
        "waiting, delayed or at work": [(at, float(each.waiting)) for at, each in moments.items()],
    }
    repeated = sorted(outcome.totals.repeated.items())
    return Section(
        title="The queue while orders came in",
        parts=(
            Lines(title="messages", series=series),
            Note(text="Runs beyond the first, and what made each of them necessary:"),
            Table(columns=("reason", "runs"), rows=repeated),
        ),
    )


def _killed(outcome: Outcome) -> Section:
    return Section(
        title="A worker was killed with SIGKILL",
        parts=(
            Note(text="What it had in its hands, and when others had it."),
            Table(
                columns=("message", "seconds later", "attempt"),
                rows=[(each.work, each.after_seconds, each.attempt) for each in outcome.returns],
            ),
        ),
    )


def _revenue(outcome: Outcome) -> Section:
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for hour, item, cents in sorted(outcome.result.revenue):
        series[item].append((hour, cents / 100))
    return Section(
        title="Revenue by the hour, as Spark summed it up",
        parts=(Lines(title="by item", series=series),),
    )


def _dead(outcome: Outcome) -> Section:
    cents = outcome.result.dead_cents
    rows = [(why, count, cents.get(why, 0) / 100) for why, count in outcome.reasons.most_common()]
    return Section(
        title="Dead letters",
        parts=(
            Bars(title="orders by their fate", values=list(outcome.result.fates.items())),
            Note(text="What they died of, and what was not earned: orders joined with letters."),
            Table(columns=("reason", "letters", "not earned"), rows=rows),
        ),
    )


def _checks(outcome: Outcome) -> Section:
    rows = [
        (check.name, check.expected, check.found, "right" if check.is_right else "WRONG")
        for check in outcome.checks()
    ]
    return Section(
        title="What must hold",
        parts=(Table(columns=("what", "expected", "found", ""), rows=rows),),
    )
