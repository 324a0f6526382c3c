"""A directory as a store: what it is called, what makes it one, and who may use it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import segue
from segue import QueueRules, Store
from segue.errors import (
    InvalidArgument,
    LogLocked,
    LogNotFound,
    StorageError,
    StoreClosed,
    UnsupportedFormat,
)
from segue.log.disk import Disk
from segue.stores import heartbeat
from segue.stores.file.core import QueueCore
from segue.stores.opening import directory_of
from tests.unit.support import no_descriptor_left_open
from tests.waiting import LIMIT_SECONDS, wait_until


class ImpatientDisk(Disk):
    """Waits for nobody's lock."""

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0) -> bool:
        return super().try_lock(fd, shared=shared)


def opened(path: Path | str, *, exclusive: bool = False, create: bool = True) -> Store:
    return segue.open(path, sync="os", exclusive=exclusive, create=create, disk=ImpatientDisk())


# Names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("data", "data"),
        ("data/", "data"),
        ("/var/data", "/var/data"),
        ("file:///var/data", "/var/data"),
        ("file://data/jobs", "data/jobs"),
        ("a:b", "a:b"),
        (Path("some/where"), "some/where"),
    ],
)
def test_a_store_is_named_by_a_path_or_a_url(url: str | Path, path: str) -> None:
    """Anything that is no other scheme is a path."""
    assert directory_of(url) == Path(path)


@pytest.mark.parametrize("url", ["", "redis://host", "https://host/x", "FILE://x", b"data"])
def test_another_scheme_is_no_path(url: str) -> None:
    """A typing error must not make a directory called `redis:`."""
    with pytest.raises(InvalidArgument):
        directory_of(url)


