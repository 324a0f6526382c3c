"""A task that is cancelled loses nothing and leaks nothing, whenever it is cancelled."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import segue
from segue import QueueRules, aio
from segue.aio._threads import Threads
from segue.delivery.message import DeadLetter
from segue.errors import QueueEmpty, StoreClosed
from segue.stores import contract
from tests.conftest import TORTURE
from tests.unit.aio_support import opened, waits
from tests.waiting import LIMIT_SECONDS, random_pause_async, run_other_tasks, wait_until_async

ROUNDS = 1_000 if TORTURE else 60


@contextmanager
def elsewhere(scratch: Path) -> Iterator[contract.Store]:
    """The same store as another process has it."""
    with segue.open(scratch / "data", sync="os") as store:
        yield store


class Gate:
    """A call that has begun, and ends when it is told to."""

    def __init__(self, result: object) -> None:
        self._result = result
        self._may_end = threading.Event()
        self.has_begun = threading.Event()

    def __call__(self) -> object:
        self.has_begun.set()
        self._may_end.wait(LIMIT_SECONDS)
        return self._result

    async def begun(self) -> None:
        await wait_until_async(self.has_begun.is_set)

    def open(self) -> None:
        self._may_end.set()


# What was under way ------------------------------------------------------------------------


def test_what_is_granted_to_a_cancelled_task_is_given_back() -> None:
    """And only then is the task cancelled: nothing of it goes on behind its back."""

    async def main() -> list[object]:
        threads = Threads()
        gate = Gate("a lease")
        undone: list[object] = []
        task = asyncio.create_task(threads.grant(gate, undone.append))
        await gate.begun()
        for _ in range(3):  # Once, or again and again.
            task.cancel()
            await run_other_tasks(10)
            assert not task.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await threads.close(lambda: None)
        return undone

    assert asyncio.run(main()) == ["a lease"]


def test_what_cannot_be_given_back_after_all_is_no_error_of_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        threads = Threads()
        gate = Gate("a lease")

        def undo(_: object) -> None:
            raise StoreClosed("closed")

        task = asyncio.create_task(threads.grant(gate, undo))
        await gate.begun()
        task.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await threads.close(lambda: None)

    asyncio.run(main())

    assert "not given back" in caplog.text


def test_what_a_cancelled_task_takes_for_good_reaches_it() -> None:
    """The cancellation comes with its next wish: once."""

    async def main() -> None:
        threads = Threads()
        gate = Gate("a message")

        async def work() -> object:
            found = await threads.take(gate, lambda _: False)
            await run_other_tasks()  # Its work is not disturbed.
            with pytest.raises(asyncio.CancelledError):
                threads.collect_debt()
            threads.collect_debt()
            return found

        task = asyncio.create_task(work())
        await gate.begun()
        task.cancel()
        await run_other_tasks()
        gate.open()

        assert await task == "a message"
        await threads.close(lambda: None)

    asyncio.run(main())


def test_a_timeout_that_is_over_is_not_owed() -> None:
    """It was for this wish alone: what came in the last moment is as good as what came before."""

    async def main() -> None:
        threads = Threads()
        gate = Gate("a message")
        taker = asyncio.current_task()
        assert taker is not None

        async def end(timeout: asyncio.Timeout) -> None:
            await gate.begun()
            timeout.reschedule(asyncio.get_running_loop().time())
            await wait_until_async(taker.cancelling)
            await run_other_tasks()
            gate.open()

        async with asyncio.timeout(LIMIT_SECONDS) as timeout:
            ending = asyncio.create_task(end(timeout))
            found = await threads.take(gate, lambda _: False)

        await ending
        threads.collect_debt()
        assert found == "a message"
        await threads.close(lambda: None)

    asyncio.run(main())


def test_a_cancelled_task_that_took_nothing_is_cancelled() -> None:
    async def main() -> None:
        threads = Threads()
        gate = Gate(None)
        task = asyncio.create_task(threads.take(gate, lambda found: found is None))
        await gate.begun()
        task.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await threads.close(lambda: None)

    asyncio.run(main())


def test_a_call_that_has_not_begun_never_happens() -> None:
    """While all threads are busy, a cancelled task leaves at once."""

    async def main() -> None:
        threads = Threads()
        gate = Gate(None)
        busy = [asyncio.create_task(threads.call(gate)) for _ in range(100)]
        await gate.begun()
        late: list[str] = []
        task = asyncio.create_task(threads.call(lambda: late.append("happened")))
        await run_other_tasks()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await asyncio.gather(*busy)
        await threads.close(lambda: None)

        assert late == []

    asyncio.run(main())


# Waits -------------------------------------------------------------------------------------


def test_cancelled_waits_leave_no_lease(scratch: Path) -> None:
    """Whether the message came before, with or after the cancellation."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            with elsewhere(scratch) as other:
                there = other.queue("mail")
                for wait in (
                    lambda: queue.lease(wait=None),
                    lambda: queue.lease_many(3, wait=None),
                    lambda: queue.lease(wait=LIMIT_SECONDS),
                ):
                    task: asyncio.Task[object] = asyncio.create_task(wait())
                    await waits(task)
                    task.cancel()
                    there.push(b"a")
                    with pytest.raises(asyncio.CancelledError):
                        await task

                    counts = await queue.count()
                    assert (counts.ready, counts.leased) == (1, 0)
                    assert await queue.purge() == 1

    asyncio.run(main())


