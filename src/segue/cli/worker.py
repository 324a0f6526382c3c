"""`segue worker`: runs the tasks of an App until it is told to stop."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli import parsing
from segue.cli.arguments import JsonOption
from segue.cli.exits import Empty
from segue.cli.output import Column, Facts, Kind, show
from segue.cli.places import without_passwords
from segue.cli.store_arguments import allow_many_files
from segue.cli.text import visible

if TYPE_CHECKING:
    from segue.tasks.app import App
    from segue.tasks.worker import Worker

SIZE_DEFAULT_MAX: Final = 32
"""However many processors there are: more slots than this are asked for."""
SIZE_OVER_PROCESSORS: Final = 4
METRICS_HOST: Final = "127.0.0.1"
DRAIN_SECONDS_DEFAULT: Final = 30.0


class SlotKind(Enum):
    """What runs a task."""

    THREAD = "thread"
    PROCESS = "process"
    ASYNC = "async"


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the App is.", show_default=False),
    ],
    *,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="The queues to work on.",
            show_default="all that the App's tasks go to",
        ),
    ] = None,
    least: Annotated[
        int, typer.Option("--min", metavar="N", min=1, help="So many tasks at once at least.")
    ] = 1,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            metavar="N",
            min=1,
            help="So many at most, as the queues ask for it.",
            show_default="processors + 4, at most 32",
        ),
    ] = None,
    kind: Annotated[
        SlotKind, typer.Option(help="What runs a task; only a process can be killed.")
    ] = SlotKind.THREAD,
    lease: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="How soon others take over if we die.",
            show_default="as the queue's rules say",
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=parsing.duration,
            help="How long tasks may go on after a signal.",
        ),
    ] = DRAIN_SECONDS_DEFAULT,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left to do.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Run one task and end; exit code 7 if there is none.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="End after so many tasks.", show_default=False),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=parsing.size,
            help="What each process may use; needs --kind process.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What others see it as.", show_default="host-pid-random")
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help=f"Have Prometheus collect metrics from {METRICS_HOST}; 0 finds a free port.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Another store than the App's own.", show_default=False),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log, also of the tasks.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the tasks of an App until told to stop.

    SIGTERM and Ctrl-C drain: nothing more is taken, and what runs may finish, for as long as
    --drain says; then, or on a second signal, it is given back for others to run. A drained worker
    ends with exit code 0. One that is killed loses nothing: its tasks are run again when their
    leases end.

    What it works on and how many slots it has is said on standard error, and at the end what came
    of the tasks on standard output.

    \b
    Examples:
      segue worker shop:app --max 8
      segue worker shop:app --kind process --memory 512MiB --queues video
      segue worker shop:app --burst --json
    """
    if once and (limit is not None or burst or most is not None or least > 1):
        raise typer.BadParameter("is alone: one task, one slot", param_hint="--once")
    names = _queue_names(queues)
    # Imported here, with all that tasks need: every command loads this module.
    from segue.cli.task.arguments import require_tasks

    require_tasks()
    allow_many_files()
    from segue.tasks.loading import load_app
    from segue.tasks.worker import Worker

    with _told(verbose=verbose, as_json=as_json), load_app(target) as app:
        if store is not None:
            app.use(store)
        if once and _is_all_paused(app, names):
            raise Empty("there is no task to take now: the queues that have some are paused")
        size_max = 1 if once else _size_max(least, most)
        made = Worker(
            app,
            queues=names,
            kind=kind.value,
            min_size=least,
            max_size=size_max,
            lease_ttl=lease,
            drain=drain,
            burst=burst or once,
            limit=1 if once else limit,
            memory_bytes=memory,
            name=name,
        )
        slots = f"{least} to {size_max} slots of kind {kind.value}"
        _say(f"store {without_passwords(os.fspath(app.url))}, {slots}", as_json=as_json)
        _run(made, metrics, as_json=as_json)
        if once and not made.metrics.snapshot().series:
            raise Empty("there is no task to take now")


