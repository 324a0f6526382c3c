"""What a reader and a member of a group have in common: they poll."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from segue.delivery.topic_record import TopicRecord
from segue.log.options import Duration
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.feed import Feed
from segue.stores.redis.topics.waiting import Vigil, Wait
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT
from segue.stores.topic_reading import check_limits

if TYPE_CHECKING:
    import pyarrow as pa


class Poller:
    """Polls a feed."""

    def __init__(self, core: TopicCore) -> None:
        self._core = core
        self._feed = Feed(core, {})
        self._step_us_max: int | None = None
        """How long one wait lasts at most, if something else is to be done meanwhile."""

    def _prepare(self, wait: Wait) -> None:
        """Do what is to be done before anything is fetched."""
        raise NotImplementedError

    def _bases(self) -> list[str]:
        """Return where a poll that found nothing is woken."""
        return self._feed.bases

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records, at least one if any comes within `timeout`."""
        check_limits(max_records, max_bytes, may_be_all=False)
        for wait in self._tries(timeout):
            records = self._feed.fetch(max_records, max_bytes, wait)
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
        for wait in self._tries(timeout):
            table = self._feed.fetch_table(max_records, max_bytes, wait)
            if len(table):
                break
        return table

    def _tries(self, timeout: Duration | None) -> Iterator[Wait]:
        vigil = vigil_for(self._core, timeout, step_us_max=self._step_us_max)
        for wait in vigil.tries():
            self._prepare(wait)
            yield wait
            if self._core.is_outdated:
                self._prepare(wait)  # A partition told us of others.
                yield wait
            vigil.bases = self._bases()


def vigil_for(
    core: TopicCore, timeout: Duration | None, *, step_us_max: int | None = None
) -> Vigil:
    """Return the tries of a call on a topic. Raises InvalidArgument."""
    return Vigil(
        core.store.calls,
        timeout,
        is_cluster=core.store.address.kind == "cluster",
        step_us_max=step_us_max,
    )
