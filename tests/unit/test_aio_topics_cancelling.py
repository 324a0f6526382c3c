"""A task that is cancelled over a topic loses no record and leaves nobody behind."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

import segue
from segue import Event, TopicRecord, aio
from segue.aio._threads import Threads
from segue.errors import OffsetTrimmed, ProducerBusy
from segue.stores import topic_contract
from tests.conftest import TORTURE
from tests.unit.aio_support import opened, waits
from tests.waiting import LIMIT_SECONDS, random_pause_async, run_other_tasks, wait_until_async

ROUNDS = 1_000 if TORTURE else 60


@contextmanager
def elsewhere(scratch: Path) -> Iterator[segue.Topic]:
    """The same topic as another process has it."""
    with segue.open(scratch / "data", sync="os") as store:
        yield store.topic("orders", partitions=2)


class GatedReader:
    """A reader whose poll has begun, and ends when it is told to."""

    def __init__(self, records: list[TopicRecord], earliest: int = 0) -> None:
        self._records = records
        self.earliest = earliest
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.position = {0: 7, 1: 7}

    def poll(
        self, max_records: int, *, max_bytes: int | None = None, timeout: float = 0
    ) -> list[TopicRecord]:
        self.has_begun.set()
        self.may_end.wait(LIMIT_SECONDS)
        return self._records

    def seek(self, start: dict[int, int]) -> None:
        if start[0] < self.earliest:
            raise OffsetTrimmed(offset=start[0], earliest=self.earliest, latest=9, partition=0)
        self.position |= start

    def commit(self, offsets: dict[int, int] | None) -> None:
        pass


async def cancelled_poll(reader: GatedReader) -> tuple[Threads, aio.TopicReader]:
    """Return a reader that fetched something for a task that was cancelled meanwhile."""
    threads = Threads()
    handle = aio.TopicReader(threads, cast("topic_contract.TopicReader", reader))
    task = asyncio.create_task(handle.poll(timeout=None))
    await wait_until_async(reader.has_begun.is_set)
    for _ in range(3):  # Once, or again and again.
        task.cancel()
        await run_other_tasks(10)
        assert not task.done()
    reader.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    return threads, handle


def record(offset: int) -> TopicRecord:
    return TopicRecord(0, offset, None, b"x", {}, 0)


# Polls -------------------------------------------------------------------------------------


def test_records_for_a_cancelled_task_are_given_again() -> None:
    """The reader goes back to the first of them, and stays where it is elsewhere."""

    async def main() -> None:
        reader = GatedReader([record(3), record(4), record(6)])
        threads, _ = await cancelled_poll(reader)

        assert reader.position == {0: 3, 1: 7}
        await threads.close(lambda: None)

    asyncio.run(main())


def test_what_was_deleted_before_it_could_be_given_again_is_told() -> None:
    """Once, by the next poll; after that comes what is left."""

    async def main() -> None:
        reader = GatedReader([record(3), record(4), record(6)], earliest=5)
        threads, handle = await cancelled_poll(reader)

        assert reader.position == {0: 5, 1: 7}
        await handle.commit()
        with pytest.raises(OffsetTrimmed) as told:
            await handle.poll()
        assert told.value.offset == 3
        await handle.poll()
        await threads.close(lambda: None)

    asyncio.run(main())


def test_a_loop_is_told_what_was_deleted_behind_its_back() -> None:
    """As a poll is: what it had looked at ahead is gone, so it cannot go back to it."""

    async def main() -> None:
        reader = GatedReader([record(3), record(4)])
        reader.may_end.set()
        threads = Threads()
        handle = aio.TopicReader(threads, cast("topic_contract.TopicReader", reader))

        assert (await anext(handle)).offset == 3
        reader.earliest = 5
        await handle.commit()
        with pytest.raises(OffsetTrimmed) as told:
            await anext(handle)
        assert told.value.offset == 4
        await threads.close(lambda: None)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["reader", "member", "reader tables", "member tables", "loop"])
def test_no_record_is_lost_however_polls_are_cancelled(scratch: Path, kind: str) -> None:
    """Each comes once and in its order, whenever tasks are cancelled or time out."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = await store.topic("orders", partitions=2)
            if kind.startswith("member"):
                source: aio.Member | aio.TopicReader = await topic.group("workers").join()
            else:
                source = await topic.reader("audit")
            chance = random.Random(7)
            found: list[tuple[int, int]] = []

            async def take() -> list[tuple[int, int]]:
                timeout = chance.choice([None, 0, 0.002])
                if kind == "loop":
                    assert isinstance(source, aio.TopicReader)
                    each = await anext(source, None)
                    return [] if each is None else [(each.partition, each.offset)]
                if kind.endswith("tables"):
                    table = await source.poll_table(3, timeout=timeout)
                    columns = (table[name].to_pylist() for name in ("partition", "offset"))
                    return list(zip(*columns, strict=True))
                records = await source.poll(3, timeout=timeout)
                return [(each.partition, each.offset) for each in records]

            with elsewhere(scratch) as there:
                for number in range(ROUNDS):
                    task = asyncio.create_task(take())
                    await random_pause_async(chance, 0.003)
                    is_cancelled_first = chance.random() < 0.5
                    if is_cancelled_first:
                        task.cancel()
                    there.append_many(
                        [Event(value=b"%d" % number, partition=chance.randrange(2))] * 2
                    )
                    if not is_cancelled_first:
                        task.cancel()
                    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                    if isinstance(outcome, list):
                        found += outcome
            while len(found) < 2 * ROUNDS:
                found += [
                    (each.partition, each.offset)
                    for each in await source.poll(timeout=LIMIT_SECONDS)
                ]

            for partition, end in (await topic.offsets()).items():
                assert [place[1] for place in found if place[0] == partition] == [*range(end)]
            await source.close()

    asyncio.run(main())


