"""What the processes that use a queue tell a test: one line before and one after each act.

Each process appends to a file of its own, so nobody is held up while nobody reads, and what was
written before a SIGKILL is there after it. A line that stands alone, without the one that says how
the act ended, is an act whose outcome nobody knows.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from segue.clock import system_ticks

PUSHING: Final = "pushing"
PUSHED: Final = "pushed"
LEASING: Final = "leasing"
LEASED: Final = "leased"
POPPING: Final = "popping"
POPPED: Final = "popped"
ENDING: Final = "ending"
ENDED: Final = "ended"
LOST: Final = "lost"
WRONG: Final = "wrong"

Line = list[object]


class Diary:
    """The writing side."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, kind: str, *values: object) -> None:
        """Write a line with the time in ticks. It ends with a newline, or does not count."""
        os.write(self._fd, json.dumps([kind, system_ticks(), *values]).encode() + b"\n")


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the lines of one diary, but for one that its writer was killed over."""
    if path.exists():
        *texts, _ = path.read_bytes().split(b"\n")
        for text in texts:
            line: Line = json.loads(text)
            yield line


@dataclass(slots=True, kw_only=True)
class Lease:
    """One delivery, as its holder saw it. Times are ticks."""

    id: str
    attempt: int
    token: int
    body: str
    asked_us: int
    got_us: int
    ttl_us: int
    holder: str
    ending_us: int | None = None
    """When its holder first said that it was about to end it."""
    ended_as: str | None = None
    """How it did, once that had returned: "ack", "fail", "release" or "dead"."""
    tried: list[str] = field(default_factory=list)
    """All that was tried, with success or without knowing."""

    @property
    def receipt(self) -> str:
        return f"{self.id}/{self.token}"

    @property
    def place(self) -> tuple[str, int]:
        """The lane of its message and the offset there."""
        lane, _, offset = self.id.rpartition("-")
        return lane, int(offset)


class Account:
    """All that happened, from every diary."""

    def __init__(self) -> None:
        self.intended: set[str] = set()
        self.pushed: dict[str, str] = {}
        """The id of each body whose push returned."""
        self.leases: dict[str, list[Lease]] = {}
        """By message id, in the order of their tokens."""
        self.popped: dict[str, tuple[str, int]] = {}
        """Body and attempt by id."""
        self.unknown_pops = 0
        self.wrong: list[str] = []
        self.stale_refused = 0

    def read(self, directory: Path) -> None:
        """Take in every diary in `directory`."""
        for path in sorted(directory.iterdir()):
            self._read_one(path)
        for leases in self.leases.values():
            leases.sort(key=lambda lease: lease.token)

    def _read_one(self, path: Path) -> None:
        reading = _Reading(self, path.name)
        for kind, time_us, *values in lines_of(path):
            assert isinstance(time_us, int)
            reading.take_in(str(kind), time_us, [str(value) for value in values])
        self.unknown_pops += reading.popping


class _Reading:
    """Reads one diary line by line."""

    def __init__(self, account: Account, holder: str) -> None:
        self._account = account
        self._holder = holder
        self._mine: dict[str, Lease] = {}
        self._asked_us = 0
        self.popping = 0
        """How many messages a pop may have taken that has not returned so far."""

    def take_in(self, kind: str, time_us: int, values: list[str]) -> None:
        match kind:
            case "pushing":
                self._account.intended.update(values)
            case "pushed":
                pairs = zip(values[1::2], values[::2], strict=True)
                self._account.pushed.update(pairs)
            case "leasing":
                self._asked_us = time_us
            case "leased":
                self._note_lease(time_us, values)
            case "popping":
                self.popping = int(values[0])
            case "popped":
                self._note_popped(values)
            case "ending" | "ended":
                self._note_end(kind, time_us, values)
            case "lost":
                self._note_lost(values)
            case _:
                self._account.wrong.append(f"{self._holder}: {values}")

    def _note_lease(self, time_us: int, values: list[str]) -> None:
        lease = _lease_from(values, asked_us=self._asked_us, got_us=time_us, holder=self._holder)
        self._mine[lease.receipt] = lease
        self._account.leases.setdefault(lease.id, []).append(lease)

    def _note_popped(self, values: list[str]) -> None:
        self.popping = 0
        popped = self._account.popped
        for id_, attempt, body in zip(values[::3], values[1::3], values[2::3], strict=True):
            if id_ in popped:
                self._account.wrong.append(f"popped twice: {id_}")
            popped[id_] = body, int(attempt)

    def _note_end(self, kind: str, time_us: int, values: list[str]) -> None:
        how, *receipts = values
        for lease in [self._mine[receipt] for receipt in receipts if receipt in self._mine]:
            if kind == ENDED:
                lease.ended_as = how
            else:
                lease.ending_us = time_us
                lease.tried.append(how)

    def _note_lost(self, receipts: list[str]) -> None:
        self._account.stale_refused += len(receipts)
        for receipt in receipts:
            if receipt in self._mine:
                self._mine[receipt].tried.pop()


def _lease_from(values: list[str], *, asked_us: int, got_us: int, holder: str) -> Lease:
    id_, attempt, token, ttl_us, body = values
    return Lease(
        id=id_,
        attempt=int(attempt),
        token=int(token),
        ttl_us=int(ttl_us),
        body=body,
        asked_us=asked_us,
        got_us=got_us,
        holder=holder,
    )
