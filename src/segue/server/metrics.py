"""What requests came to and how long they took, for Prometheus.

Counting is for every request and so adds to plain lists; whatever is dear is done when somebody
asks for the numbers.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from segue.server.flow import Standing
from segue.server.routing import Route

BUCKETS_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
QUEUES_MAX: Final = 200
"""How many queues are shown: each is a series for every state."""
MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
NO_ROUTE: Final = "(none)"


@dataclass(slots=True)
class Series:
    """The requests of one route that were answered with one status."""

    route: str
    method: str
    status: int
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))


class RequestMetrics:
    """All requests of one server. Counted in the event loop, read from any thread."""

    def __init__(self) -> None:
        self._series: dict[tuple[int, int], Series] = {}

    def count(self, route: Route | None, status: int, seconds: float) -> None:
        """Take note of an answered request."""
        # Routes live as long as the server does, and are slow to hash.
        key = (id(route), status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _series_of(route, status)
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS_SECONDS, seconds)] += 1

    @property
    def series(self) -> list[Series]:
        """What there is, a series for each route and status."""
        return list(self._series.values())


def _series_of(route: Route | None, status: int) -> Series:
    if route is None:
        return Series(NO_ROUTE, "", status)
    return Series(route.full_path, route.method, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All there is to tell, at one moment."""

    series: list[Series]
    gauges: Mapping[str, tuple[str, float]]
    """Values by name, each with what it means."""
    counters: Mapping[str, tuple[str, float]]
    queues: Mapping[str, Standing]


def render(snapshot: Snapshot) -> bytes:
    """Return the metrics as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Snapshots(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Snapshots(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._snapshot.series)
        for name, (meaning, value) in self._snapshot.gauges.items():
            yield GaugeMetricFamily(f"segue_server_{name}", meaning, value=value)
        for name, (meaning, value) in self._snapshot.counters.items():
            yield CounterMetricFamily(f"segue_server_{name}", meaning, value=value)
        yield _depths(self._snapshot.queues)


def _requests(found: list[Series]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "segue_http_requests", "Requests that were answered.", labels=("route", "method", "status")
    )
    by_route: dict[tuple[str, str], Series] = {}
    for each in found:
        requests.add_metric((each.route, each.method, str(each.status)), sum(each.buckets))
        total = by_route.setdefault(
            (each.route, each.method), Series(each.route, each.method, status=0)
        )
        total.seconds += each.seconds
        total.buckets = [a + b for a, b in zip(total.buckets, each.buckets, strict=True)]
    yield requests
    durations = HistogramMetricFamily(
        "segue_http_request_duration_seconds",
        "From a request's head to its answer, waiting included.",
        labels=("route", "method"),
    )
    for labels, total in by_route.items():
        bounds = [*map(str, BUCKETS_SECONDS), "+Inf"]
        counts = list(zip(bounds, accumulate(total.buckets), strict=True))
        durations.add_metric(labels, counts, total.seconds)
    yield durations


def _depths(queues: Mapping[str, Standing]) -> Metric:
    depths = GaugeMetricFamily(
        "segue_queue_messages", "Messages of a queue, by state.", labels=("queue", "state")
    )
    for name, standing in queues.items():
        for state in ("ready", "delayed", "leased", "dead"):
            depths.add_metric((name, state), getattr(standing, state))
    return depths
