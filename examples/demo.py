"""What Segue does, in one short run: real processes, a real SIGKILL, real damage, real recovery.

Run it with `make demo`. It works in a temporary directory and leaves nothing behind.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import segue
from segue import Log
from segue.errors import CorruptRecord, SegueError

WRITER = """
import sys
from segue import Log
with Log(sys.argv[1]) as log:
    number = log.next_offset
    while True:
        log.append(b"order %d" % number)
        number += 1
        print(number, flush=True)
"""
WORKER = """
import os, signal, sys
import segue
with segue.open(sys.argv[1]) as store:
    for job in store.queue("orders").consume(ttl=0.5, wait=1.5):
        if job.body == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        print(job.id, job.attempt, flush=True)
"""
WORKERS = 3
ORDERS = 2_000
SEGMENT_BYTES = 16 * 1024


def say(text: str) -> None:
    """Print one finding."""
    print(f"  {text}", flush=True)


def survive_a_kill(path: Path) -> None:
    """A process appends until it is killed; everything it was told is safe is there."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = 0
    deadline = time.monotonic() + 1.5
    for line in writer.stdout:
        acknowledged = int(line)
        if time.monotonic() > deadline:
            break
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    with Log(path) as log:
        found = len(log)
    say(f"a writer was killed after {acknowledged} acknowledged appends; {found} records are there")
    if found < acknowledged:
        raise SystemExit("records were lost")


def work_through_a_queue(path: Path) -> None:
    """Workers share a queue, and whoever meets the poisoned message dies. Nothing is lost."""
    rules = segue.QueueRules(max_deliveries=WORKERS - 1)
    with segue.open(path) as store:
        queue = store.queue("orders", rules)
        queue.push_many([b"order %d" % number for number in range(ORDERS // 2)])
        queue.push(b"poison")
        queue.push_many([b"order %d" % number for number in range(ORDERS // 2)])
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(WORKERS)
        ]
        deliveries = [
            line.split() for worker in workers for line in worker.communicate()[0].split("\n")
        ]
        done = {delivery[0] for delivery in deliveries if delivery}
        killed = sum(worker.returncode == -signal.SIGKILL for worker in workers)
        (letter,) = queue.dead_letters()
        say(f"{len(done)} of {ORDERS} orders done by {WORKERS} workers, {killed} of them killed")
        say(f"the message that killed them is a dead letter: {letter.cause}, {letter.reason}")
        say(f"what is left in the queue: {queue.count()}")
        if len(done) != ORDERS or queue.count().total:
            raise SystemExit("messages were lost or are stuck")


def share_between_readers(path: Path) -> None:
    """Named readers each have a place of their own; retention waits for the slowest."""
    with Log(path) as log:
        with log.reader("billing") as billing, log.reader("search") as search:
            billing.read(count_max=10)
            billing.commit()
            read = sum(1 for _ in search)
            search.commit()
            say(f"reader search has read {read} records, reader billing {billing.position}")
        deleted = log.cleanup()
        say(f"cleanup kept what billing still wants: deleted segments {deleted or 'none'}")
        with log.reader("billing", start="latest"):
            pass
        deleted = log.cleanup()
        say(f"billing moved to the end: deleted {len(deleted)} segments of {SEGMENT_BYTES} bytes")


def read_as_columns(path: Path) -> None:
    """A hundred thousand records as NumPy and Arrow columns, checked, without a loop."""
    importlib.import_module("segue.log.columns")  # NumPy and Arrow take half a second to load.
    with Log(path, sync="os", exclusive=True) as log:
        for _ in range(100):
            log.append_many([b"payload %7d" % number for number in range(1_000)])
        started = time.perf_counter()
        rows = sum(len(columns) for columns in log.columns())
        milliseconds = (time.perf_counter() - started) * 1_000
        say(f"{rows} records read as verified columns in {milliseconds:.1f} ms")


def repair_damage(path: Path) -> None:
    """One flipped bit is reported, costs its own batch and can be set aside."""
    with Log(path) as log:
        offsets = [log.append(b"row %d" % number) for number in range(5)]
        log.roll()
        segment = log.segments()[0].path
    page = bytearray(segment.read_bytes())
    page[page.index(b"row 2")] ^= 1
    segment.write_bytes(page)
    with Log(path) as log:
        try:
            log.read(offsets[2])
        except CorruptRecord as error:
            say(f"found by its checksum: offset {error.first_offset} of {error.path.name}")
        report = log.repair()
        kept = [record.payload.decode() for record in log.records()]
        say(f"repair set {report.removed_records} record aside, kept {', '.join(kept)}")


def main() -> None:
    """Run every part."""
    logging.basicConfig(level=logging.ERROR)  # The damage below is done on purpose.
    parts: list[Callable[[Path], None]] = [
        work_through_a_queue,
        survive_a_kill,
        share_between_readers,
        read_as_columns,
        repair_damage,
    ]
    with tempfile.TemporaryDirectory(prefix="segue-demo-") as directory:
        orders = Path(directory) / "orders"
        with Log(orders, segment_bytes=SEGMENT_BYTES):
            pass
        for part in parts:
            print(part.__doc__)
            own = part in (survive_a_kill, share_between_readers)
            try:
                part(orders if own else Path(directory) / part.__name__)
            except SegueError as error:
                raise SystemExit(f"demo failed: {error}") from error
    print("Done. README.md leads on from here.")


if __name__ == "__main__":
    main()
