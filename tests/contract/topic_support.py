"""What the tests of topics share."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, cast

import pyarrow as pa

from segue import Lag, Member, Producer, Store, Topic, TopicRecord, TopicRules
from segue.log.log import _open_logs
from segue.stores.file.store import FileStore
from segue.stores.http.topics.member import HttpMember
from segue.stores.http.topics.producer import HttpProducer
from segue.stores.redis.topics.member import RedisMember
from segue.stores.redis.topics.producer import RedisProducer
from tests.contract.worlds import HttpWorld, RedisWorld, World

SMALL_SEGMENT_BYTES: Final = 12_288
"""A page each of header, slots and payloads."""
SMALL: Final = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES)
USUAL: Final = TopicRules(segment_bytes=1 << 18)
"""Large enough for every test that does not want to fill a segment, and quick to verify."""

Row = tuple[int, int, bytes | None, bytes | None, dict[str, str], int]


class _Claim(Protocol):
    def abandon(self) -> None: ...


class _Feed(Protocol):
    def close(self) -> None: ...


class _Claiming(Protocol):
    _claim: _Claim
    _feed: _Feed


def fill(topic: Topic, count: int, *, partition: int = 0, first: int = 0) -> list[bytes]:
    """Append `count` records that tell each other apart; return their values."""
    values = [b"%d/%d" % (partition, number) for number in range(first, first + count)]
    for value in values:
        topic.append(value, partition=partition)
    return values


def fill_segments(topic: Topic, *counts: int, partition: int = 0) -> list[bytes]:
    """Append so many records to a segment each, all of them sealed; return their values."""
    values: list[bytes] = []
    for count in counts:
        values += fill(topic, count, partition=partition, first=len(values))
        topic.roll(partitions=[partition])
    return values


def values(records: Iterable[TopicRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def places(records: Iterable[TopicRecord]) -> list[tuple[int, int]]:
    """Return partition and offset of each record."""
    return [(record.partition, record.offset) for record in records]


def rows(records: Iterable[TopicRecord]) -> list[Row]:
    """Return all there is to know of records."""
    return [
        (each.partition, each.offset, each.key, each.value, dict(each.headers), each.timestamp_us)
        for each in records
    ]


def table_rows(tables: Iterable[pa.Table]) -> list[Row]:
    """Return the same of tables."""
    found: list[Row] = []
    for table in tables:
        times = table["timestamp"].cast(pa.int64())
        columns = [table[name] for name in ("partition", "offset", "key", "value", "headers")]
        found += [
            (partition, offset, key, value, dict(headers), time_us)
            for partition, offset, key, value, headers, time_us in zip(
                *[column.to_pylist() for column in (*columns, times)], strict=True
            )
        ]
    return found


def segments_of(topic: Topic) -> list[int]:
    """Return how many segments each partition has."""
    return [each.segments for each in topic.info().partitions]


def first_offsets(topic: Topic) -> list[int]:
    return [each.first_offset for each in topic.info().partitions]


def next_offsets(topic: Topic) -> list[int]:
    return [each.next_offset for each in topic.info().partitions]


def committed(lags: Sequence[Lag]) -> dict[int, int]:
    """Return where a reader or group stands, by partition."""
    return {lag.partition: lag.committed for lag in lags}


def kill(world: World, store: Store, *users: Member | Producer) -> None:
    """Drop a handle and what was opened from it as kill -9 does.

    The system closes its files. A server learns of it when their time is over, which it is at once.
    """
    if isinstance(world, RedisWorld):
        world.crash(store)
        for user in users:
            _outlive(world, user)
        return
    if isinstance(world, HttpWorld):
        world.crash(store)
        for user in users:
            _end_session(world, user)
        return
    disk = store.place.disk if isinstance(store, FileStore) else None
    logs = [log for log in _open_logs if log._disk is disk]
    world.crash(store)
    for log in logs:
        log._horizon.close()
    for user in users:
        claiming = cast("_Claiming", user)
        claiming._claim.abandon()
        if hasattr(claiming, "_feed"):
            claiming._feed.close()


def _outlive(world: RedisWorld, user: Member | Producer) -> None:
    """Let the time of a member or producer be over on the server."""
    with world._server.client() as client:
        if isinstance(user, RedisMember):
            client.hset(f"{user._core.base}:group_{user.name}:alive", user._id, "0")
        elif isinstance(user, RedisProducer):
            client.hset(f"{user._core.base}:producer_{user.name}", "until_us", "0")


def _end_session(world: HttpWorld, user: Member | Producer) -> None:
    """Let the time of a member's or producer's session be over at the server."""
    session = cast("HttpMember | HttpProducer", user)._session  # It may be one through asyncio.
    sessions = world._server._apps[world.url.rpartition("/")[2].encode()].sessions
    sessions.end(sessions._sessions[session])
