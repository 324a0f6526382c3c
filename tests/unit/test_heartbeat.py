"""Keeping things alive: beats on time, in one thread or a few, until they stop or fail."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import segue
from segue.errors import LeaseLost, StorageFailed
from segue.stores.heartbeat import Heartbeat
from tests.integration.server_support import served
from tests.waiting import LIMIT_SECONDS, NotInTime, wait_until

TTL_SECONDS = 0.06
SIDE_BY_SIDE = 3


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    """One that is closed at the end, and whose thread is gone then."""
    heartbeat = Heartbeat()
    yield heartbeat
    heartbeat.close()
    assert beating() == []


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "segue-heartbeat"]


class Beats:
    """Counts beats; fails from one of them on if told to."""

    def __init__(self, error: Exception | None = None, *, fail_from: int = 1) -> None:
        self.count = 0
        self._error = error
        self._fail_from = fail_from

    def __call__(self) -> None:
        self.count += 1
        if self._error is not None and self.count >= self._fail_from:
            raise self._error


def test_a_pulse_beats_until_it_is_stopped(heartbeat: Heartbeat) -> None:
    """Several times in the time it would otherwise last."""
    beats = Beats()
    pulse = heartbeat.start(beats, TTL_SECONDS)
    wait_until(lambda: beats.count >= 3)
    pulse.stop()
    wait_until(lambda: not beating())
    count = beats.count
    other = Beats()
    heartbeat.start(other, TTL_SECONDS)
    wait_until(lambda: other.count >= 2)

    assert beats.count == count
    assert pulse.error is None


def test_one_thread_beats_for_all(heartbeat: Heartbeat) -> None:
    """However many there are; and none is left when there is nothing to beat for."""
    all_beats = [Beats() for _ in range(20)]
    pulses = [heartbeat.start(beats, TTL_SECONDS) for beats in all_beats]
    wait_until(lambda: all(beats.count >= 2 for beats in all_beats))
    threads = len(beating())
    for pulse in pulses:
        pulse.stop()

    assert threads == 1
    wait_until(lambda: not beating())


def test_a_shorter_pulse_does_not_wait_for_a_longer_one(heartbeat: Heartbeat) -> None:
    """The one that is due first comes first, whenever it was started."""
    slow, quick = Beats(), Beats()
    heartbeat.start(slow, 3_600)
    heartbeat.start(quick, TTL_SECONDS)

    wait_until(lambda: quick.count >= 3)
    assert slow.count == 0


def test_a_failed_beat_is_kept_and_is_the_last(
    heartbeat: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is kept alive can see why it is not any more; others beat on."""
    lost = LeaseLost(receipt="0-0/1", reason="gone")
    failing, fine = Beats(lost, fail_from=2), Beats()
    with caplog.at_level(logging.WARNING):
        pulse = heartbeat.start(failing, TTL_SECONDS)
        heartbeat.start(fine, TTL_SECONDS)
        wait_until(lambda: pulse.error is not None)
        before = fine.count
        wait_until(lambda: fine.count >= before + 3)

    assert pulse.error is lost
    assert (failing.count, pulse.is_stopped) == (2, True)
    assert "gone" in caplog.text


def test_a_disk_that_fails_does_not_end_a_pulse(heartbeat: Heartbeat) -> None:
    """There are beats to spare: a lease is lost when it is lost, not when one could not be had."""
    failing = Beats(StorageFailed("no disk"))
    pulse = heartbeat.start(failing, TTL_SECONDS)

    wait_until(lambda: failing.count >= 2)
    assert pulse.error is None
    assert not pulse.is_stopped


def test_a_failure_nobody_expected_leaves_the_others_alive(heartbeat: Heartbeat) -> None:
    """A bug in one beat must not let every lease of the process end."""
    errors: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, errors.append
    try:
        heartbeat.start(Beats(RuntimeError("bug")), TTL_SECONDS)
        fine = Beats()
        heartbeat.start(fine, 2 * TTL_SECONDS)

        wait_until(lambda: fine.count >= 3 or not beating())
        assert fine.count >= 3
    finally:
        threading.excepthook = hook


def test_what_is_dropped_is_called_soon(heartbeat: Heartbeat) -> None:
    """While anything beats; a failure of it harms nobody."""
    called = threading.Event()
    beats = Beats()
    heartbeat.start(beats, TTL_SECONDS)
    heartbeat.dropped.append(Beats(LeaseLost(receipt="0-0/1", reason="gone")))
    heartbeat.dropped.append(called.set)

    assert called.wait(LIMIT_SECONDS)
    count = beats.count
    wait_until(lambda: beats.count > count)


def test_a_closed_heartbeat_beats_no_more(heartbeat: Heartbeat) -> None:
    """Closing waits for the beat under way; what is started later never beats."""
    beats = Beats()
    heartbeat.start(beats, TTL_SECONDS)
    wait_until(lambda: beats.count >= 1)
    heartbeat.close()
    heartbeat.close()
    count = beats.count
    later = Beats()
    heartbeat.start(later, TTL_SECONDS)

    assert beating() == []
    assert (beats.count, later.count) == (count, 0)


