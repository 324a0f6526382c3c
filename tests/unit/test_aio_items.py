"""Iterators for asyncio: nothing is lost, nothing waits in a thread for long."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import TypeVar

import pytest

from segue import Event, TopicRecord, aio
from segue.aio import _waiting
from segue.aio._items import FETCH_ITEMS_MAX, Following, Items
from segue.aio._threads import CALL_THREADS_MAX, WAIT_THREADS_MAX, Threads
from segue.errors import InvalidArgument, OffsetTrimmed, QueueEmpty, StoreClosed
from tests.unit.aio_support import opened, waits
from tests.waiting import LIMIT_SECONDS, random_pause_async, run_other_tasks, wait_until_async

T = TypeVar("T")


async def next_of(items: aio.Items[T]) -> T:
    return await anext(items)


# What is there -----------------------------------------------------------------------------


def test_what_goes_wrong_is_told_after_all_that_came_before() -> None:
    """And is the end, as it is without asyncio."""

    def source() -> Iterator[int]:
        yield from range(FETCH_ITEMS_MAX + 5)
        raise QueueEmpty(queue="mail")

    async def main() -> None:
        threads = Threads()
        items = Items(threads, source)
        found = [await anext(items) for _ in range(FETCH_ITEMS_MAX + 5)]
        with pytest.raises(QueueEmpty):
            await anext(items)

        assert found == [*range(FETCH_ITEMS_MAX + 5)]
        assert [item async for item in items] == []
        await threads.close(lambda: None)

    asyncio.run(main())


def test_whoever_is_cancelled_can_ask_again() -> None:
    """For the very item that did not come in time."""
    is_fetching, may_go_on = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        is_fetching.set()
        may_go_on.wait(LIMIT_SECONDS)
        yield from range(1, 10)

    async def main() -> None:
        threads = Threads()
        items = Items(threads, source)
        found = [await anext(items)]
        asking = asyncio.create_task(next_of(items))
        await wait_until_async(is_fetching.is_set)
        asking.cancel()
        await run_other_tasks(3)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        found += [item async for item in items]

        assert found == [*range(10)]
        await threads.close(lambda: None)

    asyncio.run(main())


def test_a_closed_iterator_lets_go_and_ends() -> None:
    """At the end of a block; also twice, and also if its store was closed before."""
    ended: list[str] = []

    def source() -> Iterator[int]:
        try:
            yield from range(1_000)
        finally:
            ended.append(threading.current_thread().name)

    async def main() -> None:
        threads = Threads()
        async with aclosing(Items(threads, source)) as items:
            assert await anext(items) == 0
        assert [item async for item in items] == []
        left = Items(threads, source)
        await left
        await anext(left)
        await threads.close(lambda: None)
        await left.aclose()
        await items.aclose()

    asyncio.run(main())

    assert len(ended) == 2
    assert "MainThread" not in ended


def test_tasks_may_share_an_iterator() -> None:
    async def main() -> None:
        threads = Threads()
        items = Items(threads, lambda: iter(range(1_000)))

        async def work() -> list[int]:
            return [item async for item in items]

        found = await asyncio.gather(*[work() for _ in range(10)])

        assert sorted(chain.from_iterable(found)) == [*range(1_000)]
        await threads.close(lambda: None)

    asyncio.run(main())


# What comes --------------------------------------------------------------------------------


def test_following_begins_by_awaiting_it(scratch: Path) -> None:
    """Or when the first record is asked for."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=3)
            await topic.append_many([Event(value=b"old", partition=n) for n in range(3)])
            begun = await topic.follow(timeout=0)
            not_yet = topic.follow(timeout=0)
            await topic.append_many([Event(value=b"new", partition=n) for n in range(3)])

            assert [record.value async for record in begun] == [b"new"] * 3
            assert [record async for record in not_yet] == []
            assert len([each async for each in topic.follow("earliest", timeout=0)]) == 6

    asyncio.run(main())


