"""Stores: one contract, several places to keep things.

    contract.py   what every Store, Queue, Ring and Lock promises
    opening.py    which store a URL means
    job.py        a leased message, the same for every store
    consumer.py   the loop that leases, yields and settles
    heartbeat.py  keeps the leases of long work alive
    migration.py  queues as other programs wrote them down
    file/         a directory

The same nouns for asyncio are in `segue.aio`.
"""