def test_a_beat_may_close_the_heartbeat(heartbeat: Heartbeat) -> None:
    """Closing from the thread itself does not wait for the thread."""
    closed = threading.Event()

    def beat() -> None:
        heartbeat.close()
        closed.set()

    heartbeat.start(beat, TTL_SECONDS)

    assert closed.wait(LIMIT_SECONDS)
    wait_until(lambda: not beating())


# Side by side ------------------------------------------------------------------------------


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """What hangs goes on when this is set: at the end of the test at the latest."""
    go = threading.Event()
    yield go
    go.set()


@pytest.fixture
def crewed(go: threading.Event) -> Iterator[Heartbeat]:
    """One whose beats are side by side, and whose threads are all gone at the end."""
    heartbeat = Heartbeat(side_by_side=SIDE_BY_SIDE)
    yield heartbeat
    go.set()
    heartbeat.close()
    wait_until(lambda: not beating() and not crew())


def crew() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "segue-beat"]


class Hanging:
    """Hangs until it may go on; says how many do."""

    def __init__(self, go: threading.Event) -> None:
        self.begun = threading.Semaphore(0)
        self._go = go

    def __call__(self) -> None:
        self.begun.release()
        self._go.wait(LIMIT_SECONDS)


def test_what_is_given_back_and_hangs_holds_up_no_beat(
    crewed: Heartbeat, go: threading.Event
) -> None:
    """It may take a round trip, as a beat does: where beats are side by side, so is it."""
    hanging, beats = Hanging(go), Beats()
    crewed.start(beats, TTL_SECONDS)
    crewed.dropped.append(hanging)
    assert hanging.begun.acquire(timeout=LIMIT_SECONDS)
    count = beats.count

    wait_until(lambda: beats.count >= count + 3)


def test_what_is_dropped_is_given_back_before_a_heartbeat_is_closed(crewed: Heartbeat) -> None:
    """Its store is open until then, and not after."""
    given_back = threading.Event()
    crewed.start(Beats(), 3_600)
    crewed.dropped.append(given_back.set)
    crewed.close()

    assert given_back.is_set()


