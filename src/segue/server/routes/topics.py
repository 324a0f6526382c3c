"""Topics: making them, appending to them, keeping them, and how they stand."""

from functools import partial
from typing import Final

import msgspec

from segue.delivery.topic_rules import PARTITIONS_DEFAULT
from segue.errors import (
    InvalidArgument,
    InvalidName,
    OffsetNotWritten,
    OffsetTrimmed,
    RecordTooLarge,
)
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.server.tracing import with_trace
from segue.server.waiting import run
from segue.stores.http.wire.about import Names
from segue.stores.http.wire.rules import ConfigureTopic, TopicRulesJson
from segue.stores.http.wire.starts import start_in_words, start_without_resume
from segue.stores.http.wire.topic_reports import Cleaned, Compacted, TopicJson
from segue.stores.http.wire.topics import (
    Append,
    Clean,
    Create,
    Grow,
    PartitionCount,
    Place,
    Places,
    Position,
    Some,
)
from segue.stores.topic_contract import Topic


class Where(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to begin."""

    start: str = "latest"


def topic_of(call: Call) -> Topic:
    """Return the topic that the path names first."""
    return call.store.topic(call.names[0])


# How it is made ----------------------------------------------------------------------------------


def names(call: Call) -> Names:
    """List topics."""
    return Names(names=[name for name in call.store.topics() if call.grant.covers(name)])


def create(call: Call) -> None:
    """Have a topic be there."""
    body, name = call.body(Create), call.names[0]
    partitions = body.partitions
    rules = None if body.rules is None else body.rules.rules()
    if partitions is None and rules is None and name not in call.store.topics():
        partitions = PARTITIONS_DEFAULT
    call.store.topic(name, partitions=partitions, rules=rules)


def info(call: Call) -> TopicJson:
    """Tell how a topic stands."""
    return TopicJson.of(topic_of(call).info())


def partitions(call: Call) -> PartitionCount:
    """Tell how many partitions there are."""
    return PartitionCount(partitions=topic_of(call).partitions)


def rules(call: Call) -> TopicRulesJson:
    """Tell how a topic keeps what it holds."""
    return TopicRulesJson.of(topic_of(call).rules)


def configure(call: Call) -> None:
    """Change how a topic keeps what it holds."""
    topic_of(call).configure(call.body(ConfigureTopic).rules())


def grow(call: Call) -> None:
    """Add partitions."""
    topic_of(call).grow(call.body(Grow).partitions)


# Appending ---------------------------------------------------------------------------------------


async def append(call: Call) -> Places:
    """Append records."""
    return await run(call, partial(_append, call), len(call.body(Append).records))


def _append(call: Call) -> Places:
    events = [said.event() for said in with_trace(call.body(Append).records, call.headers)]
    topic = topic_of(call)
    if len(events) == 1:
        (event,) = events
        found = [
            topic.append(
                event.value,
                key=event.key,
                headers=event.headers,
                timestamp=event.timestamp,
                partition=event.partition,
            )
        ]
    else:
        found = topic.append_many(events)
    return Places(places=[Place(partition=each.partition, offset=each.offset) for each in found])


def flush(call: Call) -> None:
    """Return once everything appended is on the device."""
    topic_of(call).flush()


# Looking and keeping -----------------------------------------------------------------------------


def offsets(call: Call) -> Position:
    """Tell what a start stands for in each partition."""
    start = start_without_resume(start_in_words(call.query(Where).start))
    return Position(position=dict(topic_of(call).offsets(start)))


def clean(call: Call) -> Cleaned:
    """Delete the segments that may go."""
    body = call.body(Clean)
    report = topic_of(call).clean(
        keep_seconds=body.keep_seconds,
        keep_bytes=body.keep_bytes,
        lag_max=body.lag_max,
        partitions=body.partitions,
        dry_run=body.dry_run,
    )
    return Cleaned.of(report)


def compact(call: Call) -> Compacted:
    """Remove what later records have made needless."""
    return Compacted.of(topic_of(call).compact(partitions=call.body(Some).partitions))


def roll(call: Call) -> None:
    """Begin new segments."""
    topic_of(call).roll(partitions=call.body(Some).partitions)


TOPIC: Final = "/topics/{topic}"
ASKING: Final = (InvalidArgument, InvalidName)

ROUTES: Final = (
    Route(
        method="GET",
        path="/topics",
        summary="List the topics there are",
        role=Role.READ,
        about="topics",
        handle=names,
        answer=Names,
    ),
    Route(
        method="PUT",
        path=TOPIC,
        summary="Have a topic be there, with so many partitions and these rules",
        role=Role.ADMIN,
        about="topics",
        handle=create,
        body=Create,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=TOPIC,
        summary="Tell how a topic stands: its partitions, rules, readers and groups",
        role=Role.READ,
        about="topics",
        handle=info,
        answer=TopicJson,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/partitions",
        summary="Tell how many partitions there are",
        role=Role.READ,
        about="topics",
        handle=partitions,
        answer=PartitionCount,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/rules",
        summary="Tell how a topic keeps what it holds",
        role=Role.READ,
        about="topics",
        handle=rules,
        answer=TopicRulesJson,
        errors=ASKING,
    ),
    Route(
        method="PUT",
        path=f"{TOPIC}/rules",
        summary="Change how a topic keeps what it holds, for everybody",
        role=Role.ADMIN,
        about="topics",
        handle=configure,
        body=ConfigureTopic,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/grow",
        summary="Add partitions; keys may then go to others than before",
        role=Role.ADMIN,
        about="topics",
        handle=grow,
        body=Grow,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/records",
        summary="Append records, all or none if one of them is bad",
        role=Role.PRODUCE,
        about="topics",
        handle_async=append,
        body=Append,
        answer=Places,
        errors=(*ASKING, RecordTooLarge),
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/flush",
        summary="Return once everything appended is on the device",
        role=Role.PRODUCE,
        about="topics",
        handle=flush,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/offsets",
        summary="Tell which offset a start stands for in each partition",
        role=Role.READ,
        about="topics",
        handle=offsets,
        query=Where,
        answer=Position,
        errors=(*ASKING, OffsetNotWritten, OffsetTrimmed),
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/clean",
        summary="Delete the segments that may go, by the rules or stricter limits",
        role=Role.ADMIN,
        about="topics",
        handle=clean,
        body=Clean,
        answer=Cleaned,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/compact",
        summary="Remove every record that a later one with the same key has made needless",
        role=Role.ADMIN,
        about="topics",
        handle=compact,
        body=Some,
        answer=Compacted,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/roll",
        summary="Begin a new segment, so that what there is can be cleaned, compacted or sent",
        role=Role.ADMIN,
        about="topics",
        handle=roll,
        body=Some,
        errors=ASKING,
    ),
)
