"""A member of a group: it reads its share, and gives up what others should have."""

import os
import secrets
import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from segue.delivery.group import GroupState
from segue.delivery.topic_record import TopicRecord
from segue.errors import PartitionLost, StoreClosed
from segue.log.layout import Offset
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.file.topics import marks
from segue.stores.file.topics.feed import Feed, check_limits, wait_for_more
from segue.stores.file.topics.places import resolve_in
from segue.stores.file.topics.reader import save_place
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT, OnRebalance, Start

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.file.topics.group import GroupCore

SHOWS_PER_TTL: Final = 3
"""How often a member that is busy polling says so, before it would be taken for dead."""
LOOK_SECONDS: Final = 0.5
"""How often a member looks whether others have died."""
TTL_US_MIN: Final = 100_000


class FileMember:
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
    ) -> None:
        self.name = group.name
        self._group = group
        self._topic = group.topic
        self._start = start
        ttl_us = duration_us(ttl, name="ttl", least_us=TTL_US_MIN)
        self._ttl_us = ttl_us or TTL_US_MIN
        self._owner = owner or f"{socket.gethostname()}:{os.getpid()}"
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._feed = Feed(self._topic, {})
        self._tokens: dict[int, int] = {}
        self._partitions = 0
        self._pid = os.getpid()
        self._fd = -1
        self._join()

    # Membership ----------------------------------------------------------------------------

    def _join(self) -> None:
        """Become a member, and take what is free."""
        self._id = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._fd = self._group.appear(self._id)
        try:
            with self._group.turn() as state:
                self._group.register(self._start)
                state.join(self._id, owner=self._owner, deadline_us=self._deadline_us())
                self._take(state)
        except BaseException:
            self._disappear()
            raise
        self._start_reading()

    def _deadline_us(self) -> int:
        now_us = self._topic.place.ticks()
        self._show_due_us = now_us + self._ttl_us // SHOWS_PER_TTL
        return now_us + self._ttl_us

    def _rebalance(self) -> None:
        """Give up what others should have, take what we should have and nobody has."""
        self._require_open()
        state = self._group.look()
        if self._id not in state.members:
            self._rejoin()
            return
        partitions = len(self._topic.numbers())
        now_us = self._topic.place.ticks()
        if (
            state.generation == self._generation
            and partitions == self._partitions
            and now_us < self._show_due_us
            and time.monotonic() < self._look_at
        ):
            return
        given_up = sorted(self._tokens.keys() - state.share_of(self._id, partitions))
        if given_up and self._on_revoke is not None:
            self._on_revoke(given_up)
        with self._group.turn() as state:
            if self._id in state.members:
                state.show_up(self._id, deadline_us=self._deadline_us())
                if partitions != self._partitions:
                    self._group.register("earliest")
                state.let_go(self._id, given_up)
                self._take(state)
        self._start_reading()

    def _take(self, state: GroupState) -> None:
        self._partitions = len(self._topic.numbers())
        state.take(self._id, self._partitions)
        self._held = state.held_by(self._id)
        self._generation = state.generation
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _start_reading(self) -> None:
        """Read what we have, and no more what we have not."""
        held = self._held
        for partition in self._tokens.keys() - held.keys():
            self._feed.drop(partition)
        gained = [number for number in held if self._tokens.get(number) != held[number]]
        for partition in gained:
            log = self._topic.log(partition)
            self._feed.add(partition, marks.saved(log, self._group.mark) or Offset(0))
        self._tokens = held
        if gained and self._on_assign is not None:
            self._on_assign(sorted(gained))

    def _rejoin(self) -> None:
        """Come back after we were taken for dead: what we had may be somebody else's by now."""
        self._disappear()
        for partition in list(self._tokens):
            self._feed.drop(partition)
        self._tokens = {}
        self._join()

    def _disappear(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._group.forget(self._id)
            self._topic.place.disk.close(fd)

    def show_up(self) -> None:
        """Show that we are alive. Raises PartitionLost if we were taken for dead."""
        self._require_open()
        with self._group.turn() as state:
            if self._id not in state.members:
                raise PartitionLost(group=self.name, partitions=tuple(sorted(self._tokens)))
            state.show_up(self._id, deadline_us=self._deadline_us())

    # Reading -------------------------------------------------------------------------------

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records of our partitions; at least one if any comes in time."""
        check_limits(max_records, max_bytes)
        timeout_us = duration_us(timeout, name="timeout")
        for _ in wait_for_more(self._topic, self._has_work, timeout_us):
            self._rebalance()
            records = self._feed.fetch(max_records, max_bytes)
            if records:
                return records
        return []

    def poll_table(
        self, max_records: int = POLL_RECORDS_DEFAULT, *, timeout: Duration | None = 0
    ) -> "pa.Table":
        """Return the next records as an Arrow table."""
        check_limits(max_records, None)
        timeout_us = duration_us(timeout, name="timeout")
        for _ in wait_for_more(self._topic, self._has_work, timeout_us):
            self._rebalance()
            table = self._feed.fetch_table(max_records)
            if len(table):
                break
        return table

    def _has_work(self) -> bool:
        return self._feed.has_more() or self._group.look().generation != self._generation

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
        lost = tuple(sorted(offsets.keys() - self._tokens.keys()))
        if lost:
            raise PartitionLost(group=self.name, partitions=lost)
        places = {
            partition: resolve_in(self._topic.log(partition), partition, offset)
            for partition, offset in offsets.items()
        }
        for partition, place in places.items():
            self._feed.add(partition, place)

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the position in all our partitions, for whoever reads on."""
        self._require_open()
        places = self._feed.position if offsets is None else dict(offsets)
        with self._group.turn() as state:
            lost = [
                partition
                for partition in places
                if not state.holds(self._id, partition, self._tokens.get(partition, -1))
            ]
            for partition, offset in places.items():
                if partition not in lost:
                    save_place(self._topic.log(partition), self._group.mark, partition, offset)
            if self._id in state.members and self._topic.place.ticks() >= self._show_due_us:
                state.show_up(self._id, deadline_us=self._deadline_us())
        if lost:
            raise PartitionLost(group=self.name, partitions=tuple(sorted(lost)))

    # Leaving -------------------------------------------------------------------------------

    def _require_open(self) -> None:
        self._topic.require_open()
        if self._fd < 0 or self._pid != os.getpid():
            raise StoreClosed(f"member of group {self.name} is closed")

    def close(self) -> None:
        """Leave the group, so that the others take over at once. Does not commit."""
        if self._fd < 0 or self._pid != os.getpid():
            return
        try:
            with self._group.turn() as state:
                state.leave(self._id)
        finally:
            self._disappear()
            self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
