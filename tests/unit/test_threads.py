"""Many threads, one log."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from segue import Log
from segue.errors import InvalidArgument, OffsetTrimmed
from segue.log.disk import Disk
from segue.log.options import SyncName
from tests.unit.support import SMALL_SEGMENT_BYTES, Index, offsets, small_log
from tests.waiting import LIMIT_SECONDS, wait_until

THREADS = 8
STEPS = 25

syncs = pytest.mark.parametrize("sync", ["always", "interval", "os"])
modes = pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])


def run(work: Callable[[int], None]) -> None:
    """Run `work` in every thread at once and pass on what it raises."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def guarded(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LIMIT_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def check(log: Log, given: list[dict[int, bytes]]) -> None:
    """Check that each thread finds its records where it was told, in its own order."""
    found = {record.offset: record.payload for record in log.records()}
    expected = {offset: payload for one in given for offset, payload in one.items()}
    assert found == expected
    assert sorted(found) == list(range(sum(map(len, given))))
    for one in given:
        assert list(one) == sorted(one)


@syncs
@modes
def test_threads_append_side_by_side(tmp_path: Path, sync: SyncName, exclusive: bool) -> None:
    """Every append gets an offset of its own, and no batch is torn apart. On a real disk."""
    given: list[dict[int, bytes]] = [{} for _ in range(THREADS)]
    with small_log(tmp_path / "log", sync=sync, exclusive=exclusive, segment_items=50) as log:

        def work(number: int) -> None:
            for step in range(STEPS):
                payload = b"%d/%d" % (number, step)
                if step % 3:
                    given[number][log.append(payload, attr=number)] = payload
                else:
                    first = log.append_many([payload, payload + b"+"])
                    given[number][first] = payload
                    given[number][first + 1] = payload + b"+"

        run(work)
        check(log, given)
        assert all(audit.is_intact for audit in log.verify())
    with small_log(tmp_path / "log") as log:
        check(log, given)


@syncs
def test_threads_append_through_handles_of_their_own(directory: Path, sync: SyncName) -> None:
    """Handles share a log inside one process as they do between processes."""
    given: list[dict[int, bytes]] = [{} for _ in range(THREADS)]

    def work(number: int) -> None:
        with Log(directory, segment_bytes=SMALL_SEGMENT_BYTES, segment_items=20, sync=sync) as log:
            for step in range(STEPS):
                payload = b"%d/%d" % (number, step)
                given[number][log.append(payload)] = payload

    run(work)
    with Log(directory, read_only=True) as log:
        check(log, given)


@syncs
def test_threads_read_while_others_append(directory: Path, sync: SyncName) -> None:
    """Readers see every record once, in order, whole, and only what was published."""
    with small_log(directory, sync=sync, segment_items=16) as log:

        def work(number: int) -> None:
            if number % 2:
                for step in range(STEPS):
                    log.append_many([b"%d/%d/%d" % (number, step, item) for item in range(3)])
                return
            total = THREADS // 2 * STEPS * 3
            seen = []
            for record in log.follow(0, timeout=LIMIT_SECONDS):
                seen.append(record.offset)
                assert log.read(record.offset) == record
                if len(seen) == total:
                    break
            assert seen == list(range(total))

        run(work)


def test_threads_roll_and_trim_while_others_append(directory: Path) -> None:
    """Retention and rolling from several threads get in nobody's way."""
    with small_log(directory, segment_items=8) as log:

        def work(number: int) -> None:
            for step in range(STEPS):
                if number == 0:
                    log.roll()
                elif number == 1:
                    log.trim(max(0, log.next_offset - 20))
                elif number == 2:
                    with log.reader("r", "latest") as reader, suppress(OffsetTrimmed):
                        reader.commit()  # Refused if the trim, which asks no reader, was first.
                    log.cleanup()
                else:
                    log.append(b"%d/%d" % (number, step))

        run(work)
        kept = offsets(log.records())
        assert kept == list(range(log.first_offset, (THREADS - 3) * STEPS))


@syncs
def test_readers_of_their_own_advance_independently(directory: Path, sync: SyncName) -> None:
    """Named readers in several threads each see everything and save their own place."""
    with small_log(directory, sync=sync, segment_items=16) as log:
        for step in range(STEPS):
            log.append(b"%d" % step)

        def work(number: int) -> None:
            with log.reader(f"reader-{number}") as reader:
                for record in reader:
                    if record.offset % 5 == number % 5:
                        reader.commit()
                assert reader.position == STEPS
                reader.commit(number)

        run(work)
        saved = {name: position.offset for name, position in log.readers().items()}
        assert saved == {f"reader-{number}": number for number in range(THREADS)}


class GatedDisk(Disk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.reached.set()
        self.gate.wait(timeout=LIMIT_SECONDS)
        super().sync_data(fd)


def _is_queued_or_over(log: Log, threads: list[threading.Thread]) -> bool:
    """Tell whether all threads but the first, which leads, wait behind it, or one has ended."""
    queued = len(log.writer._commits._waiting)
    return queued >= len(threads) - 1 or not threads[-1].is_alive()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["mistake first", "mistake last"])
@modes
def test_one_threads_mistake_is_not_anothers(
    directory: Path, exclusive: bool, order: tuple[int, int]
) -> None:
    """Of the appends that share a sync, one that cannot be stored leaves the others theirs."""
    disk = GatedDisk()
    outcome: dict[str, object] = {}
    with small_log(directory, sync="always", exclusive=exclusive, disk=disk) as log:

        def attempt(name: str, append: Callable[[], int]) -> None:
            try:
                outcome[name] = append()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
                outcome[name] = type(error)

        tries: list[tuple[str, Callable[[], int]]] = [
            ("odd", lambda: log.append_many([b"odd"], attrs=[Index(7)])),  # type: ignore[list-item]
            ("plain", lambda: log.append_many([b"plain"], attrs=[8])),
        ]
        tries = [("leader", lambda: log.append(b"leader")), *(tries[place] for place in order)]
        disk.reached.clear()
        disk.gate.clear()
        threads = []
        for name, append in tries:
            threads.append(threading.Thread(target=attempt, args=(name, append)))
            threads[-1].start()
            assert disk.reached.wait(timeout=LIMIT_SECONDS)
            wait_until(partial(_is_queued_or_over, log, threads))
        disk.gate.set()
        for thread in threads:
            thread.join(timeout=LIMIT_SECONDS)

        found = {record.payload: record.offset for record in log.records()}
        assert outcome["leader"] == found[b"leader"]
        assert outcome["plain"] == found.get(b"plain")
        assert outcome["odd"] in (found.get(b"odd", InvalidArgument), InvalidArgument)
