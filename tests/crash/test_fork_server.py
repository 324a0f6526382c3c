"""The fork server itself: one that dies costs one test, and no answer reaches the wrong request."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.channel import Channel
from tests.crash.processes import KILLED, ForkFailed, ForkServer, ForkServerDied
from tests.waiting import hang


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    """A server of our own: the others share theirs."""
    with ForkServer() as server:
        yield server


def report_pid(channel: Channel) -> None:
    """Report our pid and wait for an order."""
    channel.report(os.getpid())
    channel.wait_for_order()


def report_and_hang(channel: Channel) -> None:
    """Report our pid and never end, not even if the pipes close."""
    channel.report(os.getpid())
    hang()


def exit_with(channel: Channel, code: int) -> None:
    os._exit(code)


class CannotBeLoaded:
    """An argument that raises when the server unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("no number",)


def take(channel: Channel, argument: object) -> None:
    """Never called: its argument cannot be loaded."""


def test_killed_server_is_one_failure_and_next_start_works(forks: ForkServer) -> None:
    with forks.start(report_pid) as child:
        child.read()
    os.kill(forks.pid, signal.SIGKILL)

    with pytest.raises(ForkServerDied, match="exit code -9, asked to start report_pid") as caught:
        forks.start(report_pid)
    assert (caught.value.exit_code, caught.value.asked) == (KILLED, "start report_pid")
    with forks.start(report_pid) as child:
        assert child.read() == child.pid
        child.tell("end")
        assert child.join() == 0


def test_server_that_dies_before_its_children_leaves_none_of_them(forks: ForkServer) -> None:
    first, second = forks.start(report_and_hang), forks.start(report_and_hang)
    pids = [first.read(), second.read()]
    os.kill(forks.pid, signal.SIGKILL)

    with pytest.raises(ForkServerDied, match="exit code -9, asked to start report_pid"):
        forks.start(report_pid)
    # The children live, can be killed, and their exit codes are lost.
    assert [child.has_report() for child in (first, second)] == [False, False]
    first.kill()
    assert first.read_rest() == []
    with pytest.raises(ForkServerDied, match=f"exit code -9, asked to reap {pids[0]}"):
        first.join()
    first.close()
    second.close()
    for pid in pids:
        assert not is_running(int(str(pid)))
    with forks.start(exit_with, 3) as child:
        assert child.join() == 3


def test_death_noticed_only_by_close_is_reported_once(forks: ForkServer) -> None:
    first, second = forks.start(report_pid), forks.start(report_pid)
    os.kill(forks.pid, signal.SIGKILL)

    with pytest.raises(ForkServerDied):
        first.close()
    second.close()


def test_server_that_died_unnoticed_is_reported_at_the_end() -> None:
    server = ForkServer()
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(ForkServerDied, match="exit code -9, asked to end"):
        server.close()


def test_failed_request_leaves_server_and_other_children_alone(forks: ForkServer) -> None:
    with forks.start(report_pid) as child:
        before = forks.pid

        with pytest.raises(ForkFailed, match="no number"):
            forks.start(take, CannotBeLoaded())
        child.tell("end")
        assert child.join() == 0
        assert forks.pid == before


def test_answer_to_an_interrupted_request_is_not_taken_for_the_next(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt between request and answer leaves the answer in the connection."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with forks.start(exit_with, 5) as before:
        with monkeypatch.context() as patched:
            patched.setattr("tests.crash.processes._Server._answer_to", interrupt)
            with pytest.raises(KeyboardInterrupt):
                forks.start(report_pid)
        with forks.start(exit_with, 7) as after:
            assert after.join() == 7
        assert before.join() == 5


def test_child_that_does_not_end_does_not_block_the_server(
    forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join that gives up must leave nothing behind that a later answer could be taken for."""
    with forks.start(report_and_hang) as stuck:
        stuck.read()
        with monkeypatch.context() as patched:
            patched.setattr("tests.crash.processes.LIMIT_SECONDS", 0.001)
            with pytest.raises(Exception, match="did not end within"):
                stuck.join()
        with forks.start(exit_with, 4) as other:
            assert other.join() == 4
        stuck.kill()
        assert stuck.join() == KILLED


def is_running(pid: int) -> bool:
    """Report whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
