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
        async with await store.topic("orders").group("billing").join() as member:
            for record in await member.poll(timeout=None):
                ...
            await member.commit()

Calls run in threads of the store, which nothing else uses; leases and locks are kept alive from
threads, too, so a task that blocks the event loop loses none. Only a member of a group is not: it
lives by its calls. Any number of tasks may wait.

A task that is cancelled loses and leaks nothing. What it is granted meanwhile, a lease, a lock or
a transaction, is given back before the cancellation goes on. What it takes for good meanwhile
(`pop`, a ring's `dequeue`) is returned all the same, and the cancellation comes with the next call
that would take something. Any other call that was under way has happened, or has not. All of that
takes a tenth of a second at most, or as long as the call itself.

What reads, a `poll` or an iterator, keeps its place: records it fetched for a task that is
cancelled come again with the next call. A reader, member or producer opened for such a task is
closed, and a member has left its group.

`asyncio.wait_for` may drop a result that comes as its time is up; `asyncio.timeout` and `wait=` do
not.

    _generated*.py  the nouns, written by tools/generate_aio.py
    _handles.py     how each kind of call is made
    _topics.py      how records are polled
    _consumer.py    the loop that leases, yields and settles
    _items.py       iterators
    _waiting.py     how many tasks wait in few threads
    _threads.py     the threads, and what becomes of a cancelled call
"""

from segue.aio._consumer import Consumer
from segue.aio._generated import HeldLock, Job, Lock, Queue, Ring, Store, Transaction, open
from segue.aio._generated_topics import Group, Member, Producer, Topic, TopicReader
from segue.aio._items import Items

__all__ = [
    "Consumer",
    "Group",
    "HeldLock",
    "Items",
    "Job",
    "Lock",
    "Member",
    "Producer",
    "Queue",
    "Ring",
    "Store",
    "Topic",
    "TopicReader",
    "Transaction",
    "open",
]
