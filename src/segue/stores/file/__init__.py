"""A store in a directory: queues, rings and locks as views over logs.

store.py      the directory as a whole
place.py      where things lie, and how their logs are opened
queue.py      the queue: what its callers see
core.py       one queue's logs and ledger, shared by all handles of a process
lanes.py      reading what waits
state.py      a queue in the words of its ancestors
ring.py       the ring
lock.py       the lock
"""
