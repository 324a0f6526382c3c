import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from segue import Log
from segue.errors import LogLocked
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import naming_seed, new_seed
from tests.crash.users import (
    READY,
    acknowledged_digest,
    append_calls,
    clean_up_until_told,
    follow_as,
    follow_log,
    hold,
    hold_first_segment,
    tell_when_woken,
    use_after_fork,
    wait_idle,
)
from tests.crash.workload import SHARED, Attempts, Setting, Writer, check_intact, check_records
from tests.waiting import LIMIT_SECONDS, wait_until

logger = logging.getLogger(__name__)

WRITERS: Final = 4
READERS: Final = 4
CALLS: Final = 200
"""By each writer; about two hundred segments in all."""
WAKE_UPS: Final = 50
IDLE_SECONDS: Final = 2.0
IDLE_SHARE_MAX: Final = 0.02


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.mark.parametrize("setting", SHARED, ids=str)
def test_every_reader_gets_every_record_once_while_several_processes_append(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """Four writers and four readers at once: nothing missing, twice, torn or out of order."""
    seed, path = new_seed(), scratch / "log"
    attempts, total = _attempts(seed)
    setting.open(path).close()
    with naming_seed(seed), ExitStack() as stack:
        readers = [
            # Half of them read only: these see the log without taking part in it.
            stack.enter_context(forks.start(follow_log, path, how, total))
            for how in (setting, None, setting, None)
        ]
        _append_all(forks, stack, path, setting, attempts=attempts, others=readers)
        seen = [reader.read() for reader in readers]

        assert [reader.join() for reader in readers] == [0] * READERS
        assert seen == [acknowledged_digest(attempts)] * READERS
        with setting.open(path) as log:
            check_records(list(log.records()), attempts)
            check_intact(log)


@pytest.mark.parametrize("setting", SHARED, ids=str)
def test_a_clean_up_at_the_same_time_takes_nothing_from_named_readers(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """Retention follows the slowest reader, while all of them read and four writers append."""
    seed, path = new_seed(), scratch / "log"
    attempts, total = _attempts(seed)
    names = [f"reader-{number}" for number in range(READERS)]
    with setting.open(path) as log:
        for name in names:
            log.reader(name).close()
    with naming_seed(seed), ExitStack() as stack:
        readers = [
            stack.enter_context(forks.start(follow_as, path, setting, name, total))
            for name in names
        ]
        cleaner = stack.enter_context(forks.start(clean_up_until_told, path, setting))
        _append_all(forks, stack, path, setting, attempts=attempts, others=[*readers, cleaner])
        seen = [reader.read() for reader in readers]
        joined = [reader.join() for reader in readers]
        cleaner.tell(READY)
        deleted = cleaner.read_number()

        assert joined == [0] * READERS
        assert seen == [acknowledged_digest(attempts)] * READERS
        with setting.open(path) as log:
            deleted += len(log.cleanup())
            assert deleted > 0
            assert log.segments()[0].id == deleted
            check_intact(log)


def test_a_waiting_reader_in_another_process_is_woken(
    scratch: Path, forks: ForkServer, record_property: Callable[[str, object], None]
) -> None:
    """Each append wakes it; how fast is measured and reported, not asserted."""
    setting, path = Setting(sync="os"), scratch / "log"
    taken_us = []
    with setting.open(path) as log, forks.start(tell_when_woken, path, setting, WAKE_UPS) as child:
        for number in range(WAKE_UPS):
            assert child.read() == READY
            wait_until(lambda: _pipes(path) != [])
            before_ns = time.monotonic_ns()
            log.append(b"wake up")
            taken_us.append((child.read_number() - before_ns) // 1000)
            assert log.next_offset == number + 1
        assert child.join() == 0

    for name, value in (("median", statistics.median(taken_us)), ("max", max(taken_us))):
        record_property(f"wake_us_{name}", value)
        logger.info("wake-up %s_us=%d n=%d", name, value, WAKE_UPS)


@pytest.mark.parametrize("read_only", [False, True], ids=["taking-part", "read-only"])
def test_an_idle_waiting_reader_uses_next_to_no_processor_time(
    scratch: Path,
    forks: ForkServer,
    record_property: Callable[[str, object], None],
    read_only: bool,
) -> None:
    """Waiting is a count of wake-ups, not a loop; processor time is what they cost."""
    setting, path = Setting(sync="os"), scratch / "log"
    with setting.open(path) as log:
        log.append(b"all there is")
    with forks.start(wait_idle, path, None if read_only else setting, IDLE_SECONDS) as child:
        assert child.read() == READY
        used_us = child.read_number()

    share = used_us / 1_000_000 / IDLE_SECONDS
    record_property("idle_share", share)
    logger.info("idle reader read_only=%s share=%.4f", read_only, share)
    assert share < IDLE_SHARE_MAX


def test_an_exclusive_owner_keeps_other_writers_out_and_lets_readers_read(
    scratch: Path, forks: ForkServer
) -> None:
    """LogLocked for whoever wants to write, until the owner is gone, by close or by kill."""
    path, owner = scratch / "log", Setting(exclusive=True)
    with forks.start(hold, path, owner) as child:
        child.read()
        for exclusive in (False, True):
            with pytest.raises(LogLocked):
                Log(path, exclusive=exclusive, lock_timeout=0)
        with Log(path, read_only=True) as log:
            assert [record.payload for record in log.records()] == [b"held"]
        child.kill()
        assert child.join() == KILLED

    with Log(path, exclusive=True, lock_timeout=0) as log:
        assert log.append(b"ours") == 1


def test_a_shared_log_cannot_be_taken_exclusively_until_all_have_closed_it(
    scratch: Path, forks: ForkServer
) -> None:
    """An exclusive owner is alone, or it is not the owner."""
    path = scratch / "log"
    with forks.start(hold, path, Setting()) as child:
        child.read()
        with pytest.raises(LogLocked):
            Log(path, exclusive=True, lock_timeout=0)
        with Log(path, lock_timeout=0) as log:
            log.append(b"shared")
        child.tell("close")
        assert child.read() == READY

        with Log(path, exclusive=True, lock_timeout=0) as log:
            assert log.next_offset == 2


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_a_handle_is_closed_in_a_forked_child_and_stays_good_in_the_parent(
    scratch: Path, forks: ForkServer, exclusive: bool
) -> None:
    """A child shares its parent's locks, so whatever it did with them would undo them."""
    path = scratch / "log"
    with forks.start(use_after_fork, path, Setting(exclusive=exclusive)) as child:
        outcomes = child.read()
        assert child.read() == READY
        child.tell("append")
        offset = child.read()
        with pytest.raises(LogLocked):
            Log(path, exclusive=True, lock_timeout=0)
        with Log(path, read_only=True) as log:
            payloads = [record.payload for record in log.records()]

    assert isinstance(outcomes, list)
    assert set(outcomes) == {"LogClosed"}
    assert offset == 1
    assert payloads == [b"before the fork", b"after the fork"]


def test_a_reader_closed_in_a_forked_child_still_holds_its_segment_in_the_parent(
    scratch: Path, forks: ForkServer
) -> None:
    """What a reader holds is the parent's: the child must neither use it nor give it up."""
    path = scratch / "log"
    with forks.start(use_after_fork, path, Setting()) as child, Setting().open(path) as log:
        child.read()
        assert child.read() == READY
        log.roll()
        held = log.trim(log.next_offset)

        assert held == []


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_a_forked_child_keeps_no_lock_that_its_parent_gave_up(
    scratch: Path, forks: ForkServer, exclusive: bool
) -> None:
    """Once the parent closes the log, others may have it, however long the child lives."""
    path = scratch / "log"
    with forks.start(use_after_fork, path, Setting(exclusive=exclusive)) as child:
        child.read()
        assert child.read() == READY
        for order in ("append", "close"):
            child.tell(order)
            child.read()

        with Log(path, exclusive=True, lock_timeout=0) as log:
            log.roll()
            assert log.trim(log.next_offset) == [0]


def test_a_segment_is_not_deleted_under_an_open_reader_of_another_process(
    scratch: Path, forks: ForkServer
) -> None:
    """Retention passes it by until the reader has moved on."""
    path, setting = scratch / "log", Setting(sync="os")
    with setting.open(path) as log:
        for number in range(CALLS):
            Writer(id=0, seed=0).append(log, number)
        end, first, *_ = log.next_offset, *log.segments()
        with forks.start(hold_first_segment, path) as child:
            assert child.read() == 0
            held = log.trim(end)
            was_there = first.path.exists()
            child.tell("read on")
            read = child.read()
            moved_on = log.trim(end)

    assert held == []
    assert was_there
    assert read == end
    assert moved_on[0] == first.id
    assert not first.path.exists()


def test_the_pipe_of_a_killed_waiter_is_cleared_away(scratch: Path, forks: ForkServer) -> None:
    """The next append finds nobody at the other end and removes it; others are still woken."""
    setting, path = Setting(sync="os"), scratch / "log"
    with setting.open(path) as log:
        with forks.start(wait_idle, path, setting, LIMIT_SECONDS) as victim:
            wait_until(lambda: len(_pipes(path)) == 1)
            victim.kill()
            assert victim.join() == KILLED
        (dead,) = _pipes(path)
        with forks.start(tell_when_woken, path, setting, 1) as child:
            wait_until(lambda: len(_pipes(path)) == 2)
            log.append(b"wake up")
            assert child.read() == READY
            child.read_number()
            assert child.join() == 0

        assert not dead.exists()
        assert _pipes(path) == []


def _attempts(seed: int) -> tuple[list[Attempts], int]:
    """Return one for each writer, all of whose calls will be acknowledged; and all records."""
    attempts = [
        Attempts(writer=Writer(id=number, seed=seed), in_flight_max=0) for number in range(WRITERS)
    ]
    total = sum(len(tried.writer.call(number)) for tried in attempts for number in range(CALLS))
    return attempts, total


def _append_all(
    forks: ForkServer,
    stack: ExitStack,
    path: Path,
    setting: Setting,
    *,
    attempts: list[Attempts],
    others: list[Child],
) -> None:
    """Let all writers append at once, when they and the others are ready; note the offsets."""
    writers = [
        stack.enter_context(forks.start(append_calls, path, setting, tried.writer, CALLS))
        for tried in attempts
    ]
    assert {child.read() for child in (*others, *writers)} == {READY}
    for writer in writers:
        writer.tell("go")
    for tried, writer in zip(attempts, writers, strict=True):
        tried.acknowledged += [writer.read_number() for _ in range(CALLS)]
        assert writer.join() == 0


def _pipes(path: Path) -> list[Path]:
    """Return the pipes of those who wait."""
    return [pipe for pipe in (path / "wake").glob("*") if not pipe.name.startswith(".")]
