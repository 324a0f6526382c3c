"""Writes the golden store of the current format version.

    .venv/bin/python -m tests.golden.generate_store

replaces tests/golden/store-v1.tar.xz. The same rule holds as for the golden log: once version 1 is
released, a change of this file is a change of the format. Segments are sparse, so they are kept in
an archive.
"""

import io
import lzma
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from segue import Item, QueueRules
from segue.log.disk import Disk
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.golden.generate import START_US, UNSTABLE, fixed_nonces

ARCHIVE: Final = Path(__file__).parent / "store-v1.tar.xz"
BOOT: Final = 7


class _Machine(Disk):
    def boot_id(self) -> int:
        return BOOT


def write_store(root: Path) -> None:
    """Write a queue in every state a message can be in, a ring and a lock."""
    clock = ManualClock(START_US)
    with (
        fixed_nonces(),
        open_directory(root, clock=clock, ticks=clock.ticks, disk=_Machine()) as store,
    ):
        queue = store.queue("jobs", QueueRules(max_deliveries=3, keep_seconds=3600))
        queue.push_many([Item(body=f"plain {number}", priority=number % 2) for number in range(6)])
        queue.push("with headers", priority=5, headers={"trace": "42", "naïve": "ja"})
        queue.push("keyed", priority=5, key="once")
        queue.push("brief", priority=5, ttl=60)
        queue.push("late", priority=5, delay=30)
        queue.push("very late", priority=5, delay=86_400)
        queue.pop()
        queue.lease().ack()
        queue.lease(owner="somebody").bury("no such customer")
        queue.lease().fail("try again", delay=10)
        queue.lease(ttl=600, owner="holder")
        queue.pause()
        ring = store.ring("bus", capacity=10, entries_per_segment=3)
        ring.add_group("audit")
        for number in range(5):
            ring.enqueue(f"entry {number}", f"txn {number}")
        ring.dequeue("taken", group="audit")
        store.lock("leader", ttl=30).acquire(owner="golden")


def main() -> None:
    """Replace the archive."""
    root = Path(tempfile.mkdtemp()) / "store"
    write_store(root)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name not in UNSTABLE:
                entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    ARCHIVE.write_bytes(lzma.compress(buffer.getvalue(), preset=9))
    shutil.rmtree(root.parent)


if __name__ == "__main__":
    main()
