"""The timeline of a message: its record, its events in the ledger, and how it stands.

A turn is taken only to see how the message stands. What the ledger says up to then is read outside
of it, so that nobody waits for that.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from segue.delivery.events import ASIDE
from segue.delivery.message import (
    CARRIED,
    Key,
    Message,
    MessageId,
    Prefix,
    message_from,
    unpack_prefix,
)
from segue.errors import LogClosed, OffsetOutOfRange
from segue.log import Log
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.contract import (
    TIMELINE_EVENTS_MAX,
    MessageState,
    MessageStatus,
    Timeline,
    TimelineEvent,
)
from segue.stores.file.browsing import Browsing
from segue.stores.file.journal import EPOCH_SHIFT
from segue.stores.file.lanes import UNREADABLE
from segue.stores.file.letter_search import moved_record
from segue.stores.file.story import Checkpoint, Story, first_checkpoint
from segue.stores.file.traces import GROUPED, KIND_MASK, METERED, PASSED, Traces, traces_of
from segue.stores.message_ids import key_of, message_id
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

LOOKING_EVENTS_MAX: Final = 64
"""How many events there may be between two of one turn."""
_LOOKING: Final = (GROUPED, METERED, PASSED)
"""What is noted while somebody looks for what to deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A message at one moment."""

    end: Offset
    """What the ledger says up to here has led to it."""
    epoch: int
    clock_ahead_us: int
    """By how much the clock is ahead of the ticks."""
    state: MessageState | None
    """None if it is settled, dead or unknown."""
    status: MessageStatus | None
    """None if it cannot be read, either."""
    record: Record | None
    is_untouched: bool
    """Whether nothing has happened to it since it was pushed."""
    is_held: bool
    """Whether it has to wait for others of its group."""
    is_past: bool
    """Whether there was such a message, and is none any more."""


class Chronicle:
    """Tells the timelines of one queue's messages. Safe from any thread."""

    def __init__(self, core: "QueueCore", browsing: Browsing) -> None:
        self._core = core
        self._browsing = browsing

    def timeline(self, name: MessageId) -> Timeline:
        """Return what happened to one message. Raises InvalidArgument."""
        key = key_of(name)
        try:
            with self._core.turn():
                look = self._look(key)
            return self._told(key, look)
        except LogClosed:
            self._core.require_open()  # Closed by another thread just now.
            raise

    def _look(self, key: Key) -> _Look:
        core = self._core
        ledger = core.ledger
        alive = self._browsing.alive(key)
        group = ledger.groups.of.get(key)
        end, is_untouched = 0, False
        if key.lane == ASIDE:
            end = ledger.aside_next
        elif key.lane in ledger.levels:
            end = core.end_of(key.lane)
            is_untouched = alive is not None and ledger.find(key) is None
        return _Look(
            end=core.journal.applied,
            epoch=ledger.epoch,
            clock_ahead_us=core.place.clock() - core.place.ticks(),
            state=None if alive is None else alive[0],
            status=None if alive is None else alive[1],
            record=None if alive is None else self._record_in_turn(key),
            is_untouched=is_untouched,
            is_held=group is not None
            and key not in group.started
            and not ledger.groups.has_place(group.digest),
            is_past=alive is None and key.offset < end,
        )

    def _record_in_turn(self, key: Key) -> Record | None:
        try:
            return self._core.record_of(key)
        except UNREADABLE:
            return None

    # Not in a turn -------------------------------------------------------------------------

    def _told(self, key: Key, look: _Look) -> Timeline:
        unknown = Timeline(id=message_id(*key), state="unknown")
        if look.state is None and not look.is_past:
            return unknown
        traces = Traces(look.end, None)
        if not look.is_untouched:
            ledger = self._core.journal
            traces = traces_of(ledger.log, key, look.end, ledger.sketches)
        checkpoint = first_checkpoint(traces.found, key)
        story = self._story(key, look, traces, checkpoint)
        letter = self._letter(key, story) if look.state is None else None
        record = look.record or letter
        if look.state is None and letter is None:
            record = self._past_record(key, story)
            if record is not None and key.lane == ASIDE and record.attr & CARRIED:
                return unknown  # What lies there was pushed elsewhere.
        story.end(is_there=record is not None, is_held=look.is_held)
        prefix: Prefix = {}
        pushed_us: int | None = None
        if record is not None:
            prefix, _ = unpack_prefix(record.payload, record.attr)
            pushed_us = prefix.get("t", record.time_us)
        is_whole = look.is_untouched or _is_whole(traces, checkpoint, story, pushed_us)
        timeline = replace(
            _standing(key, look, story, record, letter),
            events=tuple(_all_events(key, story, prefix, pushed_us)),
            is_whole=is_whole and pushed_us is not None,
            since_us=None if is_whole else traces.since_us,
        )
        return _within_limit(timeline)

    def _story(self, key: Key, look: _Look, traces: Traces, checkpoint: Checkpoint | None) -> Story:
        def ends_us(token: int, deadline_us: int) -> int | None:
            is_known = token >> EPOCH_SHIFT == look.epoch  # Else ticks began anew since.
            return deadline_us + look.clock_ahead_us if is_known else None

        def reason_of(number: int) -> str:
            log = self._dead_log()
            record = None if log is None else moved_record(log, number, key)
            if record is None:
                return ""
            return unpack_prefix(record.payload, record.attr)[0].get("r", "")

        story = Story(key=key, ends_us=ends_us, reason_of=reason_of, is_one_turn=self._is_one_turn)
        for trace in traces.found:
            if not trace.is_state:
                story.take_in(trace)
            elif checkpoint is not None and trace.offset == checkpoint.end:
                story.begin(checkpoint)
        return story

    def _is_one_turn(self, earlier: int, later: int) -> bool:
        if later - earlier > LOOKING_EVENTS_MAX:
            return False
        try:
            between = self._core.journal.log.records(earlier + 1, stop=later, on_damage="skip")
            return all(record.attr & KIND_MASK in _LOOKING for record in between)
        except OffsetOutOfRange:
            return False  # Deleted since.

    def _dead_log(self) -> Log | None:
        lanes = self._core.lanes
        return lanes.dead.log if lanes.has_dead else None

    def _letter(self, key: Key, story: Story) -> Record | None:
        """Return the record of a dead letter; None if it is none, or cannot be read."""
        log = self._dead_log()
        if log is None or story.is_over:
            return None
        if story.letter is not None:
            return moved_record(log, story.letter, key)
        record = self._browsing.letter_of(key)
        if record is not None:
            # What buried it the ledger has forgotten, and the letter tells.
            prefix, _ = unpack_prefix(record.payload, record.attr)
            story.recall_death(record.time_us, prefix)
        return record

    def _past_record(self, key: Key, story: Story) -> Record | None:
        """Return the record of a message that is settled, wherever it is still to be found."""
        core = self._core
        lane = core.lanes.aside if key.lane == ASIDE else core.lane(key.lane)
        try:
            return lane.log.read(key.offset)
        except UNREADABLE:
            pass
        for place in reversed(story.places):
            log = self._dead_log() if place.is_letter else core.lanes.aside.log
            record = None if log is None else moved_record(log, place.at, key)
            if record is not None:
                return record
        return None


