"""Exceptions out of a signal handler, as Ctrl-C is one, wherever they strike."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from segue.delivery.ledger import Ledger
from segue.errors import LeaseLost, QueueEmpty
from segue.stores.opening import open_directory
from tests.conftest import TORTURE
from tests.waiting import wait_until

INTERRUPTS = 500 if TORTURE else 200
EVERY_SECONDS = 0.0007


class Interrupted(BaseException):
    """What the handler raises."""


class Alarm:
    """A signal that raises once each time it is set, at no particular line.

    It counts, too: what strikes while Python collects garbage is raised to nobody.
    """

    def __init__(self) -> None:
        self.struck = False

    def set(self, seconds: float) -> None:
        """Strike once, so many seconds from now."""
        self.struck = False
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def strike(self, _: int, __: FrameType | None) -> None:
        """Handle the signal."""
        self.struck = True
        raise Interrupted


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """An alarm in the place of everybody else's."""
    alarm = Alarm()
    before = signal.signal(signal.SIGALRM, alarm.strike)
    yield alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(100, method="thread")  # The other method needs the signal itself.
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_an_interrupt_leaves_no_lock_held_and_no_state_behind(
    scratch: Path, alarm: Alarm, *, exclusive: bool
) -> None:
    """Whoever calls next, here or in another process, neither hangs nor counts wrong."""
    store = open_directory(scratch, sync="os", exclusive=exclusive)
    queue = store.queue("jobs")
    queue.push(b"first")  # Opening files is another matter.
    for seed in range(INTERRUPTS):
        with contextlib.suppress(Interrupted):
            alarm.set(EVERY_SECONDS * (1 + seed % 7) / 3)
            while not alarm.struck:
                queue.push(b"a")
                with contextlib.suppress(QueueEmpty, LeaseLost):
                    queue.lease(ttl=0.001).ack()
                queue.count()
    if not exclusive:
        with open_directory(scratch, sync="os") as other:
            assert other.queue("jobs").count() == queue.count()

    def is_empty() -> bool:
        queue.ack_many(queue.lease_many(1_000))
        return not queue.count().total

    wait_until(is_empty)

    counts = queue.count()
    assert (counts.total, counts.leased) == (0, 0)
    store.close()


def test_a_turn_that_was_broken_off_writes_no_checkpoint(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What memory holds then is not to be trusted, and a checkpoint would make it everybody's."""
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs")
        queue.push(b"a")
        for _ in range(20):
            queue.pause()
            queue.resume()
        monkeypatch.setattr(store._queues["jobs"].journal, "checkpoint_due", 0)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "lease_next", _interrupted)
            with pytest.raises(Interrupted):
                queue.lease(ttl=60)  # The event is written, and memory does not know of it.

        with open_directory(scratch, sync="os") as other:
            assert other.queue("jobs").count().leased == 1
        assert queue.count().leased == 1


def _interrupted(*_: object) -> None:
    raise Interrupted
