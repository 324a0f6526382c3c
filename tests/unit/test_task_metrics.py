"""What tasks came to, and how long they waited and ran."""

import builtins
import json
import random
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hdrh.histogram import HdrHistogram
from prometheus_client import CollectorRegistry, generate_latest

from segue.errors import InvalidArgument
from segue.tasks.metrics import (
    DIGITS_KEPT,
    DURATION_US_MAX,
    OTHER,
    OUTCOMES,
    RECENT_KEPT,
    SERIES_MAX,
    THROUGHPUTS_KEPT,
    Durations,
    Metrics,
    MetricsSnapshot,
    Outcome,
    Percentiles,
)
from segue.tasks.prometheus import BUCKETS_SECONDS, prometheus_collector

MS = 1_000
SECOND = 1_000_000

Record = tuple[str, str, Outcome, int | None, int | None]


def metrics_of(records: Iterable[Record]) -> Metrics:
    """Return metrics that have seen these."""
    metrics = Metrics()
    for record in records:
        metrics.record(*record)
    return metrics


def runs(durations_us: Iterable[int]) -> Metrics:
    """Return metrics of one task that ran for these durations."""
    return metrics_of(("send", "mail", "completed", 0, run_us) for run_us in durations_us)


def random_records(seed: int, count: int) -> list[Record]:
    """Return records of a few tasks over many orders of magnitude."""
    chance = random.Random(seed)
    return [
        (
            chance.choice(["send", "resize"]),
            chance.choice(["mail", "images"]),
            chance.choice(OUTCOMES),
            round(10 ** chance.uniform(0, 9)),
            chance.choice([None, round(10 ** chance.uniform(0, 11))]),
        )
        for _ in range(count)
    ]


def spread(percentiles: Percentiles) -> list[float]:
    """Return the percentiles alone."""
    return [percentiles.p50_ms, percentiles.p90_ms, percentiles.p99_ms, percentiles.max_ms]


def test_every_outcome_is_counted_for_its_task_and_queue() -> None:
    """The same task on another queue is another series; the total has them all.

    What is retried or dead has failed, too.
    """
    metrics = metrics_of(
        [
            ("send", "mail", "completed", 1, 1),
            ("send", "mail", "completed", 1, 1),
            ("send", "mail", "completed", 1, 1),
            ("send", "mail", "failed", 1, 1),
            ("send", "bulk", "retried", 1, 1),
            ("send", "bulk", "dead", 1, 1),
            ("resize", "mail", "cancelled", None, None),
            ("resize", "mail", "timeout", 1, 1),
        ]
    )
    snapshot = metrics.snapshot()

    assert [(series.task, series.queue) for series in snapshot.series] == [
        ("resize", "mail"),
        ("send", "bulk"),
        ("send", "mail"),
    ]
    assert snapshot.series[2].counts == dict.fromkeys(OUTCOMES, 0) | {"completed": 3, "failed": 1}
    assert snapshot.total.counts == dict.fromkeys(OUTCOMES, 1) | {"completed": 3, "failed": 3}


def test_an_unknown_outcome_is_refused() -> None:
    """And counts nowhere."""
    metrics = Metrics()
    with pytest.raises(InvalidArgument, match="completed, failed"):
        metrics.record("send", "mail", "done", 1, 1)  # type: ignore[arg-type]

    assert metrics.snapshot() == MetricsSnapshot()


