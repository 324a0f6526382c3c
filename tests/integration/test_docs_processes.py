"""The fast commands of docs_processes.py behave as the processes that they replace."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

from tests.integration import docs_processes
from tests.integration.docs_processes import fast_environment
from tests.integration.docs_server import ENVIRONMENT
from tests.waiting import LIMIT_SECONDS, wait_until

WAITS: Final = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STARTED: Final = f"python -c '{WAITS}' > pid & until [ -s pid ]; do sleep 0.01; done"
LINES: Final = (
    "segue --version",
    "segue queue push data mail 'to: ada' && segue queue pop data mail",
    "segue queue pop data nothing; echo $?",
    "segue no-such-command; echo $?",
    "segue lock run data night -- sh -c 'exit 42'; echo $?",
    "printf 'one\\ntwo\\n' | segue queue push data work --lines | tail -1",
    "python -c 'import sys; print(sys.argv, sys.path, __name__)' 'two words' \"it's\" ''",
    "python -c 'import sys; print(sys.stdin, sys.stdout, sys.stderr)' < /dev/null 2> errors.txt",
    "python -c 'import os; print(sorted(set(os.environ) - {\"PATH\"}))'",
    "SPOKEN=größe python -c 'import os; print(os.environ[\"SPOKEN\"])'",
    "PYTHONHASHSEED=7 python -c 'print(hash(\"segue\"))'",
    "TZ=Asia/Tokyo python -c 'import time; print(time.tzname)'",
    "mkdir -p inner && cd inner && python -c 'import os; print(os.getcwd())'",
    "umask 027; python -c 'import os; os.mkdir(\"made\")'; stat -c %a made; rmdir made",
    'python -c \'import sys; print("out"); print("err", file=sys.stderr)\' 2> /dev/null',
    "python -c 'import sys; sys.exit(\"reason\")'; echo $?",
    "python -c 'import atexit; atexit.register(print, \"at exit\"); 1 / 0' 2> /dev/null; echo $?",
    "python -c 'import threading as t; t.Timer(0.01, print, [\"later\"]).start()'",
    "python -c 'while True: print(1)' 2> /dev/null | head -1; echo ${PIPESTATUS[0]}",
    "python -c 'print(1)' > /dev/full 2> /dev/null; echo $?",
    "exec 2> /dev/null; python -c 'import os; os.abort()'; echo $?",
    "trap '' TERM; python -c 'import os; os.kill(os.getpid(), 15); print(\"lives\")'",
    "python -V; echo 'print(7)' > seven.py; python seven.py",
    # A background job of a shell without job control ignores Ctrl-C.
    f"{STARTED}; kill -INT $!; kill $!; wait $! 2> /dev/null; echo $?",
)


def printed(line: str, directory: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code and the output of a line in a shell."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.replace(str(directory), "here")


@contextmanager
def waiting_process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A fast command that waits for a signal, and the pid it has for itself."""
    with subprocess.Popen(
        ["python", "-c", WAITS],
        env=fast_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process, int(pipe(process.stdout).readline())
        finally:
            process.kill()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_fast_command_does_what_a_plain_one_does(tmp_path: Path) -> None:
    for line in LINES:
        plain = printed(line, tmp_path / "plain", ENVIRONMENT)

        assert printed(line, tmp_path / "fast", fast_environment()) == plain, line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_forked_process(number: signal.Signals) -> None:
    with waiting_process() as (process, pid):
        process.send_signal(number)

        assert process.wait(LIMIT_SECONDS) == -number
    wait_until(lambda: is_gone(pid))


def test_a_killed_command_leaves_no_process() -> None:
    with waiting_process() as (process, pid):
        process.kill()
    wait_until(lambda: is_gone(pid))


def test_a_server_that_has_died_is_started_again(tmp_path: Path) -> None:
    fast_environment()
    server = docs_processes._fork_server()
    if server is None:  # No compiler: every command is a plain process.
        return
    server.kill()

    assert printed("segue --version", tmp_path, fast_environment())[0] == 0
    assert docs_processes._fork_server() is not server
