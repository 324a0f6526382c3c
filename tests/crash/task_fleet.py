"""Workers of several kinds, each a program of its own, killed and started again.

A fleet knows who lived when: that, and what the tasks say of their runs, is what its tests judge.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from segue.clock import system_clock
from tests.crash.replay import count_tries
from tests.crash.task_apps import ROOT_VARIABLE, WORKER_VARIABLE, Fact
from tests.waiting import LIMIT_SECONDS, wait_until

SIZES: Final = {"thread": 3, "process": 2, "async": 6}
"""How many tasks a worker of each kind runs at once."""
_PROJECT: Final = Path(__file__).parents[2]


@dataclass(slots=True)
class Life:
    """One worker, from its start to its end."""

    name: str
    kind: str
    process: subprocess.Popen[bytes]
    output: Path
    killed_us: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a task that lost its worker waited for the next."""

    task_id: str
    seconds: float


class Fleet:
    """One worker of each kind on one store."""

    def __init__(self, root: Path, *, lease_seconds: float) -> None:
        self._root = root
        self._lease_seconds = lease_seconds
        self._present: dict[str, Life] = {}
        self.lives: list[Life] = []
        self.processes_killed = 0
        """How many processes of killed workers were seen, and are gone."""

    def start(self, kind: str) -> None:
        """Start a worker, in the place of one that is gone."""
        name = f"{kind}-{len(self.lives)}"
        output = self._root / f"output-{name}"
        words = [sys.executable, "-m", "tests.crash.task_workers"]
        words += [kind, str(SIZES[kind]), str(self._lease_seconds)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                words,
                cwd=_PROJECT,
                env={**os.environ, ROOT_VARIABLE: str(self._root), WORKER_VARIABLE: name},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        life = Life(name, kind, process, output)
        self._present[kind] = life
        self.lives.append(life)

    def kill(self, kind: str) -> None:
        """Send SIGKILL, and see that nothing of the worker is left."""
        life = self._present.pop(kind)
        theirs = [pid for pid in self._processes_of(life) if pid != life.process.pid]
        life.process.kill()
        code = life.process.wait()
        life.killed_us = system_clock()
        assert code == -signal.SIGKILL, f"{life.name} ended by itself: {life.output.read_text()}"
        wait_until(lambda: not any(self._processes_of(life)), f"no process of {life.name} is left")
        self.processes_killed += len(theirs)
        count_tries()

    @property
    def kinds(self) -> list[str]:
        """Whoever is there."""
        return list(self._present)

    @property
    def kills(self) -> int:
        return sum(life.killed_us is not None for life in self.lives)

    def stop(self) -> None:
        """Have all end in order, which they must; who still imports its modules just ends."""
        for life in self._present.values():
            life.process.terminate()
        for life in self._present.values():
            code = life.process.wait(LIMIT_SECONDS)
            assert code in {0, -signal.SIGTERM}, f"{life.name}: {life.output.read_text()}"
            assert list(self._processes_of(life)) == []
        self._present.clear()

    def waits(self, facts: list[Fact]) -> list[Wait]:
        """Return how long tasks waited whose worker was killed, from the kill to their next run.

        Only where somebody was there to run them: another worker that ran tasks before the kill
        and was not killed until the task began again. Of what waits for a worker that imports its
        modules, or while none is there at all, nothing is promised.
        """
        first_us: dict[str, int] = {}
        runs: dict[str, list[Fact]] = {}
        for fact in facts:
            first_us.setdefault(fact.worker, fact.at_us)
            runs.setdefault(fact.id, []).append(fact)
        killed = {life.name: life.killed_us for life in self.lives}
        waits: list[Wait] = []
        for task_id, began in runs.items():
            for before, after in pairwise(began):
                kill_us = killed[before.worker]
                if kill_us is None or after.at_us < kill_us:
                    continue
                if any(
                    name != before.worker
                    and first_us.get(name, kill_us) < kill_us
                    and (gone_us is None or gone_us > after.at_us)
                    for name, gone_us in killed.items()
                ):
                    waits.append(Wait(task_id, (after.at_us - kill_us) / 1_000_000))
        return waits

    def repeated_for_nothing(self, facts: list[Fact]) -> list[Fact]:
        """Return the runs that came before others of their task, though nothing cut them short.

        A lease may also be lost on a machine that has no time for anybody; then the worker says so.
        """
        runs: dict[str, list[Fact]] = {}
        for fact in facts:
            runs.setdefault(fact.id, []).append(fact)
        return [
            before
            for began in runs.values()
            for before, after in pairwise(began)
            if not self.is_cut_short(before, until_us=after.at_us)
        ]

    def is_cut_short(self, run: Fact, *, until_us: int) -> bool:
        """Tell whether the worker of a run was killed by then, or said that the lease was lost."""
        life = next(each for each in self.lives if each.name == run.worker)
        is_killed = life.killed_us is not None and life.killed_us < until_us
        return is_killed or self.has_lost(run)

    def has_lost(self, run: Fact) -> bool:
        """Report whether the worker of a run logged that it lost the lease on that task."""
        life = next(each for each in self.lives if each.name == run.worker)
        return f"task={run.id} " in life.output.read_text()

    def _processes_of(self, life: Life) -> Iterator[int]:
        """Yield the processes that run for a worker, itself included; of the dead none."""
        marks = {f"{ROOT_VARIABLE}={self._root}", f"{WORKER_VARIABLE}={life.name}"}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    variables = (entry / "environ").read_bytes().decode(errors="replace")
                except OSError:  # It ended, or is somebody else's.
                    continue
                if marks <= set(variables.split("\0")):
                    yield int(entry.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for life in self._present.values():
            life.process.kill()
            life.process.wait()
