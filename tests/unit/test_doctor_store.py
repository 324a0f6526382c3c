"""What a store looks like from outside: format, damage, owners, users, clock, limits."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import segue
from segue.cli.doctor.check import Verdict
from segue.cli.doctor.clock import (
    EARLIEST_US,
    ClockFacts,
    ClockReading,
    clock_checks,
    is_clock_synced,
    read_clocks,
)
from segue.cli.doctor.damage import damage_check
from segue.cli.doctor.holders import Holder, holders_check, holders_from
from segue.cli.doctor.limits import LimitFacts, limit_checks
from segue.cli.doctor.logs import LOOKING_SECONDS_MAX, Logs, look_at_logs
from segue.cli.doctor.permissions import PermissionFacts, permission_check
from segue.cli.doctor.store_format import StoreFacts, Thing, nearest_directory, store_check
from segue.log import Log
from tests.unit.support import contents, fill, segment_path, small_log

OK, INFO, WARN, FAIL = Verdict.OK, Verdict.INFO, Verdict.WARN, Verdict.FAIL
NOW_US = EARLIEST_US + 10**15
MINUTE_US = 60_000_000


# Format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "text", "verdict"),
    [
        (Thing.STORE, b"format = 1\n", OK),
        (Thing.STORE, b"format = 2\n", FAIL),
        (Thing.STORE, b"format = 0\n", FAIL),
        (Thing.STORE, b"format = 'x'\n", FAIL),
        (Thing.STORE, b"", FAIL),
        (Thing.STORE, b"\xff\xfe", FAIL),
        (Thing.STORE, b"not toml", FAIL),
        (Thing.LOG, b"", OK),
        (Thing.DIRECTORY, b"", INFO),
        (Thing.NOTHING, b"", WARN),
        (Thing.FILE, b"", FAIL),
    ],
)
def test_what_is_at_a_path(thing: Thing, text: bytes, verdict: Verdict) -> None:
    """A store that is not there yet is no failure: doctors are asked before the first message."""
    check = store_check(StoreFacts(path="p", thing=thing, format_text=text), format_known=1)

    assert check.verdict is verdict
    assert bool(check.remedy) is (verdict in (WARN, FAIL))


def test_the_nearest_directory_is_looked_at(tmp_path: Path) -> None:
    """Where there is nothing, that is where it would be made."""
    (tmp_path / "file").write_bytes(b"")

    assert nearest_directory(tmp_path) == tmp_path
    assert nearest_directory(tmp_path / "a" / "b") == tmp_path
    assert nearest_directory(tmp_path / "file") == tmp_path


# Damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logs", "verdict", "word"),
    [
        (Logs(), INFO, "no logs"),
        (Logs(count=2, segments=3), OK, "3 segments in 2 logs"),
        (Logs(count=1, segments=1), OK, "1 segment in 1 log are"),
        (Logs(count=2, segments=3, is_partial=True), OK, "not of all"),
        (Logs(count=2, segments=3, quarantined=1), WARN, "1 file in quarantine"),
        (Logs(count=2, segments=3, problems=["a", "b", "c"]), FAIL, "a; and 2 more"),
        (Logs(count=2, segments=3, stopped=["jobs"]), FAIL, "a write failed: jobs"),
        (Logs(count=2, segments=3, newer=["x says 9"], problems=["a"]), FAIL, "x says 9"),
    ],
)
def test_known_damage(logs: Logs, verdict: Verdict, word: str) -> None:
    """What cannot be read fails; what was set aside before is warned of."""
    check = damage_check(logs, path="data")

    assert check.verdict is verdict
    assert word in check.found


def test_only_who_reads_every_byte_can_call_records_intact() -> None:
    """A good line names the verb that does, a bad one the verb that mends."""
    good = damage_check(Logs(count=1, segments=1), path="data")
    bad = damage_check(Logs(count=1, problems=["x"]), path="data")

    assert "segue verify" in good.found
    assert bad.remedy is not None
    assert "segue verify data" in bad.remedy
    assert "segue repair" in bad.remedy


@pytest.fixture
def log(scratch: Path) -> Path:
    """A log of three segments."""
    with small_log(scratch / "log") as writer:
        fill(writer, 10)
    return scratch / "log"


def test_a_log_in_order_is_looked_at_without_a_trace(log: Path) -> None:
    """Its segments are counted, its newest time is known, and no byte of it has changed."""
    before = contents(log)
    found = look_at_logs(log)

    assert (found.count, found.segments, found.problems) == (1, 3, [])
    with Log(log, read_only=True) as opened:
        assert found.newest_us == opened.read(9).time_us
    assert contents(log) == before


def test_a_header_that_cannot_be_read_is_found(log: Path) -> None:
    """The file is named, and the others are still looked at."""
    segment_path(log, 1).write_bytes(bytes(8192))
    found = look_at_logs(log)

    assert found.segments == 3
    assert [problem.partition(": ")[2] for problem in found.problems] == ["no valid segment header"]


def test_a_segment_that_is_missing_is_found(log: Path) -> None:
    """By the offsets of those around it."""
    segment_path(log, 1).unlink()

    assert look_at_logs(log).problems == [f"{log}: 4 records before segment 2 are missing"]


def test_the_place_of_a_reader_that_cannot_be_read_is_found(log: Path) -> None:
    """Each by its name."""
    with Log(log) as writer:
        writer.reader("audit").close()
    (log / "readers" / "audit.meta").write_bytes(b"?")

    assert look_at_logs(log).problems == [f"{log}: the place of reader audit cannot be read"]


def test_a_live_file_that_is_cut_short_hides_nothing(log: Path) -> None:
    """The rest of the log is looked at, and what is wrong is told."""
    (log / "live").write_bytes(b"")
    found = look_at_logs(log)

    assert found.segments == 3
    assert len(found.problems) == 1


def test_a_look_that_takes_long_says_that_it_ended_early(scratch: Path) -> None:
    """However many logs there are, it comes back."""
    with segue.open(scratch / "data", sync="os") as store:
        for name in ("a", "b", "c"):
            store.queue(name).push(b"x")
    ticks = iter([0.0, 0.0, LOOKING_SECONDS_MAX + 1])
    found = look_at_logs(scratch / "data", now=lambda: next(ticks))

    assert (found.count, found.is_partial) == (1, True)


def test_directories_that_are_no_store_are_not_searched(scratch: Path, log: Path) -> None:
    """They may be a whole disk."""
    assert look_at_logs(scratch).count == 0
    assert look_at_logs(scratch / "nowhere").count == 0


# Permissions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({}, OK, "ada may read and write data"),
        ({"may_make": False}, FAIL, "ada may not write"),
        ({"may_make": False, "is_there": False}, FAIL, "would be made"),
        ({"refused": ["data/x", "data/y"]}, FAIL, "data/x and 1 more"),
        ({"owners": Counter({1: 5, 0: 2})}, WARN, "5 of ada, 2 of root"),
        ({"owners": Counter({2: 5})}, WARN, "bob cannot open"),
        ({"is_open_to_all": True}, WARN, "anybody"),
        ({"is_open_to_all": True, "is_there": False}, OK, "ada"),
    ],
)
def test_permissions(changes: dict[str, object], verdict: Verdict, word: str) -> None:
    """Files are their maker's alone: who is somebody else, root too, makes trouble for others."""
    facts = PermissionFacts(path="data", user=1, may_make=True, owners=Counter({1: 7}))
    changed = replace(facts, **changes)  # type: ignore[arg-type]
    check = permission_check(changed, name_of=["root", "ada", "bob"].__getitem__)

    assert check.verdict is verdict
    assert word in check.found


