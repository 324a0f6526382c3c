"""The timeline of a message on a server, which keeps how messages stand and not what happened.

So there is the push, what led to where the message stands now, and no more.
"""

from typing import Final, cast

from segue.clock import Clock
from segue.delivery.events import ASIDE, Cause
from segue.delivery.message import DeadLetter, Key, Message, MessageId
from segue.stores.contract import Happening, MessageStatus, Timeline, TimelineEvent
from segue.stores.message_ids import key_of, message_id
from segue.stores.redis.inspection import Inspection
from segue.stores.redis.items import HELD_BACK, Standing, message_of, prefix_of, wire_id
from segue.stores.redis.letters import Ask

_RETURNED_AS: Final[dict[int, Happening]] = {
    Cause.RELEASED: "released",
    Cause.FAILED: "failed",
    Cause.EXPIRED: "expired",
}
_DIED_AS: Final[dict[str, Happening]] = {
    "failed": "failed",
    "expired": "expired",
    "outlived": "outlived",
}


class Timelines:
    """Tells the timelines of one queue's messages. Safe from any thread."""

    def __init__(self, inspection: Inspection, look: Ask, clock: Clock) -> None:
        self._inspection = inspection
        self._look = look
        self._clock = clock

    def timeline(self, name: MessageId) -> Timeline:
        """Return what is known to have happened to one message. Raises InvalidArgument, Damage."""
        key = key_of(name)
        found = self._inspection.found(key)
        if found is None:
            return self._settled(key)
        if isinstance(found, DeadLetter):
            return _of_letter(key, found)
        return self._alive(key, *found)

    def _settled(self, key: Key) -> Timeline:
        """Return what is known of a message that is done with, or was never there."""
        answer = cast("list[object]", self._look("items", wire_id(*key)))
        if answer:
            _, level, item = cast("tuple[bytes, int, bytes]", answer[:3])
            priority = prefix_of(item)[0].get("p", 0) if level < 0 else level
            message = message_of(key, item, priority=priority, attempt=1)
            return Timeline(
                id=message.id,
                state="settled",
                message=message,
                body_bytes_total=len(message.body),
                events=tuple(_pushed(key, message, due_us=None)),
            )
        _, end = self._inspection.lanes().get(key.lane, (0, 0))
        return Timeline(id=message_id(*key), state="settled" if key.offset < end else "unknown")

    def _alive(self, key: Key, status: MessageStatus, standing: Standing | None) -> Timeline:
        message = status.message
        is_delivered = standing is not None and (
            standing.is_started or standing.cause == Cause.REDRIVEN
        )
        due_us = standing.not_before_us if standing is not None and not is_delivered else 0
        events = _pushed(key, message, due_us=due_us or None)
        if standing is not None:
            events += self._since(status, standing, is_delivered=is_delivered)
        return Timeline(
            id=message.id,
            state=status.state,
            message=message,
            body_bytes_total=len(message.body),
            due_us=status.due_us,
            owner=status.owner,
            seconds_left=status.seconds_left,
            reason=status.reason,
            tries=status.tries,
            events=tuple(events),
            is_whole=not is_delivered,
        )

    def _since(
        self, status: MessageStatus, standing: Standing, *, is_delivered: bool
    ) -> list[TimelineEvent]:
        """Return what led from the push to where a message stands."""
        attempt = status.message.attempt
        if status.seconds_left is not None:
            now_us = self._clock()
            return [
                TimelineEvent(
                    what="leased",
                    at_us=min(standing.token, now_us),  # Tokens go by the clock.
                    attempt=attempt,
                    owner=status.owner,
                    ends_us=now_us + round(status.seconds_left * 1_000_000),
                )
            ]
        if standing.cause == Cause.REDRIVEN:
            return [TimelineEvent(what="redriven", at_us=None)]
        events = []
        if is_delivered:
            what = _RETURNED_AS.get(standing.cause, "released")
            events.append(
                TimelineEvent(
                    what=what,
                    at_us=None,
                    attempt=attempt if what == "released" else attempt - 1,
                    reason=status.reason,
                    due_us=status.due_us,
                )
            )
        if standing.kind == HELD_BACK:
            events.append(TimelineEvent(what="held", at_us=None))
        return events


def _pushed(key: Key, message: Message, *, due_us: int | None) -> list[TimelineEvent]:
    events = [TimelineEvent(what="pushed", at_us=message.pushed_us)]
    if key.lane == ASIDE:
        events.append(TimelineEvent(what="delayed", at_us=message.pushed_us, due_us=due_us))
    return events


def _of_letter(key: Key, letter: DeadLetter) -> Timeline:
    message = letter.message
    attempt = message.attempt if letter.deliveries else None
    ended_as = _DIED_AS.get(letter.cause)
    whats: list[Happening] = ["dead"] if ended_as is None else [ended_as, "dead"]
    ends = [
        TimelineEvent(what=what, at_us=letter.died_us, attempt=attempt, reason=letter.reason)
        for what in whats
    ]
    return Timeline(
        id=message.id,
        state="dead",
        message=message,
        body_bytes_total=len(message.body),
        reason=letter.reason,
        tries=letter.tries,
        letter=letter.number,
        events=(*_pushed(key, message, due_us=None), *ends),
        is_whole=not letter.deliveries,
    )
