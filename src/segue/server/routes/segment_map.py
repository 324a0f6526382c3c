"""Which segments hold what, and what keeps them."""

import logging
from typing import Final

from segue.errors import (
    InvalidName,
    LogClosed,
    RingNotFound,
    SegueError,
    StoreClosed,
    TopicNotFound,
)
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.stores.file.core import QueueCore
from segue.stores.file.queue import FileQueue
from segue.stores.file.ring import FileRing
from segue.stores.file.ring_core import RingCore
from segue.stores.file.segment_map import (
    MappedLog,
    SegmentMap,
    queue_map,
    ring_map,
    topic_map,
)
from segue.stores.file.store import QUEUES, RINGS, FileStore
from segue.stores.file.topics.looking import DirectoryTopicLooks
from segue.stores.http.wire.segment_map import LogJson, SegmentJson, SegmentMapJson

logger = logging.getLogger(__name__)

_UNKNOWN: Final = SegmentMapJson(is_known=False, logs=[])


def queue(call: Call) -> SegmentMapJson:
    """Map the segments of a queue."""
    store, name = call.store, call.names[0]
    if not isinstance(store, FileStore):
        return _UNKNOWN
    if not store.has_queue(name):
        return _told(SegmentMap())
    path, place = store.place.path(QUEUES, name), store.place
    try:
        found = queue_map(path, place, store.outlines, _queue_core(call))
    except (StoreClosed, LogClosed):
        call.desk.forget_queue(name)
        if store.has_queue(name):
            raise
        found = SegmentMap()  # Removed meanwhile.
    return _told(found)


def _queue_core(call: Call) -> QueueCore | None:
    """Return the queue, None if it cannot be opened."""
    try:
        found = call.desk.queue(call.names[0])
    except (StoreClosed, LogClosed):
        raise
    except SegueError as error:
        logger.warning("not opened queue=%s reason=%s", call.names[0], error)
        return None
    return found._core if isinstance(found, FileQueue) else None


def topic(call: Call) -> SegmentMapJson:
    """Map the segments of a topic."""
    store = call.store
    if not isinstance(store, FileStore):
        return _UNKNOWN
    looks = DirectoryTopicLooks(store.topic(call.names[0])._core, store.outlines)
    try:
        return _told(topic_map(looks))
    except TopicNotFound:
        return _told(SegmentMap())


def ring(call: Call) -> SegmentMapJson:
    """Map the segments of a ring."""
    store, name = call.store, call.names[0]
    if not isinstance(store, FileStore):
        return _UNKNOWN
    return _told(ring_map(store.place.path(RINGS, name), store.outlines, _ring_core(store, name)))


def _ring_core(store: FileStore, name: str) -> RingCore | None:
    """Return the ring, None if there is none or it cannot be opened."""
    try:
        found = store.ring(name, mode="open")
    except (StoreClosed, LogClosed):
        raise
    except RingNotFound:
        return None
    except SegueError as error:
        logger.warning("not opened ring=%s reason=%s", name, error)
        return None
    assert isinstance(found, FileRing)
    return found._core


def _told(found: SegmentMap) -> SegmentMapJson:
    return SegmentMapJson(
        is_known=True, logs=[_log(each) for each in found.logs], more_logs=found.more_logs
    )


def _log(log: MappedLog) -> LogJson:
    return LogJson(
        name=log.name,
        first_offset=log.first_offset,
        next_offset=log.next_offset,
        size_bytes=log.size_bytes,
        segments=[
            SegmentJson(
                id=each.id,
                state=each.state.value,
                is_pinned=bool(each.pinned_by),
                pinned_by=each.pinned_by,
                first_offset=each.first_offset,
                count=each.count,
                size_bytes=each.size_bytes,
                created_us=each.created_us,
                last_us=each.last_us,
            )
            for each in log.segments
        ],
        more=log.more,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/queues/{queue}/segments",
        summary="Tell which segments a queue has, and what keeps them",
        role=Role.READ,
        about="queues",
        handle=queue,
        answer=SegmentMapJson,
        errors=(InvalidName,),
    ),
    Route(
        method="GET",
        path="/topics/{topic}/segments",
        summary="Tell which segments a topic has, and what keeps them",
        role=Role.READ,
        about="topics",
        handle=topic,
        answer=SegmentMapJson,
        errors=(InvalidName,),
    ),
    Route(
        method="GET",
        path="/rings/{ring}/segments",
        summary="Tell which segments a ring has, and what keeps them",
        role=Role.READ,
        about="rings",
        handle=ring,
        answer=SegmentMapJson,
        errors=(InvalidName,),
    ),
)
