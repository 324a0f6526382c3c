"""The server that Redis tests share: one that dies costs one test."""

import os
import signal

import pytest

from tests.redis_server import SharedServer, SharedServerDied


def test_killed_server_is_one_failure_and_next_call_starts_another() -> None:
    shared = SharedServer()
    first = shared()
    assert shared() is first
    first.signal(signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(SharedServerDied, match=f"port {first.port} ended with exit code -9"):
        shared()
    with shared() as second:
        assert second is not first
        assert shared() is second
        assert second.ask("PING") in {"PONG", True}
