"""Writes the golden topics of the current format version.

    .venv/bin/python -m tests.golden.generate_topic

replaces tests/golden/topic-v1.tar.xz. The same rule holds as for the golden log: once version 1 is
released, a change of this file is a change of the format.
"""

import io
import lzma
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from segue import Event, Topic, TopicRules
from segue.log.disk import Disk
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.golden.generate import START_US, UNSTABLE, fixed_nonces

ARCHIVE: Final = Path(__file__).parent / "topic-v1.tar.xz"
BOOT: Final = 7
RULES: Final = TopicRules(
    keep_seconds=86_400 * 36_500,
    lag_max=1_000_000,
    clean_on_roll=False,
    segment_bytes=12_288,
    tombstone_seconds=60,
)


class _Machine(Disk):
    def boot_id(self) -> int:
        return BOOT


def write_topics(root: Path) -> None:
    """Write a topic with all a record can have, and all that is kept of who uses it."""
    clock = ManualClock(START_US)
    with (
        fixed_nonces(),
        open_directory(root, clock=clock, ticks=clock.ticks, disk=_Machine()) as store,
    ):
        topic = store.topic("orders", partitions=2, rules=RULES)
        write_first_partition(topic, clock)
        write_second_partition(topic, clock, root.parent / "sent.q")
        use_it(topic)
        topic.grow(3)
        clock.advance(seconds=1)
        topic.append(b"in a new partition", key=b"123456789")
        with topic.producer("importer") as producer:
            producer.append(b"produced after growing", sequence=9)
        member = topic.group("workers").join(owner="golden")
        assert len(member.assignment) == 3
        state = root / "topics" / "orders" / "groups" / "workers" / "state.json"
        with_a_member = state.read_bytes()
    # As it would be had the machine stopped before the member could leave.
    state.write_bytes(with_a_member)


def write_first_partition(topic: Topic, clock: ManualClock) -> None:
    """Keys, tombstones, headers and times; then a compaction, and what came after it."""
    headers = {"trace": "42", "naïve": "ja ☃", "": ""}
    for event in (
        Event(value=b"plain", partition=0),
        Event(value=b"replaced", key="a", partition=0),
        Event(value=b"", key="", headers=headers, partition=0),
        Event(value=b"with time", timestamp=-1, partition=0),
        Event(value=b"gone", key="b", partition=0),
        Event(value=None, key="b", partition=0),
        Event(value=None, partition=0),
        Event(value=b"all of it", key="größe", headers={"h": "v"}, timestamp=1, partition=0),
    ):
        topic.append_many([event])
        clock.advance(seconds=1)
    topic.append_many([Event(value=b"newer", key="a", partition=0), Event(value=b"x", partition=0)])
    topic.roll(partitions=[0])
    topic.compact(partitions=[0])
    topic.append(None, key="a", partition=0)


def write_second_partition(topic: Topic, clock: ManualClock, sent: Path) -> None:
    """Records of a producer, of which the first are deleted, and an adopted segment."""
    with topic.producer("importer") as producer:
        for sequence in range(6):
            producer.append(b"produced %d" % sequence, sequence=sequence, partition=1)
        topic.roll(partitions=[1])
        clock.advance(seconds=1)
        producer.append(b"produced 8", sequence=8, partition=1, key="k", timestamp=START_US)
    topic.reader("cleaner", "latest", partitions=[1]).close()
    topic.clean(partitions=[1])
    topic.remove_reader("cleaner")
    with sent.open("wb") as file:
        topic.send_segment(0, 0, file)
    topic.adopt(sent, partition=1, key="batch 1")


def use_it(topic: Topic) -> None:
    """Let a reader and a group stand somewhere."""
    with topic.reader("audit") as reader:
        reader.commit({0: 3, 1: 7})
    topic.reader("some", {1: 8}, partitions=[1]).close()
    with topic.group("workers").join(start={0: 2, 1: 6}) as member:
        member.commit({0: 4})


def main() -> None:
    """Replace the archive."""
    root = Path(tempfile.mkdtemp()) / "store"
    root.mkdir()
    write_topics(root)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            is_stable = path.name not in UNSTABLE and not path.name.endswith(".lock")
            if path.is_file() and is_stable and "wake" not in path.parts:
                entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    ARCHIVE.write_bytes(lzma.compress(buffer.getvalue(), preset=9))
    shutil.rmtree(root.parent)


if __name__ == "__main__":
    main()
