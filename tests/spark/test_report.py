from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import segue
from segue.delivery.topic_record import Event
from segue.errors import InvalidArgument, LogNotFound, TopicNotFound
from segue.spark.jobs.report import PAGE, Report, _require_own, report
from segue.spark.jobs.report_page import Bars, Lines, Note, Section, Table, page
from segue.stores.opening import open_directory
from tests.integration.cli_support import ask
from tests.unit.support import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VOID = {"meta", "line", "polyline", "circle", "rect", "br"}
HOSTILE = "<script>alert('x')</script> & \"more\""


class Page(HTMLParser):
    """What is on a page: its words, and whether every tag is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def work(store_path: Path) -> ManualClock:
    """Make a topic, a queue in which messages waited and ran for known times, and one at rest."""
    clock = ManualClock()
    with open_directory(store_path, sync="os", clock=clock) as store:
        store.topic("orders").append_many(
            [Event(value=b"v", timestamp=clock.now_us + 60_000_000 * minute) for minute in range(5)]
        )
        queue = store.queue("mail", segue.QueueRules(max_deliveries=2))
        for number in range(4):
            queue.push(b"message %d" % number, priority=1)
        clock.advance(seconds=10)
        for _ in range(2):
            job = queue.lease()
            clock.advance(seconds=3)
            queue.ack(job)
        for _ in range(2):
            job = queue.lease()
            clock.advance(seconds=7)
            queue.nack(job, outcome="fail", delay=0, reason=HOSTILE)
        store.queue("idle").push(b"waits", priority=5)
    return clock


@dataclass(frozen=True, kw_only=True)
class Made:
    """A report of the store that `work` makes, for all tests to look at."""

    store_path: Path
    target: Path
    report: Report

    def rows(self, spark: "SparkSession", table: str) -> list[dict[str, Any]]:
        frame = spark.read.parquet(str(self.report.tables[table]))
        return [row.asDict() for row in frame.collect()]


@pytest.fixture(scope="module")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("report")
    work(root / "store")
    target = root / "100 % of it"
    return Made(
        store_path=root / "store",
        target=target,
        report=report(spark, root / "store", to=target),
    )


@pytest.mark.long
class TestReport:
    def test_its_directory_may_have_any_name(self, made: Made) -> None:
        """What is no URL is not taken for one: all of it lies where it was asked for."""
        assert made.report.page == made.target / "report.html"
        assert made.report.page.exists()
        assert {path.parent for path in made.report.tables.values()} == {made.target}
        assert all(any(path.glob("*.parquet")) for path in made.report.tables.values())

    def test_waits_and_runs_are_told_to_the_second(self, spark: "SparkSession", made: Made) -> None:
        """Waits from push to first delivery, runs from lease to end."""
        times = {row["what"]: row for row in made.rows(spark, "times")}

        assert (times["wait"]["count"], times["wait"]["max"]) == (3, 16.0)
        assert (times["wait"]["p50"], times["wait"]["p99"]) == (13.0, 16.0)
        assert (times["run"]["count"], times["run"]["p50"], times["run"]["max"]) == (4, 3.0, 7.0)
        assert made.report.period == "minute"
        assert set(made.report.since) == {"mail", "idle"}

    def test_throughput_and_depth_are_those_of_the_store(
        self, spark: "SparkSession", made: Made
    ) -> None:
        """Every record counts once, in its minute; what waits is told by priority and state."""
        records: Counter[tuple[str, str]] = Counter()
        for row in made.rows(spark, "throughput"):
            records[row["kind"], row["name"]] += row["records"]

        assert records == {("topic", "orders"): 5, ("queue", "mail"): 4, ("queue", "idle"): 1}
        assert {
            (row["queue"], row["priority"], row["state"]): row["messages"]
            for row in made.rows(spark, "depth")
        } == {("mail", 1, "ready"): 1, ("mail", 1, "dead"): 1, ("idle", 5, "ready"): 1}

    def test_retries_and_deaths_are_counted(self, spark: "SparkSession", made: Made) -> None:
        """By attempt, by how deliveries ended, and by what letters died of."""
        outcomes: Counter[str] = Counter()
        for row in made.rows(spark, "outcomes"):
            outcomes[row["outcome"]] += row["messages"]

        assert outcomes == {"acked": 2, "failed": 1, "dead": 1}
        attempts = {row["attempt"]: row["deliveries"] for row in made.rows(spark, "attempts")}
        assert attempts == {1: 3, 2: 1}
        deaths = made.rows(spark, "deaths")
        assert [(row["cause"], row["letters"]) for row in deaths] == [("failed", 1)]

    def test_the_page_is_whole_and_nothing_in_it_is_taken_for_html(self, made: Made) -> None:
        """Reasons are written by whoever fails: they are shown, and never run."""
        text = made.report.page.read_text()
        seen = Page(text)

        assert "script" not in seen.tags
        assert "<script" not in text
        assert seen.links == []
        assert "http" not in text
        assert "prefers-color-scheme:dark" in text
        assert "<script>alert('…')</script> & \"…\"" in seen.text
        assert "Queue mail" in seen.text
        assert "wait 3 13 16 16 16" in seen.text
        assert "run 4 3 7 7 7" in seen.text
        assert "known since 2023-11-14 22:13" in seen.text
        assert "tells of no delivery" in seen.text
        assert seen.tags.count("svg") >= 5

    def test_what_is_not_there_is_an_error(
        self, spark: "SparkSession", made: Made, scratch: Path
    ) -> None:
        """And leaves no directory behind; somebody else's directory stays as it is."""
        with pytest.raises(TopicNotFound):
            report(spark, made.store_path, topic="order", to=scratch / "report")
        with pytest.raises(LogNotFound, match="no queue post"):
            report(spark, made.store_path, queue="post", to=scratch / "report")
        assert not (scratch / "report").exists()
        with pytest.raises(InvalidArgument, match="holds something else"):
            report(spark, made.store_path, to=made.store_path)


