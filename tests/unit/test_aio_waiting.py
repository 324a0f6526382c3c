"""Any number of tasks wait in few threads, and the event loop may stand still."""

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from segue import QueueRules
from segue.aio._threads import CALL_THREADS_MAX, WAIT_THREADS_MAX
from segue.stores import heartbeat
from tests.unit.aio_support import opened, waits
from tests.waiting import run_other_tasks, wait_until


def test_hundreds_of_tasks_wait_for_one_queue(scratch: Path) -> None:
    """In one thread for all of them; each gets one message."""

    async def main() -> None:
        async with opened(scratch) as store:
            before = threading.active_count()

            async def work() -> bytes:
                async with await store.queue("mail").lease(wait=None) as job:
                    return job.body

            tasks = [asyncio.create_task(work()) for _ in range(400)]
            await waits(*tasks)
            assert threading.active_count() - before <= CALL_THREADS_MAX + 2
            bodies = [b"%d" % number for number in range(400)]
            await store.queue("mail").push_many(bodies[:200])
            for body in bodies[200:]:
                await store.queue("mail").push(body)

            assert sorted(await asyncio.gather(*tasks)) == sorted(bodies)

    asyncio.run(main())


def test_more_queues_than_threads_are_waited_for(scratch: Path) -> None:
    """They take turns, and calls that do not wait find a thread at any time."""

    async def main() -> None:
        async with opened(scratch) as store:
            queues = [store.queue(f"mail-{number}") for number in range(WAIT_THREADS_MAX + 8)]
            tasks = [asyncio.create_task(queue.pop(wait=None)) for queue in queues]
            await waits(*tasks, in_thread=False)
            for queue in queues:
                await queue.push(queue.name)

            messages = await asyncio.gather(*tasks)
            assert [message and message.text for message in messages] == [
                queue.name for queue in queues
            ]

    asyncio.run(main())


def test_a_wait_ends_as_soon_as_there_is_something(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            task = asyncio.create_task(queue.lease(wait=timedelta(hours=1)))
            await waits(task)
            await queue.push(b"a")

            assert (await task).body == b"a"

    asyncio.run(main())


def test_a_wait_in_line_ends_in_time(scratch: Path) -> None:
    """Also for those who never become the first."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            first = asyncio.create_task(queue.pop(wait=None))
            await waits(first)
            started = time.monotonic()
            assert await queue.pop(wait=0.03) is None

            assert time.monotonic() - started >= 0.03
            await queue.push(b"a")
            assert await first is not None

    asyncio.run(main())


def test_who_waits_to_lease_does_not_hold_up_who_waits_to_pop(scratch: Path) -> None:
    """A queue may have no lease to give, and a message all the same."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail", QueueRules(max_leases=2))
            await queue.push_many([b"a", b"b"])
            held = await queue.lease_many(2)
            leasing = asyncio.create_task(queue.lease(wait=None))
            popping = asyncio.create_task(queue.pop(wait=None))
            await waits(leasing, popping)
            await queue.push(b"c")
            popped = await popping
            await queue.push(b"d")
            await queue.ack(held[0])

            assert popped is not None
            assert popped.body == b"c"
            assert (await leasing).body == b"d"

    asyncio.run(main())


def test_a_blocked_event_loop_loses_no_lease(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat has its own thread, which renews leases while the event loop does nothing."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 3_000)
    beats: Counter[heartbeat.Pulse] = Counter()
    beat = heartbeat.Pulse.run

    def counted(pulse: heartbeat.Pulse) -> None:
        beat(pulse)
        beats[pulse] += 1

    monkeypatch.setattr(heartbeat.Pulse, "run", counted)

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push(b"a")
            async with await queue.lease(ttl=60) as job, store.lock("leader", ttl=60) as held:
                wait_until(lambda: len(beats) == 2 and min(beats.values()) >= 3)  # Blocks the loop.
                job.check()
                assert held.is_held

            assert (await queue.count()).total == 0

    asyncio.run(main())


def test_few_threads_are_enough_for_many_locks(scratch: Path) -> None:
    """Tasks that wait for one lock get it one after the other."""

    async def main() -> None:
        async with opened(scratch) as store:
            inside = 0
            tokens: list[int] = []

            async def lead() -> None:
                nonlocal inside
                async with store.lock("leader") as held:
                    inside += 1
                    await run_other_tasks()
                    assert inside == 1
                    tokens.append(held.token)
                    inside -= 1

            await asyncio.gather(*[lead() for _ in range(20)])

            assert len(tokens) == 20
            assert tokens == sorted(set(tokens))

    asyncio.run(main())
