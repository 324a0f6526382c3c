"""What was done by those who may do everything, kept in a topic of the store itself.

An act is written down after it was done, by a thread: who waits for the answer does not wait for
this. What cannot be written is logged, so that it is somewhere.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from segue.delivery.topic_record import TopicRecord
from segue.delivery.topic_rules import TopicRules
from segue.server.access import AUDIT_TOPIC
from segue.stores.contract import Store
from segue.stores.http.wire.base import Answer
from segue.stores.topic_contract import Topic
from segue.values import dataclass

logger = logging.getLogger(__name__)

KEEP_SECONDS: Final = 90 * 86_400.0
PENDING_MAX: Final = 10_000
"""How many acts may wait to be written; those beyond go to the log alone."""


class Act(Answer):
    """One thing that was done, or tried."""

    time_us: int
    token: str
    """Whose token it was, by name."""
    token_id: str
    method: str
    path: str
    remote: str
    status: int
    did: str = ""
    """What was answered, if that is short: as what was done to how many. Empty of old acts."""


class Entry(Act, kw_only=True):
    """An act, and where it stands."""

    offset: int


class Audit:
    """Writes acts down. Safe from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="segue-audit")
        self._lock = threading.Lock()
        self._pending = 0
        self._topic: Topic | None = None

    def note(self, act: Act) -> None:
        """Have an act written down soon."""
        reason: object = "too many"
        with self._lock:
            if self._pending < PENDING_MAX:
                try:
                    self._thread.submit(self._append, act)
                except RuntimeError as error:  # There is no thread to be had.
                    reason = error
                else:
                    self._pending += 1
                    return
        logger.warning("act not audited reason=%s act=%s", reason, act)

    def _append(self, act: Act) -> None:
        try:
            self._opened().append(msgspec.json.encode(act), timestamp=act.time_us)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody else tells of it.
            logger.warning("act not audited reason=%r act=%s", error, act)
        finally:
            with self._lock:
                self._pending -= 1

    def _opened(self) -> Topic:
        if self._topic is None:
            self._topic = self._store.topic(
                AUDIT_TOPIC, partitions=1, rules=TopicRules(keep_seconds=KEEP_SECONDS)
            )
        return self._topic

    def close(self) -> None:
        """Return once everything is written down."""
        self._thread.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActPage:
    """Acts in their order."""

    entries: list[Entry]
    before: int | None
    """The offset that older ones lie before; None if there are none."""


def page_of(
    store: Store, *, after: int | None = None, before: int | None = None, limit: int
) -> ActPage:
    """Return acts: the first behind offset `after`, the last before `before`, or the last ones."""
    if AUDIT_TOPIC not in store.topics():
        return ActPage(entries=[], before=None)
    topic = store.topic(AUDIT_TOPIC)
    first, end = topic.offsets("earliest")[0], topic.offsets("latest")[0]
    stop = end if before is None else min(before, end)
    start = max(first, stop - limit if after is None else after + 1)
    if start >= stop:
        return ActPage(entries=[], before=None)
    found = topic.records({0: start}, stop={0: stop}, max_records=limit)
    entries = [entry for record in found if (entry := _entry(record)) is not None]
    return ActPage(entries=entries, before=start if start > first else None)


def _entry(record: TopicRecord) -> Entry | None:
    """Return the act that a record holds; None if it holds none."""
    if record.value is None:
        return None
    try:
        act = msgspec.json.decode(record.value, type=Act)
    except msgspec.DecodeError:
        logger.warning("no act topic=%s offset=%d", AUDIT_TOPIC, record.offset)
        return None
    return Entry(offset=record.offset, **msgspec.structs.asdict(act))
