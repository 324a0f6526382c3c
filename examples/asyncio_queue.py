"""The same nouns in asyncio: workers that share a queue, and end when all is done."""

import asyncio

import segue.aio


async def work(name: str, jobs: segue.aio.Consumer) -> None:
    """Do what comes, until the loop is stopped."""
    async for job in jobs:  # asking for the next acks this one
        await asyncio.sleep(0.01)
        print(name, job.id, job.text)


async def main() -> None:
    """Push, work, stop."""
    async with await segue.aio.open("data") as store:
        queue = store.queue("letters")
        await queue.push_many([f"to: {name}" for name in ("ada", "grace", "edsger", "barbara")])

        loops = {name: queue.consume() for name in ("ann", "ben")}
        async with asyncio.TaskGroup() as workers:
            for name, jobs in loops.items():
                workers.create_task(work(name, jobs))
            while (await queue.count()).total:
                await asyncio.sleep(0.05)
            for jobs in loops.values():
                jobs.stop()

        async with store.lock("leader", ttl=10) as held:  # kept alive, also if the loop is blocked
            print("leader", held.token)


asyncio.run(main())
