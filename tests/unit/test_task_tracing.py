"""Spans of tasks, with the real SDK of OpenTelemetry; in a process of its own, as it is global."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from segue.tasks import App
from segue.testing.tasks import TaskBench

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
app = App(sys.argv[1])

@app.task(retries=0)
def greet(name: str) -> str:
    with trace.get_tracer("user").start_as_current_span("inside"):
        return name

@app.task(retries=0)
def fail() -> None:
    raise ValueError("no")

with TaskBench(app, sys.argv[1]) as bench:
    with trace.get_tracer("user").start_as_current_span("request"):
        greet.enqueue("ada")
    fail.enqueue()
    bench.drain()
print(json.dumps([
    [span.name, span.context.span_id, span.parent.span_id if span.parent else None,
     span.kind.name, span.status.status_code.name, dict(span.attributes)]
    for span in spans.get_finished_spans()
]))
"""


def test_a_run_is_the_child_of_the_span_it_was_queued_in(tmp_path: Path) -> None:
    """The context travels in the message; what the task does inside is a child of its run."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    spans = {span[0]: span for span in json.loads(done.stdout)}
    request, run, inside, failed = (
        spans[name] for name in ("request", "task greet", "inside", "task fail")
    )
    assert run[2] == request[1]
    assert inside[2] == run[1]
    assert failed[2] is None
    assert run[3] == "CONSUMER"
    assert run[5]["segue.task"] == "greet"
    assert run[5]["messaging.destination.name"] == "default"
    assert failed[4] == "ERROR"
