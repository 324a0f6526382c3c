"""What a waiting message takes up in the server, by layout."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.race import Figure, NotRun, not_run
from benchmarks.redis_bench import PAYLOAD_BYTES, SEGUE, Bench
from benchmarks.report import Section

FILL_SECONDS_MAX: Final = 900.0
FIRST_MESSAGES: Final = 10
"""Are there before the count begins: what a queue takes up however little is in it."""
_ROOT: Final = Path(__file__).resolve().parent.parent

LAYOUTS: Final[dict[str, tuple[str, str]]] = {
    "segue_queue": (SEGUE, "queue, push_many"),
    "bare_list": ("list", "RPUSH"),
    "bare_stream": ("stream", "XADD, one field"),
    "segue_tasks": ("Segue tasks", "map"),
    "rq": ("RQ", "enqueue_many: a hash for each job, a list of ids"),
    "celery": ("Celery", "delay: JSON with the body in base64, in a list"),
    "dramatiq": ("dramatiq", "send: a hash of all messages, a list of ids"),
    "bullmq": ("BullMQ's layout", "made by hand: a hash for each job, a list of ids; no events"),
}


def run(bench: Bench) -> None:
    """Fill the empty server with one layout after another."""
    minute = bench.session.minute()
    count = bench.scale.memory_messages
    figures = []
    for layout, (name, how) in LAYOUTS.items():
        try:
            size_bytes = _bytes_per_message(bench, layout, count)
        except NotRun as reason:
            figures.append(not_run(name, reason))
            print(f"redis_memory: {name} is not weighed: {reason}")
        else:
            figures.append(Figure(name=name, samples=(size_bytes,), note=how))
    bench.session.report.add(
        Section(
            benchmark="redis_memory",
            title=f"a waiting message of {PAYLOAD_BYTES} bytes",
            setting=f"used_memory without buffers of clients and of the file, {count:,} different "
            f"messages after the first {FIRST_MESSAGES}, letters and digits at random; "
            "less is better",
            minute=minute,
            figures=figures,
            unit="bytes",
            baselines=(SEGUE, "list"),
        )
    )


def _bytes_per_message(bench: Bench, layout: str, count: int) -> float:
    bench.server.clean()
    _fill(bench, layout, FIRST_MESSAGES)
    before = bench.server.used_bytes()
    _fill(bench, layout, count)
    return (bench.server.used_bytes() - before) / count


def _fill(bench: Bench, layout: str, count: int) -> None:
    """Have another process put messages there. Raises NotRun with its last words."""
    words = ("-m", "benchmarks.redis_layouts", layout, bench.server.url, str(count))
    try:
        subprocess.run(
            [sys.executable, *words],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=FILL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise NotRun(f"not filled within {FILL_SECONDS_MAX:.0f} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["it says nothing"]
        raise NotRun(lines[-1]) from None
