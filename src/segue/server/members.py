"""A member of a group that is held for a client, and what the client has to be told.

A member calls back while it polls: before it gives something up, after it got something, and when
it had been taken for dead. Those who want to know are elsewhere, and no thread waits for them:

- What is to be given up is asked first. The callback fails, so that nothing is given up (stores
  promise that); the answer says what is asked for, and the next poll says that it may go.
- What was got or lost is noted. The answer tells it, with nothing read yet: what was read along
  with it is read again.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from segue.delivery.topic_record import TopicRecord
from segue.errors import OffsetOutOfRange, PartitionLost, SegueError
from segue.server.holding import Held
from segue.stores.http.wire.topics import Join, Polled, PollMember, Told, record_json
from segue.stores.topic_contract import Group, Member, Start

if TYPE_CHECKING:
    import pyarrow as pa


class _Asked(Exception):
    """A poll that cannot go on before the client was asked."""


class HeldMember(Held):
    """A member."""

    kind = "member"

    def __init__(self, group: Group, asked: Join, start: Start) -> None:
        self._group = group
        self._told: list[Told] = []
        self._approved: set[int] = set()
        self._given_up: set[int] = set()
        self._before: dict[int, int] = {}
        """Where the member was when it was told something: nothing was read since."""
        self._is_joined = False
        self._wants_assigned = "assign" in asked.wants
        self.member: Member = group.join(
            start=start,
            ttl=asked.ttl,
            owner=asked.owner,
            # Whatever is told, where we were then has to be known.
            on_assign=self._assigned if asked.wants else None,
            on_revoke=self._revoked if "revoke" in asked.wants else None,
            on_lost=self._lost if "lost" in asked.wants else None,
        )
        self._is_joined = True
        super().__init__(group.name, self.member.close)

    # What the member calls -----------------------------------------------------------------

    def _assigned(self, partitions: list[int]) -> None:
        if self._wants_assigned:
            self._told.append(Told(what="assign", partitions=list(partitions)))
        if self._is_joined:
            self._before = dict(self.member.position)

    def _lost(self, partitions: list[int]) -> None:
        self._told.append(Told(what="lost", partitions=list(partitions)))

    def _revoked(self, partitions: list[int]) -> None:
        unasked = [partition for partition in partitions if partition not in self._approved]
        if unasked:
            self._told.append(Told(what="revoke", partitions=unasked))
            raise _Asked
        self._given_up.update(partitions)

    # What the client calls -----------------------------------------------------------------

    def state(self) -> Polled:
        """Return how the member stands, and what is to be told."""
        told, self._told = self._told, []
        return Polled(
            position=dict(self.member.position),
            assignment=dict(self.member.assignment),
            events=told,
        )

    def poll(self, asked: PollMember, max_bytes: int) -> Polled:
        """Return the next records, or what is to be told first, without waiting for any."""
        with self.turn():
            self._move(asked)
            records: list[TopicRecord] = []

            def poll() -> None:
                records.extend(self.member.poll(asked.max_records, max_bytes=max_bytes))

            self._polled(asked, poll)
            state = self.state()
            if not state.events:
                state.records = [record_json(record) for record in records]
            return state

    def poll_table(self, asked: PollMember, max_bytes: int) -> "tuple[pa.Table, Polled]":
        """The same as a table."""
        from segue.stores.topic_columns import SCHEMA

        with self.turn():
            self._move(asked)
            tables: list[pa.Table] = []

            def poll() -> None:
                tables.append(self.member.poll_table(asked.max_records, max_bytes=max_bytes))

            self._polled(asked, poll)
            state = self.state()
            is_read = tables and not state.events
            return tables[0] if is_read else SCHEMA.empty_table(), state

    def _move(self, asked: PollMember) -> None:
        """Go on where the client is, where that is still ours, once for each request."""
        moves, asked.moves = asked.moves, None
        ours, tokens = self.member.assignment, asked.tokens or {}
        for partition, offset in (moves or {}).items():
            if partition in ours and ours[partition] == tokens.get(partition):
                self.member.seek({partition: offset})

    def _polled(self, asked: PollMember, poll: Callable[[], None]) -> None:
        """Poll, and go back to where we were if something is to be told first."""
        self._approved = set(asked.approved or ())
        self._given_up.clear()
        held, self._before = dict(self.member.assignment), dict(self.member.position)
        try:
            poll()
        except _Asked:
            return
        except SegueError:
            if not self._told:
                raise  # Else it is told the next time, which is at once.
        self._keep(held)
        if self._told:
            self._go_back(self._before)

    def _keep(self, held: Mapping[int, int]) -> None:
        """Begin anew with what the client gave up and nobody wants any more."""
        if not self._wants_assigned:
            return
        ours = self.member.assignment
        kept = [
            partition
            for partition in sorted(self._approved - self._given_up)
            if partition in ours and ours[partition] == held.get(partition)
        ]
        if kept:
            self._told.append(Told(what="assign", partitions=kept))
            self._before |= {
                lag.partition: lag.committed for lag in self._group.lag() if lag.partition in kept
            }

    def _go_back(self, places: Mapping[int, int]) -> None:
        for partition, offset in self.member.position.items():
            before = places.get(partition, offset)
            if before != offset:
                # What is gone meanwhile is gone: it was never read.
                with suppress(OffsetOutOfRange, PartitionLost):
                    self.member.seek({partition: before})
