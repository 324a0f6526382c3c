"""Who reads a topic, how far behind, and what retention waits for."""

from functools import partial
from typing import Final

from segue.delivery.topic_rules import TopicRules
from segue.errors import InvalidArgument, SegueError, StoreUnavailable, TopicNotFound
from segue.server.access import AUDIT_TOPIC
from segue.server.call import Call
from segue.server.paging import NamedPage, page_of
from segue.server.routes.topics import ASKING, TOPIC
from segue.server.routing import Role, Route
from segue.server.words import lasting, numbered, sized
from segue.stores.contract import Store
from segue.stores.file.store import FileStore
from segue.stores.file.topics.looking import DirectoryTopicLooks
from segue.stores.http.problems import problem_of
from segue.stores.http.wire.consumers import (
    ConsumerJson,
    Consumers,
    KeptJson,
    Retention,
    TopicRow,
    TopicRows,
)
from segue.stores.http.wire.rules import TopicRulesJson
from segue.stores.topic_looks import AnyTopicLooks, Kept, TopicLooks

TOPICS_SHOWN_MAX: Final = 200
"""How many topics one page shows."""
HOLDERS_SHOWN_MAX: Final = 5
"""How many of those that retention waits for are named."""


def looks_of(store: Store, name: str) -> TopicLooks:
    """Return what looks at a topic. Raises InvalidName."""
    if isinstance(store, FileStore):
        return DirectoryTopicLooks(store.topic(name)._core, store.outlines)
    topic = store.topic(name)
    try:
        from segue.stores.redis.topics.looking import RedisTopicLooks
        from segue.stores.redis.topics.topic import RedisTopic
    except ImportError:  # Then it is of no server, either.
        return AnyTopicLooks(topic)
    return RedisTopicLooks(topic) if isinstance(topic, RedisTopic) else AnyTopicLooks(topic)


# Topics ------------------------------------------------------------------------------------------


def overview(call: Call) -> TopicRows:
    """List topics, and how far behind the worst reader or group of each is."""
    grant = call.grant
    names = [
        name
        for name in call.store.topics()
        if grant.covers(name) and (name != AUDIT_TOPIC or grant.is_admin)
    ]
    found, following = page_of(
        names, call.query(NamedPage), TOPICS_SHOWN_MAX, partial(_row, call.store)
    )
    return TopicRows(topics=found, next=following)


def _row(store: Store, name: str) -> TopicRow | None:
    try:
        return TopicRow.of(name, looks_of(store, name).standing())
    except StoreUnavailable:
        raise
    except TopicNotFound:
        return None
    except SegueError as error:
        return TopicRow(name=name, problem=problem_of(error).detail)


# One topic ---------------------------------------------------------------------------------------


def consumers(call: Call) -> Consumers:
    """Tell who reads a topic."""
    found = looks_of(call.store, call.names[0]).consumers()
    return Consumers(consumers=[ConsumerJson.of(each) for each in found])


def retention(call: Call) -> Retention:
    """Tell what a topic keeps, and for whom."""
    rules, kept = looks_of(call.store, call.names[0]).retention()
    return Retention(
        partitions=[KeptJson.of(each) for each in kept],
        rules=TopicRulesJson.of(rules),
        waits_for=waits_for(rules, kept),
    )


def waits_for(rules: TopicRules, kept: list[Kept]) -> str:
    """Return in words what must happen before more may be deleted."""
    limits = []
    if rules.keep_seconds is not None:
        limits.append(f"older than {lasting(rules.keep_seconds)}")
    if rules.keep_bytes is not None:
        limits.append(f"beyond {sized(rules.keep_bytes)} of a partition")
    limited = " or ".join(limits)
    holders: dict[str, list[int]] = {}
    for each in kept:
        if each.held_by:
            holders.setdefault(each.held_by, []).append(each.partition)
    if holders:
        return _held(holders) + (f"; or until segments are {limited}" if limited else "")
    if limited:
        return f"nothing: segments go once {limited}"
    if not any(each.marks for each in kept):
        return "nobody reads it: without a limit nothing is deleted"
    return "nothing: everybody has read all but the segments that take records"


def _held(holders: dict[str, list[int]]) -> str:
    named = [f"{who} in {numbered('partition', partitions)}" for who, partitions in holders.items()]
    more = len(named) - HOLDERS_SHOWN_MAX
    return ", ".join(named[:HOLDERS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


ROUTES: Final = (
    Route(
        method="GET",
        path="/overview/topics",
        summary="List topics, and how far behind the worst reader or group of each is",
        role=Role.READ,
        about="topics",
        handle=overview,
        query=NamedPage,
        answer=TopicRows,
        errors=(InvalidArgument,),
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/consumers",
        summary="Tell who reads a topic, readers and groups, and how far each is behind",
        role=Role.READ,
        about="topics",
        handle=consumers,
        answer=Consumers,
        errors=(*ASKING, TopicNotFound),
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/retention",
        summary="Tell what could be deleted now, what is kept, and for whom",
        role=Role.READ,
        about="topics",
        handle=retention,
        answer=Retention,
        errors=(*ASKING, TopicNotFound),
    ),
)