def test_what_never_ran_has_no_duration() -> None:
    """A cancelled task must not look like a very fast one."""
    series = metrics_of([("send", "mail", "cancelled", 5 * MS, None)]).snapshot().series[0]

    assert series.wait.percentiles().count == 1
    assert series.run.percentiles() == Percentiles()


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 160, 1_000])
def test_percentiles_are_by_nearest_rank(count: int) -> None:
    """Of 1 to 1,000 ms, the 90th percentile is the first that at least 90 of 100 do not exceed."""
    durations_us = [(index + 1) * MS for index in range(count)]
    random.Random(count).shuffle(durations_us)
    exact = [float(-(-percent * count // 100)) for percent in (50, 90, 99, 100)]
    metrics = runs(durations_us)
    histogram = metrics.snapshot().series[0].run.percentiles()

    assert spread(Percentiles.of(durations_us)) == exact
    assert spread(metrics.recent()) == exact
    assert spread(histogram) == pytest.approx(exact, rel=0.01)
    assert (histogram.count, histogram.max_ms) == (count, count)
    assert histogram.mean_ms == pytest.approx((count + 1) / 2)


def test_no_samples_are_all_zeros() -> None:
    """Nothing has no percentiles, and no error either."""
    metrics = Metrics()

    assert metrics.recent() == Percentiles()
    assert metrics.snapshot().total.run.percentiles() == Percentiles()
    assert metrics.snapshot().total.per_second == 0
    assert Durations().counts_up_to([0, SECOND]) == [0, 0]


def test_durations_are_kept_within_their_limits() -> None:
    """A clock that was set back makes no negative wait, and a year no gap in the counts."""
    durations = runs([-5, 0, 400 * 86_400 * SECOND]).snapshot().series[0].run

    assert spread(durations.percentiles()) == [0, *[DURATION_US_MAX / MS] * 3]
    assert durations.counts_up_to([0, DURATION_US_MAX]) == [2, 3]


def test_recent_is_the_last_thousand() -> None:
    """Old ones go, and all tasks are in it."""
    metrics = runs([9 * SECOND] * 50)
    for _ in range(RECENT_KEPT):
        metrics.record("resize", "images", "failed", 0, 2 * MS)

    assert metrics.recent() == Percentiles(
        count=RECENT_KEPT, mean_ms=2, p50_ms=2, p90_ms=2, p99_ms=2, max_ms=2
    )


def test_what_is_recorded_is_what_the_histogram_would_have_had() -> None:
    """That values are rounded before they are counted changes nothing."""
    chance = random.Random(5)
    durations_us = [*range(2_000), *(round(10 ** chance.uniform(0, 12)) for _ in range(5_000))]
    plain = HdrHistogram(1, DURATION_US_MAX, DIGITS_KEPT)
    for duration_us in durations_us:
        plain.record_value(duration_us)

    assert runs(durations_us).snapshot().series[0].run.histogram == plain.encode().decode()


def test_snapshots_add_up() -> None:
    """A snapshot takes nothing away: the next one has it too, and what came since."""
    metrics = runs([1 * MS])
    first = metrics.snapshot()
    metrics.record("send", "mail", "completed", 0, 5 * MS)
    second = metrics.snapshot()

    assert [first.total.counts["completed"], second.total.counts["completed"]] == [1, 2]
    assert second == runs([1 * MS, 5 * MS]).snapshot()


@pytest.mark.parametrize("processes", [1, 2, 7])
def test_merging_is_recording_all_in_one(processes: int) -> None:
    """True percentiles of everybody's tasks, to the last count."""
    records = random_records(processes, 3_000)
    parts = [metrics_of(records[start::processes]).snapshot() for start in range(processes)]
    merged = MetricsSnapshot.merge(parts)

    assert merged == metrics_of(records).snapshot()
    assert merged.to_dict() == metrics_of(records).snapshot().to_dict()


def test_merging_nothing_is_nothing() -> None:
    """As are snapshots without a task."""
    assert MetricsSnapshot.merge([]) == MetricsSnapshot()
    assert MetricsSnapshot.merge([Metrics().snapshot(), MetricsSnapshot()]) == MetricsSnapshot()


def test_a_snapshot_travels_as_json() -> None:
    """It comes back as it went, and is good to read on the way."""
    metrics = metrics_of(random_records(3, 500))
    metrics.sample(0)
    metrics.record("send", "mail", "completed", 1, 1)
    metrics.sample(SECOND)
    snapshot = metrics.snapshot()
    text = json.dumps(snapshot.to_dict())

    assert MetricsSnapshot.from_dict(json.loads(text)) == snapshot
    total = json.loads(text)["total"]
    counts = total["counts"]
    assert sum(counts.values()) - counts["retried"] - counts["dead"] == 501
    assert total["per_second"] == 1
    assert set(total["run"]) == {"count", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms"}


def broken(*, series: Mapping[str, object]) -> dict[str, object]:
    """Return a snapshot of one series, with something changed."""
    plain = runs([5]).snapshot().to_dict()
    first = plain["series"]
    assert isinstance(first, list)
    return {"series": [first[0] | series]}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"series": 5},
        {"series": [5]},
        broken(series={"counts": 5}),
        broken(series={"counts": {"completed": "many"}}),
        broken(series={"per_second": None}),
        broken(series={"run": {}}),
        broken(series={"run": {"sum_us": 1, "max_us": 1, "histogram": "nonsense"}}),
        broken(series={"run": {"sum_us": 1, "max_us": 1, "histogram": "SElTVEZBQUE="}}),
        broken(series={"run": {"sum_us": "1", "max_us": 1, "histogram": ""}}),
        broken(series={"run": {"sum_us": 1, "max_us": 1, "histogram": 7}}),
    ],
    ids=str,
)
def test_what_is_no_snapshot_is_refused(values: Mapping[str, object]) -> None:
    """Whatever another process sent, the error is ours."""
    with pytest.raises(InvalidArgument, match="no snapshot of metrics"):
        MetricsSnapshot.from_dict(values)


@pytest.mark.parametrize("cut", [1, 4, 10, 20, 30])
def test_a_histogram_that_was_cut_is_refused(cut: int) -> None:
    """Bytes from elsewhere are checked when they come in."""
    histogram = runs(range(1, 5_000, 7)).snapshot().series[0].run.histogram
    run = {"sum_us": 1, "max_us": 1, "histogram": histogram[:-cut]}
    with pytest.raises(InvalidArgument, match="no snapshot of metrics"):
        MetricsSnapshot.from_dict(broken(series={"run": run}))


def test_throughput_is_what_was_completed_since_the_sample_before() -> None:
    """Per second; what failed is no throughput."""
    metrics = runs([1] * 5)
    first = metrics.sample(10 * SECOND)
    for _ in range(6):
        metrics.record("send", "mail", "completed", 1, 1)
    metrics.record("send", "mail", "failed", 1, 1)
    metrics.record("resize", "images", "completed", 1, 1)
    second = metrics.sample(12 * SECOND)
    snapshot = metrics.snapshot()
    third = metrics.sample(13 * SECOND)

    assert [sample.per_second for sample in (first, second, third)] == [0, 3.5, 0]
    assert (second.completed, second.interval_us) == (7, 2 * SECOND)
    assert [series.per_second for series in snapshot.series] == [0.5, 3]
    assert snapshot.total.per_second == 3.5
    assert metrics.throughputs == (first, second, third)


def test_a_second_sample_of_one_moment_changes_nothing() -> None:
    """There is no rate without an interval, and nothing is lost to the next one."""
    metrics = Metrics()
    metrics.sample(0)
    metrics.record("send", "mail", "completed", 1, 1)
    again = metrics.sample(0)
    then = metrics.sample(SECOND)

    assert (again.per_second, then.per_second) == (0, 1)
    assert len(metrics.throughputs) == 2


def test_a_sample_of_an_earlier_moment_starts_anew() -> None:
    """Ticks that started over make no negative rate."""
    metrics = Metrics()
    metrics.sample(100 * SECOND)
    metrics.record("send", "mail", "completed", 1, 1)
    back = metrics.sample(SECOND)
    metrics.record("send", "mail", "completed", 1, 1)

    assert back.per_second == 0
    assert metrics.sample(2 * SECOND).per_second == 1


def test_only_the_last_samples_are_kept() -> None:
    """A ring, however long it runs."""
    metrics = Metrics()
    for second in range(THROUGHPUTS_KEPT + 10):
        metrics.sample(second * SECOND)

    assert [metrics.throughputs[0].ticks_us, len(metrics.throughputs)] == [
        10 * SECOND,
        THROUGHPUTS_KEPT,
    ]


def test_too_many_tasks_are_counted_together() -> None:
    """Names that are made up as it runs must not take all memory; the total stays right."""
    metrics = metrics_of(
        (f"task-{index:04}", "mail", "completed", 1, 1) for index in range(SERIES_MAX + 20)
    )
    snapshot = metrics.snapshot()
    counts = {series.task: series.counts["completed"] for series in snapshot.series}

    assert (len(counts), counts[OTHER], sum(counts.values())) == (
        SERIES_MAX + 1,
        20,
        SERIES_MAX + 20,
    )


def test_threads_lose_no_record() -> None:
    """Many record while others read."""
    metrics = Metrics()
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:

        def record() -> None:
            for index in range(3_000):
                metrics.record("send", "mail", "completed", index, index)

        def read() -> None:
            for index in range(100):
                metrics.snapshot()
                metrics.recent()
                metrics.sample(index)

        threads = [threading.Thread(target=target) for target in [record] * 6 + [read] * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_seconds)
    series = metrics.snapshot().series[0]

    assert series.counts["completed"] == 18_000
    assert series.run.counts_up_to([DURATION_US_MAX]) == [18_000]
    assert series.run.sum_us == 6 * sum(range(3_000))


def exposition(snapshots: Sequence[MetricsSnapshot]) -> list[str]:
    """Return what Prometheus would be given."""
    registry = CollectorRegistry()
    registry.register(prometheus_collector(lambda: MetricsSnapshot.merge(snapshots)))
    return generate_latest(registry).decode().splitlines()


def test_prometheus_is_given_counters_and_histograms() -> None:
    """With task and queue as labels, and seconds as its unit; two processes are one."""
    one = metrics_of([("send", "mail", "completed", 3 * MS, 2 * SECOND)])
    other = metrics_of(
        [("send", "mail", "completed", 0, 20 * MS), ("send", "mail", "timeout", 0, 7200 * SECOND)]
    )
    lines = exposition([one.snapshot(), other.snapshot()])
    names = 'queue="mail",task="send"'

    assert f"segue_tasks_completed_total{{{names}}} 2.0" in lines
    assert f"segue_tasks_timeout_total{{{names}}} 1.0" in lines
    assert f"segue_tasks_dead_total{{{names}}} 0.0" in lines
    assert f"segue_task_run_seconds_count{{{names}}} 3.0" in lines
    assert f"segue_task_run_seconds_sum{{{names}}} 7202.02" in lines
    assert f"segue_task_wait_seconds_sum{{{names}}} 0.003" in lines
    buckets = {
        line.split('le="')[1].split('"')[0]: float(line.split()[-1])
        for line in lines
        if line.startswith("segue_task_run_seconds_bucket")
    }
    assert [buckets[bound] for bound in ("0.01", "0.025", "1.0", "2.5", "3600.0", "+Inf")] == [
        *(0, 1, 1, 2, 2),
        3,
    ]
    assert len(buckets) == len(BUCKETS_SECONDS) + 1


def test_a_duration_is_in_the_bucket_it_bounds() -> None:
    """Buckets are "at most", as Prometheus has them."""
    bounds_us = [round(bound * SECOND) for bound in BUCKETS_SECONDS]
    counts = runs(bounds_us).snapshot().series[0].run.counts_up_to(bounds_us)

    assert counts == list(range(1, len(bounds_us) + 1))


def test_to_register_the_collector_reads_no_metrics() -> None:
    """Metrics that nobody can read yet are no reason not to start."""

    def unready() -> MetricsSnapshot:
        raise AssertionError("read too early")

    CollectorRegistry().register(prometheus_collector(unready))


def test_without_prometheus_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And only who wants it needs it."""
    importing = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return importing(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "segue\[metrics\]"') as caught:
        prometheus_collector(Metrics().snapshot)

    assert caught.value.name == "prometheus_client"
