"""`async for job in queue.consume():` settles what it yields and ends when it should."""

import asyncio
import threading
from pathlib import Path

import pytest

from segue import aio
from segue.errors import InvalidArgument
from tests.unit.aio_support import eventually, opened, waits


async def next_of(jobs: aio.Consumer) -> aio.Job:
    return await anext(jobs)


def test_asking_for_the_next_acks_the_one_before(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"a", b"b", b"c"])
            bodies = [job.body async for job in queue.consume(wait=0, prefetch=2)]

            assert bodies == [b"a", b"b", b"c"]
            assert (await queue.count()).total == 0

    asyncio.run(main())


def test_leaving_the_loop_gives_back_what_is_not_settled(scratch: Path) -> None:
    """Soon, or at once where the loop stands in a block."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"a", b"b"])
            async with queue.consume(prefetch=2) as jobs:
                async for _ in jobs:
                    break
            assert (await queue.count()).ready == 2
            async for _ in queue.consume(prefetch=2):
                break

            async def all_are_back() -> bool:
                return (await queue.count()).ready == 2

            await eventually(all_are_back)

    asyncio.run(main())


def test_stop_ends_a_wait_from_anywhere(scratch: Path) -> None:
    """From a task, or from a thread; also many loops at once."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")

            async def work(jobs: aio.Consumer) -> int:
                return len([job async for job in jobs])

            loops = [queue.consume() for _ in range(20)]
            tasks = [asyncio.create_task(work(jobs)) for jobs in loops]
            await waits(*tasks)
            for jobs in loops[:10]:
                jobs.stop()
            stopping = [threading.Thread(target=jobs.stop) for jobs in loops[10:]]
            for thread in stopping:
                thread.start()

            assert await asyncio.gather(*tasks) == [0] * 20
            for thread in stopping:
                thread.join()

    asyncio.run(main())


@pytest.mark.parametrize("event", [asyncio.Event, threading.Event])
def test_an_event_of_the_caller_ends_the_loop(
    scratch: Path, event: type[asyncio.Event] | type[threading.Event]
) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            stop = event()
            task: asyncio.Task[object] = asyncio.create_task(next_of(queue.consume(stop=stop)))
            await waits(task)
            stop.set()
            with pytest.raises(StopAsyncIteration):
                await task
            await queue.push(b"a")

            assert [job async for job in queue.consume(stop=stop)] == []
            assert (await queue.count()).ready == 1

    asyncio.run(main())


def test_stop_in_the_loop_lets_the_job_at_hand_end(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"a", b"b", b"c"])
            jobs = queue.consume(prefetch=2)
            async for _ in jobs:
                jobs.stop()

            counts = await queue.count()
            assert (counts.ready, counts.leased) == (2, 0)

    asyncio.run(main())


def test_a_cancelled_loop_leaves_nothing_leased(scratch: Path) -> None:
    """In its wait, or at work."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            waiting: asyncio.Task[object] = asyncio.create_task(next_of(queue.consume()))
            await waits(waiting)
            waiting.cancel()
            await queue.push(b"a")
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await queue.count()).leased == 0

            async def work() -> None:
                async with queue.consume() as jobs:
                    async for _ in jobs:
                        await asyncio.Event().wait()

            working: asyncio.Task[object] = asyncio.create_task(work())
            await waits(working)
            assert (await queue.count()).leased == 1
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            counts = await queue.count()
            assert (counts.ready, counts.leased) == (1, 0)

    asyncio.run(main())


def test_loops_share_the_work(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            done: list[bytes] = []
            loops = [queue.consume(prefetch=3) for _ in range(30)]

            async def work(jobs: aio.Consumer) -> None:
                async for job in jobs:
                    done.append(job.body)
                    if len(done) == 200:
                        for each in loops:
                            each.stop()

            tasks = [asyncio.create_task(work(jobs)) for jobs in loops]
            bodies = [b"%d" % number for number in range(200)]
            for body in bodies:
                await queue.push(body)
            await asyncio.gather(*tasks)

            assert sorted(done) == sorted(bodies)
            assert (await queue.count()).total == 0

    asyncio.run(main())


def test_a_loop_is_checked_before_it_runs(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            with pytest.raises(InvalidArgument):
                store.queue("mail").consume(prefetch=0)
            with pytest.raises(InvalidArgument):
                store.queue("mail").consume(wait=-1)

    asyncio.run(main())
