"""What happened to one message, told from its events in their order. Pure: no ledger, no clock."""

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Final, NamedTuple

from segue.delivery import events
from segue.delivery.events import ASIDE, Cause, How, Run, Take
from segue.delivery.message import Key, Prefix
from segue.stores.contract import Happening, TimelineEvent
from segue.stores.file.traces import Trace
from segue.values import dataclass

_SETTLED_AS: Final[dict[int, Happening]] = {
    How.ACKED: "acked",
    How.OUTLIVED: "outlived",
    How.DROPPED: "dropped",
}
_RETURNED_AS: Final[dict[int, Happening]] = {
    Cause.FAILED: "failed",
    Cause.EXPIRED: "expired",
}
_DIED_AS: Final[dict[int, Happening]] = {
    Cause.FAILED: "failed",
    Cause.EXPIRED: "expired",
    Cause.OUTLIVED: "outlived",
}
_CAUSES: Final = {cause.name.lower(): cause for cause in Cause}
_DIED_OF: Final[dict[int, str]] = {
    Cause.EXPIRED: "its lease expired",
    Cause.OUTLIVED: "its time to live was over",
}
"""What is known of a letter that is gone."""


class Place(NamedTuple):
    """Where a message was moved to."""

    is_letter: bool
    """Whether among the dead letters; else to the log aside."""
    at: int


class Checkpoint(NamedTuple):
    """How a message stood when the state was written down."""

    end: int
    """The last event of the checkpoint."""
    is_untouched: bool
    """Whether nothing had happened to it by then."""
    is_waiting: bool
    owner: str | None
    """Who held it."""
    attempt: int
    since: int


