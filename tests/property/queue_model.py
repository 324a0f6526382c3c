"""What a queue is, as plain lists and dicts: the model that the real one is held against."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

State = Literal["waiting", "leased", "dead", "done"]


@dataclass(slots=True)
class MessageModel:
    """One message, from its push to its end."""

    id: str
    body: bytes
    priority: int
    expires_us: int | None
    not_before_us: int
    group: str | None = None
    state: State = "waiting"
    deliveries: int = 0
    """How many deliveries were counted."""
    forgiven: int = 0
    """How many of them a redrive has forgiven."""
    is_new: bool = True
    """Whether it is still where it was pushed to."""
    has_place: bool = False
    """Whether it was delivered and comes before others of its group."""
    token: int = 0
    deadline_us: int = 0

    @property
    def is_aside(self) -> bool:
        return self.id.startswith("later-")

    @property
    def offset(self) -> int:
        return int(self.id.rpartition("-")[2])

    @property
    def place(self) -> tuple[int, bool, int, int]:
        """Where it stands: by priority, returned before new, returned before due."""
        rank = max(1, self.not_before_us) if self.is_aside else 0
        return self.priority, self.is_new and not self.is_aside, rank, self.offset

    def state_now(self, now_us: int) -> str:
        if self.state != "waiting":
            return self.state
        return "ready" if self.not_before_us <= now_us else "delayed"

    def is_outlived(self, now_us: int) -> bool:
        return self.expires_us is not None and self.expires_us <= now_us


@dataclass(slots=True)
class QueueModel:
    """A queue that has all its messages in one dict."""

    deliveries_max: int
    window_us: int
    messages: dict[str, MessageModel] = field(default_factory=dict)
    keys: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    """Receipts of leases that have ended."""
    token: int = 0
    paused: bool = False
    goes_on: bool = False
    """Whether one step goes on behind what was outlived, or made place in its group when popped."""
    places: int = 1
    """How many of a group may be out at once."""
    interval_us: int = 0
    """How long it takes to earn one delivery; 0 if they cost nothing."""
    burst: int = 1
    saved_us: int = 0
    """What is saved for deliveries: a bucket that holds as many as the burst."""
    saved_at_us: int = 0

    def of(self, state: State) -> list[MessageModel]:
        return [message for message in self.messages.values() if message.state == state]

    def key_holder(self, key: str | None, now_us: int) -> str | None:
        """Return the message that a key stands for."""
        until_us, id_ = self.keys.get(key or "", (0, ""))
        return id_ if until_us > now_us else None

    def push(self, message: MessageModel, key: str | None, now_us: int) -> None:
        assert message.id not in self.messages
        self.messages[message.id] = message
        if key is not None:
            self.keys[key] = (now_us + self.window_us, message.id)

    def ready(self, now_us: int) -> list[MessageModel]:
        """Return what could be delivered, outlived or not, in order."""
        waiting = [each for each in self.of("waiting") if each.not_before_us <= now_us]
        return sorted(waiting, key=lambda message: message.place)

    def in_turn(
        self, now_us: int, *, settles: bool = False, gone: Collection[str] = ()
    ) -> Iterator[MessageModel]:
        """Yield what groups let come in one step, outlived or not, in order."""
        leased = Counter(each.group for each in self.of("leased"))
        placed = Counter(
            each.group
            for each in [*self.of("leased"), *self.of("waiting")]
            if each.has_place and each.id not in gone
        )
        passed = list(gone)
        for message in self.ready(now_us):
            group = message.group
            if message.id in gone:
                continue
            if group is not None:
                is_full = not message.has_place and placed[group] >= self.places
                if is_full or leased[group] >= self.places:
                    continue
                if settles or message.is_outlived(now_us):
                    placed[group] -= message.has_place
                else:
                    placed[group] += not message.has_place
                    leased[group] += 1
            yield message
            passed.append(message.id)
            if group is not None and settles and message.has_place:
                # What waited for its place may be next: that is for the next step, or this one.
                if self.goes_on:
                    yield from self.in_turn(now_us, settles=True, gone=passed)
                return

    def deliverable(self, now_us: int) -> list[MessageModel]:
        """Return what would be delivered, in order."""
        return [message for message in self.in_turn(now_us) if not message.is_outlived(now_us)]

    def delivery(
        self, now_us: int, most: int, *, settles: bool
    ) -> tuple[list[MessageModel], list[MessageModel]]:
        """Return what one step delivers at most, and what it finds outlived before that."""
        gone: list[MessageModel] = []
        while True:
            found: list[MessageModel] = []
            for message in self.in_turn(now_us, settles=settles, gone=[m.id for m in gone]):
                if len(found) == most:
                    return found, gone
                if not message.is_outlived(now_us):
                    found.append(message)
                elif found and not self.goes_on:
                    return found, gone
                else:
                    gone.append(message)
                    break
            else:
                return found, gone

    # The rate ------------------------------------------------------------------------------

    def set_rate(self, interval_us: int, burst: int) -> None:
        if (interval_us, burst) != (self.interval_us, self.burst):
            self.interval_us, self.burst = interval_us, burst
            self.fill()

    def fill(self) -> None:
        """A new rate, or a new start of the machine, begins with all that can be saved."""
        self.saved_us = self.burst * self.interval_us

    def allowed(self, ticks_us: int, count: int) -> int:
        if not self.interval_us:
            return count
        earned_us = ticks_us - self.saved_at_us
        self.saved_us = min(self.burst * self.interval_us, self.saved_us + earned_us)
        self.saved_at_us = ticks_us
        return min(count, self.saved_us // self.interval_us)

    def counts(self, now_us: int) -> tuple[int, int, int, int]:
        ready = len(self.ready(now_us))
        return ready, len(self.of("waiting")) - ready, len(self.of("leased")), len(self.dead)

    # What happens --------------------------------------------------------------------------

    def lease(self, message: MessageModel, token: int, deadline_us: int) -> None:
        message.state = "leased"
        message.deliveries += 1
        message.is_new = False
        message.has_place = True
        message.token = token
        message.deadline_us = deadline_us

    def receipt(self, message: MessageModel) -> str:
        return f"{message.id}/{message.token}"

    def end_lease(self, message: MessageModel, state: State, not_before_us: int = 0) -> None:
        self.stale.append(self.receipt(message))
        message.state = state
        message.has_place = state == "waiting"
        message.not_before_us = not_before_us
        if state == "dead":
            self.dead.append(message.id)

    def is_last(self, message: MessageModel) -> bool:
        return message.deliveries - message.forgiven >= self.deliveries_max

    def expire(self, ticks_us: int) -> None:
        """End the leases whose time is over, those that ended first first."""
        over = [each for each in self.of("leased") if each.deadline_us <= ticks_us]
        for message in sorted(over, key=lambda each: (each.deadline_us, each.place)):
            self.end_lease(message, "dead" if self.is_last(message) else "waiting")

    def end_all_leases(self) -> None:
        """The machine was started anew."""
        for message in sorted(self.of("leased"), key=lambda each: each.place):
            self.end_lease(message, "dead" if self.is_last(message) else "waiting")

    def outlive(self, message: MessageModel) -> None:
        message.state = "dead"
        message.has_place = False
        message.is_new = False
        self.dead.append(message.id)

    def revive(self, id_: str) -> None:
        """Bring a dead letter back; its time to live does not matter any more."""
        message = self.messages[id_]
        self.dead.remove(id_)
        message.state = "waiting"
        message.is_new = False
        message.not_before_us = 0
        message.expires_us = None
        message.forgiven = message.deliveries
