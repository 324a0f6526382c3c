"""Segue: a durable segmented queue for Python. These are its public names."""

from typing import TYPE_CHECKING

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
    Timeline,
    TimelineEvent,
    Transaction,
)
from segue.stores.job import Job
from segue.stores.opening import open
from segue.stores.topic_contract import Group, Lag, Member, Producer, Topic, TopicReader

if TYPE_CHECKING:
    from segue.tasks import App

__version__ = "0.1.0"

__all__ = [
    "App",
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
    "Timeline",
    "TimelineEvent",
    "Topic",
    "TopicReader",
    "TopicRecord",
    "TopicRules",
    "Transaction",
    "__version__",
    "errors",
    "open",
]


def __getattr__(name: str) -> object:
    # Not before it is asked for: tasks are an extra, and not everybody's.
    if name == "App":
        from segue.tasks import App

        return App
    raise AttributeError(f"module 'segue' has no attribute {name!r}")
