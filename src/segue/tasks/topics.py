"""Reading and keeping short the topics of one partition that tasks stand on."""

from collections.abc import Iterator
from typing import Final

from segue.delivery.topic_record import TopicRecord
from segue.errors import OffsetTrimmed, TopicNotFound
from segue.stores.topic_contract import Topic

RECORDS_MAX: Final = 10_000
"""From so many records on a topic of states is compacted."""


def end_of(topic: Topic) -> int:
    """Return the offset the next record gets; 0 if there is no such topic yet."""
    try:
        return topic.offsets("latest")[0]
    except (TopicNotFound, KeyError):
        return 0


def records_between(topic: Topic, start: int, stop: int) -> Iterator[TopicRecord]:
    """Yield the records from `start` up to `stop`, passing over what retention took."""
    while start < stop:
        try:
            for record in topic.records({0: start}, stop={0: stop}):
                start = record.offset + 1
                yield record
        except OffsetTrimmed as error:
            start = max(start + 1, error.earliest)
        except TopicNotFound:
            return
        else:
            return


def compact(topic: Topic) -> None:
    """Have a topic keep only what is last of each key, if it has grown long."""
    try:
        if topic.info().count > RECORDS_MAX:
            topic.roll()
            topic.compact()
    except TopicNotFound:
        return
