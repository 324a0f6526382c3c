"""Every method of every noun does in asyncio what it does without."""

import asyncio
import threading
from pathlib import Path

import pytest

import segue
from segue import Item, QueueRules, aio
from segue.errors import (
    InvalidName,
    LockBusy,
    LogNotFound,
    QueueEmpty,
    QueueFull,
    RingExists,
    RingNotFound,
    StoreClosed,
)
from tests.unit.aio_support import eventually, opened, waits
from tests.waiting import LIMIT_SECONDS


def test_queues_are_pushed_to_looked_at_and_popped(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            first = await queue.push(b"a", priority="high", headers={"to": "ada"})
            await queue.push_many([b"b", Item(body=b"c", delay=60)])
            await queue.push_many(body for body in [b"d"])

            assert queue.name == "mail"
            assert await store.queues() == ["mail"]
            assert [message.body for message in await queue.peek(5)] == [b"b", b"d", b"a"]
            assert (await queue.count()).delayed == 1
            assert (await queue.stats()).counts.ready == 3
            assert "metadata" in await queue.state()
            popped = await queue.pop()
            assert popped is not None
            assert popped.body == b"b"
            assert [message.id for message in await queue.pop_many(5)][-1] == first
            assert await queue.pop() is None
            assert await queue.purge() == 1
            assert await store.remove_queue("mail")
            assert await store.queues() == []

    asyncio.run(main())


def test_jobs_say_and_do_what_jobs_do(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail", QueueRules(backoff_base=0.001))
            await queue.push('{"to": "ada"}', key="k", headers={"a": "b"})
            job = await queue.lease(ttl=20)

            assert (job.body, job.text) == (b'{"to": "ada"}', '{"to": "ada"}')
            assert (job.json(), job.key, job.headers) == ({"to": "ada"}, "k", {"a": "b"})
            assert (job.id, job.attempt, job.priority) == ("0-0", 1, 0)
            assert job.receipt == f"0-0/{job.token}"
            assert (job.message.id, job.message.pushed_at) == (job.id, job.pushed_at)
            assert (job.ttl_seconds, job.is_settled) == (20, False)
            assert job.receipt in repr(job)
            job.check()
            job.keep_alive()
            job.let_go()
            await job.extend(ttl=10)
            await job.release()
            job = await queue.lease()
            await job.fail("not now", delay=0)
            job = await queue.lease(wait=LIMIT_SECONDS)
            await job.bury("never")
            assert (job.is_settled, (await queue.count()).dead) == (True, 1)

    asyncio.run(main())


def test_queues_settle_jobs_and_receipts(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"a", b"b", b"c", b"d", b"e"])
            first, second, third, fourth, fifth = await queue.lease_many(9)
            await queue.extend(first, ttl=5)
            await queue.ack(first)
            await queue.ack(second.receipt)
            await queue.nack(third, outcome="dead", reason="no")
            left: list[aio.Job | str] = [fourth, fifth.receipt]
            await queue.ack_many(each for each in left)

            assert (await queue.count()).total == 0
            assert fourth.is_settled

    asyncio.run(main())


def test_a_block_acks_or_fails(scratch: Path) -> None:
    """As `with` does: what goes wrong in it is why the message comes again."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail", QueueRules(max_deliveries=1))
            await queue.push_many([b"a", b"b"])
            async with await queue.lease() as job:
                assert job.body == b"a"
            with pytest.raises(KeyError):
                async with await queue.lease():
                    raise KeyError("ada")

            assert (await queue.count()).total == 0
            assert [letter.reason async for letter in queue.dead_letters()] == ["KeyError: 'ada'"]
            report = await queue.redrive(where=lambda letter: "ada" in letter.reason)
            assert (report.matched, report.redriven) == (1, 1)
            await (await queue.lease()).bury()
            assert await queue.discard(limit=5) == 1

    asyncio.run(main())


def test_queues_have_rules_pauses_and_a_history(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.configure(QueueRules(keep_seconds=60))
            await queue.push_many([b"%d" % number for number in range(250)])
            await queue.pause()
            assert await queue.pop() is None
            await queue.resume()
            await queue.pop_many(250)

            assert (await queue.rules).keep_seconds == 60
            bodies = [message.body async for message in queue.history()]
            assert bodies == [b"%d" % number for number in range(250)]
            assert await queue.replay(priority=0, start=248) == 2

    asyncio.run(main())


def test_rings_and_transactions(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            ring = store.ring("bus", capacity=4, entries_per_segment=2)
            assert await ring.enqueue(b"a", "one") == 0
            await ring.add_group("late", start="tail")
            async with await ring.transaction("two", ttl=30) as steps:
                assert (steps.txn_id, steps.token > 0) == ("two", True)
                with pytest.raises(LockBusy):
                    await ring.enqueue(b"x", wait=0.05)
                assert await steps.enqueue(b"b") == 1
                taken = await steps.dequeue()
            again = await ring.transaction(ttl=30)
            await again.enqueue(b"never")
            await again.abort()
            more = await ring.transaction(ttl=30)
            await more.enqueue(b"c")
            await more.commit()

            assert taken is not None
            assert taken.body == b"a"
            assert (await ring.info()).count == 2
            entry = await ring.get(1)
            assert entry is not None
            assert entry.body == b"b"
            outcome = await ring.outcome("two")
            assert outcome is not None
            assert outcome.enqueued == range(1, 2)
            entry = await ring.dequeue(group="late")
            assert entry is not None
            assert entry.body == b"b"
            assert await ring.remove_group("late")
            assert await store.rings() == ["bus"]

    asyncio.run(main())


def test_a_transaction_that_fails_has_not_happened(scratch: Path) -> None:
    async def fail(ring: aio.Ring) -> None:
        async with await ring.transaction(ttl=30) as steps:
            await steps.enqueue(b"a")
            raise KeyError

    async def main() -> None:
        async with opened(scratch) as store:
            ring = store.ring("bus", capacity=4, entries_per_segment=2)
            with pytest.raises(KeyError):
                await fail(ring)

            assert (await ring.info()).count == 0
            assert await ring.enqueue(b"b", wait=0) == 0

    asyncio.run(main())


def test_locks(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            lock = store.lock("leader", ttl=30)
            async with lock as held:
                assert (held.name, held.is_held) == ("leader", True)
                with pytest.raises(LockBusy):
                    await store.lock("leader").acquire(wait=0)
            again = await lock.acquire(owner="ada")
            await again.renew(ttl=10)
            holder = await lock.holder()
            assert holder is not None
            assert holder[:2] == ("ada", again.token)
            assert again.token > held.token
            await again.release()

            assert await lock.holder() is None
            assert await store.locks() == ["leader"]

    asyncio.run(main())


def test_awaiting_a_thing_opens_it(scratch: Path) -> None:
    """Without that, what speaks against it is said by its first call."""

    async def main() -> None:
        async with opened(scratch) as store:
            ring = await store.ring("bus", capacity=4, mode="create")

            assert await store.rings() == [ring.name]
            with pytest.raises(RingExists):
                await store.ring("bus", capacity=4, mode="create")
            with pytest.raises(InvalidName):
                await store.queue("../mail").count()
            with pytest.raises(RingNotFound):
                await store.ring("other", mode="open").info()

    asyncio.run(main())


def test_a_refusal_is_not_waited_out(scratch: Path) -> None:
    """A push may wait for ever where the rules say so, and only there."""

    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail", QueueRules(capacity=1, on_full="refuse"))
            await queue.push(b"a")
            with pytest.raises(QueueFull):
                await queue.push(b"b")

            await queue.configure(QueueRules(capacity=1, on_full="block"))
            pushing = asyncio.create_task(queue.push(b"c"))
            await waits(pushing)
            await queue.pop()
            assert await pushing == "0-1"

    asyncio.run(main())


def test_one_body_is_not_many(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            with pytest.raises(segue.errors.InvalidArgument):
                await store.queue("mail").push_many("abc")
            assert (await store.queue("mail").count()).total == 0

    asyncio.run(main())


def test_a_store_serves_one_event_loop_after_the_other(scratch: Path) -> None:
    """It belongs to none: also one that was left in the middle of a wait does no harm."""

    async def first() -> aio.Store:
        store = await aio.open(scratch / "data", sync="os")
        await store.queue("mail").push(b"a")
        await (await store.queue("mail").lease()).ack()
        waiting = asyncio.create_task(store.queue("mail").lease(wait=None))
        await waits(waiting)
        return store

    async def second(store: aio.Store) -> bytes:
        queue = store.queue("mail")
        waiting = asyncio.create_task(queue.lease(wait=LIMIT_SECONDS))
        await waits(waiting)
        await queue.push(b"b")
        async with store, await waiting as job:
            return job.body

    store = asyncio.run(first())

    assert asyncio.run(second(store)) == b"b"


def test_two_event_loops_may_share_a_store(scratch: Path) -> None:
    store = asyncio.run(aio.open(scratch / "data", sync="os"))
    taken: list[bytes] = []

    async def take() -> None:
        jobs = await asyncio.gather(
            *[store.queue("mail").lease(wait=LIMIT_SECONDS) for _ in range(10)]
        )
        taken.extend([job.body for job in jobs])

    threads = [threading.Thread(target=asyncio.run, args=[take()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    asyncio.run(store.queue("mail").push_many([b"%d" % number for number in range(20)]))
    for thread in threads:
        thread.join()
    asyncio.run(store.close())

    assert sorted(taken) == sorted(b"%d" % number for number in range(20))


def test_closing_joins_all_threads_and_ends_all_waits(scratch: Path) -> None:
    before = threading.active_count()

    async def main() -> None:
        store = await aio.open(scratch / "data", sync="os")
        queue = store.queue("mail")
        waiting = [asyncio.create_task(queue.lease(wait=None)) for _ in range(5)]
        await waits(*waiting)
        await store.close()
        await store.close()

        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StoreClosed}
        with pytest.raises(StoreClosed):
            await queue.push(b"a")

    asyncio.run(main())

    assert threading.active_count() == before


def test_a_store_that_cannot_be_opened_leaves_no_thread(scratch: Path) -> None:
    before = threading.active_count()
    with pytest.raises(LogNotFound):
        asyncio.run(aio.open(scratch / "nothing", create=False))

    assert threading.active_count() == before


def test_an_empty_queue_says_so_after_the_wait(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            with pytest.raises(QueueEmpty):
                await queue.lease()
            with pytest.raises(QueueEmpty):
                await queue.lease(wait=0.01)
            assert await queue.lease_many(3, wait=0.01) == []
            assert await queue.pop(wait=0.15) is None

    asyncio.run(main())


def test_iterators_may_be_left(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            queue = store.queue("mail")
            await queue.push_many([b"%d" % number for number in range(300)])
            async for message in queue.history():
                if message.body == b"150":
                    break

            assert message.body == b"150"
            assert await anext(aiter(queue.history())) == (await queue.peek())[0]

    asyncio.run(main())


def test_a_lost_lock_is_told_at_the_end_of_its_block(scratch: Path) -> None:
    async def main() -> None:
        async with opened(scratch) as store:
            lock = store.lock("leader", ttl=30)
            with pytest.raises(segue.errors.LockLost):
                async with lock as held:
                    await held.release()

            async def is_free() -> bool:
                return await lock.holder() is None

            await eventually(is_free)

    asyncio.run(main())


def test_a_lock_whose_renewal_hangs_costs_no_other(scratch: Path) -> None:
    """On a server a renewal is a call that may take long, and locks are on many nodes."""
    may_end, is_renewed = threading.Event(), threading.Event()

    def hang() -> None:
        may_end.wait()

    async def main() -> bool:
        async with opened(scratch) as store:
            heartbeat = store._threads.heartbeat
            pulses = [heartbeat.start(step, 0.03) for step in (hang, is_renewed.set)]
            found = await asyncio.to_thread(is_renewed.wait, LIMIT_SECONDS)
            may_end.set()
            for pulse in pulses:
                pulse.stop()
            return found

    assert asyncio.run(main())