def test_a_cancelled_wait_leaves_no_lock(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            lock = store.lock("leader")
            with elsewhere(scratch) as other:
                held = other.lock("leader").acquire()
                task: asyncio.Task[object] = asyncio.create_task(lock.acquire())
                await waits(task)
                task.cancel()
                held.release()
                with pytest.raises(asyncio.CancelledError):
                    await task

                assert await lock.holder() is None

    asyncio.run(main())


def test_a_cancelled_wait_leaves_no_transaction(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            ring = store.ring("bus", capacity=10)
            await ring.enqueue(b"a")
            with elsewhere(scratch) as other:
                held = other.ring("bus").transaction(ttl=30)
                task: asyncio.Task[object] = asyncio.create_task(
                    ring.transaction(ttl=30, wait=None)
                )
                await waits(task)
                task.cancel()
                held.abort()
                with pytest.raises(asyncio.CancelledError):
                    await task

                assert (await ring.info()).locked_by is None

    asyncio.run(main())


def test_no_message_is_lost_however_pops_are_cancelled(scratch: Path) -> None:
    """What was pushed is what came out and what is left, in all."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            chance = random.Random(7)
            popped = 0
            with elsewhere(scratch) as other:
                there = other.queue("mail")
                for _ in range(ROUNDS):
                    task = asyncio.create_task(queue.pop(wait=None))
                    await random_pause_async(chance, 0.003)
                    is_cancelled_first = chance.random() < 0.5
                    if is_cancelled_first:
                        task.cancel()
                    there.push(b"a")
                    if not is_cancelled_first:
                        task.cancel()
                    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                    popped += not isinstance(outcome, BaseException)

            assert popped + (await queue.count()).ready == ROUNDS

    asyncio.run(main())


def test_no_message_is_stuck_however_leases_are_cancelled(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            chance = random.Random(8)
            acked = 0
            for _ in range(ROUNDS):
                task = asyncio.create_task(queue.lease(wait=None))
                await random_pause_async(chance, 0.003)
                pushing = asyncio.create_task(queue.push(b"a"))
                await random_pause_async(chance, 0.001)
                task.cancel()
                await pushing
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, aio.Job):
                    await outcome.ack()
                    acked += 1

            counts = await queue.count()
            assert (acked + counts.ready, counts.leased) == (ROUNDS, 0)

    asyncio.run(main())


def test_a_cancelled_worker_handles_what_it_got_and_ends(scratch: Path) -> None:
    """A loop over `pop` ends on cancellation, however late a message came."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            handled: list[bytes] = []

            async def work() -> None:
                while True:
                    message = await queue.pop(wait=None)
                    assert message is not None
                    await run_other_tasks()
                    handled.append(message.body)

            with elsewhere(scratch) as other:
                worker: asyncio.Task[object] = asyncio.create_task(work())
                await waits(worker)
                worker.cancel()
                await run_other_tasks()  # The cancellation is with it; its call is under way.
                other.queue("mail").push(b"a")
                with pytest.raises(asyncio.CancelledError):
                    await worker

            assert len(handled) + (await queue.count()).ready == 1

    asyncio.run(main())


def test_a_timeout_around_a_wait_is_kept(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await store.queue("mail").lease(wait=None)
            with pytest.raises(QueueEmpty):
                await store.queue("mail").lease()

    asyncio.run(main())


def test_one_who_leaves_the_line_does_not_hold_up_the_others(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            tasks = [asyncio.create_task(queue.lease(wait=None)) for _ in range(10)]
            await waits(*tasks)
            for place in (0, 4, 9):
                tasks[place].cancel()
            await queue.push_many([b"%d" % number for number in range(7)])
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)

            assert sum(isinstance(outcome, aio.Job) for outcome in outcomes) == 7

    asyncio.run(main())


# Blocks ------------------------------------------------------------------------------------


def test_a_cancelled_block_releases_its_message(scratch: Path) -> None:
    """The program is being stopped: that says nothing about the message."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail", QueueRules(max_deliveries=1))
            await queue.push(b"a")

            async def work() -> None:
                async with await queue.lease():
                    await asyncio.Event().wait()

            task: asyncio.Task[object] = asyncio.create_task(work())
            await waits(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            async with await queue.lease() as job:
                assert job.attempt == 1

    asyncio.run(main())


def test_a_cancelled_block_releases_its_lock(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            lock = store.lock("leader")

            async def lead() -> None:
                async with lock:
                    await asyncio.Event().wait()

            task: asyncio.Task[object] = asyncio.create_task(lead())
            await waits(task)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert await lock.holder() is None

    asyncio.run(main())


def test_a_cancelled_redrive_ends_at_the_next_letter(scratch: Path) -> None:
    """However many there are, and however slowly they are to come."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"a"] * 300)
            for job in await queue.lease_many(300):
                await queue.nack(job, outcome="dead")
            second_asked, may_go_on = threading.Event(), threading.Event()
            asked: list[DeadLetter] = []

            def where(letter: DeadLetter) -> bool:
                asked.append(letter)
                if len(asked) == 2:
                    second_asked.set()
                    may_go_on.wait(LIMIT_SECONDS)
                return True

            task = asyncio.create_task(queue.redrive(where=where, rate=20))
            await wait_until_async(second_asked.is_set)
            task.cancel()
            await run_other_tasks(3)
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert len(asked) == 2
            assert (await queue.count()).dead >= 298

    asyncio.run(main())


def test_a_cancelled_opening_leaves_no_thread(scratch: Path) -> None:
    before = threading.active_count()

    async def main() -> None:
        for _ in range(10):
            task = asyncio.create_task(aio.open(scratch / "data", exclusive=True))
            await run_other_tasks()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())

    assert threading.active_count() == before


def test_a_cancelled_close_is_a_close(scratch: Path) -> None:
    async def main() -> None:
        store = await aio.open(scratch / "data", sync="os")
        task = asyncio.create_task(store.close())
        await run_other_tasks()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        with pytest.raises(StoreClosed):
            await store.queues()

    before = threading.active_count()
    asyncio.run(main())

    assert threading.active_count() == before
