import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.crash.channel import Report
from tests.crash.children import append_and_roll, open_and_close
from tests.crash.damage import flip_bit, overwrite
from tests.crash.kill_runs import ended, finish, kill_everywhere
from tests.crash.killing_disk import KillingDisk, KillPoint, each_kill_point
from tests.crash.processes import Child, ForkServer
from tests.crash.replay import TORTURE, naming
from tests.crash.workload import SETTINGS, SHARED, Setting, Writer, contents_of

WRITER: Final = Writer(id=1, seed=7)
ALWAYS: Final = Setting(sync="always")
OS: Final = Setting(sync="os")
CALLS: Final = 8
SUMMARY_POSITIONS: Final = (512, 2048 + 512)
SUMMARY_BYTES: Final = 64


def _tear_tail(state: Path, last: Path) -> None:
    """As after a power cut that kept a later batch of the active segment and lost one before."""
    flip_bit(last, 4096 + 40 + 3)
    (state / "live").unlink()
    (state / "index.meta").unlink()


def _rot_tail(_: Path, last: Path) -> None:
    """The live words still say that the damaged record was there."""
    flip_bit(last, 4096 + 40 + 3)


def _behead_tail(_: Path, last: Path) -> None:
    overwrite(last, b"\xff" * 4096, position=0)


def _unseal(state: Path, earlier: Path) -> None:
    """As after a power cut that kept the next segment's name and lost this one's summary."""
    for position in SUMMARY_POSITIONS:
        overwrite(earlier, bytes(SUMMARY_BYTES), position=position)
    (state / "live").unlink()
    (state / "index.meta").unlink()


HARMS: Final[dict[str, Callable[[Path, Path], None]]] = {
    "torn_tail": _tear_tail,
    "rotten_tail": _rot_tail,
    "headless_tail": _behead_tail,
    "unsealed": _unseal,
}


HARMED: Final = (
    [(harm, setting) for setting in SHARED for harm in HARMS]
    if TORTURE
    else [
        ("torn_tail", ALWAYS),
        ("rotten_tail", Setting(sync="interval")),
        ("headless_tail", OS),
        ("unsealed", ALWAYS),
    ]
)
"""Which damage is tried with which setting."""


@pytest.mark.parametrize("setting", SETTINGS if TORTURE else [OS], ids=str)
def test_recovery_after_a_kill_may_be_killed_at_any_call_any_number_of_times(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """C7: whatever state a kill leaves, opening it gives one answer, interrupted or not."""
    states = _states_left_by_kills(scratch, forks, setting)
    for number, state in enumerate(states):
        with naming(f"state {number} of {len(states)}"):
            _check_all_interruptions(scratch, forks, setting, state)

    assert len(states) > 1


@pytest.mark.parametrize(("harm", "setting"), HARMED, ids=str)
def test_recovery_of_a_damaged_log_may_be_killed_at_any_call_any_number_of_times(
    scratch: Path, forks: ForkServer, setting: Setting, harm: str
) -> None:
    """C7: also where recovery cuts, seals with damage or sets a segment aside."""
    state = scratch / "state"
    with setting.open(state) as log:
        for number in range(3 * CALLS):
            WRITER.append(log, number)
        segments = log.segments()
    assert len(segments) > 2
    assert segments[-1].count > 3
    HARMS[harm](state, segments[-2 if harm == "unsealed" else -1].path)

    _check_all_interruptions(scratch, forks, setting, state)


def _states_left_by_kills(directory: Path, forks: ForkServer, setting: Setting) -> list[Path]:
    """Return logs that kills inside append and roll left, one for each way recovery takes."""
    states: dict[tuple[str, ...], Path] = {}

    def is_killed_at(point: KillPoint) -> bool:
        path = directory / f"state {len(states)}"
        killed, _ = ended(
            forks.start(append_and_roll, path, setting, WRITER, calls=CALLS, point=point)
        )
        if not path.exists():
            return killed
        trial = directory / "trial"
        shutil.copytree(path, trial)
        disk = KillingDisk()
        setting.open(trial, disk=disk).close()
        shutil.rmtree(trial)
        if states.setdefault(tuple(disk.trace), path) is not path:
            shutil.rmtree(path)
        return killed

    each_kill_point(is_killed_at)
    return list(states.values())


def _check_all_interruptions(
    directory: Path, forks: ForkServer, setting: Setting, state: Path
) -> None:
    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(open_and_close, path, setting, point)

    def check(path: Path, _: list[Report]) -> None:
        with setting.open(path) as log:
            assert contents_of(log) == recovered

    def is_killed_again_at(point: KillPoint) -> bool:
        killed, _ = ended(start(again, point))
        return killed

    whole, again = directory / "whole", directory / "again"
    for path in (whole, again):
        shutil.copytree(state, path)
    finish(start(whole, None))
    with setting.open(whole) as log:
        recovered = contents_of(log)
    kills = kill_everywhere(directory, start, check, template=state)
    kills_in_a_row = each_kill_point(is_killed_again_at)

    assert kills > 0
    assert kills_in_a_row > 0
    check(again, [])
    for path in (whole, again):
        shutil.rmtree(path)
