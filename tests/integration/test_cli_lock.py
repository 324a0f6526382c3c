"""`segue lock run`: commands under a lock, with real processes and real signals."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.cli import supervision
from segue.cli.exits import ExitCode
from segue.cli.supervision import keep_while_running
from segue.clock import system_ticks
from segue.stores.opening import open_directory
from tests.crash.stopping import stop
from tests.integration.cli_support import COMMAND, ask, pipe
from tests.waiting import LIMIT_SECONDS, wait_until

EAGER: Final = """
import sys
import segue.cli.lock
from segue.cli import main

segue.cli.lock.RENEWALS_PER_TTL = 600
sys.exit(main())
"""
"""`segue`, which renews a lock of a minute every 0.1 s: it soon finds out that the lock is lost."""
AGE_US: Final = 3_600_000_000
"""Longer than any lock here lasts."""


@contextmanager
def running(store: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`segue lock run` without a terminal, with pipes to and from it."""
    process = subprocess.Popen(
        [sys.executable, "-c", EAGER, "lock", "run", str(store), "job", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(store: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, "lock", "run", str(store), "job", *words],
        check=False,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )


def opened_later(store: Path) -> segue.Store:
    """Open a store with a clock by which every lock that is held now has expired."""
    return open_directory(store, ticks=lambda: system_ticks() + AGE_US)


def take_over(store: Path) -> int:
    """Take the lock after its time to live. Return the new token."""
    with opened_later(store) as opened:
        return opened.lock("job", ttl=60).acquire(wait=0).token


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_opened(pid: int, directory: Path) -> bool:
    """Tell whether a process holds a file of a directory open."""
    try:
        held = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:  # It closed one between the listing and our look.
        return False
    return any(name.startswith(f"{directory}/") for name in held)


def test_the_command_has_name_and_token_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    """Tokens grow with every holder, and the lock is free afterwards."""
    script = 'echo "$SEGUE_LOCK_NAME $SEGUE_LOCK_TOKEN"; cat; exit 42'
    first, second = run(tmp_path, "--", "sh", "-c", script), run(tmp_path, "--", "sh", "-c", script)
    shown = ask("lock", "show", tmp_path, "job", "--json").json

    assert (first.returncode, first.stderr) == (42, b"")
    name, token = first.stdout.decode().split()
    assert name == "job"
    assert int(second.stdout.split()[1]) > int(token)
    assert (shown["held"], shown["owner"], shown["token"]) == (False, None, None)


def test_a_lock_that_is_held_has_a_code_of_its_own(tmp_path: Path) -> None:
    """The command is not run; `show` and `ls` say who has the lock."""
    marker = tmp_path / "ran"
    with segue.open(tmp_path / "data") as store:
        held = store.lock("job").acquire(owner="ada")
        busy = ask(
            "lock", "run", tmp_path / "data", "job", "--wait", "50ms", "--", "touch", str(marker)
        )
        shown = ask("lock", "show", tmp_path / "data", "job").fields
        listed = ask("lock", "ls", tmp_path / "data").fields

    assert busy.code == ExitCode.LOCK_BUSY
    assert "held by ada" in busy.err
    assert not marker.exists()
    assert shown[1:4] == [["held", "yes"], ["owner", "ada"], ["token", str(held.token)]]
    assert listed[0][:3] == ["job", "ada", str(held.token)]


@pytest.mark.parametrize(
    ("command", "code"), [("/nonexistent", ExitCode.NO_COMMAND), ("/", ExitCode.NOT_EXECUTABLE)]
)
def test_a_command_that_cannot_run_leaves_the_lock_free(
    tmp_path: Path, command: str, code: ExitCode
) -> None:
    """As a shell would put it, and in one line."""
    failed = ask("lock", "run", tmp_path, "job", "--", command)

    assert (failed.code, failed.err.count("\n")) == (code, 1)
    assert ask("lock", "show", tmp_path, "job").fields[1] == ["held", "no"]


def test_the_commands_own_options_are_not_ours(tmp_path: Path) -> None:
    """What stands behind -- is passed on, --json and all."""
    done = run(tmp_path, "--", "echo", "--json", "-n", "--ttl", "x")
    failed = ask("lock", "run", tmp_path, "job", "--", "/nonexistent", "--json")

    assert done.stdout == b"--json -n --ttl x\n"
    assert failed.err.startswith("segue: ")


def test_a_lock_is_renewed_so_often_that_one_renewal_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: list[float] = []

    def keep(*_: object, every_seconds: float, **_more: object) -> int:
        every.append(every_seconds)
        return 0

    monkeypatch.setattr(supervision, "keep_while_running", keep)

    assert ask("lock", "run", tmp_path, "job", "--ttl", "60s", "--", "true").code == 0
    assert [2 * each < 60 for each in every] == [True]


def test_a_long_command_keeps_its_lock(tmp_path: Path) -> None:
    """It is renewed again and again for as long as the command runs."""
    with running(tmp_path, "--ttl", "60s", "--", "sh", "-c", "echo ready; cat") as job:
        assert pipe(job.stdout).readline() == b"ready\n"
        with segue.open(tmp_path) as store:
            for _ in range(3):
                before = _seconds_left(store)
                wait_until(lambda before=before: _seconds_left(store) > before)  # type: ignore[misc]
        out, err = job.communicate(b"done", timeout=LIMIT_SECONDS)

    assert (out, err, job.returncode) == (b"done", b"", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    """The command decides what they mean; the lock is free when it has ended."""
    name = number.name.removeprefix("SIG")
    # Silenced: the shell says what a signal did to the sleep it waits for.
    trap = f'exec 2>/dev/null; trap "echo caught; exit 7" {name}'
    script = f"{trap}; echo ready; while :; do sleep 0.01; done"
    with running(tmp_path, "--", "sh", "-c", script) as job:
        assert pipe(job.stdout).readline() == b"ready\n"
        job.send_signal(number)
        out, err = job.communicate(timeout=LIMIT_SECONDS)

    assert (out, err, job.returncode) == (b"caught\n", b"", 7)
    assert _held(tmp_path) == []


def test_a_command_ended_by_a_signal_says_which(tmp_path: Path) -> None:
    """As a shell would: 128 and the number."""
    assert run(tmp_path, "--", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "grace"),
    [
        ("echo ready; exec sleep 60", "60s"),
        ('trap "" TERM; echo ready; while :; do sleep 0.05; done', "100ms"),
    ],
    ids=["by SIGTERM", "by SIGKILL"],
)
def test_a_lost_lock_ends_the_command(tmp_path: Path, script: str, grace: str) -> None:
    """Stopped past its time to live, we find the lock gone: the command must not go on."""
    words = ["--ttl", "60s", "--grace", grace, "--", "sh", "-c", f"echo $$; {script}"]
    with running(tmp_path, *words) as job:
        pid = int(pipe(job.stdout).readline())
        assert pipe(job.stdout).readline() == b"ready\n"
        stop(job.pid)
        token = take_over(tmp_path)
        job.send_signal(signal.SIGCONT)
        _, err = job.communicate(timeout=LIMIT_SECONDS)

    assert job.returncode == ExitCode.LOCK_LOST
    assert b"lock job" in err
    assert err.count(b"\n") == 1
    assert not is_alive(pid)
    with opened_later(tmp_path) as store:
        holder = store.lock("job").holder()
    assert holder is not None
    assert holder[1] == token


def test_a_command_never_outlives_who_keeps_its_lock(tmp_path: Path) -> None:
    """Also where it is no loss that ends the keeping, as when nobody reads our warnings."""
    note = tmp_path / "pid"

    def renew() -> None:
        if note.exists() and note.read_text():
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        keep_while_running(
            ["sh", "-c", f"echo $$ > {note}; exec sleep 60"],
            {},
            renew=renew,
            every_seconds=0.01,
            grace_seconds=LIMIT_SECONDS,
        )

    assert not is_alive(int(note.read_text()))


def test_a_lost_lock_ends_what_the_command_started(tmp_path: Path) -> None:
    """Without a terminal the command has a group of its own, and all of it is ended."""
    words = ["--ttl", "60s", "--", "sh", "-c", "sleep 600 & echo $!; wait"]
    with running(tmp_path, *words) as job:
        child = int(pipe(job.stdout).readline())
        stop(job.pid)
        take_over(tmp_path)
        job.send_signal(signal.SIGCONT)
        job.communicate(timeout=LIMIT_SECONDS)

    wait_until(lambda: not is_alive(child))
    assert job.returncode == ExitCode.LOCK_LOST


def test_a_command_that_ended_after_its_lock_is_no_success(tmp_path: Path) -> None:
    """It may have done its work beside somebody else's."""
    with running(tmp_path, "--ttl", "60s", "--", "sh", "-c", "echo ready; cat") as job:
        assert pipe(job.stdout).readline() == b"ready\n"
        stop(job.pid)
        take_over(tmp_path)
        pipe(job.stdin).close()
        job.stdin = None
        job.send_signal(signal.SIGCONT)
        job.communicate(timeout=LIMIT_SECONDS)

    assert job.returncode == ExitCode.LOCK_LOST


def test_a_killed_holder_gives_way_after_its_time_to_live(tmp_path: Path) -> None:
    """Nobody has to clean up after SIGKILL."""
    with running(tmp_path, "--ttl", "1s", "--", "sh", "-c", "echo $$; exec sleep 600") as job:
        pid = int(pipe(job.stdout).readline())
        job.kill()
        done = ask("lock", "run", tmp_path, "job", "--wait", f"{LIMIT_SECONDS}s", "--", "true")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    assert done.code == 0


def test_ctrl_c_while_waiting_for_the_lock_runs_nothing(tmp_path: Path) -> None:
    """There is no command yet to pass it on to."""
    with segue.open(tmp_path) as store:
        store.lock("job", ttl=600).acquire()
        with running(tmp_path, "--", "touch", str(tmp_path / "ran")) as job:
            wait_until(lambda: has_opened(job.pid, tmp_path))
            job.send_signal(signal.SIGINT)
            _, err = job.communicate(timeout=LIMIT_SECONDS)

    assert (job.returncode, err) == (ExitCode.INTERRUPTED, b"")
    assert not (tmp_path / "ran").exists()


def test_on_a_terminal_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal sends it to both; passing it on would send it twice."""
    # Half a second is for a second signal, if there is one.
    script = (
        'n=0; trap "n=\\$((n+1))" INT; echo ready;'
        ' while [ $n = 0 ]; do sleep 0.1; done; sleep 0.5; echo "caught $n"'
    )
    pid, terminal = pty.fork()
    if not pid:
        os.execv(
            sys.executable,
            [*COMMAND, "lock", "run", str(tmp_path), "job", "--", "sh", "-c", script],
        )
    shown = bytearray()
    try:
        while b"ready" not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        while piece := os.read(terminal, 1024):
            shown += piece
    except OSError:
        pass  # How a terminal says that nobody is at its other side any longer.
    finally:
        os.close(terminal)
    _, status = os.waitpid(pid, 0)

    assert b"caught 1" in shown
    assert os.waitstatus_to_exitcode(status) == 0


def _seconds_left(store: segue.Store) -> float:
    """Return for how long the lock is held, if it is not renewed."""
    holder = store.lock("job").holder()
    assert holder is not None
    return holder[2]


def _held(store: Path) -> list[str]:
    """Return the locks that are held."""
    if not (store / "segue.toml").exists():
        return []
    return [line[0] for line in ask("lock", "ls", store).fields if line[1] != "-"]
