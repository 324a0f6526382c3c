"""What all parts of the Redis benchmark share: one server, how much is done, and how it is said.

Every figure of a run comes from the same server process, a Valkey on the loopback with an
append-only file. Between two parts it is emptied and its file is rewritten.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from benchmarks import tasks
from benchmarks.race import NotRun
from benchmarks.servers import LOOPBACK, start_valkey
from benchmarks.session import FULL, Session

Fsync = Literal["everysec", "always"]

PAYLOAD_BYTES: Final = 100
SEGUE: Final = "Segue"
WHERE: Final = f"bodies of {PAYLOAD_BYTES} bytes, one server over TCP on the loopback"
EVERYSEC: Final = "append-only file, appendfsync everysec"
SETTLE_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.2
"""How far apart two readings of the memory are that must agree."""
_STILL_BYTES: Final = 4096
"""What the server's own books change by while nobody does anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done where that is not the pace of the session."""

    tasks: tasks.Scale
    memory_messages: int
    backlogs: tuple[int, ...]
    backlog_rounds: int
    backlog_turns: int
    """Of each round, for each backlog."""


FULL_SCALE: Final = Scale(
    tasks=tasks.FULL_SCALE,
    memory_messages=100_000,
    backlogs=(0, 100_000, 1_000_000, 10_000_000),
    backlog_rounds=10,
    backlog_turns=500,
)
QUICK_SCALE: Final = Scale(
    tasks=tasks.QUICK_SCALE,
    memory_messages=2_000,
    backlogs=(0, 10_000, 100_000),
    backlog_rounds=3,
    backlog_turns=50,
)


class Valkey:
    """The server that everybody in a run talks to."""

    def __init__(self, directory: Path) -> None:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise NotRun(f"{error.name} is not installed") from None

        with ExitStack() as stack:
            server = start_valkey(directory, durable=False)
            stack.callback(server.stop)
            self.port = server.port
            self.client = redis.Redis(host=LOOPBACK, port=server.port)
            stack.callback(self.client.close)
            self.fsync("everysec")  # What its users have.
            self._closing = stack.pop_all()

    @property
    def url(self) -> str:
        """What Segue and its peers open."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def fsync(self, when: Fsync) -> None:
        """Sync the append-only file within each second, or before each answer."""
        self.client.config_set("appendfsync", when)

    def clean(self) -> None:
        """Forget everything, in memory and in the file. Raises NotRun if that takes too long."""
        self.client.flushall()
        self.client.bgrewriteaof()
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self._number("persistence", "aof_rewrite_in_progress") or self._number(
            "persistence", "aof_rewrite_scheduled"
        ):
            if time.monotonic() > deadline:
                raise NotRun("the server does not finish rewriting its file")
            time.sleep(LOOK_SECONDS / 10)
        self.client.memory_purge()

    def used_bytes(self) -> int:
        """Return the memory in use for data and its books, once it no longer changes.

        Buffers of clients and of the file are not counted. Raises NotRun if it never settles.
        """
        self.client.memory_purge()
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        before = self._used_bytes()
        while time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            now = self._used_bytes()
            if abs(now - before) <= _STILL_BYTES:
                return now
            before = now
        raise NotRun("the server's memory does not settle")

    def _used_bytes(self) -> int:
        facts = self.client.info("memory")
        buffers = ("mem_clients_normal", "mem_aof_buffer")
        return int(facts["used_memory"]) - sum(int(facts[name]) for name in buffers)

    def _number(self, section: str, name: str) -> int:
        return int(self.client.info(section)[name])

    def close(self) -> None:
        """Stop the server."""
        self._closing.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every part gets."""

    session: Session
    server: Valkey
    scale: Scale
    only: Sequence[str] = ()
    """Of the task queues, beside ours: those alone."""


@contextmanager
def benches(
    session: Session,
    *,
    scale: Scale | None = None,
    only: Sequence[str] = (),
    task_count: int | None = None,
) -> Iterator[Bench]:
    """Start the server and stop it afterwards. Raises NotRun."""
    scale = scale or (FULL_SCALE if session.effort is FULL else QUICK_SCALE)
    if task_count is not None:
        scale = replace(scale, tasks=replace(scale.tasks, count=task_count))
    with session.place() as place:
        server = Valkey(place / "server")
        try:
            yield Bench(session=session, server=server, scale=scale, only=only)
        finally:
            server.close()
