"""Segue: a durable segmented queue for Python. These are its public names."""

from segue import errors
from segue.delivery.message import DeadLetter, Message
from segue.delivery.rules import QueueRules
from segue.errors import SegueError
from segue.log import Log, Reader, Record
from segue.stores.contract import (
    Counts,
    Entry,
    Item,
    Lock,
    Queue,
    QueueStats,
    Ring,
    Store,
    Transaction,
)
from segue.stores.job import Job
from segue.stores.opening import open

__version__ = "0.1.0"

__all__ = [
    "Counts",
    "DeadLetter",
    "Entry",
    "Item",
    "Job",
    "Lock",
    "Log",
    "Message",
    "Queue",
    "QueueRules",
    "QueueStats",
    "Reader",
    "Record",
    "Ring",
    "SegueError",
    "Store",
    "Transaction",
    "__version__",
    "errors",
    "open",
]
