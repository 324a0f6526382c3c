"""Turns: looking, deciding and appending before anybody else does."""

import threading
from pathlib import Path

import pytest

from segue.log.live import PUBLISHED, WRITTEN
from segue.log.options import SyncName
from tests.unit.support import payloads, small_log

unsynced = pytest.mark.parametrize("sync", ["interval", "os"])


@unsynced
def test_what_a_killed_writer_stored_and_did_not_publish_is_published(
    directory: Path, sync: SyncName
) -> None:
    """The next in turn would otherwise count it and not see it."""
    with small_log(directory, sync=sync) as log, small_log(directory, sync=sync) as other:
        log.append(b"one")
        words = log.writer.live.words
        words[PUBLISHED] = words[WRITTEN] - 1
        with other.writer.mutex:
            other.writer.begin()
            other.writer.end(wrote=False)

        assert payloads(other.records()) == [b"one"]


@unsynced
def test_nobody_else_writes_during_a_turn(directory: Path, sync: SyncName) -> None:
    """Neither another thread nor another process."""
    with small_log(directory, sync=sync) as log, small_log(directory, sync=sync) as other:
        others = [
            threading.Thread(target=handle.append, args=(b"after",)) for handle in (log, other)
        ]
        with log.writer.mutex:
            log.writer.begin()
            for thread in others:
                thread.start()
            log.writer.put(b"first", 0)
            log.writer.put_many([b"second", b"third"], [0, 0])
            log.writer.end(wrote=True)
        for thread in others:
            thread.join()

        assert payloads(log.records()) == [b"first", b"second", b"third", b"after", b"after"]


def test_reserved_space_takes_the_batch_it_is_for(directory: Path) -> None:
    """In a new segment, if the active one has no room for it."""
    with small_log(directory, segment_items=4, sync="os") as log:
        log.append_many([b"a", b"b", b"c"])
        with log.writer.reserved([(2, 2)]):
            pass

        assert log.append_many([b"d", b"e"]) == 3
        assert [info.count for info in log.segments()] == [3, 2]
