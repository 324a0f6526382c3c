"""What a task does with a range on a server: it fetches stretches of it, one after the other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from segue.log.columns import Columns
from segue.spark.planning import Range
from segue.spark.sources import ServerSource
from segue.stores.http.address import is_http
from segue.stores.passing import Passing

if TYPE_CHECKING:
    from segue.spark.places import ServerStore
    from segue.stores.http.store import HttpStore
    from segue.stores.redis.store import RedisStore


def server_stretches(store: "ServerStore", range_: Range, passing: Passing) -> Iterator[Columns]:
    """Yield what lies in a range, passing over what may be."""
    source = range_.source
    assert isinstance(source, ServerSource)
    if is_http(source.url):
        from segue.stores.http.bulk import Bulk

        bulk = Bulk(cast("HttpStore", store).calls, source.kind, source.name)
        return bulk.stretches(range_.start, range_.stop, passing)
    return _from_redis(cast("RedisStore", store), source, range_, passing)


def _from_redis(
    store: "RedisStore", source: ServerSource, range_: Range, passing: Passing
) -> Iterator[Columns]:
    from segue.stores.redis.stretches import entry_stretches, message_stretches, record_stretches
    from segue.stores.redis.tables import QueueTable, RingTable

    start, stop = range_.start, range_.stop
    if source.kind == "topic":
        partition = store.topic(source.name)._core.partition(source.number)
        return record_stretches(partition, start, stop, passing)
    if source.kind == "ring":
        return entry_stretches(RingTable(store, source.name), start, stop)
    table = QueueTable(store, source.name)
    if source.kind == "dead_letters":
        return message_stretches(table.letters(start, stop), passing)
    return message_stretches(table.rows(source.number, start, stop), passing)
