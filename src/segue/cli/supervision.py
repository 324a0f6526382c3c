"""A command that runs while something is held: kept alive, told of signals, stopped in time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

PASSED_ON: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
BY_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
"""What a terminal sends to everybody in its foreground, the command among them."""
KILLED: Final = 128
"""A command that a signal ended has this and the signal's number as its exit code."""


class Command:
    """A command that runs. Signals that are meant for it are passed on to it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if that cannot be."""
        # In the foreground of a terminal it must stay in our group, to be able to read from it.
        # Elsewhere a group of its own lets us reach whatever it starts.
        self._shares_group = _is_in_foreground()
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **environment},
            process_group=None if self._shares_group else 0,
        )
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, name="segue-command", daemon=True).start()

    def _await_end(self) -> None:
        self._process.wait()
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended, after `seconds` at most."""
        return self._ended.wait(seconds)

    @property
    def exit_code(self) -> int:
        """How it ended, as a shell would say it."""
        code = self._process.returncode
        return code if code >= 0 else KILLED - code

    def send(self, number: int) -> None:
        """Send it a signal, and to whatever it started if it has a group of its own."""
        if self._shares_group:
            self._process.send_signal(number)
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # It ended a moment ago, and all it started with it.

    def pass_on(self, number: int) -> None:
        """Send it a signal that came to us, unless it came to both."""
        if not (self._shares_group and number in BY_TERMINAL):
            self.send(number)

    def stop(self, *, grace_seconds: float) -> None:
        """Have it end: by SIGTERM, and by SIGKILL if it has not ended in time."""
        self.send(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # Stopped, it would notice nothing.
        if not self.wait(grace_seconds):
            self.send(signal.SIGKILL)
            self._ended.wait()


def keep_while_running(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    renew: Callable[[], None],
    every_seconds: float,
    grace_seconds: float,
) -> int:
    """Run a command, renewing what it depends on meanwhile, and return its exit code.

    Raises what `renew` raises, once the command has been stopped; OSError if it cannot start.
    """
    sys.stdout.flush()
    with _signals() as receive:
        command = Command(words, environment)
        receive(command.pass_on)
        due = time.monotonic() + every_seconds
        while not command.wait(max(0.0, due - time.monotonic())):
            try:
                renew()
            except BaseException:  # Whatever it is: without us nobody keeps it alive.
                command.stop(grace_seconds=grace_seconds)
                raise
            due = time.monotonic() + every_seconds
        return command.exit_code


@contextmanager
def _signals() -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Catch the signals that are passed on; yield what says where to. None is lost before."""
    early: list[int] = []
    handlers: list[Callable[[int], None]] = [early.append]

    def receive(handler: Callable[[int], None]) -> None:
        handlers[0] = handler
        for number in early:
            handler(number)

    def caught(number: int, frame: FrameType | None) -> None:
        handlers[0](number)

    before = {number: signal.signal(number, caught) for number in PASSED_ON}
    try:
        yield receive
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Tell whether we are what a terminal runs now."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(fd)
