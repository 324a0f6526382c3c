"""A member of a group: it reads its share, and gives up what others should have."""

import logging
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from segue.delivery.group import GroupState
from segue.errors import (
    InvalidArgument,
    PartitionLost,
    SegueError,
    StoreClosed,
    StoreUnavailable,
)
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.redis.topics.polling import Poller
from segue.stores.redis.topics.waiting import Wait
from segue.stores.topic_contract import OnRebalance, Start
from segue.stores.topic_reading import check_offsets

if TYPE_CHECKING:
    from segue.stores.redis.topics.group import GroupCore

logger = logging.getLogger(__name__)

SHOWS_PER_TTL: Final = 3
"""How often a member that waits says that it is alive."""
TTL_US_MIN: Final = 100_000
OWNER_CHARACTERS_MAX: Final = 200


class RedisMember(Poller):
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
        self._step_us_max = ttl_us // SHOWS_PER_TTL
        if owner is not None and not isinstance(owner, str):
            raise InvalidArgument(f"owner must be text: {owner!r}")
        self._owner = (owner or f"{socket.gethostname()}:{os.getpid()}")[:OWNER_CHARACTERS_MAX]
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._on_lost = on_lost
        self._tokens: dict[int, int] = {}
        """What we have and read, each with its token."""
        self._held: dict[int, int] = {}
        """What the state says that we have."""
        self._committed: dict[int, int] = {}
        self._partitions = 0
        self._version = -1
        self._closed = False
        self._join()
        group.topic.close_with_store(self)

    # Membership ----------------------------------------------------------------------------

    def _join(self) -> None:
        """Become a member, and take what is free."""
        self._id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._group.register(self._start)
        self._partitions = len(self._core.numbers())

        def join(state: GroupState) -> None:
            state.join(self._id, owner=self._owner, deadline_us=0)
            state.take(self._id, self._partitions)

        try:
            _, state, self._version = self._group.change(join, joining={self._id: self._ttl_us})
            self._held = state.held_by(self._id)
            self._read_what_is_ours()
        except BaseException:
            with suppress(SegueError):
                self._leave()
            raise

    def _leave(self) -> None:
        """Let the others have what is ours, and see that we are gone."""
        self._group.change(lambda state: state.leave(self._id))

    def _prepare(self, wait: Wait) -> None:
        """Give up what others should have, take what we should have and nobody has."""
        self._require_open()
        seen = self._group.attend(self._id, self._ttl_us, wait)
        if not seen.is_alive:
            self._rejoin()
            return
        is_same = seen.version == self._version and seen.partitions == self._partitions
        if is_same and not seen.has_dead and self._held == self._tokens:
            return
        look = self._group.look()
        dead = look.drop_dead()
        state = look.state
        if self._id not in state.members:
            self._rejoin()
            return
        if not dead and not self._wants_turn(state, seen.partitions):
            self._version = look.version
            return
        if self._rebalanced(state, seen.partitions):
            self._read_what_is_ours()
        else:
            self._rejoin()

    def _wants_turn(self, state: GroupState, partitions: int) -> bool:
        """Tell whether anything is to be changed, in the state or here."""
        share = state.share_of(self._id, partitions)
        return (
            partitions != self._partitions
            or state.held_by(self._id) != self._tokens
            or not self._tokens.keys() <= share
            or not share <= state.holdings.keys()
        )

    def _rebalanced(self, state: GroupState, partitions: int) -> bool:
        """Do our part, by what the state should be; tell whether we are still a member."""
        given_up = sorted(self._tokens.keys() - state.share_of(self._id, partitions))
        if given_up and self._on_revoke is not None:
            self._on_revoke(given_up)
        if partitions != self._partitions:
            self._group.register("earliest")

        def take_turn(current: GroupState) -> None:
            if self._id in current.members:
                current.let_go(self._id, given_up)
                current.take(self._id, partitions)

        _, after, self._version = self._group.change(take_turn)
        self._partitions = partitions
        self._held = after.held_by(self._id)
        return self._id in after.members

    def _read_what_is_ours(self) -> None:
        """Read what we have, and no more what we have not."""
        for partition in self._tokens.keys() - self._held.keys():
            self._stop_reading(partition)
        gained, newest = self._taken_over()
        if newest:
            self._surpass(newest)
            gained += self._taken_over()[0]
        if gained and self._on_assign is not None:
            self._on_assign(sorted(gained))

    def _taken_over(self) -> tuple[list[int], int]:
        """Begin to read what we got; return that, and the newest of the tokens beyond ours."""
        gained, newest = [], 0
        for partition, token in sorted(self._held.items()):
            if self._tokens.get(partition) != token:
                self._stop_reading(partition)
                done, found = self._core.partition(partition).hold(self._group.mark, token)
                if done:
                    self._feed.add(partition, found)
                    self._tokens[partition] = token
                    gained.append(partition)
                else:
                    newest = max(newest, found)
        return gained, newest

    def _surpass(self, newest: int) -> None:
        """Take what we could not with tokens beyond all that a partition has seen.

        The group's state may have been lost in part, when a replica took over that did not have
        all of it. If instead we were taken for dead, nothing is ours in it.
        """

        def take_again(state: GroupState) -> None:
            if self._id in state.members:
                state.generation = max(state.generation, newest)
                state.let_go(self._id, self._held.keys() - self._tokens.keys())
                state.take(self._id, self._partitions)

        _, state, self._version = self._group.change(take_again)
        self._held = state.held_by(self._id)

    def _stop_reading(self, partition: int) -> None:
        self._feed.drop(partition)
        self._committed.pop(partition, None)
        self._tokens.pop(partition, None)

    def _rejoin(self) -> None:
        """Come back after we were taken for dead: what we had may be somebody else's by now."""
        lost = sorted(self._tokens)
        for partition in lost:
            self._stop_reading(partition)
        if lost and self._on_lost is not None:
            self._on_lost(lost)
        self._join()

    def show_up(self) -> None:
        """Show that we are alive. Raises PartitionLost if we were taken for dead."""
        self._require_open()
        if not self._group.attend(self._id, self._ttl_us).is_alive:
            raise PartitionLost(group=self.name, partitions=tuple(sorted(self._tokens)))

    # Reading -------------------------------------------------------------------------------

    def _bases(self) -> list[str]:
        return [self._core.base, *super()._bases()]

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
            partition: self._core.partition(partition).resolve(offset)
            for partition, offset in offsets.items()
        }
        for partition, place in places.items():
            self._feed.add(partition, place)

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the position in all our partitions, for whoever reads on."""
        self._require_open()
        if offsets is not None:
            check_offsets(offsets)
        places = self._feed.position if offsets is None else dict(offsets)
        lost = set(places)
        failure: SegueError | None = None
        if self._group.attend(self._id, self._ttl_us).is_alive:
            for partition, offset in places.items():
                try:
                    if self._save(partition, offset):
                        lost.discard(partition)
                except SegueError as error:
                    lost.discard(partition)
                    failure = failure or error
        if failure is not None:
            raise failure
        if lost:
            raise PartitionLost(group=self.name, partitions=tuple(sorted(lost)))

    def _save(self, partition: int, offset: int) -> bool:
        """Save a place; tell whether the partition is ours."""
        token = self._tokens.get(partition)
        if token is None:
            return False
        if self._committed.get(partition) != offset:
            door = self._core.partition(partition)
            if not door.save(self._group.mark, offset, token=str(token)):
                return False
            self._committed[partition] = offset
        return True

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
        try:
            self._leave()
        except StoreClosed:
            return
        except StoreUnavailable as error:  # It must not stand in for what a block has to say.
            logger.warning("gone when its time is over group=%s reason=%s", self.name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
