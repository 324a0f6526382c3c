"""Reading and keeping short the topics of one partition that tasks stand on."""

import logging
from collections.abc import Iterator
from typing import Final

from segue.delivery.topic_record import TopicRecord
from segue.errors import CorruptRecord, OffsetTrimmed, TopicNotFound
from segue.stores.topic_contract import Start, Topic

logger = logging.getLogger(__name__)

RECORDS_MAX: Final = 10_000
"""From so many records on a topic of states is compacted."""


def end_of(topic: Topic) -> int:
    """Return the offset the next record gets; 0 if there is no such topic yet."""
    return place_of(topic, "latest")


def place_of(topic: Topic, start: Start) -> int:
    """Return the offset that a start stands for; 0 if there is no such topic yet."""
    try:
        return topic.offsets(start)[0]
    except (TopicNotFound, KeyError):
        return 0


def records_between(topic: Topic, start: int, stop: int) -> Iterator[TopicRecord]:
    """Yield the records from `start` up to `stop`, passing over what retention took.

    And over damage, which is logged: what one batch said is no reason to know nothing else.
    """
    while start < stop:
        try:
            for record in topic.records({0: start}, stop={0: stop}):
                start = record.offset + 1
                yield record
        except OffsetTrimmed as error:
            start = max(start + 1, error.earliest)
        except CorruptRecord as error:
            logger.warning("passed over topic=%s reason=%s", topic.name, error)
            start = max(start, error.last_offset) + 1
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