def test_a_url_of_nothing_is_no_store(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file://` with nothing behind it does not make a store of wherever one happens to be."""
    monkeypatch.chdir(scratch)
    with pytest.raises(InvalidArgument):
        segue.open("file://")

    assert list(scratch.iterdir()) == []


def test_a_url_opens_the_same_directory(scratch: Path) -> None:
    """`file://` and the path are the same store, which says what it was opened as."""
    with opened(f"file://{scratch}/data") as store:
        store.queue("jobs").push(b"a")
    with opened(scratch / "data") as store:
        message = store.queue("jobs").pop()

        assert message is not None
        assert Path(store.url) == scratch / "data"


# Several at once ----------------------------------------------------------------------------


class HeldOpening:
    """Queues called `slow` that take until they are let through to be opened."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.is_let_through = threading.Event()
        self.count = 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldOpening]:
    """As where a process that was stopped has a queue's ledger locked."""
    held = HeldOpening()
    prepare = QueueCore._prepare

    def wait(core: QueueCore) -> None:
        if core.name == "slow":
            held.count += 1
            held.begun.set()
            assert held.is_let_through.wait(LIMIT_SECONDS)
        prepare(core)

    monkeypatch.setattr(QueueCore, "_prepare", wait)
    yield held
    held.is_let_through.set()


@contextmanager
def in_threads(count: int, held: HeldOpening) -> Iterator[ThreadPoolExecutor]:
    """Yield threads, which come back whatever happens."""
    with ThreadPoolExecutor(count) as threads:
        try:
            yield threads
        finally:
            held.is_let_through.set()


def test_a_queue_that_takes_long_to_open_holds_up_nothing_else(
    scratch: Path, held: HeldOpening
) -> None:
    """Other queues, topics, locks and rings are handed out at once, and can be removed."""
    with opened(scratch) as store, in_threads(2, held) as threads:
        slow = threads.submit(store.queue, "slow")
        assert held.begun.wait(LIMIT_SECONDS)

        def use_all_others() -> list[object]:
            store.queue("quick").push(b"x")
            store.topic("events", partitions=1)
            store.ring("ring", capacity=4)
            store.lock("lock").acquire(wait=0).release()
            return [store.remove_queue("quick"), store.queues(), store.topics(), store.locks()]

        others = threads.submit(use_all_others).result(LIMIT_SECONDS)
        is_still_held = not slow.done()
        held.is_let_through.set()
        slow.result(LIMIT_SECONDS).push(b"x")

        assert others == [True, [], ["events"], ["lock"]]
        assert is_still_held
        assert store.queues() == ["slow"]


def test_a_queue_that_many_ask_for_at_once_is_opened_once(scratch: Path, held: HeldOpening) -> None:
    """Whoever comes while it is opened waits for that."""
    with opened(scratch) as store, in_threads(4, held) as threads:
        asked = [threads.submit(store.queue, "slow") for _ in range(4)]
        assert held.begun.wait(LIMIT_SECONDS)
        held.is_let_through.set()
        for each in asked:
            each.result(LIMIT_SECONDS).push(b"x")

        assert held.count == 1
        assert store.queue("slow").count().ready == 4


def test_a_queue_that_is_opened_while_its_store_is_closed_is_closed_too(
    scratch: Path, held: HeldOpening
) -> None:
    """Whoever asked for it is told so, and nothing stays open."""
    with no_descriptor_left_open(), in_threads(1, held) as threads:
        store = opened(scratch)
        slow = threads.submit(store.queue, "slow")
        assert held.begun.wait(LIMIT_SECONDS)
        store.close()
        held.is_let_through.set()

        with pytest.raises(StoreClosed):
            slow.result(LIMIT_SECONDS)


def test_a_queue_that_could_not_be_made_anew_can_be_the_next_time(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was removed by another process is closed, and that is no reason to refuse it."""
    with opened(scratch) as store, opened(scratch) as other:
        store.queue("jobs").push(b"x")
        other.remove_queue("jobs")
        with monkeypatch.context() as failing:
            failing.setattr(QueueCore, "_prepare", _fail)
            with pytest.raises(StorageError):
                store.queue("jobs")
        store.queue("jobs").push(b"y")

        assert store.queue("jobs").count().ready == 1


def _fail(_: QueueCore) -> None:
    raise StorageError("too many open files")


# The directory -----------------------------------------------------------------------------


def test_a_store_is_a_directory_that_says_so(scratch: Path) -> None:
    """segue.toml names the format; nothing else is there before it is used."""
    with opened(scratch / "new" / "data"):
        names = sorted(path.name for path in (scratch / "new" / "data").iterdir())
    text = (scratch / "new" / "data" / "segue.toml").read_text()

    assert names == ["segue.toml"]
    assert text == "format = 1\n"


def test_a_store_may_be_wanted_only_if_it_is_there(scratch: Path) -> None:
    """create=False makes nothing."""
    with pytest.raises(LogNotFound):
        opened(scratch / "data", create=False)
    assert list(scratch.iterdir()) == []
    opened(scratch / "data").close()
    opened(scratch / "data", create=False).close()


@pytest.mark.parametrize(
    "text",
    [
        b"format = 2\n",
        b"format = 0\n",
        b'format = "1"\n',
        b"",
        b"colour = 1\n",
        b"not toml",
        b"\xff\xfe",
    ],
)
def test_a_format_that_is_not_known_is_not_touched(scratch: Path, text: bytes) -> None:
    """What a newer version wrote is for a newer version."""
    (scratch / "segue.toml").write_bytes(text)
    with pytest.raises(UnsupportedFormat):
        opened(scratch)

    assert [path.name for path in scratch.iterdir()] == ["segue.toml"]
    assert (scratch / "segue.toml").read_bytes() == text


def test_what_a_later_version_adds_to_the_same_format_does_not_matter(scratch: Path) -> None:
    """Unknown settings are left alone."""
    (scratch / "segue.toml").write_text('format = 1\n\n[later]\ncolour = "blue"\n')
    with opened(scratch) as store:
        store.queue("jobs").push(b"a")

    assert "blue" in (scratch / "segue.toml").read_text()


def test_a_file_is_no_store(scratch: Path) -> None:
    """And stays as it is."""
    (scratch / "data").write_text("precious")
    with pytest.raises(StorageError):
        opened(scratch / "data")

    assert (scratch / "data").read_text() == "precious"


@pytest.mark.parametrize("sync", ["sometimes", "", None, True])
def test_a_mode_of_sync_is_one_of_three(scratch: Path, sync: object) -> None:
    """Anything else is refused before anything is made."""
    with pytest.raises(InvalidArgument):
        segue.open(scratch / "data", sync=sync)  # type: ignore[arg-type]

    assert list(scratch.iterdir()) == []


# Handles -----------------------------------------------------------------------------------


def test_an_exclusive_store_keeps_others_out(scratch: Path) -> None:
    """Until it is closed; the same handle may be asked for the queue as often as one likes."""
    with opened(scratch, exclusive=True) as store:
        store.queue("jobs").push(b"a")
        store.queue("jobs").push(b"b")
        with opened(scratch) as other, pytest.raises(LogLocked):
            other.queue("jobs")
    with opened(scratch) as after:
        assert len(after.queue("jobs").pop_many(5)) == 2


def test_a_store_in_use_cannot_be_had_exclusively(scratch: Path) -> None:
    """Who comes second is told so."""
    with opened(scratch) as store:
        store.queue("jobs").push(b"a")
        with opened(scratch, exclusive=True) as other, pytest.raises(LogLocked):
            other.queue("jobs")
        store.queue("jobs").push(b"b")


def test_an_exclusive_queue_does_all_that_a_shared_one_does(scratch: Path) -> None:
    """Only faster."""
    with opened(scratch, exclusive=True) as store:
        queue = store.queue("jobs", QueueRules(capacity=10, segment_items=4))
        queue.push_many([b"%d" % number for number in range(9)])
        queue.push(b"later", delay=3_600, key="k")
        first, second, third = queue.lease_many(3)
        first.ack()
        second.release()
        third.bury("why")
        queue.redrive()
        bodies = [message.body for message in queue.pop_many(10)]

        assert bodies == [b"%d" % number for number in range(1, 9)]
        assert queue.count().delayed == 1


def test_closing_leaves_nothing_open(scratch: Path) -> None:
    """No file, no socket, no thread."""
    with no_descriptor_left_open():
        store = opened(scratch)
        for name in ("a", "b"):
            queue = store.queue(name)
            queue.push(b"x", priority=1)
            queue.push(b"x", delay=1)
            queue.lease().bury()
            queue.pop(wait=0.001)
        store.close()


def test_a_queue_that_cannot_be_opened_leaves_nothing_open(scratch: Path) -> None:
    """A refusal is complete."""
    with opened(scratch, exclusive=True) as store:
        store.queue("jobs").push(b"a")
        with no_descriptor_left_open(), opened(scratch) as other:
            with pytest.raises(LogLocked):
                other.queue("jobs")
            assert other.queues() == ["jobs"]


def test_a_handle_outlives_its_lookups(scratch: Path) -> None:
    """Two lookups of one name in one store are the same queue."""
    with opened(scratch) as store:
        one, two = store.queue("jobs"), store.queue("jobs")
        one.push(b"a")
        job = two.lease()
        one.ack(job)

        assert two.count().total == 0


def test_removing_a_queue_removes_its_files(scratch: Path) -> None:
    """None of its segments are left, and another whose name begins the same is untouched."""
    with opened(scratch) as store:
        for name in ("job", "jobs"):
            store.queue(name).push(b"a")
        assert store.remove_queue("job")

        assert {path.parts[-4] for path in (scratch / "queues").rglob("0/*.q")} == {"jobs"}
        assert [path.name for path in (scratch / "queues").iterdir() if path.is_dir()] == ["jobs"]
        assert store.queue("jobs").count().ready == 1


def test_what_a_removal_left_half_done_is_not_a_queue(scratch: Path) -> None:
    """A crash while a queue was removed leaves no queue of a strange name."""
    with opened(scratch) as store:
        store.queue("jobs").push(b"a")
    (scratch / "queues" / "jobs").rename(scratch / "queues" / ".jobs.removed")
    with opened(scratch) as store:
        names = store.queues()
        store.queue("jobs").push(b"b")

        assert names == []
        assert store.remove_queue("jobs")
        assert store.queues() == []


def test_a_closed_store_opens_nothing(scratch: Path) -> None:
    """Not even a list."""
    store = opened(scratch)
    store.close()
    for call in (store.queues, lambda: store.queue("jobs"), lambda: store.remove_queue("jobs")):
        with pytest.raises(StoreClosed):
            call()


def test_real_time_wakes_who_waits(scratch: Path) -> None:
    """With the clocks of the machine: a delay and a lease end while somebody waits for them."""
    with opened(scratch) as store, opened(scratch) as other:
        queue, there = store.queue("jobs"), other.queue("jobs")
        queue.push(b"later", delay=timedelta(milliseconds=30))
        first = there.lease(wait=LIMIT_SECONDS, ttl=0.03)
        second = queue.lease(wait=LIMIT_SECONDS, ttl=30)

        assert (first.body, second.body, second.attempt) == (b"later", b"later", 2)


def test_real_time_keeps_a_lease_alive(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clocks of the machine: a lease is renewed while its block runs."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 3_000)
    ends: list[float] = []
    with opened(scratch) as store, opened(scratch) as other:
        there = other.queue("jobs")
        there.push(b"long")
        with store.queue("jobs").lease(ttl=60):

            def is_renewed() -> bool:
                ends.append(time.monotonic() + there.stats().leases[0].seconds_left)
                return ends[-1] > ends[0] + 0.05

            wait_until(is_renewed)
            stolen = there.pop()

        assert stolen is None
        assert there.count().total == 0


def test_a_store_stays_where_it_is_whoever_goes_elsewhere(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As who becomes a daemon does: a relative name is that of the moment it was opened."""
    (scratch / "elsewhere").mkdir()
    monkeypatch.chdir(scratch)
    with opened("data") as store, opened(scratch / "data") as other:
        queue = store.queue("jobs")
        queue.push(b"a")
        monkeypatch.chdir(scratch / "elsewhere")
        other.queue("jobs").configure(QueueRules(segment_items=1))
        queue.push_many([b"b", b"c"])
        queue.push(b"d", priority=1)

        found = [message.body for message in other.queue("jobs").pop_many(9)]

        assert found == [b"a", b"b", b"c", b"d"]
        assert store.url == "data"
    assert not list((scratch / "elsewhere").iterdir())
