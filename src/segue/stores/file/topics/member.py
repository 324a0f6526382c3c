"""A member of a group: it reads its share, and gives up what others should have."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from segue.delivery.group import GroupState
from segue.errors import (
    CorruptPosition,
    InvalidArgument,
    PartitionLost,
    SegueError,
    StoreClosed,
)
from segue.log.layout import Offset
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.file.claims import Claim, claim
from segue.stores.file.topics import marks
from segue.stores.file.topics.places import resolve_in
from segue.stores.file.topics.polling import Poller
from segue.stores.file.topics.reader import save_places
from segue.stores.topic_contract import OnRebalance, Start
from segue.stores.topic_reading import check_offsets

if TYPE_CHECKING:
    from segue.stores.file.topics.group import GroupCore

SHOWS_PER_TTL: Final = 3
"""How often a member that is busy polling says so in the group's state."""
LOOK_SECONDS: Final = 0.5
"""How often a member looks whether the next one has died."""
LOOKS_PER_ROUND: Final = 4
"""How many of these looks are for the next one only, up to one that is for all."""
TTL_US_MIN: Final = 100_000
OWNER_CHARACTERS_MAX: Final = 200


class FileMember(Poller):
    """One of those who share the partitions of a topic."""

    def __init__(
        self,
        group: "GroupCore",
        *,
        start: Start,
        ttl: Duration,
        owner: str | None,
        on_assign: OnRebalance | None,
        on_revoke: OnRebalance | None,
        on_lost: OnRebalance | None,
    ) -> None:
        super().__init__(group.topic)
        self.name = group.name
        self._group = group
        self._start = start
        ttl_us = duration_us(ttl, name="ttl", least_us=TTL_US_MIN)
        if ttl_us is None:
            raise InvalidArgument("ttl must be seconds or a timedelta")
        self._ttl_us = ttl_us
        if owner is not None and not isinstance(owner, str):
            raise InvalidArgument(f"owner must be text: {owner!r}")
        self._owner = (owner or f"{os.uname().nodename}:{os.getpid()}")[:OWNER_CHARACTERS_MAX]
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._on_lost = on_lost
        self._tokens: dict[int, int] = {}
        """What we have and read, each with its token."""
        self._committed: dict[int, int] = {}
        self._unreadable: dict[int, CorruptPosition] = {}
        self._partitions = 0
        self._changes = -1
        self._look_at = 0.0
        self._looks = 0
        self._closed = False
        self._claim: Claim | None = None
        self._join()
        group.topic.users.add(self)

    # Membership ----------------------------------------------------------------------------

    def _join(self) -> None:
        """Become a member, and take what is free."""
        self._id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._group.register(self._start)
        try:
            with self._group.turn() as state:
                self._group.sweep(state)
                # In the turn: whoever else sweeps must not find it before it is locked.
                self._claim = claim(self._group.member_path(self._id), self._core.place.disk)
                assert self._claim is not None, "nobody else has a random name"
                state.join(self._id, owner=self._owner, deadline_us=self._deadline_us())
                self._take(state)
            self._read_what_is_ours()
        except BaseException:
            with suppress(SegueError):
                self._leave()
            raise

    def _leave(self) -> None:
        """Let the others have what is ours, and see that we are gone."""
        with ExitStack() as leaving:
            if self._claim is not None:
                leaving.callback(self._claim.release, remove=True)
            with self._group.turn(gone=()) as state:
                state.leave(self._id)

    def _deadline_us(self) -> int:
        now_us = self._core.place.ticks()
        self._show_due_us = now_us + self._ttl_us // SHOWS_PER_TTL
        self._dead_at_us = now_us + self._ttl_us
        return self._dead_at_us

    def _note_call(self) -> None:
        """Write down where it costs next to nothing that we are alive, unless it is too late.

        In the state it is written now and then; whoever finds us late there looks here.
        """
        now_us = self._core.place.ticks()
        if now_us < self._dead_at_us and self._claim is not None and self._claim.is_held:
            self._dead_at_us = now_us + self._ttl_us
            self._claim.write(self._group.noted(self._dead_at_us))

    def _prepare(self) -> None:
        """Give up what others should have, take what we should have and nobody has."""
        self._require_open()
        self._note_call()
        changes = self._group.changes
        partitions = len(self._core.numbers())
        if changes == self._changes and partitions == self._partitions and not self._is_due():
            self._tell_unreadable()
            return
        state = self._group.look()
        if self._id in state.members:
            self._look_at = time.monotonic() + LOOK_SECONDS
            gone = [member for member in self._watched(state) if self._group.is_gone(member)]
            dead = self._group.drop_dead(state, gone)  # From what we go by, not yet for others.
            if not dead and not self._wants_turn(state, partitions):
                self._changes = changes
                self._tell_unreadable()
                return
            if self._id in state.members:
                state = self._rebalanced(state, partitions, gone)
        if self._id not in state.members:
            self._rejoin()
            return
        self._read_what_is_ours()
        self._tell_unreadable()

    def _wants_turn(self, state: GroupState, partitions: int) -> bool:
        """Tell whether anything is to be changed, in the state or here."""
        share = state.share_of(self._id, partitions)
        return (
            partitions != self._partitions
            or self._core.place.ticks() >= self._show_due_us
            or state.held_by(self._id) != self._tokens
            or not self._tokens.keys() <= share
            or not share <= state.holdings.keys()
        )

    def _rebalanced(self, state: GroupState, partitions: int, gone: list[str]) -> GroupState:
        """Return the state after we have done our part."""
        given_up = sorted(self._tokens.keys() - state.share_of(self._id, partitions))
        if given_up and self._on_revoke is not None:
            self._on_revoke(given_up)
        if partitions != self._partitions:
            self._group.register("earliest")
        with self._group.turn(gone=gone) as current:
            if self._id in current.members:
                if self._core.place.ticks() >= self._show_due_us:
                    current.show_up(self._id, deadline_us=self._deadline_us())
                current.let_go(self._id, given_up)
                self._take(current)
        return current

    def _is_due(self) -> bool:
        return self._core.place.ticks() >= self._show_due_us or time.monotonic() >= self._look_at

    def _watched(self, state: GroupState) -> list[str]:
        """Return whom we look at: the member after us, so that each is watched by one.

        And now and then all of them: that one may be busy, and watch nobody.
        """
        members = list(state.members)
        self._looks += 1
        if self._looks % LOOKS_PER_ROUND == 0:
            return [member for member in members if member != self._id]
        place = members.index(self._id)
        return members[place + 1 : place + 2] or members[: min(1, place)]

    def _take(self, state: GroupState) -> None:
        self._partitions = len(self._core.numbers())
        state.take(self._id, self._partitions)
        self._held = state.held_by(self._id)
        self._changes = -1  # Looked at once more: others may have changed it since.

    def _read_what_is_ours(self) -> None:
        """Read what we have, and no more what we have not."""
        for partition in self._tokens.keys() - self._held.keys():
            self._stop_reading(partition)
        gained = [
            partition
            for partition, token in sorted(self._held.items())
            if self._tokens.get(partition) != token
        ]
        for partition in gained:
            self._stop_reading(partition)
            try:
                place = marks.saved(self._core.log(partition), self._group.mark)
                self._feed.add(partition, Offset(0) if place is None else place)
            except CorruptPosition as error:
                self._unreadable[partition] = error
            self._tokens[partition] = self._held[partition]
        if gained and self._on_assign is not None:
            self._on_assign(gained)

    def _stop_reading(self, partition: int) -> None:
        self._feed.drop(partition)
        self._unreadable.pop(partition, None)
        self._committed.pop(partition, None)
        self._tokens.pop(partition, None)

    def _tell_unreadable(self) -> None:
        """Raise for a partition whose place cannot be read, until `seek` gives it one."""
        for error in self._unreadable.values():
            raise error.with_traceback(None)

    def _rejoin(self) -> None:
        """Come back after we were taken for dead: what we had may be somebody else's by now."""
        lost = sorted(self._tokens)
        if self._claim is not None:
            self._claim.release(remove=True)
        for partition in lost:
            self._stop_reading(partition)
        if lost and self._on_lost is not None:
            self._on_lost(lost)
        self._join()

    def show_up(self) -> None:
        """Show that we are alive. Raises PartitionLost if we were taken for dead."""
        self._require_open()
        with self._group.turn(gone=()) as state:
            if self._id not in state.members:
                raise PartitionLost(group=self.name, partitions=tuple(sorted(self._tokens)))
            state.show_up(self._id, deadline_us=self._deadline_us())

    # Reading -------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        return super()._has_work() or self._group.changes != self._changes

    @property
    def assignment(self) -> Mapping[int, int]:
        """Our partitions, each with its fencing token."""
        return dict(sorted(self._tokens.items()))

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""
        return self._feed.position

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on elsewhere in partitions that are ours."""
        self._require_open()
        check_offsets(offsets)
        lost = tuple(sorted(offsets.keys() - self._tokens.keys()))
        if lost:
            raise PartitionLost(group=self.name, partitions=lost)
        places = {
            partition: resolve_in(self._core.log(partition), partition, offset)
            for partition, offset in offsets.items()
        }
        for partition, place in places.items():
            self._feed.add(partition, place)
            self._unreadable.pop(partition, None)

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the position in all our partitions, for whoever reads on."""
        self._require_open()
        if offsets is not None:
            check_offsets(offsets)
        self._note_call()
        places = self._feed.position if offsets is None else dict(offsets)
        with self._group.turn(gone=()) as state:
            ours = {
                partition: offset
                for partition, offset in places.items()
                if state.holds(self._id, partition, self._tokens.get(partition, -1))
            }
            if self._id in state.members and self._core.place.ticks() >= self._show_due_us:
                state.show_up(self._id, deadline_us=self._deadline_us())
            changed = {
                partition: offset
                for partition, offset in ours.items()
                if self._committed.get(partition) != offset
            }
            save_places(self._core, self._group.mark, changed)
            self._committed |= changed
        lost = tuple(sorted(places.keys() - ours.keys()))
        if lost:
            raise PartitionLost(group=self.name, partitions=lost)

    # Leaving -------------------------------------------------------------------------------

    def _require_open(self) -> None:
        self._core.require_open()
        if self._closed:
            raise StoreClosed(f"member of group {self.name} is closed")

    def close(self) -> None:
        """Leave the group, so that the others take over at once. Does not commit."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:
            closing.callback(self._feed.close)
            if self._claim is not None and self._claim.is_held:
                self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