def test_a_cancelled_poll_commits_nothing(scratch: Path) -> None:
    """Who commits after it has saved only what somebody got."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = await store.topic("orders", partitions=2)
            with elsewhere(scratch) as there:
                async with await topic.group("workers").join() as member:
                    task: asyncio.Task[object] = asyncio.create_task(member.poll(timeout=None))
                    await waits(task)
                    task.cancel()
                    there.append(b"a", partition=0)
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await member.commit()

            assert [lag.committed for lag in await topic.group("workers").lag()] == [0, 0]

    asyncio.run(main())


def test_a_timeout_around_a_poll_is_kept(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            async with await topic.reader("audit") as reader:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await reader.poll(timeout=None)
                await topic.append(b"a")
                assert len(await reader.poll()) == 1

    asyncio.run(main())


# What is opened ----------------------------------------------------------------------------


def test_a_cancelled_join_leaves_no_member(scratch: Path) -> None:
    """Whenever it is cancelled: its partitions are free at once."""

    async def main() -> None:
        async with opened(scratch) as store:
            group = store.topic("orders", partitions=2).group("workers")
            await group.info()
            chance = random.Random(8)
            for _ in range(ROUNDS):
                task = asyncio.create_task(group.join())
                await random_pause_async(chance, 0.002)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, aio.Member):
                    await outcome.close()
                assert (await group.info()).members == []

            async with await group.join() as member:
                assert sorted(await member.assignment) == [0, 1]

    asyncio.run(main())


def test_a_cancelled_opening_of_a_producer_leaves_its_name_free(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            chance = random.Random(9)
            for _ in range(ROUNDS):
                task = asyncio.create_task(topic.producer("importer"))
                await random_pause_async(chance, 0.001)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, aio.Producer):
                    await outcome.close()
                assert not isinstance(outcome, ProducerBusy)

            async with await topic.producer("importer") as producer:
                assert await producer.append(b"a") is not None

    asyncio.run(main())


def test_a_cancelled_block_leaves_its_group(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            group = store.topic("orders", partitions=1).group("workers")

            async def work() -> None:
                async with await group.join() as member:
                    await member.poll(timeout=None)

            task: asyncio.Task[object] = asyncio.create_task(work())
            await waits(task)
            assert len((await group.info()).members) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert (await group.info()).members == []

    asyncio.run(main())


def test_a_producer_is_let_go_after_its_store(scratch: Path) -> None:
    """A block that ends when its store is closed already still ends what it holds."""

    async def main() -> None:
        async with opened(scratch) as store:
            producer = await store.topic("orders", partitions=1).producer("importer")
            async with producer:
                await store.close()
        async with opened(scratch) as store:
            again = await store.topic("orders", partitions=1).producer("importer")
            await again.close()

    asyncio.run(main())
