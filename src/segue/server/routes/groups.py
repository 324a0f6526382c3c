"""Groups: who shares the partitions of a topic, and reading one's share."""

from functools import partial
from typing import Final

from segue.errors import (
    GroupBusy,
    OffsetNotWritten,
    OffsetTrimmed,
    PartitionLost,
    SessionGone,
    TopicNotFound,
)
from segue.server import holding
from segue.server.arrow import require_arrow, table_reply
from segue.server.call import Call
from segue.server.holding import held_for, hold
from segue.server.members import HeldMember
from segue.server.routes.readers import bytes_max, encode
from segue.server.routes.topics import ASKING, TOPIC, topic_of
from segue.server.routing import Reply, Role, Route
from segue.stores.http.wire.about import Names
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.starts import start_without_resume
from segue.stores.http.wire.topic_reports import GroupJson, LagJson, Lags
from segue.stores.http.wire.topics import (
    ARROW,
    Join,
    MemberSession,
    Offsets,
    Polled,
    PollMember,
    Position,
    Reset,
)

LIVES: Final = 2
MEMBER_SECONDS: Final = 60.0
"""A member is held for so many times its own time to live, and so much longer: it is taken for dead
before, and may come back."""


# Groups ----------------------------------------------------------------------------------------


def groups(call: Call) -> Names:
    """List groups."""
    return Names(names=list(topic_of(call).groups()))


def info(call: Call) -> GroupJson:
    """Tell who is in a group, and how far it is behind."""
    return GroupJson.of(topic_of(call).group(call.names[1]).info())


def lag(call: Call) -> Lags:
    """Tell how far a group is behind."""
    return Lags(lag=[LagJson.of(each) for each in topic_of(call).group(call.names[1]).lag()])


def reset(call: Call) -> None:
    """Let a group begin elsewhere."""
    topic_of(call).group(call.names[1]).reset(start_without_resume(call.body(Reset).start))


def remove(call: Call) -> Removed:
    """Forget a group."""
    return Removed(removed=topic_of(call).remove_group(call.names[1]))


# Members ---------------------------------------------------------------------------------------


def join(call: Call) -> MemberSession:
    """Become a member."""
    body = call.body(Join)
    call.desk.sessions.sweep()  # Those who are gone have no share.
    group = topic_of(call).group(call.names[1])
    held = HeldMember(group, body, start_without_resume(body.start))
    state = held.state()
    session = hold(call, held, LIVES * body.ttl + MEMBER_SECONDS)
    return MemberSession(session=session, state=state)


async def poll(call: Call) -> Polled | Reply:
    """Tell the next records of a member's share, waiting for one."""
    asked = call.body(PollMember)
    held = await call.in_thread(partial(held_for, call, HeldMember))
    waiting, most = call.desk.waiting, bytes_max(asked.max_bytes)
    if ARROW in call.headers.get(b"accept", b"").decode("latin-1"):
        await call.in_thread(require_arrow)
        table, state = await waiting.ask_again(
            call,
            partial(held.poll_table, asked, most),
            asked.wait,
            lambda found: not (len(found[0]) or found[1].events),
        )
        return table_reply(table, encode(state))
    return await waiting.ask_again(
        call,
        partial(held.poll, asked, most),
        asked.wait,
        lambda polled: not (polled.records or polled.events),
    )


def seek(call: Call) -> Position:
    """Go on elsewhere in partitions that are the member's."""
    held = held_for(call, HeldMember)
    with held.turn():
        held.member.seek(call.body(Offsets).offsets)
        return Position(position=dict(held.member.position))


def commit(call: Call) -> None:
    """Save places for whoever reads on."""
    held = held_for(call, HeldMember)
    with held.turn():
        held.member.commit(call.body(Offsets).offsets)


def show_up(call: Call) -> None:
    """Show that a member is alive."""
    held = held_for(call, HeldMember)
    with held.turn():
        held.member.show_up()


def leave(call: Call) -> None:
    """Leave the group."""
    holding.end(call, HeldMember)


_GROUPS: Final = f"{TOPIC}/groups"
_GROUP: Final = f"{_GROUPS}/{{group}}"
_MEMBERS: Final = f"{_GROUP}/members"
_MEMBER: Final = f"{_MEMBERS}/{{session}}"
_SHARING: Final = (*ASKING, SessionGone, PartitionLost, OffsetNotWritten, OffsetTrimmed)

ROUTES: Final = (
    Route(
        method="GET",
        path=_GROUPS,
        summary="List the groups there are",
        role=Role.READ,
        about="groups",
        handle=groups,
        answer=Names,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=_GROUP,
        summary="Tell who is in a group, and how far it is behind",
        role=Role.READ,
        about="groups",
        handle=info,
        answer=GroupJson,
        errors=ASKING,
    ),
    Route(
        method="GET",
        path=f"{_GROUP}/lag",
        summary="Tell how far a group is behind, by what it committed",
        role=Role.READ,
        about="groups",
        handle=lag,
        answer=Lags,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=f"{_GROUP}/reset",
        summary="Let a group without members begin elsewhere",
        role=Role.ADMIN,
        about="groups",
        handle=reset,
        body=Reset,
        errors=(*ASKING, TopicNotFound, GroupBusy, OffsetNotWritten, OffsetTrimmed),
    ),
    Route(
        method="DELETE",
        path=_GROUP,
        summary="Forget a group without members",
        role=Role.ADMIN,
        about="groups",
        handle=remove,
        answer=Removed,
        errors=(*ASKING, GroupBusy),
    ),
    Route(
        method="POST",
        path=_MEMBERS,
        summary="Become a member, with a share of the partitions",
        role=Role.CONSUME,
        about="groups",
        handle=join,
        body=Join,
        answer=MemberSession,
        errors=(*ASKING, TopicNotFound, OffsetNotWritten, OffsetTrimmed),
    ),
    Route(
        method="POST",
        path=f"{_MEMBER}/poll",
        summary="Tell the next records of a member's share, or what it has to know before",
        role=Role.CONSUME,
        about="groups",
        handle_async=poll,
        body=PollMember,
        answer=Polled,
        gives=(ARROW,),
        errors=_SHARING,
    ),
    Route(
        method="POST",
        path=f"{_MEMBER}/seek",
        summary="Go on elsewhere in partitions that are the member's",
        role=Role.CONSUME,
        about="groups",
        handle=seek,
        body=Offsets,
        answer=Position,
        errors=_SHARING,
    ),
    Route(
        method="POST",
        path=f"{_MEMBER}/commit",
        summary="Save places for whoever reads on",
        role=Role.CONSUME,
        about="groups",
        handle=commit,
        body=Offsets,
        errors=_SHARING,
    ),
    Route(
        method="POST",
        path=f"{_MEMBER}/show-up",
        summary="Show that a member is alive",
        role=Role.CONSUME,
        about="groups",
        handle=show_up,
        errors=(*ASKING, SessionGone, PartitionLost),
    ),
    Route(
        method="DELETE",
        path=_MEMBER,
        summary="Leave the group, so that the others take over at once",
        role=Role.CONSUME,
        about="groups",
        handle=leave,
        errors=ASKING,
    ),
)