class TestDirectory:
    def test_only_an_earlier_report_is_replaced(self, tmp_path: Path) -> None:
        """A directory with other files is refused, and a missing one is created."""
        (tmp_path / "other.csv").touch()
        with pytest.raises(InvalidArgument, match="holds something else"):
            _require_own(tmp_path)
        (tmp_path / PAGE).touch()
        _require_own(tmp_path)
        _require_own(tmp_path / "new")

        assert (tmp_path / "new").is_dir()


class TestPage:
    def test_all_text_is_escaped(self) -> None:
        """Names, cells, captions and legends alike."""
        series = {HOSTILE: [(0, 1.0), (60, 2.0)]}
        text = page(
            HOSTILE,
            [(HOSTILE, HOSTILE)],
            [
                Section(
                    title=HOSTILE,
                    parts=[
                        Note(text=HOSTILE),
                        Table(columns=(HOSTILE,), rows=[(HOSTILE,)]),
                        Lines(title=HOSTILE, series=series, unit=HOSTILE),
                        Bars(title=HOSTILE, values=[(HOSTILE, 1)]),
                    ],
                )
            ],
        )

        assert "<script" not in text
        assert Page(text).text.count(HOSTILE) >= 10

    @pytest.mark.parametrize("points", [[], [(0, 0.0)], [(0, 5.0)], [(0, 1e-9), (10**9, 1e12)]])
    def test_any_series_can_be_drawn(self, points: list[tuple[int, float]]) -> None:
        """None at all, one point, nothing but zero, very small and very large."""
        Page(page("t", [], [Section(title="s", parts=[Lines(title="l", series={"a": points})])]))


class TestCommand:
    @pytest.mark.long
    def test_a_report_replaces_the_one_before_and_says_where_it_is(self, made: Made) -> None:
        """The page, the tables, and since when times are known."""
        said = ask(
            *("spark", "report", made.store_path, made.target, "--queue", "mail", "--json"),
        )

        assert said.code == 0
        assert said.json["page"] == str(made.target / "report.html")
        assert {row["table"] for row in said.json_rows["tables"]} >= {"throughput", "deaths"}
        assert [row["queue"] for row in said.json_rows["queues"]] == ["mail"]
        assert "orders" not in made.report.page.read_text()
