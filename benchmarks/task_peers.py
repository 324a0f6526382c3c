"""Task queues as contestants: their workers, each with a server of its own, and a producer.

The worker and the producer are processes of their own, so that no peer's library is loaded into
the process that measures, and whatever hangs can be ended. Everything started here is ended here.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from benchmarks.race import NotRun
from benchmarks.servers import LOOPBACK, STOP_SECONDS_MAX, start_valkey

PRODUCER_SECONDS_MAX: Final = 60.0
"""Until the producer is there."""
WORKER_SECONDS_MAX: Final = 60.0
"""Until the worker has taken a task into each of its slots."""
LOOK_MS: Final = 200
"""How often it is looked whether the worker still runs."""

_ROOT: Final = Path(__file__).resolve().parent.parent
_APPS: Final = "benchmarks.task_apps"
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A task queue, and how its worker is started."""

    key: str
    """What `--only` calls it; what stands before a hyphen calls all of that library."""
    name: str
    package: str
    module: str
    worker: Callable[[int], Sequence[str]]
    """Arguments of Python, for a number of slots."""
    how: str
    kind: str = ""
    """Told to the module, where it has several ways."""
    slots: int = 1
    """How many tasks the worker runs at a time in a race: what is usual for the peer."""
    gates: Callable[[int], int] = int
    """How many waiting tasks keep so many slots from doing anything else."""
    server: bool = True
    share: int = 1
    """Does only one task in so many, because it would take minutes."""
    races: bool = True
    """Otherwise only its memory is measured."""

    def note(self) -> str:
        """Return what must be known to read its figures."""
        return f"{self.release()}; {self.how}"

    def release(self) -> str:
        """Return which version it is."""
        return f"{self.package} {_version(self.package)}"


def _segue(kind: str) -> Peer:
    def worker(slots: int) -> Sequence[str]:
        size = ("--min", str(slots), "--max", str(slots))
        return ("-m", "segue", "worker", f"{_APPS}.segue_app:app", *size, "--kind", kind)

    return Peer(
        key=f"segue-{kind}",
        name=f"Segue, {kind}",
        package="segue",
        module="segue_app",
        worker=worker,
        how="embedded; lease and late ack, results recorded",
        kind=kind,
        server=False,
    )


def _huey(slots: int) -> Sequence[str]:
    options = ("-w", str(slots), "-k", "thread", "--no-periodic", "--quiet")
    return ("-m", "huey.bin.huey_consumer", f"{_APPS}.huey_app.huey", *options)


def _dramatiq(slots: int) -> Sequence[str]:
    options = ("--processes", "1", "--threads", str(slots), "--skip-logging")
    return ("-m", "dramatiq", f"{_APPS}.dramatiq_app:broker", *options)


def _rq(slots: int, *, worker_class: str) -> Sequence[str]:
    command = ("worker-pool", "-n", str(slots)) if slots > 1 else ("worker",)
    options = ("-w", worker_class, "-c", f"{_APPS}.rq_app", "--quiet")
    return ("-m", "rq.cli", *command, *options, "default")


def _celery(slots: int, *, pool: str) -> Sequence[str]:
    options = ("--pool", pool, "-c", str(slots), "-l", "WARNING")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return ("-m", "celery", "-A", f"{_APPS}.celery_app", "worker", *options, *quiet)


def _taskiq(slots: int) -> Sequence[str]:
    options = ("--workers", "1", "--max-async-tasks", str(slots), "--log-level", "WARNING")
    acks = ("--ack-type", "when_executed")
    return ("-m", "taskiq", "worker", f"{_APPS}.taskiq_app:broker", *options, *acks)


def _one(slots: int) -> int:
    return min(slots, 1)


PEERS: Final = (
    _segue("thread"),
    _segue("process"),
    _segue("async"),
    Peer(
        key="huey-sqlite",
        name="huey, SQLite",
        package="huey",
        module="huey_app",
        worker=_huey,
        how="embedded; 1 thread; takes for good before the work, stores no None",
        server=False,
    ),
    Peer(
        key="huey-valkey",
        name="huey, Valkey",
        package="huey",
        module="huey_app",
        worker=_huey,
        how="1 thread; takes for good before the work, stores no None",
    ),
    Peer(
        key="dramatiq",
        name="dramatiq",
        package="dramatiq",
        module="dramatiq_app",
        worker=_dramatiq,
        how="1 process, 8 threads; late ack, no results; a group is sent one by one",
        slots=8,
    ),
    Peer(
        key="rq-fork",
        name="RQ",
        package="rq",
        module="rq_app",
        worker=partial(_rq, worker_class="rq.worker.Worker"),
        how="forks for each; late ack, results stored; a 20th of the tasks",
        share=20,
    ),
    Peer(
        key="rq-simple",
        name="RQ, SimpleWorker",
        package="rq",
        module="rq_app",
        worker=partial(_rq, worker_class="rq.worker.SimpleWorker"),
        how="no fork; late ack, results stored; a quarter of the tasks",
        share=4,
    ),
    Peer(
        key="celery-prefork",
        name="Celery",
        package="celery",
        module="celery_app",
        worker=partial(_celery, pool="prefork"),
        how="prefork, 1 child; task_acks_late, no results; a group is sent one by one",
    ),
    Peer(
        key="celery-threads",
        name="Celery, threads",
        package="celery",
        module="celery_app",
        worker=partial(_celery, pool="threads"),
        how="a pool of threads",
        races=False,
    ),
    Peer(
        key="taskiq-stream",
        name="taskiq, stream",
        package="taskiq",
        module="taskiq_app",
        worker=_taskiq,
        how="1 process, 100 async tasks; late ack, no results; batch: gather of 100",
        kind="stream",
        slots=100,
        gates=_one,
    ),
    Peer(
        key="taskiq-list",
        name="taskiq, list",
        package="taskiq",
        module="taskiq_app",
        worker=_taskiq,
        how="1 process, 100 async tasks; takes for good, no results; batch: gather of 100",
        kind="list",
        slots=100,
        gates=_one,
    ),
)