def test_what_is_being_given_back_is_so_before_a_heartbeat_is_closed(
    crewed: Heartbeat, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what another thread is at just now."""
    monkeypatch.setattr("segue.stores.heartbeat.GIVE_BACK_SECONDS", LIMIT_SECONDS)
    begun, given_back = threading.Event(), threading.Event()

    def give_back() -> None:
        begun.set()
        go.wait(LIMIT_SECONDS)
        given_back.set()

    crewed.start(Beats(), 3_600)
    crewed.dropped.append(give_back)
    assert begun.wait(LIMIT_SECONDS)
    opening = threading.Timer(0.05, go.set)
    opening.start()
    crewed.close()

    assert given_back.is_set()
    opening.join()


def test_what_hangs_while_it_is_given_back_keeps_nobody_from_closing(
    crewed: Heartbeat, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back when its lease ends."""
    monkeypatch.setattr("segue.stores.heartbeat.GIVE_BACK_SECONDS", 0.01)
    hanging = Hanging(go)
    crewed.start(Beats(), 3_600)
    crewed.dropped.append(hanging)
    assert hanging.begun.acquire(timeout=LIMIT_SECONDS)
    crewed.close()

    assert not go.is_set()


def test_there_are_no_more_threads_than_may_be(crewed: Heartbeat, go: threading.Event) -> None:
    """However much hangs; what comes then waits for its turn."""
    hanging = Hanging(go)
    for _ in range(SIDE_BY_SIDE + 2):
        crewed.run_beside(hanging)
    for _ in range(SIDE_BY_SIDE):
        assert hanging.begun.acquire(timeout=LIMIT_SECONDS)
    threads = len(crew())
    waits = not hanging.begun.acquire(blocking=False)
    go.set()

    assert (threads, waits) == (SIDE_BY_SIDE, True)
    for _ in range(2):
        assert hanging.begun.acquire(timeout=LIMIT_SECONDS)


def test_threads_with_nothing_to_do_end(crewed: Heartbeat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that had many leases once keeps no threads for it; they come again if need be."""
    monkeypatch.setattr("segue.stores.heartbeat.IDLE_SECONDS", 0.01)
    first, second = threading.Event(), threading.Event()
    crewed.run_beside(first.set)
    assert first.wait(LIMIT_SECONDS)
    wait_until(lambda: not crew())
    crewed.run_beside(second.set)

    assert second.wait(LIMIT_SECONDS)


def test_a_step_that_fails_costs_no_thread(
    crewed: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than there are threads, and the next is still done; what failed is logged."""
    done = threading.Event()
    for _ in range(2 * SIDE_BY_SIDE):
        crewed.run_beside(Beats(RuntimeError("bug")))
    crewed.run_beside(done.set)

    assert done.wait(LIMIT_SECONDS)
    assert "bug" in caplog.text


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have no thread of these names started, as Python does at its end."""
    start = threading.Thread.start

    def start_other(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_other)


def test_where_no_thread_can_be_started_beats_go_on_in_place(
    crewed: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is renewed in its turn is better than one that is lost."""
    refuse_threads(monkeypatch, "segue-beat")
    beats = Beats()
    crewed.start(beats, TTL_SECONDS)

    wait_until(lambda: beats.count >= 3)
    assert crew() == []


def test_a_thread_is_there_for_as_long_as_anything_beats(
    crewed: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the only beat is under way elsewhere: another might not be had."""
    beats = Beats()
    crewed.start(beats, TTL_SECONDS)
    wait_until(lambda: beats.count >= 1)
    refuse_threads(monkeypatch, "segue-beat", "segue-heartbeat")
    count = beats.count

    wait_until(lambda: beats.count >= count + 5)


def test_what_nobody_can_renew_is_warned_of_and_held_for_as_long_as_it_lasts(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that is done in time needs no beat; when there are threads again, it has them."""
    first, second = Beats(), Beats()
    with monkeypatch.context() as patch:
        refuse_threads(patch, "segue-heartbeat")
        pulse = heartbeat.start(first, TTL_SECONDS)
    is_held = pulse.error is None
    heartbeat.start(second, TTL_SECONDS)

    assert is_held
    assert "not renewed" in caplog.text
    wait_until(lambda: first.count >= 1 and second.count >= 1)


def test_a_beat_that_took_long_is_followed_by_the_next_at_its_time(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its beginning, not its end: else one that hangs costs the lease what two would."""
    now = 0.0
    monkeypatch.setattr("segue.stores.heartbeat.time", SimpleNamespace(monotonic=lambda: now))
    beaten = threading.Semaphore(0)

    def beat() -> None:
        nonlocal now
        if now < 20:
            now = 20.0  # As long as from one beat to the next.
        beaten.release()

    heartbeat.start(beat, 30)
    now = 10.0

    assert beaten.acquire(timeout=LIMIT_SECONDS)
    assert beaten.acquire(timeout=LIMIT_SECONDS)


# That it forks while threads run is what is tested; newer Pythons warn of it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_has_threads_of_its_own_and_nothing_of_its_parents(
    crewed: Heartbeat, go: threading.Event
) -> None:
    """Though all of the parent's hang: what they do, and what was dropped, is the parent's."""
    hanging = Hanging(go)
    for _ in range(SIDE_BY_SIDE):
        crewed.run_beside(hanging)
    for _ in range(SIDE_BY_SIDE):
        assert hanging.begun.acquire(timeout=LIMIT_SECONDS)
    dropped = Beats()
    crewed.dropped.append(dropped)
    child = os.fork()
    if child == 0:
        crewed.begin()
        beats = Beats()
        crewed.start(beats, TTL_SECONDS)
        with contextlib.suppress(NotInTime):
            wait_until(lambda: beats.count >= 3)
        os._exit(0 if beats.count >= 3 and dropped.count == 0 else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


LEAVES_A_THREAD_AT_WORK = """
import sys, threading
import segue
from segue.stores import heartbeat

heartbeat.BEATS_PER_TTL = 600
limit = float(sys.argv[2])
queue = segue.open(sys.argv[1]).queue("work")
leased, renewed = threading.Event(), threading.Semaphore(0)
extend = queue.extend

def noted(job, **options):
    extend(job, **options)
    renewed.release()

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def work():
    queue.extend = noted
    with queue.lease(ttl=60):
        leased.set()
        threading.main_thread().join()
        # The interpreter waits for this thread by now. Python 3.12 starts no other any more.
        threading.Thread.start = refuse
        while renewed.acquire(blocking=False):
            pass
        for _ in range(2):
            assert renewed.acquire(timeout=limit)
    with queue.lease(ttl=60):
        assert renewed.acquire(timeout=limit)

threading.Thread(target=work).start()
assert leased.wait(limit)
"""


@pytest.mark.parametrize("kind", ["file", "http"])
def test_leases_are_kept_though_the_main_thread_has_ended(scratch: Path, kind: str) -> None:
    """Python waits for threads that are no daemons, and what they hold is held meanwhile."""
    path = scratch / "data"
    with served(path) as server, segue.open(server.url) as store:
        queue = store.queue("work")
        queue.push_many([b"first", b"second"])
        child = subprocess.run(
            [
                *(sys.executable, "-c", LEAVES_A_THREAD_AT_WORK),
                server.url if kind == "http" else str(path),
                str(LIMIT_SECONDS),
            ],
            capture_output=True,
            text=True,
            timeout=3 * LIMIT_SECONDS,
            check=False,
        )
        left = queue.count().total

    assert (child.stderr, child.returncode) == ("", 0)
    assert left == 0  # Both are acked by who leased them first.
