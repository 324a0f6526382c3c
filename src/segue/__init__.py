"""Segue: a durable segmented queue for Python. These are its public names."""

from segue import errors
from segue.delivery.message import DeadLetter, Message
from segue.delivery.rules import QueueRules
from segue.delivery.topic_record import Appended, Event, TopicRecord
from segue.delivery.topic_rules import TopicRules
from segue.errors import SegueError
from segue.log import Log, Reader, Record
from segue.stores.contract import (
    Counts,
    Entry,
    Item,
    Lock,
    MessageStatus,
    Queue,
    QueueStats,
    Ring,
    Store,
    Transaction,
)
from segue.stores.job import Job
from segue.stores.opening import open
from segue.stores.topic_contract import Group, Lag, Member, Producer, Topic, TopicReader

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "Counts",
    "DeadLetter",
    "Entry",
    "Event",
    "Group",
    "Item",
    "Job",
    "Lag",
    "Lock",
    "Log",
    "Member",
    "Message",
    "MessageStatus",
    "Producer",
    "Queue",
    "QueueRules",
    "QueueStats",
    "Reader",
    "Record",
    "Ring",
    "SegueError",
    "Store",
    "Topic",
    "TopicReader",
    "TopicRecord",
    "TopicRules",
    "Transaction",
    "__version__",
    "errors",
    "open",
]
