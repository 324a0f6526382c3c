"""Requests to cancel tasks: a small topic that every worker looks at before it runs anything."""

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from segue.delivery.topic_record import Event
from segue.errors import StoreUnavailable
from segue.stores.contract import Store
from segue.tasks.topics import compact, end_of, records_between

logger = logging.getLogger(__name__)

CANCEL_TOPIC: Final = "segue.cancellations"
LOOK_SECONDS: Final = 0.005
"""How old what is known may be where looking takes a round trip: a request that comes so shortly
before its task begins is as good as one that comes after."""


class Cancellations:
    """Who is to be cancelled, as far as it has not been done. Safe from any thread.

    A request stays until the task it names is met: tasks may lie scheduled for a year.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._topic = store.topic(CANCEL_TOPIC)
        self._requested: dict[str, int] = {}
        self._next = 0
        self._looked = -math.inf
        self._look_seconds = LOOK_SECONDS if "://" in store.url else 0.0

    def prepare(self) -> None:
        """Have the topic: looking at one that is not there takes longer than at one that is."""
        if CANCEL_TOPIC not in self._store.topics():
            self._topic = self._store.topic(CANCEL_TOPIC, partitions=1)

    def tidy(self) -> None:
        """Remove requests that were carried out, once there are many."""
        compact(self._topic)

    def request(self, task_id: str, pushed_us: int) -> None:
        """Have the task not run, or stop, that was pushed then; durable when it returns."""
        self._topic.append(str(pushed_us).encode(), key=task_id)
        self._looked = -math.inf  # Whoever asks in this process learns of it at once.

    def forget(self, task_ids: Iterable[str]) -> None:
        """Note that requests were carried out, or came too late."""
        tombstones = [Event(value=None, key=task_id) for task_id in task_ids]
        if tombstones:
            self._topic.append_many(tombstones)

    def requested(self) -> Mapping[str, int]:
        """Return the tasks that are to be cancelled, as of now, and when they were pushed.

        The latter tells them from tasks of a queue that was removed and made anew.
        """
        end = end_of(self._topic)
        if end == self._next:  # As nearly always; then this costs next to nothing.
            return self._requested
        with self._lock:
            found = dict(self._requested)
            for record in records_between(self._topic, self._next, end):
                name = (record.key or b"").decode(errors="replace")
                if record.value is not None and record.value.isdigit():
                    found[name] = int(record.value)
                else:
                    found.pop(name, None)
            self._next = max(self._next, end)
            self._requested = found
        return found

    def last_requested(self) -> Mapping[str, int]:
        """Return what `requested` does, or did a moment ago where asking takes a round trip.

        Or did last, if the server cannot be reached now.
        """
        now = time.monotonic()
        if now - self._looked < self._look_seconds:
            return self._requested
        try:
            found = self.requested()
        except StoreUnavailable as error:
            logger.warning("cancellations not looked at, will be tried again reason=%s", error)
            return self._requested
        self._looked = now
        return found
