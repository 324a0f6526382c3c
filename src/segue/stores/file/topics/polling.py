"""What a reader and a member of a group have in common: they poll."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from segue.delivery.topic_record import TopicRecord
from segue.errors import LogClosed, StorageError
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.feed import Feed
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT
from segue.stores.topic_reading import check_limits

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_AGAIN_SECONDS: Final = 0.5
"""How often a wait looks whether there is anything else to do."""


class Poller:
    """Polls a feed."""

    def __init__(self, core: TopicCore) -> None:
        self._core = core
        self._feed = Feed(core, {})

    def _prepare(self) -> None:
        """Do what is to be done before anything is fetched."""
        raise NotImplementedError

    def _require_open(self) -> None:
        """Raise StoreClosed if we, or all of the store, were closed."""
        raise NotImplementedError

    def _has_work(self) -> bool:
        """Tell whether a poll that waits has anything to do."""
        return self._feed.has_more()

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records, at least one if any comes within `timeout`."""
        check_limits(max_records, max_bytes, may_be_all=False)
        for _ in self._tries(timeout):
            records = self._feed.fetch(max_records, max_bytes)
            if records:
                return records
        return []

    def poll_table(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> "pa.Table":
        """Return the next records as an Arrow table."""
        check_limits(max_records, max_bytes, may_be_all=False)
        for _ in self._tries(timeout):
            table = self._feed.fetch_table(max_records, max_bytes)
            if len(table):
                break
        return table

    def _tries(self, timeout: Duration | None) -> Iterator[None]:
        for _ in tries(self._core, self._has_work, duration_us(timeout, name="timeout")):
            try:
                self._prepare()
            except (LogClosed, StorageError):
                self._require_open()  # Closed under our hands: this says so.
                raise
            yield


def tries(core: TopicCore, has_work: Callable[[], bool], timeout_us: int | None) -> Iterator[None]:
    """Yield at once, and then whenever there may be something to do, until the time is over."""
    deadline = None if timeout_us is None else time.monotonic() + timeout_us / 1_000_000
    yield
    waiter = None
    try:
        while True:
            pause = LOOK_AGAIN_SECONDS
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    return
            waiter = waiter or core.bell.waiter()
            waiter.wait(has_work, pause)
            yield
    finally:
        if waiter is not None:
            waiter.close()