@dataclass(slots=True, kw_only=True)
class Story:
    """The life of one message. Events are taken in one by one, in their order."""

    key: Key
    ends_us: Callable[[int, int], int | None]
    """Returns when a lease with this token and deadline was to end, if that can be told."""
    reason_of: Callable[[int], str]
    """Returns why the letter with this number died, as far as is known."""
    is_one_turn: Callable[[int, int], bool]
    """Tells whether nothing but looking for something to deliver lies between two events."""
    told: list[TimelineEvent] = field(default_factory=list)
    """What happened, in its order."""
    letter: int | None = None
    """Its number among the dead letters, while it is there."""
    places: list[Place] = field(default_factory=list)
    deferred: TimelineEvent | None = None
    """That it was pushed with a delay, by who saw it first."""
    is_over: bool = False
    """Whether it is settled, as the last that is told."""
    is_new: bool = False
    """Whether a power cut took back another that had its place."""
    attempt: int = 0
    """Of the last delivery that is known."""
    since: int = 0
    """The attempt after which deliveries were counted anew."""
    _owner: str | None = None
    _is_held: bool = False
    _is_gone: bool = False
    """Whether it was settled or dead before anything is told of it."""
    _noted: Trace | None = None
    """That it belongs to a group, until something else happens."""
    _is_behind: bool = False
    """Whether others of the group came first when that was noted, as far as can be told."""
    _before: list[TimelineEvent] = field(default_factory=list)

    def begin(self, checkpoint: Checkpoint) -> None:
        """Go on from how the message stood."""
        self._owner = checkpoint.owner
        self._is_held = checkpoint.owner is not None
        self._is_gone = not checkpoint.is_waiting and not self._is_held
        if not self._is_gone:
            self.attempt, self.since = checkpoint.attempt, checkpoint.since

    def take_in(self, trace: Trace) -> None:
        """Go on with what happened next."""
        noted, count = self._noted, len(self.told)
        _TELL.get(type(trace.event), _say_nothing)(self, trace, trace.event)
        if noted is not None and len(self.told) > count:
            self._noted = None
            if self._is_behind and not self.is_one_turn(noted.offset, trace.offset):
                self.told.insert(count, TimelineEvent(what="held", at_us=noted.time_us))

    def end(self, *, is_there: bool, is_held: bool) -> None:
        """Tell what is not over yet.

        `is_there` says whether the message is still to be found, `is_held` whether it has to wait
        for others of its group now.
        """
        if self._noted is not None and (self._is_behind or is_held):
            self.told.append(TimelineEvent(what="held", at_us=self._noted.time_us))
        if self._before and not self.told and not is_there:
            self.told = self._before
        elif self._before:
            self.is_new = True

    def recall_death(self, died_us: int, prefix: Prefix) -> None:
        """Tell of a death before all else, by what is said in the letter."""
        cause = _CAUSES.get(prefix.get("c", ""))
        whats: list[Happening] = ["dead"]
        if cause in _DIED_AS:
            whats.insert(0, _DIED_AS[cause])
        self.told[:0] = [
            TimelineEvent(
                what=what,
                at_us=died_us,
                attempt=prefix.get("d") or None,
                reason=prefix.get("r", ""),
            )
            for what in whats
        ]

    def _add(
        self,
        what: Happening,
        trace: Trace,
        *,
        reason: str = "",
        due_us: int | None = None,
        ends_us: int | None = None,
    ) -> None:
        """Tell one thing, and who held the message meanwhile."""
        self.told.append(
            TimelineEvent(
                what=what,
                at_us=trace.time_us,
                attempt=self.attempt if self._is_held else None,
                owner=self._owner if self._is_held else None,
                reason=reason,
                due_us=due_us,
                ends_us=ends_us,
            )
        )

    def _finish(self, what: Happening, trace: Trace) -> None:
        self._add(what, trace)
        self._is_held, self.letter, self.is_over = False, None, True

    # One kind of event each ----------------------------------------------------------------

    def _leased(self, trace: Trace, event: events.Leased) -> None:
        if self._take(event.takes):
            self._owner = event.owner.decode(errors="replace")
            self._add("leased", trace, ends_us=self.ends_us(event.token, event.deadline_us))

    def _popped(self, trace: Trace, event: events.Popped) -> None:
        if self._take(event.takes):
            self._owner = None
            self._finish("popped", trace)

    def _take(self, takes: Iterable[Take]) -> bool:
        for take in takes:
            if _covers(take, self.key):
                self.attempt, self.since = take.attempt, take.since
                self._is_held, self._is_gone, self.is_over = True, False, False
                return True
        return False

    def _extended(self, trace: Trace, event: events.Extended) -> None:
        if self._is_in(event.runs):
            self._add("extended", trace, ends_us=self.ends_us(event.token, event.deadline_us))

    def _returned(self, trace: Trace, event: events.Returned) -> None:
        if self._is_in(event.runs):
            self._add(
                _RETURNED_AS.get(event.cause, "released"),
                trace,
                reason=event.reason.decode(errors="replace"),
                due_us=event.not_before_us or None,
            )
            self._is_held = self._is_gone = self.is_over = False

    def _settled(self, trace: Trace, event: events.Settled) -> None:
        if self._is_in(event.runs):
            self._finish(_SETTLED_AS.get(event.how, "lost"), trace)

    def _passed(self, trace: Trace, event: events.Passed) -> None:
        if self._is_in([Run(*event[:3])]):
            self._finish(_SETTLED_AS.get(event.how, "lost"), trace)

    def _is_in(self, runs: Iterable[Run]) -> bool:
        return any(_covers(run, self.key) for run in runs)

    def _buried(self, trace: Trace, event: events.Buried) -> None:
        if self.key != (event.lane, event.offset):
            return
        reason = self.reason_of(event.dead_offset) or _DIED_OF.get(event.cause, "")
        ended_as = _DIED_AS.get(event.cause)
        if ended_as is not None:
            self._add(ended_as, trace, reason=reason)
        self._add("dead", trace, reason=reason)
        self.letter = event.dead_offset
        self.places.append(Place(True, event.dead_offset))
        self._is_held = self._is_gone = self.is_over = False

    def _revived(self, trace: Trace, event: events.Revived) -> None:
        if self.key == (event.lane, event.offset):
            self.letter, self._is_gone, self.is_over = None, False, False
            self._add("redriven", trace)

    def _discarded(self, trace: Trace, event: events.Discarded) -> None:
        if self.letter is not None and event.first <= self.letter < event.first + event.size:
            self._finish("discarded", trace)

    def _deferred(self, trace: Trace, event: events.Deferred) -> None:
        for offset, _, not_before_us in event.items:
            if self.key == (ASIDE, offset) and self.deferred is None:
                self.deferred = TimelineEvent(
                    what="delayed", at_us=trace.time_us, due_us=not_before_us
                )

    def _carried(self, trace: Trace, event: events.Carried) -> None:
        if self.key == (event.lane, event.offset):
            self._add("moved", trace)
            self.places.append(Place(False, event.at))

    def _purged(self, trace: Trace, event: events.Purged) -> None:
        lane, offset = self.key
        is_elsewhere = self._is_held or self._is_gone or self.is_over or self.letter is not None
        if not is_elsewhere and any(end == lane and offset < upto for end, upto in event.ends):
            self._finish("purged", trace)

    def _rewound(self, trace: Trace, event: events.Rewound) -> None:
        if event.lane != self.key.lane or event.cursor > self.key.offset or not self.told:
            return
        # A power cut took it back. Whatever comes now is about another of the same name.
        self._finish("lost", trace)
        self._before, self.told = self.told, []
        self.places.clear()
        self.attempt = self.since = 0
        self._noted, self._is_gone, self.is_over = None, False, False

    def _grouped(self, trace: Trace, event: events.Grouped) -> None:
        lane, first, is_started, digests = event
        if is_started or self._noted or not _covers(Run(lane, first, len(digests)), self.key):
            return
        place = self.key.offset - first
        # The first of them was to be delivered; of the others only such as come in twos are known.
        self._is_behind = place == 0 or digests[place] in digests[:place]
        self._noted = trace


