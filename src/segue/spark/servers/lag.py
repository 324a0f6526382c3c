"""How much of topics on a server lies beyond some offsets."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from segue.errors import TopicNotFound
from segue.stores.http.address import is_http
from segue.stores.opening import open_http, open_redis


class Behind(NamedTuple):
    """What lies beyond an offset of a partition."""

    topic: str
    partition: int
    offset: int
    records: int
    size_bytes: int
    seconds: float


def behind(url: str, offsets: Mapping[str, Mapping[str, int]]) -> Iterator[Behind]:
    """Yield what lies beyond `offsets` wherever there is such a partition."""
    numbered = {
        topic: {int(number): offset for number, offset in numbers.items() if number.isdecimal()}
        for topic, numbers in offsets.items()
    }
    return _by_http(url, numbered) if is_http(url) else _in_redis(url, numbered)


def _in_redis(url: str, offsets: Mapping[str, dict[int, int]]) -> Iterator[Behind]:
    from segue.stores.redis.behind import behind

    with open_redis(url, create=False) as store:
        for topic, numbers in offsets.items():
            for each in behind(store, topic, numbers):
                yield Behind(*each)


def _by_http(url: str, offsets: Mapping[str, dict[int, int]]) -> Iterator[Behind]:
    from segue.stores.http.bulk import Bulk

    with open_http(url) as store:
        for topic, numbers in offsets.items():
            try:
                found = Bulk(store.calls, "topic", topic).behind(numbers)
            except TopicNotFound:
                continue
            for each in found:
                yield Behind(
                    topic, each.partition, each.offset, each.records, each.size_bytes, each.seconds
                )
