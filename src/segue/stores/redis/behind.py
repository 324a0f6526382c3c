"""How much of a topic lies beyond some offsets."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np

from segue.stores.redis.store import RedisStore
from segue.stores.redis.topics.partition import Facts, Survey

_BATCH = np.dtype([("index", "<u4"), ("position", "<u4"), ("time_us", "<u8")])


class Behind(NamedTuple):
    """What lies beyond an offset of a partition."""

    topic: str
    partition: int
    offset: int
    records: int
    size_bytes: int
    seconds: float


def behind(store: RedisStore, topic: str, offsets: Mapping[int, int]) -> Iterator[Behind]:
    """Yield what lies beyond `offsets` wherever there is such a partition."""
    there = store.topic(topic)._core.numbers()
    for number, offset in offsets.items():
        if number in there:
            yield _in_partition(store, topic, number, offset)


def _in_partition(store: RedisStore, topic: str, number: int, offset: int) -> Behind:
    partition = store.topic(topic)._core.partition(number)
    survey = partition.survey()
    records = max(0, survey.next_offset - offset)
    size_bytes = 0
    waited_us = 0
    if records:
        segments = [each for each in (*survey.sealed, survey.active) if each.end_offset > offset]
        size_bytes = sum(each.payload_bytes for each in segments)
        first = segments[0]
        passed = max(0, offset - first.first_offset)
        size_bytes -= first.payload_bytes * passed // max(1, first.count)
        waited_us = survey.now_us - _time_of(store, partition.base, first, passed, survey)
    return Behind(topic, number, offset, records, size_bytes, max(0, waited_us) / 1_000_000)


def _time_of(store: RedisStore, base: str, facts: Facts, index: int, survey: Survey) -> int:
    """Return when a record of a segment came, by the segment's list of batches."""
    key = f"{base}:seg_{facts.id}:batches"
    with contextlib.suppress(ValueError):
        batches = np.frombuffer(
            cast("bytes | None", store.calls.command(key, "GET", key)) or b"", dtype=_BATCH
        )
        place = int(np.searchsorted(batches["index"], index, side="right")) - 1
        if place >= 0:
            return int(batches["time_us"][place])
    return survey.now_us  # Deleted meanwhile: nobody waits for it.
