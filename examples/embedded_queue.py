"""A queue inside your program: a directory that worker processes share, and no server.

Two processes work out the checksums of the standard library's files. One file is not there yet: it
is tried twice, becomes a dead letter that says why, and is brought back when the file has come.

    python examples/embedded_queue.py

It prints what became of the files, and fails unless each has its right checksum, once.
"""

import contextlib
import json
import multiprocessing
import tempfile
import tokenize
from hashlib import sha256
from pathlib import Path

import segue

WORKERS = 2
RULES = segue.QueueRules(max_deliveries=2, backoff_base=0.1)


def work(place: Path) -> None:
    """Take files until none comes for a second; push their checksums to another queue."""
    with segue.open(place / "store") as store:
        files, sums = store.queue("files"), store.queue("sums")
        for job in files.consume(wait=1):
            # Acked at the end. Tried again if it raises, or if this process is killed: then the
            # key keeps the same checksum from being pushed twice.
            with contextlib.suppress(FileNotFoundError), job:
                digest = sha256(Path(job.text).read_bytes()).hexdigest()
                sums.push(json.dumps([job.text, digest]), key=job.id)


def work_together(place: Path) -> None:
    """Run the workers until they have nothing left to do."""
    new_process = multiprocessing.get_context("spawn").Process
    workers = [new_process(target=work, args=(place,)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main(place: Path) -> None:
    """Push, work, look at what failed, bring it back, and check the sums."""
    late = place / "late.txt"
    paths = [late, *sorted(Path(tokenize.__file__).parent.glob("[a-m]*.py"))]
    with segue.open(place / "store") as store:
        files, sums = store.queue("files", RULES), store.queue("sums")
        files.push_many([str(path) for path in paths])  # one batch, on the device: all or none
        work_together(place)
        print(f"{sums.count().ready} of {len(paths)} files done by {WORKERS} workers")

        for letter in files.dead_letters():
            print(f"given up after {letter.message.attempt} tries: {letter.reason.split(':')[0]}")
        late.write_text("here I am")
        print(f"brought back: {files.redrive().redriven}")
        work(place)  # as well here as in a process of its own

        found = [tuple(json.loads(message.text)) for message in sums.pop_many(1_000)]
        right = [(str(path), sha256(path.read_bytes()).hexdigest()) for path in paths]
        print(f"{len(found)} checksums of {len(paths)} files, left to do: {files.count().total}")
        if sorted(found) != sorted(right) or files.count().total or files.count().dead:
            raise SystemExit("a file was lost, or done twice")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory:
        main(Path(directory))