def _run(worker: "Worker", port: int | None, *, as_json: bool) -> None:
    """Work, and say at the end what came of it, whatever the end is."""
    started = time.monotonic()
    with ExitStack() as stack:
        if port is not None:
            found = stack.enter_context(_metrics_server(worker, port))
            _say(f"metrics at http://{METRICS_HOST}:{found}/metrics", as_json=as_json)
        try:
            worker.run()
        finally:
            show(_summary(worker, time.monotonic() - started), as_json=as_json)


def _summary(worker: "Worker", seconds: float) -> Facts:
    total = worker.metrics.snapshot().total
    wait, run = total.wait.percentiles(), total.run.percentiles()
    return Facts(
        items=(
            (Column("worker"), worker.name),
            (Column("completed", Kind.COUNT), total.counts["completed"]),
            (Column("retried", Kind.COUNT), total.counts["retried"]),
            (Column("timed_out", Kind.COUNT), total.counts["timeout"]),
            (Column("dead", Kind.COUNT), total.counts["dead"]),
            (Column("cancelled", Kind.COUNT), total.counts["cancelled"]),
            (Column("wait_p50_ms", Kind.COUNT), wait.p50_ms),
            (Column("wait_p99_ms", Kind.COUNT), wait.p99_ms),
            (Column("run_p50_ms", Kind.COUNT), run.p50_ms),
            (Column("run_p99_ms", Kind.COUNT), run.p99_ms),
            (Column("seconds", Kind.SECONDS), round(seconds, 3)),
        )
    )


# What it is given ------------------------------------------------------------------------------


def _queue_names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(
            f"{text!r} is no list of names such as mail,video", param_hint="--queues"
        )
    return names


def _size_max(least: int, most: int | None) -> int:
    if most is not None:
        return most
    processors = len(os.sched_getaffinity(0))
    return max(least, min(SIZE_DEFAULT_MAX, processors + SIZE_OVER_PROCESSORS))


def _is_all_paused(app: "App", names: list[str] | None) -> bool:
    """Tell whether tasks wait, but only in queues that are paused: a burst would wait for them."""
    from segue.tasks.rules import TENANT_MARK

    wanted = app.queue_names() if names is None else names
    found = [
        app.store.queue(each).stats()
        for each in app.store.queues()
        if each.partition(TENANT_MARK)[0] in wanted or each in wanted
    ]
    waiting = [stats for stats in found if stats.counts.ready]
    return bool(waiting) and all(stats.paused for stats in waiting)


# What it says ----------------------------------------------------------------------------------


class _Log(logging.Handler):
    """Says what is logged. Warnings of the library are said already, as those of any verb."""

    def __init__(self, *, names: bool, as_json: bool) -> None:
        super().__init__(logging.NOTSET)
        self._names = names
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name == "segue" or record.name.startswith("segue.")
        if is_ours and record.levelno >= logging.WARNING:
            return
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # Of a task that logs what does not fit together.
            self.handleError(record)
            return
        if self._names:
            text = f"{record.levelname.lower()} {record.name}: {text}"
        if record.exc_info is not None and record.exc_info[1] is not None:
            text = f"{text} ({record.exc_info[1]!r})"
        _say(text, as_json=self._as_json)


@contextmanager
def _told(*, verbose: bool, as_json: bool) -> Iterator[None]:
    """Show what workers log of themselves; `verbose` shows all that anybody logs."""
    if verbose:
        levels = {"": logging.INFO, "segue": logging.DEBUG}
    else:
        levels = {"segue.tasks.worker": logging.INFO}
    loggers = [logging.getLogger(name) for name in levels]
    before = [logger.level for logger in loggers]
    handler = _Log(names=verbose, as_json=as_json)
    for logger, level in zip(loggers, levels.values(), strict=True):
        logger.setLevel(level)
    loggers[0].addHandler(handler)
    try:
        yield
    finally:
        loggers[0].removeHandler(handler)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _say(text: str, *, as_json: bool) -> None:
    line = visible(" ".join(text.splitlines()))
    sys.stderr.write((json.dumps({"info": line}) if as_json else f"segue: {line}") + "\n")
    sys.stderr.flush()


@contextmanager
def _metrics_server(worker: "Worker", port: int) -> Iterator[int]:
    """Answer Prometheus for as long as it takes; yield the port."""
    from segue.tasks.prometheus import prometheus_collector

    collector = prometheus_collector(worker.metrics.snapshot)
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, METRICS_HOST, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