# Who has it open ---------------------------------------------------------------------------

LOCKS = """\
1: FLOCK  ADVISORY  READ 10440 fe:00:11 0 EOF
1: -> FLOCK  ADVISORY  WRITE 10441 fe:00:11 0 EOF
2: FLOCK  ADVISORY  READ 10440 fe:00:12 0 EOF
3: FLOCK  ADVISORY  WRITE 77 fe:00:13 0 EOF
4: FLOCK  ADVISORY  READ 88 fd:00:11 0 EOF
5: POSIX  ADVISORY  WRITE 99 fe:00:11 0 EOF
6: nonsense
7: FLOCK  ADVISORY  READ 66 zz:00:11 0 EOF
"""
FILES = {(0xFE, 0, 11): "a", (0xFE, 0, 12): "b", (0xFE, 0, 13): "c"}


def test_who_holds_a_lock_has_the_log_open() -> None:
    """Not who waits for one, nor who has the same number on another device."""
    assert holders_from(LOCKS, FILES) == [
        Holder(pid=77, logs=1, is_exclusive=True),
        Holder(pid=10440, logs=2, is_exclusive=False),
    ]


@pytest.mark.parametrize(
    ("holders", "word"),
    [
        (None, "does not tell"),
        ([], "nobody"),
        ([Holder(pid=7, logs=1, is_exclusive=True)], "7 python (1 log, exclusively)"),
        ([Holder(pid=n, logs=2, is_exclusive=False) for n in range(11)], "and 3 more"),
    ],
)
def test_processes_are_told_and_not_judged(holders: list[Holder] | None, word: str) -> None:
    """That somebody works is no fault."""
    check = holders_check(holders, name_of=lambda pid: f"{pid} python")

    assert check.verdict is INFO
    assert word in check.found


