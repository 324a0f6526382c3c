"""Exactly once over a server under fire: real drivers are killed with all they have started."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import segue
from segue import Event
from tests.crash.replay import TORTURE, naming
from tests.redis_server import shared_server
from tests.spark.deadly_redis import SINK, SOURCE
from tests.spark.deadly_source import ALONE, CALL, COUNTER, STEP, kill_session, session_pids
from tests.spark.redis_support import fresh_url, namespace_of

ROWS: Final = 90
DRIVER_SECONDS_MAX: Final = 200
SOME: Final = (("after an adoption", 3),)
ALL: Final = (
    *(("after a block is put aside", call) for call in (1, 6)),
    *((f"{when} the list", call) for when in ("before", "after") for call in (1, 2)),
    *((f"{when} an adoption", call) for when in ("before", "after") for call in (1, 2, 5)),
    *((f"{when} the note", call) for when in ("before", "after") for call in (1, 2)),
    *((f"{when} the finish", call) for when in ("before", "after") for call in (1, 2)),
    *(("after the commit", call) for call in (1, 2)),
)


def drive(root: Path, url: str, kill: tuple[str, int], *, rows_per_task: int) -> tuple[int, str]:
    """Run a driver to its end, or to its death; return its exit code and what it said."""
    counter = root / "calls"
    counter.unlink(missing_ok=True)
    environment = {
        **os.environ,
        STEP: kill[0],
        CALL: str(kill[1]),
        COUNTER: str(counter),
        ALONE: "",
    }
    log = root / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.deadly_redis", str(root), url, str(rows_per_task)],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(DRIVER_SECONDS_MAX)
        finally:
            while session_pids(process.pid):
                kill_session(process.pid)
            process.wait()
    return code, log.read_text(errors="replace")[-4000:]


def values(url: str, name: str) -> Counter[bytes]:
    with segue.open(url) as store:
        return Counter(record.value or b"" for record in store.topic(name).records())


def test_a_stream_whose_driver_is_killed_copies_each_row_once(tmp_path: Path) -> None:
    """The next driver goes on from the checkpoint; at last both topics hold the same rows."""
    url = fresh_url()
    with segue.open(url) as store:
        store.topic(SOURCE, partitions=2)
        store.topic(SINK, partitions=2)
    for number, kill in enumerate(ALL if TORTURE else SOME):
        with segue.open(url) as store:
            # Each value is there twice: a row that is copied again cannot hide behind another.
            first = number * ROWS
            store.topic(SOURCE).append_many(
                [Event(value=b"%d" % (n // 2), key=f"{n % 7}") for n in range(first, first + ROWS)]
            )
        code, log = drive(tmp_path, url, kill, rows_per_task=(7, 25, 12)[number % 3])
        with naming((kill, log)):
            assert code != 0
            assert not values(url, SINK) - values(url, SOURCE)
    code, log = drive(tmp_path, url, ("", 0), rows_per_task=9)

    with naming(log):
        assert code == 0
    assert values(url, SINK) == values(url, SOURCE)
    client = shared_server().client()
    assert not list(client.scan_iter(f"{namespace_of(url)}:*:writes"))
