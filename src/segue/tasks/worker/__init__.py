"""Workers: what runs tasks.

worker.py     the whole, from its start to its end
sources.py    which queue is next
supply.py     leases for those who are free
runs.py       a task in the hands of a worker, and running it
slots.py      threads that run tasks
processes.py  processes that run tasks; child.py is what runs there
loop.py       an event loop that runs tasks
keeper.py     leases, timeouts, cancellations
settler.py    events and acks
reports.py    what workers say of themselves
"""

from segue.tasks.worker.worker import Kind, Worker

__all__ = ["Kind", "Worker"]
