"""`segue serve` as a process that is killed and started again, and those who use it meanwhile."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.request import urlopen

import segue

# Warm for the fork server: a server imports these when it starts.
import segue.server.building
import segue.server.serving
import segue.stores.http.store
from segue.cli import main
from segue.errors import LeaseLost, QueueEmpty
from segue.log.options import SyncName
from tests.crash.channel import Channel
from tests.crash.processes import KILLED, Child, ForkServer
from tests.ports import free_port
from tests.waiting import LIMIT_SECONDS, wait_until

QUEUE: Final = "jobs"
CALLS_MAX: Final = 1_000_000
"""A child that nobody stops ends all the same."""
LEASE_SECONDS: Final = 1.0
"""What was leased to somebody who never heard of it comes back after so long."""
POLL_SECONDS: Final = 0.5
WAIT_SECONDS: Final = 10 * LIMIT_SECONDS
"""Longer than a test waits: a client that is never woken is reported as stuck."""
LONG_SECONDS: Final = 3_600.0
"""Time to live of a lease that no test outlives."""
STOP: Final = "stop"
DONE: Final = "done"


class ServeProcess:
    """One server, on one port for all its lives. Each life is a fork of the fork server."""

    def __init__(self, forks: ForkServer, store: Path, *, sync: SyncName) -> None:
        self._forks = forks
        self._store = store
        self._sync = sync
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.patient_url = f"{self.url}?retry={LIMIT_SECONDS:g}"
        self._process: Child | None = None

    def start(self) -> Self:
        """Begin to serve; return once it listens."""
        words = ["serve", str(self._store), "--json", "--port", str(self.port)]
        self._process = self._forks.start(run_command, [*words, "--sync", self._sync])
        answer = self._process.read()
        assert isinstance(answer, dict), answer
        assert answer["url"] == self.url
        return self

    def wait_until_asked_to_wait(self) -> None:
        """Return as soon as a request at this server waits for a message."""
        wait_until(lambda: self._waiting() > 0, "a request waits", ignoring=(OSError,))

    def _waiting(self) -> float:
        with urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith("segue_server_waiting ")]
        return float(found[0].split()[1])

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        assert self._process is not None
        with self._process as process:
            process.kill()
            assert process.join() == KILLED, "the server ended by itself"
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.close()


def run_command(channel: Channel, words: list[str]) -> None:
    """Run `segue` with these words. Each line of its standard output is a report."""
    channel.redirect_output()
    sys.argv = ["segue", *words]
    sys.exit(main())


# Those who use it ----------------------------------------------------------------------------


def push_until_told(channel: Channel, url: str, worker: int) -> None:
    """Push `<worker> <number>`; report each number once it is acknowledged, then DONE."""
    with segue.open(url) as store:
        queue = store.queue(QUEUE)
        for number in range(CALLS_MAX):
            if channel.has_order():
                break
            queue.push(f"{worker} {number}".encode())
            channel.report(number)
    channel.report(DONE)


def work_until_told(channel: Channel, url: str) -> None:
    """Lease and ack; report the body and how the ack ended, then DONE.

    "acked" was acknowledged; "lost" is what an ack says that was made, and made again because the
    server was killed before it answered, or whose lease ended.
    """
    with segue.open(url) as store:
        queue = store.queue(QUEUE)
        while not channel.has_order():
            try:
                job = queue.lease(ttl=LEASE_SECONDS, wait=POLL_SECONDS)
            except QueueEmpty:
                continue
            try:
                queue.ack(job.receipt)
            except LeaseLost:
                channel.report(["lost", job.text, job.id])
            else:
                channel.report(["acked", job.text, job.id])
    channel.report(DONE)


def lease_and_wait(channel: Channel, url: str, ttl: float) -> None:
    """Lease one message, waiting for it; report body and receipt, and stay until told."""
    with segue.open(url) as store:
        channel.report("waiting")
        job = store.queue(QUEUE).lease(ttl=ttl, wait=WAIT_SECONDS)
        channel.report([job.text, job.receipt])
        channel.wait_for_order()
