"""Stores: one contract, several places to keep things.

contract.py   what every Store, Queue, Ring and Lock promises
opening.py    which store a URL means
job.py        a leased message, the same for every store
consumer.py   the loop that leases, yields and settles
heartbeat.py  keeps the leases of long work alive
file/         a directory
aio.py        the same nouns for asyncio, generated from the contract
"""
