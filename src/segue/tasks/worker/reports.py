"""What workers say of themselves, for whoever looks: a record every few seconds in a topic."""

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from segue.delivery.topic_rules import TopicRules
from segue.stores.contract import Store
from segue.tasks.topics import end_of, place_of, records_between

WORKERS_TOPIC: Final = "segue.workers"
REPORT_SECONDS: Final = 2.0
METRICS_SECONDS: Final = 10.0
"""How often a report has metrics in it at least: of many tasks they are long."""
GONE_SECONDS: Final = 10.0
"""A worker that has said nothing for so long is not shown any more."""
KEEP_SECONDS: Final = 600.0
SEGMENT_SECONDS: Final = 300.0


class SlotReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One slot of a worker."""

    number: int
    state: str
    seconds: float
    """For how long it has been in that state."""
    task: str = ""
    id: str = ""
    pid: int = 0


class DecisionReport(msgspec.Struct, frozen=True):
    """Something the autoscaler did, and why."""

    at_us: int
    before: int
    after: int
    reason: str


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment."""

    worker: str
    host: str
    pid: int
    kind: str
    state: str
    """running, draining or stopped"""
    at_us: int
    started_us: int
    queues: Sequence[str]
    size: int
    busy: int
    min: int
    max: int
    slots: Sequence[SlotReport] = ()
    decisions: Sequence[DecisionReport] = ()
    standing: str = ""
    """Why the autoscaler does nothing just now."""
    is_safe_to_stop: bool = False
    """Whether stopping it now would interrupt nothing and leave nothing waiting."""
    given_up: int = 0
    metrics: Mapping[str, object] = {}
    per_second: float = 0.0


def prepare_reports(store: Store) -> None:
    """Have the topic that workers report to."""
    if WORKERS_TOPIC not in store.topics():
        store.topic(WORKERS_TOPIC, partitions=1, rules=_RULES)


_RULES: Final = TopicRules(keep_seconds=KEEP_SECONDS, segment_seconds=SEGMENT_SECONDS)


def send_report(store: Store, report: WorkerReport) -> None:
    """Append a report."""
    store.topic(WORKERS_TOPIC).append(msgspec.json.encode(report), key=report.worker)


def read_reports(store: Store, now_us: int) -> list[WorkerReport]:
    """Return the last report of each worker that is there, by name, with its last metrics."""
    back = timedelta(seconds=GONE_SECONDS + METRICS_SECONDS)
    since = datetime.fromtimestamp(now_us / 1_000_000, UTC) - back
    found: dict[str, WorkerReport] = {}
    topic = store.topic(WORKERS_TOPIC)
    for record in records_between(topic, place_of(topic, since), end_of(topic)):
        report = _report_of(record.value)
        if report is None:
            continue
        before = found.get(report.worker)
        if not report.metrics and before is not None:
            report = msgspec.structs.replace(report, metrics=before.metrics)
        found[report.worker] = report
    return sorted(
        (
            report
            for report in found.values()
            if report.state != "stopped" and now_us - report.at_us <= GONE_SECONDS * 1_000_000
        ),
        key=lambda report: report.worker,
    )


class SilentWorkers:
    """Tells of workers that fell silent without a word, for as long as reports are kept.

    Who was killed is not there, and had perhaps a job. Safe from any thread. Each report is read
    once: all that are kept at first, then those that came since.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next = 0
        self._last: dict[bytes | None, bytes | None] = {}
        """The last word of each worker."""

    def reports(self, now_us: int) -> list[WorkerReport]:
        """Return the last report of each of them, by name."""
        with self._lock:
            self._read_on()
            known = {key: _report_of(value) for key, value in self._last.items()}
            for key, report in known.items():
                if report is None or now_us - report.at_us > KEEP_SECONDS * 1_000_000:
                    del self._last[key]
        return sorted(
            (
                report
                for report in known.values()
                if report is not None
                and report.state != "stopped"
                and GONE_SECONDS < (now_us - report.at_us) / 1_000_000 <= KEEP_SECONDS
            ),
            key=lambda report: report.worker,
        )

    def _read_on(self) -> None:
        topic = self._store.topic(WORKERS_TOPIC)
        end = end_of(topic)
        for record in records_between(topic, self._next, end):
            self._last[record.key] = record.value
        self._next = end


def _report_of(value: bytes | None) -> WorkerReport | None:
    """Return the report that a record is; None if it is something else."""
    try:
        return msgspec.json.decode(value or b"", type=WorkerReport)
    except ValueError:
        return None
