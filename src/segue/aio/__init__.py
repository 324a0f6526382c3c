"""The same store for asyncio: the same nouns, arguments and promises, with `await` before the verb.

    async with await segue.aio.open("data") as store:
        queue = store.queue("mail")
        await queue.push(b"to: ada")
        async with await queue.lease() as job:
            ...
        async for job in queue.consume():
            ...
        async with store.lock("leader") as held:
            ...

Calls run in threads of the store, which nothing else uses; leases and locks are kept alive from
threads, too, so a task that blocks the event loop loses none. Any number of tasks may wait.

A task that is cancelled loses and leaks nothing. What it is granted meanwhile, a lease, a lock or
a transaction, is given back before the cancellation goes on. What it takes for good meanwhile
(`pop`, a ring's `dequeue`) is returned all the same, and the cancellation comes with the next call
that would take something. Any other call that was under way has happened, or has not. All of that
takes a tenth of a second at most, or as long as the call itself.

`asyncio.wait_for` may drop a result that comes as its time is up; `asyncio.timeout` and `wait=` do
not.

    _generated.py  the nouns, written by tools/generate_aio.py
    _handles.py    how each kind of call is made
    _consumer.py   the loop that leases, yields and settles
    _waiting.py    how many tasks wait in few threads
    _threads.py    the threads, and what becomes of a cancelled call
"""

from segue.aio._consumer import Consumer
from segue.aio._generated import HeldLock, Job, Lock, Queue, Ring, Store, Transaction, open

__all__ = ["Consumer", "HeldLock", "Job", "Lock", "Queue", "Ring", "Store", "Transaction", "open"]