def _covers(run: Run | Take, key: Key) -> bool:
    return run.lane == key.lane and run.first <= key.offset < run.first + run.size


def _say_nothing(story: Story, trace: Trace, event: events.Event) -> None:
    """What is not about messages, or of a later version."""


_TELL: Final[dict[type[events.Event], Callable[..., None]]] = {
    events.Leased: Story._leased,
    events.Settled: Story._settled,
    events.Popped: Story._popped,
    events.Returned: Story._returned,
    events.Extended: Story._extended,
    events.Buried: Story._buried,
    events.Revived: Story._revived,
    events.Discarded: Story._discarded,
    events.Deferred: Story._deferred,
    events.Carried: Story._carried,
    events.Passed: Story._passed,
    events.Purged: Story._purged,
    events.Rewound: Story._rewound,
    events.Grouped: Story._grouped,
}


def first_checkpoint(traces: Iterable[Trace], key: Key) -> Checkpoint | None:
    """Return how the message stood in the oldest checkpoint that is whole; None without one."""
    begun = 0
    states: list[Trace] | None = None
    for trace in traces:
        if not trace.is_state:
            states = None
        elif isinstance(trace.event, events.Booted):
            begun, states = trace.offset, []
        elif isinstance(trace.event, events.Ended):
            if states is not None and trace.event.size == trace.offset - begun:
                return _checkpoint_of(states, key, trace.offset)
            states = None
        elif states is not None:
            states.append(trace)
    return None


def _checkpoint_of(states: list[Trace], key: Key, end: int) -> Checkpoint:
    cursor: int | None = None
    owner: str | None = None
    attempt = since = 0
    is_listed = False
    for trace in states:
        match trace.event:
            case events.Counted(_, aside_next) if key.lane == ASIDE:
                cursor = aside_next
            case events.Rewound(lane, offset) if lane == key.lane:
                cursor = offset
            case events.Parked(lane, offset) if key == (lane, offset):
                is_listed = True
                attempt, since = trace.event.attempt, trace.event.since
            case events.Leased(_, _, holder, takes) if any(_covers(each, key) for each in takes):
                owner = holder.decode(errors="replace")
    is_untouched = cursor is None or cursor <= key.offset
    return Checkpoint(
        end=end,
        is_untouched=is_untouched,
        is_waiting=(is_listed and owner is None) or is_untouched,
        owner=owner,
        attempt=attempt,
        since=since,
    )
