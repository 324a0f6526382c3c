"""What has happened to a message, as a server tells it."""

from typing import Final

from segue.delivery.message import MessageId
from segue.stores.contract import Happening, Timeline, TimelineEvent, TimelineState
from segue.stores.http.wire.base import Answer, Count
from segue.stores.http.wire.queues import MessageJson, message_json

BODY_BYTES_DEFAULT: Final = 65_536
BODY_BYTES_MAX: Final = 8 << 20
"""How much of a body is told: at first, and at most."""


class TimelineEventJson(Answer):
    """One thing that happened."""

    at_us: int | None
    what: Happening
    attempt: int | None
    owner: str | None
    reason: str
    due_us: int | None
    ends_us: int | None


class TimelineJson(Answer):
    """What happened to a message, and how it stands now."""

    id: str
    state: TimelineState
    message: MessageJson | None
    """Its body is cut if `is_cut` says so."""
    body_bytes_total: Count
    is_cut: bool
    due_us: int | None
    owner: str | None
    seconds_left: float | None
    reason: str
    tries: int
    letter: int | None
    """The number of the dead letter that it is."""
    events: list[TimelineEventJson]
    """The oldest first."""
    is_whole: bool
    since_us: int | None

    def timeline(self) -> Timeline:
        """Return the answer as a value."""
        return Timeline(
            id=MessageId(self.id),
            state=self.state,
            message=None if self.message is None else self.message.message(),
            body_bytes_total=self.body_bytes_total,
            due_us=self.due_us,
            owner=self.owner,
            seconds_left=self.seconds_left,
            reason=self.reason,
            tries=self.tries,
            letter=self.letter,
            events=tuple(
                TimelineEvent(
                    what=each.what,
                    at_us=each.at_us,
                    attempt=each.attempt,
                    owner=each.owner,
                    reason=each.reason,
                    due_us=each.due_us,
                    ends_us=each.ends_us,
                )
                for each in self.events
            ),
            is_whole=self.is_whole,
            since_us=self.since_us,
        )


def timeline_json(timeline: Timeline, *, body_bytes: int) -> TimelineJson:
    """Return a timeline as it is sent, with no more than so many bytes of the body."""
    message = timeline.message
    return TimelineJson(
        id=timeline.id,
        state=timeline.state,
        message=None if message is None else message_json(message, body_bytes=body_bytes),
        body_bytes_total=timeline.body_bytes_total,
        is_cut=message is not None and timeline.body_bytes_total > body_bytes,
        due_us=timeline.due_us,
        owner=timeline.owner,
        seconds_left=timeline.seconds_left,
        reason=timeline.reason,
        tries=timeline.tries,
        letter=timeline.letter,
        events=[
            TimelineEventJson(
                at_us=each.at_us,
                what=each.what,
                attempt=each.attempt,
                owner=each.owner,
                reason=each.reason,
                due_us=each.due_us,
                ends_us=each.ends_us,
            )
            for each in timeline.events
        ],
        is_whole=timeline.is_whole,
        since_us=timeline.since_us,
    )
