"""The demo's last table and its exit code go by checks that can fail."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.evidence import AFTER_KILL, UNEXPLAINED, Totals
from examples.demo.orders import has_garbled_line, order_of
from examples.demo.outcome import Outcome, Result, Return, Sample
from examples.demo.report import write_report
from examples.demo.screen import Screen

ORDERS = 100
CENTS = sum(order_of("library", number).cents for number in range(ORDERS))
RECORDS = ORDERS + sum(has_garbled_line(number) for number in range(ORDERS)) + 1

TOTALS = Totals(
    sent={"library": ORDERS, "catalogue": 4},
    done=101,
    dead=3,
    lost=frozenset(),
    retried=2,
    runs=106,
    repeated={AFTER_KILL: 2},
)
RESULT = Result(
    clean=ORDERS,
    revenue=[(0, "apples", CENTS - 5), (3600, "figs", 5)],
    kept=ORDERS,
    kept_once=ORDERS,
    fates={"sold": ORDERS - 2, "dead": 2},
    dead_cents={"the bank refused <b>": 700},
    archived=RECORDS,
    in_table=RECORDS,
    segments_before=10,
    segments_after=2,
    freed_bytes=8 * 16_384,
)
RIGHT = Outcome(
    totals=TOTALS,
    orders={"library": ORDERS},
    dead_orders=2,
    reasons=Counter({"the bank refused <b>": 2, "its process was ended": 1}),
    records=RECORDS,
    returns=[Return(work="library-10", after_seconds=1.9, attempt=2)],
    samples=[Sample(at=1.0, waiting=3, sent=5, done=2), Sample(at=2.0, waiting=0, sent=5, done=5)],
    result=RESULT,
    verified=500,
    driver_kills=1,
    seconds=60.0,
)


def test_an_outcome_in_which_everything_holds_has_nothing_wrong() -> None:
    assert RIGHT.wrong() == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (replace(RIGHT, totals=replace(TOTALS, lost={"library-3"})), "lost: 1 instead of 0"),
        (replace(RIGHT, totals=replace(TOTALS, done=100)), "sent, and done or dead"),
        (replace(RIGHT, totals=replace(TOTALS, repeated={UNEXPLAINED: 1})), "for no reason: 1"),
        (replace(RIGHT, records=RECORDS - 1), "orders in the topic"),
        (replace(RIGHT, returns=[]), "nothing in its hands"),
        (replace(RIGHT, driver_kills=0), "Spark drivers killed: 0 instead of 1"),
        (replace(RIGHT, result=replace(RESULT, clean=ORDERS + 1)), "clean orders"),
        (replace(RIGHT, result=replace(RESULT, revenue=[(0, "apples", CENTS - 1)])), "cents"),
        (replace(RIGHT, result=replace(RESULT, kept=ORDERS + 1)), "orders in Parquet: 101"),
        (replace(RIGHT, result=replace(RESULT, kept_once=99)), "different orders in Parquet"),
        (replace(RIGHT, result=replace(RESULT, fates={"sold": ORDERS})), "their dead letter"),
        (replace(RIGHT, result=replace(RESULT, archived=RECORDS - 1)), "archived"),
        (replace(RIGHT, result=replace(RESULT, in_table=RECORDS + 1)), "as one table"),
        (replace(RIGHT, result=replace(RESULT, segments_after=10)), "retention freed nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_does_not_hold_is_said(outcome: Outcome, said: str) -> None:
    """One fault, and the sentence that names it."""
    assert any(said in wrong for wrong in outcome.wrong()), outcome.wrong()


def test_commands_to_try_next_can_be_pasted() -> None:
    """Also if the store is kept where a name has a space."""
    *_, dash = RIGHT.next_commands(Path("my shop"))

    assert dash.endswith("segue dash 'my shop'")


def test_what_is_wrong_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands in brackets, as in JSON, is no markup."""
    Screen(to_stderr=False).fail('{"logs": ["a"], "b": [/]}')

    assert '{"logs": ["a"], "b": [/]}' in capsys.readouterr().out


def test_the_page_has_the_table_the_checks_and_nothing_unescaped(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_report(RIGHT, path)
    page = path.read_text()

    assert "<b>" not in page
    assert all(name in page for name, _, _ in RIGHT.rows())
    assert page.count(">right<") == len(RIGHT.checks())