def chosen(only: Sequence[str]) -> list[Peer]:
    """Return the peers that are asked for, all of them by default. Raises ValueError."""
    known = {peer.key for peer in PEERS} | {peer.key.partition("-")[0] for peer in PEERS}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ValueError(f"no peer is called {unknown[0]}; there are {', '.join(sorted(known))}")
    return [peer for peer in PEERS if not only or {peer.key, peer.key.partition("-")[0]} & {*only}]


class Process:
    """A process with all it starts, in a group of its own, its words in a log."""

    def __init__(
        self, arguments: Sequence[str], log: Path, *, settings: Mapping[str, str], talks: bool
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT), **settings},
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else output,
                stderr=output,
                start_new_session=True,
                # Not even a run that is killed leaves it behind. Only C is called there.
                preexec_fn=partial(_libc.prctl, _PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def tell(self, line: str) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # It will be missed when it does not answer.
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def hear(self, *, seconds_max: float, beside: "Process") -> dict[str, object]:
        """Return the answer. Raises NotRun if there is none in time, or one of both has ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds_max
        answer = select.poll()  # Which takes descriptors of any number.
        answer.register(self._process.stdout, select.POLLIN)
        while not answer.poll(LOOK_MS):
            if not beside.running:
                raise NotRun(f"its worker ended: {beside.last_words()}")
            if time.monotonic() > deadline:
                raise NotRun(f"nothing within {seconds_max:.0f} s: {beside.last_words()}")
        line = self._process.stdout.readline()
        if not line:
            raise NotRun(f"its producer ended: {self.last_words()}")
        facts: dict[str, object] = json.loads(line)
        return facts

    def last_words(self) -> str:
        """Return the last line of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it says nothing"

    def pss_bytes(self) -> list[int]:
        """Return its memory and that of each process it started; what they share is divided."""
        return [_pss_bytes(process) for process in self._family()]

    def stop(self) -> None:
        """End it and all it started, and wait until they have ended."""
        family = self._family()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS_MAX)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # RQ's forks have groups of their own.
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, STOP_SECONDS_MAX)

    def _family(self) -> "list[psutil.Process]":
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A peer that is up: its worker waits for tasks, its producer for commands."""

    peer: Peer
    slots: int
    worker: Process
    producer: Process
    seconds_max: float

    def hold(self) -> None:
        """Occupy the worker, so that it takes nothing until the next `run` or `open`."""
        self._ask(f"hold {self.peer.gates(self.slots)}", WORKER_SECONDS_MAX)

    def open(self) -> None:
        """Let the worker go on."""
        self._ask("open", WORKER_SECONDS_MAX)

    def run(self, *, count: int, way: str) -> dict[str, object]:
        """Return seconds of sending and of doing as many no-ops, or why it is `not_run`."""
        self.hold()
        return self._ask(f"run {count} {way}", self.seconds_max)

    def pickups_us(self, count: int) -> list[float]:
        """Return after how long as many tasks were picked up by an idle worker."""
        answer = self._ask(f"stamps {count}", self.seconds_max)["pickups_ns"]
        assert isinstance(answer, list)
        return [nanoseconds / 1e3 for nanoseconds in answer]

    def _ask(self, command: str, seconds_max: float) -> dict[str, object]:
        self.producer.tell(command)
        return self.producer.hear(seconds_max=seconds_max, beside=self.worker)


@contextmanager
def started(
    peer: Peer, place: Path, *, durable: bool, slots: int, seconds_max: float
) -> Iterator[Stage]:
    """Start a server, a worker and a producer in an empty directory. Raises NotRun."""
    if not _version(peer.package):
        raise NotRun(f"{peer.package} is not installed")
    with ExitStack() as stack:
        settings = {
            "BENCH_STORE": str(place.absolute() / "store"),
            "BENCH_SYNC": "always" if durable else "os",
            "BENCH_KIND": peer.kind,
            "BENCH_MARKS": str(place.absolute()),
        }
        if peer.server:
            settings["BENCH_STORE"] = _start_server(stack, place, durable=durable)
        command = peer.worker(slots)
        worker = Process(command, place / "worker.log", settings=settings, talks=False)
        stack.callback(worker.stop)
        command = ("-m", "benchmarks.task_producer", peer.module)
        producer = Process(command, place / "producer.log", settings=settings, talks=True)
        stack.callback(producer.stop)
        producer.hear(seconds_max=PRODUCER_SECONDS_MAX, beside=worker)
        yield Stage(
            peer=peer, slots=slots, worker=worker, producer=producer, seconds_max=seconds_max
        )


def _start_server(stack: ExitStack, place: Path, *, durable: bool) -> str:
    import redis

    server = start_valkey(place / "server", durable=durable)
    stack.callback(server.stop)
    if not durable:
        with redis.Redis(host=LOOPBACK, port=server.port) as client:
            client.config_set("appendfsync", "everysec")  # What its users have.
    return f"redis://{LOOPBACK}:{server.port}/0"


def _pss_bytes(process: "psutil.Process") -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # It has just ended.
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