def _standing(
    key: Key, look: _Look, story: Story, record: Record | None, letter: Record | None
) -> Timeline:
    """Return how a message stands, without what happened to it."""
    id_ = message_id(*key)
    status = look.status
    if look.state is not None:
        if status is None:
            return Timeline(id=id_, state=look.state)
        return Timeline(
            id=id_,
            state=look.state,
            message=status.message,
            body_bytes_total=len(status.message.body),
            due_us=status.due_us,
            owner=status.owner,
            seconds_left=status.seconds_left,
            reason=status.reason,
            tries=status.tries,
        )
    if letter is not None:
        prefix, _ = unpack_prefix(letter.payload, letter.attr)
        deliveries = prefix.get("d", 0)
        message = _message(key, letter, deliveries)
        return Timeline(
            id=id_,
            state="dead",
            message=message,
            body_bytes_total=len(message.body),
            reason=prefix.get("r", ""),
            tries=max(0, deliveries - prefix.get("s", 0)),
            letter=letter.offset,
        )
    is_dead = story.letter is not None  # And cannot be read.
    past = None if record is None else _message(key, record, max(1, story.attempt))
    return Timeline(
        id=id_,
        state="dead" if is_dead else "settled",
        message=past,
        body_bytes_total=0 if past is None else len(past.body),
        tries=max(0, story.attempt - story.since),
        letter=story.letter,
    )


def _message(key: Key, record: Record, attempt: int) -> Message:
    priority = key.lane
    if key.lane == ASIDE:
        priority = unpack_prefix(record.payload, record.attr)[0].get("p", 0)
    return message_from(
        message_id(*key),
        record.payload,
        record.attr,
        priority=priority,
        attempt=attempt,
        time_us=record.time_us,
    )


def _is_whole(
    traces: Traces, checkpoint: Checkpoint | None, story: Story, pushed_us: int | None
) -> bool:
    """Tell whether the ledger reaches back to before the first thing that happened."""
    if pushed_us is None or traces.since_us is None or traces.missed:
        return False
    if story.is_new or (checkpoint is not None and checkpoint.is_untouched):
        return True
    # At the same moment only if it is where the ledger began: else the checkpoint is later.
    return traces.since_us < pushed_us + (traces.first == 0)


def _all_events(
    key: Key, story: Story, prefix: Prefix, pushed_us: int | None
) -> list[TimelineEvent]:
    """Return what happened from the push on, with attempts as the message has them."""
    told: list[TimelineEvent] = []
    if pushed_us is not None:
        told.append(TimelineEvent(what="pushed", at_us=pushed_us))
    if key.lane == ASIDE and pushed_us is not None and "n" in prefix:
        told.append(TimelineEvent(what="delayed", at_us=pushed_us, due_us=prefix["n"]))
    elif story.deferred is not None:
        told.append(story.deferred)
    before = prefix.get("a", 0)
    return told + [
        replace(event, attempt=event.attempt + before)
        if before and event.attempt is not None
        else event
        for event in story.told
    ]


def _within_limit(timeline: Timeline) -> Timeline:
    events = timeline.events
    if len(events) <= TIMELINE_EVENTS_MAX:
        return timeline
    newest = events[1 - TIMELINE_EVENTS_MAX :]
    return replace(timeline, events=(events[0], *newest), is_whole=False, since_us=newest[0].at_us)
