"""The server under load, beside an application that only decodes the body on the same uvicorn.

Load comes from a client in C (`http/load.c`, compiled here), so that it takes none of the server's
core. Both servers run all the time, and rounds take turns: what is not asked costs nothing.
"""

import json
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.race import Figure, NotRun, not_run
from benchmarks.report import Section, Target
from benchmarks.session import FULL, Session

LOOPBACK: Final = "127.0.0.1"
BODY_BYTES: Final = 100
BATCH: Final = 100
SEGUE: Final = "segue serve, sync os"
ALWAYS: Final = "segue serve, sync always"
CEILING: Final = "ceiling: decodes the body"
CEILING_SHARE: Final = 0.6
BATCH_MESSAGES_MIN: Final = 100_000
IDLE_BYTES_MAX: Final = 500_000_000
START_SECONDS_MAX: Final = 20.0
FILES_SPARE: Final = 500
_LOAD: Final = Path(__file__).with_name("http") / "load.c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done."""

    rounds: int
    seconds: float
    """Of each turn."""
    connections: int
    polls: int
    """How many long polls are idle at once."""


FULL_SCALE: Final = Scale(rounds=7, seconds=2.0, connections=16, polls=10_000)
QUICK_SCALE: Final = Scale(rounds=2, seconds=0.3, connections=4, polls=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a turn came to."""

    requests: int
    refused: int
    seconds: float
    median_us: float
    p99_us: float
    p999_us: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that runs."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def memory_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)


def run(session: Session, scale: Scale | None = None) -> None:
    """Measure pushes one by one and by 100, latency at half load, and idle long polls."""
    scale = scale or (FULL_SCALE if session.effort is FULL else QUICK_SCALE)
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=session.directory) as made:
        directory = Path(made)
        try:
            load = _compiled(directory)
        except NotRun as reason:
            session.report.add(
                _section(session, "push one by one", [not_run(SEGUE, reason)], scale)
            )
            return
        fast = stack.enter_context(serving(SEGUE, directory / "os", "os"))
        slow = stack.enter_context(serving(ALWAYS, directory / "always", "always"))
        ceiling = stack.enter_context(_ceiling())
        one = _pushes(session, load, (fast, slow, ceiling), scale, 1)
        session.report.add(one)
        session.report.add(_pushes(session, load, (fast, slow, ceiling), scale, BATCH))
        top = one.figure(SEGUE)
        assert top is not None
        session.report.add(_at_half_load(session, load, fast, scale, top.median))
        session.report.add(_idle(session, fast, scale))


# Pushes ----------------------------------------------------------------------------------------


def _pushes(
    session: Session, load: Path, servers: tuple[Running, ...], scale: Scale, size: int
) -> Section:
    request = _request_file(load.parent, size)
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    waits: dict[str, list[Load]] = {server.name: [] for server in servers}
    for number in range(scale.rounds + 1):  # The first is the warm-up.
        for server in servers:
            turn = _loaded(load, server.port, scale.connections, scale.seconds, 0, request)
            if number:
                rates[server.name].append(turn.rate * size)
                waits[server.name].append(turn)
    figures = [
        Figure(
            name=server.name,
            samples=tuple(rates[server.name]),
            median_us=_middle([each.median_us for each in waits[server.name]]),
            p99_us=_middle([each.p99_us for each in waits[server.name]]),
        )
        for server in servers
    ]
    title = "push one by one" if size == 1 else f"push by {size}"
    section = _section(session, title, figures, scale)
    mine, most = section.figure(SEGUE), section.figure(CEILING)
    assert mine is not None
    assert most is not None
    if size == 1:
        target = Target(
            what="push one by one, of the ceiling",
            measured=mine.ratio(most),
            required=CEILING_SHARE,
        )
    else:
        target = Target(
            what="push by 100",
            measured=mine.median,
            required=BATCH_MESSAGES_MIN,
            unit="messages/s",
        )
    return section.aiming_at([target])


def _at_half_load(
    session: Session, load: Path, server: Running, scale: Scale, most: float
) -> Section:
    request = _request_file(load.parent, 1)
    turns = [
        _loaded(load, server.port, scale.connections, scale.seconds, most / 2, request)
        for _ in range(scale.rounds)
    ]
    figure = Figure(
        name=SEGUE,
        samples=tuple(turn.rate for turn in turns),
        median_us=_middle([turn.median_us for turn in turns]),
        p99_us=_middle([turn.p99_us for turn in turns]),
        note=f"p99.9 {_middle([turn.p999_us for turn in turns]):,.0f} µs",
    )
    return _section(session, "push one by one at half of the most", [figure], scale)


def _section(session: Session, title: str, figures: list[Figure], scale: Scale) -> Section:
    return Section(
        benchmark="server",
        title=title,
        setting=f"bodies of {BODY_BYTES} bytes as JSON, one server process each, a client in C "
        f"with {scale.connections} connections on the other core, {scale.rounds} rounds of "
        f"{scale.seconds:g} s in turn, latencies from when a request was due",
        minute=session.minute(),
        figures=figures,
        unit="messages/s",
        baselines=(CEILING,) if len(figures) > 1 else (),
    )


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# Idle long polls -------------------------------------------------------------------------------


def _idle(session: Session, server: Running, scale: Scale) -> Section:
    """Measure what a server takes up while many wait for a message that does not come."""
    _allow_files(scale.polls + FILES_SPARE)
    body = b'{"wait": 30}'
    request = _request("/api/v1/queues/idle/lease", body)
    before = server.memory_bytes
    with ExitStack() as stack:
        for _ in range(scale.polls):
            poll = stack.enter_context(socket.create_connection((LOOPBACK, server.port)))
            poll.sendall(request)
        time.sleep(2)
        taken = server.memory_bytes
        spent = _cpu_share(server)
    figure = Figure(
        name=SEGUE,
        samples=(taken / 1_000_000,),
        note=f"{before / 1_000_000:,.0f} MB before; {spent:.1%} of a core while all wait",
    )
    return Section(
        benchmark="server",
        title=f"{scale.polls:,} idle long polls",
        setting="each on a connection of its own, all for one empty queue",
        minute=session.minute(),
        figures=[figure],
        unit="MB",
        targets=[
            Target(
                what=f"{scale.polls:,} idle long polls",
                measured=taken / 1_000_000,
                required=IDLE_BYTES_MAX / 1_000_000,
                at_most=True,
                unit="MB",
            )
        ],
    )


def _cpu_share(server: Running) -> float:
    process = psutil.Process(server.process.pid)
    begun, spent = time.monotonic(), sum(process.cpu_times()[:2])
    time.sleep(2)
    return float(sum(process.cpu_times()[:2]) - spent) / (time.monotonic() - begun)


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))


# Servers and load ------------------------------------------------------------------------------


def _compiled(directory: Path) -> Path:
    """Return the client. Raises NotRun where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NotRun("there is no C compiler for the client")
    target = directory / "load"
    subprocess.run([compiler, "-O2", "-o", target, _LOAD], check=True)
    return target


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _request_file(directory: Path, size: int) -> Path:
    path = directory / f"push_{size}"
    messages = [{"body": "x" * BODY_BYTES}] * size
    body = json.dumps({"messages": messages}, separators=(",", ":")).encode()
    path.write_bytes(_request("/api/v1/queues/bench/messages", body))
    return path


def _loaded(
    load: Path, port: int, connections: int, seconds: float, rate: float, request: Path
) -> Load:
    how = (str(port), str(connections), str(seconds), f"{rate:.0f}")
    done = subprocess.run([load, *how, request], check=True, capture_output=True)
    found = Load(**json.loads(done.stdout))
    if found.refused:
        raise RuntimeError(f"{found.refused} of {found.requests} requests were refused")
    return found


@contextmanager
def serving(name: str, store: Path, sync: str) -> Iterator[Running]:
    """Have a server run on a directory."""
    segue = Path(sys.executable).with_name("segue")
    yield from _run_server(name, [segue, "serve", store, "--sync", sync, "--port"])


@contextmanager
def _ceiling() -> Iterator[Running]:
    yield from _run_server(CEILING, [sys.executable, "-m", "benchmarks.http.ceiling"])


def _run_server(name: str, command: list[str | Path]) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield Running(name=name, port=port, process=process)
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((LOOPBACK, port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"no server at port {port}")