def test_whoever_waits_for_the_latest_gets_nothing_older(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: where it began is kept for partitions where nothing comes, too."""
    monkeypatch.setattr(_waiting, "BLOCK_SECONDS", 0.001)
    looks: list[float] = []
    look = Following._look

    def counted(following: Following, seconds: float) -> bool:
        looks.append(seconds)
        return look(following, seconds)

    monkeypatch.setattr(Following, "_look", counted)

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=3)
            await topic.append_many([Event(value=b"old", partition=n) for n in range(3)])
            following = topic.follow()
            task = asyncio.create_task(next_of(following))
            await wait_until_async(lambda: len(looks) >= 3)
            await topic.append(b"new", partition=1)
            found = await task

            assert (found.value, found.partition) == (b"new", 1)
            await topic.append_many([Event(value=b"last", partition=n) for n in range(3)])
            assert [(await anext(following)).value for _ in range(3)] == [b"last"] * 3

    asyncio.run(main())


def test_following_yields_what_comes_once_and_in_order(scratch: Path) -> None:
    """In batches of any size, to partitions that are there and to new ones."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            await topic.append_many([b"%d" % number for number in range(250)])
            counts = [1, 3, 0, 99, 100, 101, 1_500, 1]
            total = 250 + sum(counts)

            async def follow() -> list[TopicRecord]:
                found = []
                async for record in topic.follow("earliest"):
                    found.append(record)
                    if len(found) == total:
                        break
                return found

            following = asyncio.create_task(follow())
            for number, count in enumerate(counts):
                await waits(following)
                await topic.append_many([b"x"] * count)
                if number == 3:
                    await topic.grow(4)
            found = await following

            for partition, end in (await topic.offsets()).items():
                offsets = [each.offset for each in found if each.partition == partition]
                assert offsets == [*range(end)]

    asyncio.run(main())


def test_following_ends_when_nothing_comes_in_time(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            following = topic.follow("earliest", timeout=0.15)
            await topic.append(b"a")

            assert [record.value async for record in following] == [b"a"]
            await topic.append(b"b")
            assert [record async for record in following] == []
            with pytest.raises(InvalidArgument, match="timeout"):
                topic.follow(timeout=-1)
            with pytest.raises(InvalidArgument):
                await topic.follow({7: 0})
            assert [each.value async for each in topic.follow(1, partitions=[0], timeout=0)] == [
                b"b"
            ]

    asyncio.run(main())


def test_a_follower_that_is_cancelled_can_ask_again(scratch: Path) -> None:
    """What came in between is not missed."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=2)
            following = await topic.follow()
            chance = random.Random(10)
            found: list[TopicRecord] = []
            for number in range(10):
                task = asyncio.create_task(next_of(following))
                await random_pause_async(chance, 0.015)
                task.cancel()
                await topic.append(b"%d" % number)
                with contextlib.suppress(asyncio.CancelledError):
                    found.append(await task)
            while len(found) < 10:
                found.append(await anext(following))
            await topic.append_many([Event(value=b"last", partition=n) for n in range(2)])
            last = [(await anext(following)).value for _ in range(2)]

            assert last == [b"last"] * 2
            assert sorted(record.value or b"" for record in found) == [
                b"%d" % number for number in range(10)
            ]

    asyncio.run(main())


def test_whoever_follows_is_told_what_is_gone(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            await topic.append(b"a")
            following = topic.follow("earliest")
            await anext(following)
            task = asyncio.create_task(next_of(following))
            await waits(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(3):
                await topic.append(b"b")
                await topic.roll()
            await topic.clean(keep_bytes=0)
            with pytest.raises(OffsetTrimmed):
                await anext(following)

    asyncio.run(main())


def test_a_follower_that_is_closed_ends(scratch: Path) -> None:
    """Also in the middle of its wait."""

    async def main() -> None:
        async with opened(scratch) as store:
            topic = store.topic("orders", partitions=1)
            following = topic.follow()
            task = asyncio.create_task(next_of(following))
            await waits(task)
            await following.aclose()
            with pytest.raises(StopAsyncIteration):
                await task

    asyncio.run(main())


def test_more_wait_for_records_than_there_are_threads(scratch: Path) -> None:
    """They take turns, and who appends finds a thread at any time."""

    async def main() -> None:
        async with opened(scratch) as store:
            before = threading.active_count()
            topic = store.topic("orders", partitions=1)
            count = WAIT_THREADS_MAX + 8
            followers = [await topic.follow() for _ in range(count)]
            readers = [await topic.reader(f"reader-{number}") for number in range(count)]
            follows = [asyncio.create_task(next_of(each)) for each in followers]
            polls = [asyncio.create_task(each.poll(timeout=None)) for each in readers]
            await waits(*follows, in_thread=False)
            await waits(*polls, in_thread=False)
            await topic.append(b"a")

            assert [record.value for record in await asyncio.gather(*follows)] == [b"a"] * count
            assert [records[0].value for records in await asyncio.gather(*polls)] == [b"a"] * count
            threads = threading.active_count() - before
            assert threads <= CALL_THREADS_MAX + WAIT_THREADS_MAX
            for reader in readers:
                await reader.close()

    asyncio.run(main())


def test_closing_the_store_ends_every_wait_for_records(scratch: Path) -> None:
    before = threading.active_count()

    async def main() -> None:
        store = await aio.open(scratch / "data", sync="os")
        topic = store.topic("orders", partitions=2)
        reader, member = await topic.reader("audit"), await topic.group("workers").join()
        following = asyncio.create_task(next_of(topic.follow()))
        polls = [asyncio.create_task(each.poll(timeout=None)) for each in (reader, member)]
        await waits(following)
        await waits(*polls)
        await store.close()

        outcomes = await asyncio.gather(following, *polls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreClosed] * 3

    asyncio.run(main())

    assert threading.active_count() == before
