"""Segue: a durable segmented queue for Python. These are its public names.

A name is imported when it is first asked for, so that `import segue` costs next to nothing, and who
pushes messages never waits for topics, tasks or asyncio (docs/adr/0029-releases.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segue import errors as errors
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

# The same as above, for those who run it: a test compares the two.
_HOMES = {
    "segue.delivery.message": ("DeadLetter", "Message"),
    "segue.delivery.rules": ("QueueRules",),
    "segue.delivery.topic_record": ("Appended", "Event", "TopicRecord"),
    "segue.delivery.topic_rules": ("TopicRules",),
    "segue.errors": ("SegueError",),
    "segue.log": ("Log", "Reader", "Record"),
    "segue.stores.contract": (
        "Counts",
        "Entry",
        "Item",
        "Lock",
        "MessageStatus",
        "Queue",
        "QueueStats",
        "Ring",
        "Store",
        "Timeline",
        "TimelineEvent",
        "Transaction",
    ),
    "segue.stores.job": ("Job",),
    "segue.stores.opening": ("open",),
    "segue.stores.topic_contract": (
        "Group",
        "Lag",
        "Member",
        "Producer",
        "Topic",
        "TopicReader",
    ),
    "segue.tasks": ("App",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # A type checker would believe it of any name, misspelt ones too.

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("segue.errors")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'segue' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value  # From now on it is found without coming here.
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
