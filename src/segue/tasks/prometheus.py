"""Metrics of tasks as Prometheus collects them; needs the extra `metrics`."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from segue.extras import extra
from segue.tasks.metrics import (
    DURATION_US_MAX,
    OUTCOMES,
    Durations,
    MetricsSnapshot,
    Outcome,
    SeriesSnapshot,
)

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

BUCKETS_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0),
)

_LABELS: Final = ("task", "queue")
_SAID: Final[dict[Outcome, str]] = {
    "completed": "Tasks that were completed.",
    "failed": "Attempts that failed.",
    "retried": "Attempts that failed and will be made again.",
    "dead": "Tasks that were given up and went to the dead letters.",
    "cancelled": "Tasks that were cancelled.",
    "timeout": "Attempts that took longer than they may.",
}


def prometheus_collector(metrics_source: Callable[[], MetricsSnapshot]) -> "Collector":
    """Return a collector for `prometheus_client.REGISTRY.register`.

    Each scrape calls `metrics_source`: `Metrics.snapshot`, or something that merges those of many
    processes. With the labels task and queue there are `segue_tasks_completed_total`, and so for
    each outcome, and the histograms `segue_task_wait_seconds` and `segue_task_run_seconds`.

    Raises MissingExtra without the extra `metrics`.
    """
    with extra("metrics", needed_by="a collector for Prometheus"):
        import prometheus_client  # noqa: F401 - only whether it is there
    return _TaskCollector(metrics_source)


class _TaskCollector:
    def __init__(self, metrics_source: Callable[[], MetricsSnapshot]) -> None:
        self._metrics_source = metrics_source

    def describe(self) -> Iterable["Metric"]:
        """Return the names alone, so that to register does not take a snapshot."""
        return _families(())

    def collect(self) -> Iterable["Metric"]:
        return _families(self._metrics_source().series)


def _families(all_series: tuple[SeriesSnapshot, ...]) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for outcome in OUTCOMES:
        counter = CounterMetricFamily(f"segue_tasks_{outcome}", _SAID[outcome], labels=_LABELS)
        for series in all_series:
            counter.add_metric((series.task, series.queue), series.counts[outcome])
        yield counter
    wait = HistogramMetricFamily(
        "segue_task_wait_seconds", "How long tasks waited until they ran.", labels=_LABELS
    )
    run = HistogramMetricFamily("segue_task_run_seconds", "How long tasks ran.", labels=_LABELS)
    for series in all_series:
        names = (series.task, series.queue)
        wait.add_metric(names, _buckets(series.wait), series.wait.sum_us / 1_000_000)
        run.add_metric(names, _buckets(series.run), series.run.sum_us / 1_000_000)
    yield wait
    yield run


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds_us = [*(round(bound * 1_000_000) for bound in BUCKETS_SECONDS), DURATION_US_MAX]
    names = [*map(str, BUCKETS_SECONDS), "+Inf"]
    return [*zip(names, map(float, durations.counts_up_to(bounds_us)), strict=True)]
