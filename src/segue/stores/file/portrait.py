"""A queue at one moment, log by log, for whoever reads its logs by columns.

Most of what a queue holds follows from where it lies: beyond the cursor it is ready, before it
settled. The rest, whatever was touched and is not done with, is listed here, sorted, so that the
state of a million messages is found by a few bisections.
"""

import logging
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from segue.delivery.events import ASIDE, IN_ASIDE, IN_DEAD, Cause
from segue.delivery.life import State
from segue.delivery.lines import Grant, Rest
from segue.delivery.message import Key
from segue.errors import Damage, OffsetTrimmed
from segue.log import Log
from segue.stores.message_columns import MessageColumns
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

logger = logging.getLogger(__name__)

STATES: Final = (State.READY, State.DELAYED, State.LEASED, State.DEAD, State.SETTLED)
HIDDEN: Final = len(STATES)
"""The code of what is not to be seen here: it is told elsewhere, or gone."""
_CODE: Final = {state: code for code, state in enumerate(STATES)}
READY, DELAYED, LEASED, DEAD, SETTLED = (_CODE[state] for state in STATES)

_Ints = npt.NDArray[np.int64]


def _ints(values: list[int]) -> _Ints:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Messages that were touched and are not settled, by where they lie in one log, in order."""

    at: _Ints
    lane: _Ints
    offset: _Ints
    priority: _Ints
    state: _Ints
    attempt: _Ints
    not_before_us: _Ints
    cause: list[str | None]
    reason: list[str | None]

    def within(self, start: int, stop: int) -> "Touched":
        """Return those that lie between two offsets of the log."""
        low, high = np.searchsorted(self.at, [start, stop])
        part = slice(int(low), int(high))
        return Touched(
            at=self.at[part],
            lane=self.lane[part],
            offset=self.offset[part],
            priority=self.priority[part],
            state=self.state[part],
            attempt=self.attempt[part],
            not_before_us=self.not_before_us[part],
            cause=self.cause[part],
            reason=self.reason[part],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPortrait:
    """What is to be said of the messages in one log of a queue."""

    path: Path
    lane: int | None
    """The lane of what was pushed here; None for the log of dead letters."""
    first: int
    end: int
    cursor: int
    """From here on nothing was touched."""
    touched: Touched
    hidden: _Ints
    """Where messages lie that are told elsewhere."""
    hidden_state: _Ints
    """What is told of them there."""
    dead: list[tuple[int, int]] = field(default_factory=list)
    """Where dead letters lie, as runs."""

    def states(self, at: _Ints, *, reveal: bool = False) -> _Ints:
        """Return the state of the messages at these offsets, as codes.

        With `reveal` also of those that are told elsewhere.
        """
        if self.lane is None:
            states = np.full(len(at), HIDDEN, dtype=np.int64)
            if self.dead:
                starts, stops = (_ints(list(each)) for each in zip(*self.dead, strict=True))
                run = np.searchsorted(starts, at, side="right") - 1
                states[(run >= 0) & (at < stops[np.maximum(run, 0)])] = DEAD
        else:
            fresh = DELAYED if self.lane == ASIDE else READY
            states = np.where(at >= self.cursor, fresh, SETTLED).astype(np.int64)
        if len(self.hidden):
            place, is_hidden = found_in(self.hidden, at)
            states[is_hidden] = self.hidden_state[place[is_hidden]] if reveal else HIDDEN
        place, is_touched = found_in(self.touched.at, at)
        states[is_touched] = self.touched.state[place[is_touched]]
        return states

    def within(self, start: int, stop: int) -> "LogPortrait":
        """Return what there is to say of a part of the log."""
        low, high = np.searchsorted(self.hidden, [start, stop])
        return LogPortrait(
            path=self.path,
            lane=self.lane,
            first=start,
            end=stop,
            cursor=self.cursor,
            touched=self.touched.within(start, stop),
            hidden=self.hidden[int(low) : int(high)],
            hidden_state=self.hidden_state[int(low) : int(high)],
            dead=[run for run in self.dead if run[0] < stop and start < run[1]],
        )


def found_in(sorted_values: _Ints, wanted: _Ints) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """Return where each of `wanted` is among the sorted values, and whether it is."""
    if not len(sorted_values):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    place = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return place, sorted_values[place] == wanted


def portrait_of(core: "QueueCore") -> list[LogPortrait]:
    """Return what each log of a queue holds now, all of the same moment."""
    with core.turn():
        ledger = core.ledger
        known: dict[Key, Grant | Rest] = {
            Key(lane, offset): found
            for lane, items in [
                *((level.priority, level.items) for level in ledger.levels.values()),
                (ASIDE, ledger.aside),
            ]
            for offset, found in items.items()
        }
        places = {key: place for key, place in ledger.places.items() if key in known}
        cursors = {priority: level.cursor for priority, level in ledger.levels.items()}
        dead = ledger.dead.runs()
        logs = {priority: core.lane_in_turn(priority).log for priority in ledger.order}
        if ledger.has_aside:
            logs[ASIDE] = core.lanes.aside.log
            cursors[ASIDE] = ledger.aside_next
        dead_log = core.lanes.dead.log if core.lanes.has_dead else None
        ends = {lane: int(log.next_offset) for lane, log in logs.items()}
    hidden: dict[int, dict[int, int]] = {lane: {} for lane in logs}
    for key in places:
        hidden.setdefault(key.lane, {})[key.offset] = _state_of(known[key])
    for key in _identities(dead_log, dead):
        hidden.setdefault(key.lane, {})[key.offset] = DEAD
    at_home = {key: found for key, found in known.items() if key not in places}
    portraits = [
        LogPortrait(
            path=log.path,
            lane=lane,
            first=log.first_offset,
            end=ends[lane],
            cursor=cursors[lane],
            touched=_touched(
                [(key.offset, key, found) for key, found in at_home.items() if key.lane == lane]
                + (_moved(known, places, IN_ASIDE) if lane == ASIDE else [])
            ),
            hidden=_ints(sorted(hidden[lane])),
            hidden_state=_ints([state for _, state in sorted(hidden[lane].items())]),
        )
        for lane, log in logs.items()
    ]
    if dead_log is not None:
        portraits.append(
            LogPortrait(
                path=dead_log.path,
                lane=None,
                first=dead_log.first_offset,
                end=dead_log.next_offset,
                cursor=dead_log.next_offset,
                touched=_touched(_moved(known, places, IN_DEAD)),
                hidden=_ints([]),
                hidden_state=_ints([]),
                dead=dead,
            )
        )
    return portraits


def _moved(
    known: dict[Key, Grant | Rest], places: dict[Key, tuple[int, int]], where: int
) -> list[tuple[int, Key, Grant | Rest]]:
    return [(at, key, known[key]) for key, (log, at) in places.items() if log == where]


def _touched(items: list[tuple[int, Key, Grant | Rest]]) -> Touched:
    items.sort(key=lambda item: item[0])
    rests = [found if isinstance(found, Rest) else None for _, _, found in items]
    return Touched(
        at=_ints([at for at, _, _ in items]),
        lane=_ints([key.lane for _, key, _ in items]),
        offset=_ints([key.offset for _, key, _ in items]),
        priority=_ints([found.priority for _, _, found in items]),
        state=_ints([_state_of(found) for _, _, found in items]),
        attempt=_ints([found.attempt for _, _, found in items]),
        not_before_us=_ints([0 if rest is None else rest.not_before_us for rest in rests]),
        cause=[
            None if rest is None or not rest.attempt else _cause_name(rest.cause) for rest in rests
        ],
        reason=[
            None if rest is None or not rest.reason else rest.reason.decode(errors="replace")
            for rest in rests
        ],
    )


def _state_of(found: Grant | Rest) -> int:
    if isinstance(found, Grant):
        return LEASED
    return READY if found.is_ready else DELAYED


def _cause_name(cause: int) -> str | None:
    try:
        return Cause(cause).name.lower()
    except ValueError:
        return None  # Of a later version.


def _identities(log: Log | None, runs: list[tuple[int, int]]) -> Iterator[Key]:
    """Yield where dead letters were pushed to: they are not settled, although they left there."""
    if log is None:
        return
    for start, stop in runs:
        first = min(max(start, log.first_offset), stop)
        try:
            for columns in log.columns(first, stop=stop):
                messages = MessageColumns(columns)
                lanes, offsets = messages.numbers("f"), messages.numbers("o")
                yield from map(Key, lanes.tolist(), offsets.tolist())
        except (OffsetTrimmed, Damage) as error:
            # Dropped since we looked, or what it was cannot be told: then it is settled there.
            logger.warning("dead letters not read from=%d to=%d reason=%s", start, stop, error)
