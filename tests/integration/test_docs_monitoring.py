"""Metrics that docs/monitoring.md names, in its table and in its alerts, are really there."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]  # No stubs are installed.
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from segue.tasks.metrics import Metrics
from segue.tasks.prometheus import prometheus_collector
from tests.integration.docs_server import PageServer
from tests.integration.test_docs import ROOT, blocks
from tests.waiting import LIMIT_SECONDS, wait_until

PAGE: Final = ROOT / "docs" / "monitoring.md"
NAME: Final = re.compile(r"\b((?:segue|process)_[a-z_]+[a-z])(?:\{([^}]*)\})?")
BY: Final = re.compile(r"\bby \(([^)]*)\)")
MESSAGE: Final = b'{"messages": [{"body": "to: ada"}]}'
EVERYWHERE: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""

Served = Mapping[str, set[str]]
"""The labels of metrics, by name."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Metrics of a real server and of a worker, each with at least one sample."""
    server = PageServer(tmp_path_factory.mktemp("served"))
    address = server.for_real("http://localhost:8000")
    with urlopen(f"{address}/api/v1/queues/mail/messages", MESSAGE, timeout=LIMIT_SECONDS):
        pass
    text = ""

    def names_the_queue() -> bool:
        nonlocal text
        with urlopen(f"{address}/metrics", timeout=LIMIT_SECONDS) as answer:
            text = answer.read().decode()
        return "segue_queue_messages{" in text

    wait_until(names_the_queue)  # The server samples its queues once a second.
    server.end()
    metrics = Metrics()
    metrics.record("add", "default", "completed", wait_us=10, run_us=10)
    registry = CollectorRegistry()
    registry.register(prometheus_collector(metrics.snapshot))
    text += generate_latest(registry).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
            found.setdefault(family.name, set()).update(sample.labels)
    return found


def test_alerts_are_about_what_there_is(served: Served) -> None:
    """Every name and every label; each alert has what is to be said of it."""
    [rules] = [
        each for text in blocks(PAGE, "yaml") for each in yaml.safe_load(text).get("groups", [])
    ]

    assert len(rules["rules"]) > 5
    for rule in rules["rules"]:
        names = {name for name, _ in NAME.findall(rule["expr"])}
        known = set().union(*(served[name] for name in names), EVERYWHERE)
        said = [
            part.split("=")[0].strip(' ~!"')
            for _, each in NAME.findall(rule["expr"])
            for part in each.split(",")
            if part
        ]
        said += [each.strip() for group in BY.findall(rule["expr"]) for each in group.split(",")]
        assert set(said) <= known, rule["alert"]
        assert rule["annotations"]["summary"]


def test_the_table_names_what_there_is(served: Served) -> None:
    """And every metric of ours is in it."""
    table = PAGE.read_text().partition("| metric |")[2].partition("\n\n")[0]
    named = {
        name: set(labels.split(", ")) if labels else set() for name, labels in NAME.findall(table)
    }

    for name, labels in named.items():
        assert labels <= served[name], name
    for name in served:
        if name.startswith(("segue_server_", "segue_http_", "segue_queue_")):
            assert any(name.startswith(each.removesuffix("_total")) for each in named), name
