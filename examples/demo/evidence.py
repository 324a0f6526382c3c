"""What was sent and what was run, as noted outside of Segue, and what that proves.

Notes are lines in files, each written by one append, so any number of processes may note at once
and a killed one leaves whole lines. The second half is pure: notes in, totals out.
"""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

RUNS_VARIABLE: Final = "SEGUE_DEMO_RUNS"
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"

AFTER_FAILURE: Final = "its run before failed"
AFTER_KILL: Final = "its worker was killed"
AFTER_POISON: Final = "it killed its own process"
UNEXPLAINED: Final = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line: what a run of some work came to."""

    work: str
    what: str
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What became of everything that was sent."""

    sent: Mapping[str, int]
    """By who sent it."""
    done: int
    dead: int
    lost: Set[str]
    retried: int
    """What was run more than once."""
    runs: int
    repeated: Mapping[str, int]
    """The runs beyond the first, by what made them necessary."""

    @property
    def unexplained(self) -> int:
        """How many runs there were that nothing made necessary."""
        return self.repeated.get(UNEXPLAINED, 0)


def note_run(work: str, what: str, attempt: int) -> None:
    """Note in the file of runs how a run of `work` stands."""
    append_lines(
        Path(os.environ[RUNS_VARIABLE]),
        [json.dumps([work, what, attempt, os.getpid(), time.time()])],
    )


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines by one write: all of them are there, or none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(descriptor)


class Lines:
    """The lines of a file that others append to, each of them once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def new(self) -> list[str]:
        """Return the whole lines that came since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        return data.decode().splitlines()


def read_notes(lines: Iterable[str]) -> list[Note]:
    """Return what lines of the file of runs say."""
    return [
        Note(work=work, what=what, attempt=attempt, pid=pid, at=at)
        for work, what, attempt, pid, at in map(json.loads, lines)
    ]


# What it proves --------------------------------------------------------------------------------


def unfinished(notes: Iterable[Note], pid: int) -> dict[str, Note]:
    """Return what a process had begun and not ended, by the work."""
    held: dict[str, Note] = {}
    for note in notes:
        if note.pid == pid:
            if note.what == BEGUN:
                held[note.work] = note
            else:
                held.pop(note.work, None)
    return held


def totals(
    sent: Mapping[str, Set[str]],
    notes: Iterable[Note],
    *,
    dead: Set[str],
    killed: Set[int],
    poisoned: Set[str],
) -> Totals:
    """Return what became of everything: `killed` are processes, `poisoned` what kills its own."""
    by_work: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        by_work[note.work].append(note)
    done = {work for work, runs in by_work.items() if any(note.what == DONE for note in runs)}
    begun = {work: [note for note in runs if note.what == BEGUN] for work, runs in by_work.items()}
    repeated: Counter[str] = Counter()
    for work, runs in begun.items():
        for before, again in pairwise(runs):
            repeated[_why(before, again, by_work[work], killed, work in poisoned)] += 1
    everything = frozenset().union(*sent.values())
    return Totals(
        sent={source: len(works) for source, works in sent.items()},
        done=len(done & everything),
        dead=len(dead - done),
        lost=everything - done - dead,
        retried=sum(len(runs) > 1 for runs in begun.values()),
        runs=sum(map(len, begun.values())),
        repeated=dict(repeated),
    )


def _why(
    before: Note, again: Note, notes: Iterable[Note], killed: Set[int], is_poison: bool
) -> str:
    """Return what made a run necessary after the one before it."""
    ends = {note.what for note in notes if (note.pid, note.attempt) == (before.pid, before.attempt)}
    if again.attempt <= before.attempt:
        return UNEXPLAINED
    if FAILED in ends:
        return AFTER_FAILURE
    if before.pid in killed:
        return AFTER_KILL
    return AFTER_POISON if is_poison else UNEXPLAINED
