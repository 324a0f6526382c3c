"""Segue on a Redis or Valkey server: all parts on one server process, or one of them alone."""

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks import redis_backlog, redis_fsync, redis_memory, redis_queue, redis_tasks
from benchmarks.race import NotRun, not_run
from benchmarks.redis_bench import SEGUE, WHERE, Bench, Scale, benches
from benchmarks.report import Section
from benchmarks.session import Session

ALL: Final = "redis"
PARTS: Final[dict[str, Callable[[Bench], None]]] = {
    "redis_queue": redis_queue.run,
    "redis_tasks": redis_tasks.run,
    "redis_memory": redis_memory.run,
    "redis_fsync": redis_fsync.run,
    "redis_backlog": redis_backlog.run,  # The last: it leaves the most behind.
}


def run(
    session: Session,
    *,
    parts: Sequence[str] = tuple(PARTS),
    only: Sequence[str] = (),
    count: int | None = None,
    scale: Scale | None = None,
) -> None:
    """Run `parts`; `only` and `count` are for the task queues.

    Where there is no server, or it fails, the report says for each part left why it is not run.
    """
    left = list(parts)
    try:
        with benches(session, scale=scale, only=only, task_count=count) as bench:
            while left:
                PARTS[left[0]](bench)
                left.pop(0)
    except NotRun as reason:
        for part in left:
            session.report.add(
                Section(
                    benchmark=part,
                    title="not run",
                    setting=WHERE,
                    minute=session.minute(),
                    figures=[not_run(SEGUE, reason)],
                )
            )
