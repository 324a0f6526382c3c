"""What other processes do for a benchmark: `python -m benchmarks.child COMMAND DIRECTORY …`.

    append DIRECTORY PAYLOAD_BYTES   append as many records as each line on stdin says
    fill DIRECTORY                   open, then append until killed
    walk DIRECTORY                   open, read every record
    member DIRECTORY                 join a group when told, leave it when told again

Answers are lines of JSON on stdout. `children.py` is the other end.
"""

import json
import select
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.stores import Payloads
from segue import Log
from segue.stores.opening import open_directory

FILL_PAYLOAD_BYTES: Final = 64 * 1024
FILL_BATCH_RECORDS: Final = 16
FILL_REPORT_BATCHES: Final = 8
MEMBER_TOPIC: Final = "bench"
MEMBER_POLL_SECONDS: Final = 1.0


def append(directory: Path, payload_bytes: int) -> None:
    """Append to a log that other processes append to as well."""
    payloads = Payloads(payload_bytes)
    with Log(directory, sync="os") as log:
        _say(ready=True)
        for line in sys.stdin:
            batch = payloads.take(int(line))
            _say(ready=True)
            sys.stdin.readline()  # The start signal.
            for payload in batch:
                log.append(payload)
            _say(done=len(batch))


def fill(directory: Path) -> None:
    """Say how long opening took, then append until somebody kills us."""
    batch = Payloads(FILL_PAYLOAD_BYTES).batch[:FILL_BATCH_RECORDS]
    begin = time.perf_counter()
    log = Log(directory, sync="os")
    _say(open_seconds=time.perf_counter() - begin, next_offset=log.next_offset)
    while True:
        for _ in range(FILL_REPORT_BATCHES):
            next_offset = log.append_many(batch) + len(batch)
        _say(next_offset=next_offset)


def walk(directory: Path) -> None:
    """Read every record one by one and say how much memory that took."""
    begin = time.perf_counter()
    size_bytes = records = 0
    with Log(directory, sync="os") as log:
        for record in log.records():
            records += 1
            size_bytes += len(record.payload)
    _say(
        records=records,
        size_bytes=size_bytes,
        seconds=time.perf_counter() - begin,
        peak_rss_bytes=_peak_rss_bytes(),
    )


def member(directory: Path) -> None:
    """Share a topic's partitions with others; say each time how many we have, and since when."""
    held: set[int] = set()

    def assigned(partitions: list[int]) -> None:
        held.update(partitions)
        _say(partitions=len(held), at=time.monotonic())

    def revoked(partitions: list[int]) -> None:
        held.difference_update(partitions)
        _say(partitions=len(held), at=time.monotonic())

    with open_directory(directory, sync="os") as store:
        topic = store.topic(MEMBER_TOPIC)
        begin = time.monotonic()
        topic.offsets()
        _say(open_seconds=time.monotonic() - begin)
        sys.stdin.readline()
        group = topic.group(MEMBER_TOPIC)
        with group.join(start="latest", on_assign=assigned, on_revoke=revoked) as joined:
            while not select.select([sys.stdin], [], [], 0)[0]:
                joined.poll(timeout=MEMBER_POLL_SECONDS)
            _say(leaves_at=time.monotonic())


def _peak_rss_bytes() -> int:
    """Return the most memory this process ever had, mapped pages of segments included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _say(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


def _main() -> None:
    command, directory, *rest = sys.argv[1:]
    if command == "append":
        append(Path(directory), int(rest[0]))
    elif command == "fill":
        fill(Path(directory))
    elif command == "walk":
        walk(Path(directory))
    elif command == "member":
        member(Path(directory))
    else:
        sys.exit(f"unknown command {command}")


if __name__ == "__main__":
    _main()