# The clock ---------------------------------------------------------------------------------


def clock_facts(**changes: object) -> ClockFacts:
    facts = ClockFacts(
        before=ClockReading(wall_us=NOW_US - MINUTE_US, steady_us=0),
        after=ClockReading(wall_us=NOW_US, steady_us=MINUTE_US),
        is_synced=True,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "verdicts", "word"),
    [
        (clock_facts(), (OK, OK), "it is"),
        (clock_facts(newest_us=NOW_US - 1), (OK, OK), "it is"),
        (clock_facts(newest_us=NOW_US + 900_000), (OK, OK), "it is"),
        (clock_facts(newest_us=NOW_US + 2 * MINUTE_US), (FAIL, OK), "2.0 min later"),
        (clock_facts(after=ClockReading(wall_us=0, steady_us=MINUTE_US)), (FAIL, OK), "1970"),
        (clock_facts(after=ClockReading(wall_us=NOW_US, steady_us=-1)), (FAIL, OK), "went back"),
        (
            clock_facts(after=ClockReading(wall_us=NOW_US, steady_us=2 * MINUTE_US)),
            (WARN, OK),
            "moved by -60.0 s",
        ),
        (clock_facts(is_synced=False), (OK, WARN), "it is"),
        (clock_facts(is_synced=None), (OK, INFO), "it is"),
    ],
)
def test_clocks(facts: ClockFacts, verdicts: tuple[Verdict, Verdict], word: str) -> None:
    """Behind the newest record, out of its century or set while we look: none is to be trusted."""
    clock, synced = clock_checks(facts)

    assert (clock.verdict, synced.verdict) == verdicts
    assert word in clock.found


def test_this_machine_has_clocks() -> None:
    """Reading them needs no rights, and whether they are kept right may be unknown."""
    before, after = read_clocks(), read_clocks()

    assert after.steady_us >= before.steady_us
    assert is_clock_synced() in (True, False, None)


# Limits ------------------------------------------------------------------------------------

PLENTY = LimitFacts(
    files_soft=20_000,
    files_hard=None,
    file_bytes_max=None,
    mappings_max=65_530,
    name_bytes_max=255,
    path_bytes_max=4096,
)


@pytest.mark.parametrize(
    ("facts", "logs", "verdicts"),
    [
        (PLENTY, 0, (OK, OK, OK, OK)),
        (PLENTY, 1000, (OK, OK, OK, OK)),
        (replace(PLENTY, files_soft=1024, files_hard=1024), 100, (OK, OK, OK, OK)),
        (replace(PLENTY, files_soft=1024), 1000, (WARN, OK, OK, OK)),
        (replace(PLENTY, files_soft=256), 0, (WARN, OK, OK, OK)),
        (replace(PLENTY, files_soft=1024, files_hard=4096), 1000, (FAIL, OK, OK, OK)),
        (replace(PLENTY, files_soft=None), 100_000, (OK, WARN, OK, OK)),
        (replace(PLENTY, mappings_max=None), 0, (OK, INFO, OK, OK)),
        (replace(PLENTY, file_bytes_max=1 << 20), 0, (OK, OK, FAIL, OK)),
        (replace(PLENTY, file_bytes_max=8 << 20), 0, (OK, OK, OK, OK)),
        (replace(PLENTY, name_bytes_max=143), 0, (OK, OK, OK, WARN)),
        (replace(PLENTY, path_bytes=3500), 0, (OK, OK, OK, FAIL)),
    ],
)
def test_limits(facts: LimitFacts, logs: int, verdicts: tuple[Verdict, ...]) -> None:
    """What can be raised by oneself is warned of, what cannot be fails."""
    checks = list(limit_checks(facts, logs=logs, segment_bytes=0))

    assert tuple(check.verdict for check in checks) == verdicts


def test_larger_segments_need_larger_files() -> None:
    """A store may have been made with segments of its own size."""
    facts = replace(PLENTY, file_bytes_max=8 << 20)
    verdicts = [check.verdict for check in limit_checks(facts, logs=1, segment_bytes=64 << 20)]

    assert verdicts[2] is FAIL
