"""Keeping things alive: beats on time, in one thread, until they stop or fail."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from segue.errors import LeaseLost, StorageFailed
from segue.stores.heartbeat import Heartbeat

PATIENCE_SECONDS = 30.0
TTL_SECONDS = 0.06


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    """One that is closed at the end, and whose thread is gone then."""
    heartbeat = Heartbeat()
    yield heartbeat
    heartbeat.close()
    assert beating() == []


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "segue-heartbeat"]


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.002)
    return True


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
    assert eventually(lambda: beats.count >= 3)
    pulse.stop()
    assert eventually(lambda: not beating())
    count = beats.count
    other = Beats()
    heartbeat.start(other, TTL_SECONDS)
    assert eventually(lambda: other.count >= 2)

    assert beats.count == count
    assert pulse.error is None


def test_one_thread_beats_for_all(heartbeat: Heartbeat) -> None:
    """However many there are; and none is left when there is nothing to beat for."""
    all_beats = [Beats() for _ in range(20)]
    pulses = [heartbeat.start(beats, TTL_SECONDS) for beats in all_beats]
    assert eventually(lambda: all(beats.count >= 2 for beats in all_beats))
    threads = len(beating())
    for pulse in pulses:
        pulse.stop()

    assert threads == 1
    assert eventually(lambda: not beating())


def test_a_shorter_pulse_does_not_wait_for_a_longer_one(heartbeat: Heartbeat) -> None:
    """The one that is due first comes first, whenever it was started."""
    slow, quick = Beats(), Beats()
    heartbeat.start(slow, 3_600)
    heartbeat.start(quick, TTL_SECONDS)

    assert eventually(lambda: quick.count >= 3)
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
        assert eventually(lambda: pulse.error is not None)
        before = fine.count
        assert eventually(lambda: fine.count >= before + 3)

    assert pulse.error is lost
    assert (failing.count, pulse.is_stopped) == (2, True)
    assert "gone" in caplog.text


def test_a_disk_that_fails_does_not_end_a_pulse(heartbeat: Heartbeat) -> None:
    """There are beats to spare: a lease is lost when it is lost, not when one could not be had."""
    failing = Beats(StorageFailed("no disk"))
    pulse = heartbeat.start(failing, TTL_SECONDS)

    assert eventually(lambda: failing.count >= 2)
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

        assert eventually(lambda: fine.count >= 3 or not beating())
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

    assert called.wait(PATIENCE_SECONDS)
    count = beats.count
    assert eventually(lambda: beats.count > count)


def test_a_closed_heartbeat_beats_no_more(heartbeat: Heartbeat) -> None:
    """Closing waits for the beat under way; what is started later never beats."""
    beats = Beats()
    heartbeat.start(beats, TTL_SECONDS)
    assert eventually(lambda: beats.count >= 1)
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

    assert closed.wait(PATIENCE_SECONDS)
    assert eventually(lambda: not beating())
