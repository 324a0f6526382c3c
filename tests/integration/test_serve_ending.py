"""`segue serve` ends when it is told to, whatever its threads are doing."""

import fcntl
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.stores.opening import open_directory
from tests.waiting import LIMIT_SECONDS, wait_until

PIPE_BYTES_MIN: Final = 16_000
"""What a pipe holds on any system that we know."""

STUCK: Final = """
import sys, threading
import segue.cli.serving, segue.server.serving
from segue.server.sessions import Sessions
from segue.stores.file.queue import FileQueue
from segue.stores.file.topics.topic import FileTopic

segue.server.serving.GRACE_SECONDS = 1
segue.cli.serving.CLOSING_SECONDS = 2.0
segue.server.operations.LAST_LINES_SECONDS = 0.5

def hang(*words, **options):
    print("stuck", flush=True)
    # A signal just before a wait without a timeout is not handled until the wait ends.
    while not threading.Event().wait(1):
        pass

def hang_at_the_end(*words, **options):
    try:
        yield from [found] * 1_000
    finally:
        hang()

whole = FileQueue.history
def history(*words, **options):
    global found
    (found,) = whole(*words, **options)
    return hang_at_the_end()

{hanging}
sys.argv = ["segue", "serve", *sys.argv[1:], "--port", "0", "--json"]
from segue.cli import main
sys.exit(main())
"""
"""A server in which something does not come back, and which takes little time to end."""
COMPACTION: Final = "FileTopic.compact = hang"
NOTHING: Final = f"""
from segue.stores.file.store import FileStore
segue.cli.serving.CLOSING_SECONDS = {LIMIT_SECONDS / 6}
close = FileStore.close
def tell(self):
    close(self)
    open(sys.argv[2] + ".closed", "x").close()
FileStore.close = tell
"""
"""Gives the store more time to close, all of which passes. Makes a file once it is closed."""


@contextmanager
def served(
    store: Path, *words: str, hanging: str = COMPACTION, stderr: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve a store from a process of its own; yields that and the port."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(hanging=hanging), str(store), *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
    ) as process:
        try:
            assert process.stdout is not None
            url: str = json.loads(process.stdout.readline())["url"]
            yield process, int(url.rpartition(":")[2])
        finally:
            process.kill()


def ask(port: int, path: str, body: object) -> None:
    """Have something done, of which the answer may never come."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    with suppress(OSError, http.client.HTTPException):
        line.request("POST", path, json.dumps(body))
        line.getresponse().read()
    line.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Tell a process to end, and wait until it has. Its exit code must be 0."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECONDS) == 0


def test_a_thread_that_is_stuck_in_the_store_does_not_keep_the_process(tmp_path: Path) -> None:
    """All that was answered is kept, so nobody needs to wait for what was not."""
    with open_directory(tmp_path / "data") as store:
        store.topic("orders", partitions=1)
    with served(tmp_path / "data") as (process, port):
        with segue.open(f"http://127.0.0.1:{port}") as client:
            client.queue("jobs").push(b"kept")
        asking = threading.Thread(
            target=ask, args=(port, "/api/v1/topics/orders/compact", {}), daemon=True
        )
        asking.start()
        assert process.stdout is not None
        assert process.stdout.readline() == b"stuck\n"
        end(process)
        asking.join(LIMIT_SECONDS)

    with open_directory(tmp_path / "data") as store:
        assert [message.body for message in store.queue("jobs").pop_many(9)] == [b"kept"]


def test_a_redrive_that_takes_its_time_does_not_keep_the_process(tmp_path: Path) -> None:
    """Letters that were not brought back yet are dead letters still, and none is lost."""
    with open_directory(tmp_path / "data") as store:
        queue = store.queue("jobs")
        queue.push_many([b"%d" % number for number in range(30)])
        for job in queue.lease_many(30):
            queue.nack(job, outcome="dead")
    with served(tmp_path / "data") as (process, port):
        asking = threading.Thread(
            target=ask,
            args=(port, "/api/v1/queues/jobs/dead-letters/redrive", {"rate": 0.1}),
            daemon=True,
        )
        asking.start()
        with segue.open(f"http://127.0.0.1:{port}") as client:
            assert client.queue("jobs").pop(wait=LIMIT_SECONDS) is not None
        end(process)
        asking.join(LIMIT_SECONDS)

    with open_directory(tmp_path / "data") as store:
        counts = store.queue("jobs").count()
    assert counts.dead + counts.ready == 29


def unread_bytes(process: subprocess.Popen[bytes]) -> int:
    """Return how much of what a process printed nobody has read yet."""
    assert process.stdout is not None
    (size,) = struct.unpack("i", fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)))
    return int(size)


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.STDOUT], ids=["apart", "along"])
def test_an_access_log_that_nobody_reads_does_not_keep_the_process(
    tmp_path: Path, stderr: int
) -> None:
    """Also where the errors go the same way. The store is closed in order all the same."""
    words = ("--access-log", "-")
    with served(tmp_path / "data", *words, hanging=NOTHING, stderr=stderr) as (process, port):
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
        for _ in range(1_000):  # Their lines are more than a pipe holds.
            line.request("GET", "/live")
            line.getresponse().read()
        line.close()
        wait_until(lambda: unread_bytes(process) >= PIPE_BYTES_MIN)
        end(process)

    assert (tmp_path / "data.closed").exists()


@pytest.mark.parametrize(
    ("hanging", "method", "path"),
    [
        ("Sessions.sweep = hang", "GET", "/live"),
        ("FileQueue.history = history", "GET", "/api/v1/queues/jobs/history"),
        ("FileQueue.count = hang", "GET", "/api/v1/queues/jobs/count"),
    ],
    ids=["ending sessions", "closing a stream", "the event loop"],
)
def test_whatever_hangs_does_not_keep_the_process(
    tmp_path: Path, hanging: str, method: str, path: str
) -> None:
    """Neither a thread of the event loop's own, nor the event loop itself."""
    with open_directory(tmp_path / "data") as store:
        store.queue("jobs").push(b"x" * 100_000)
    with (
        served(tmp_path / "data", "--sync", "os", hanging=hanging) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as line,
    ):
        line.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if "history" in hanging:
            line.recv(1)
            line.close()
        assert process.stdout is not None
        assert process.stdout.readline() == b"stuck\n"
        end(process)


def test_a_server_that_cannot_say_where_it_is_ends_at_once(tmp_path: Path) -> None:
    """With the exit code of who writes to a pipe that is closed, and not later without."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "segue", "serve", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        _, said = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 128 + signal.SIGPIPE
    assert said == b""
