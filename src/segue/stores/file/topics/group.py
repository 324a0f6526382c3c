"""A group's state on disk: who is a member, and who has which partition.

groups/<name>/state.json   replaced in one step by whoever holds the lock beside it
groups/<name>/members/     a file each, locked by its member's process while that lives

The places of the group are positions of each partition (`marks.py`), saved under the same lock
after a look at the state: that look is the fence.
"""

import logging
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from segue.delivery.group import STATE_FORMAT, GroupState
from segue.errors import CorruptManifest, GroupBusy
from segue.log.disk import storage_errors
from segue.log.live import OWN
from segue.log.options import Duration
from segue.stores.file.claims import is_claimed, locked
from segue.stores.file.documents import read_document, write_document
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import GROUPS, TopicCore
from segue.stores.file.topics.member import FileMember
from segue.stores.file.topics.places import resolve_in, resolved
from segue.stores.file.topics.reader import lag_of
from segue.stores.topic_contract import GroupInfo, Lag, MemberInfo, OnRebalance, Start
from segue.stores.topic_manifest import GROUP_PREFIX, group_mark
from segue.stores.topic_reading import check_start, start_in

logger = logging.getLogger(__name__)

STATE: Final = "state.json"
LOCK: Final = "lock"
MEMBERS: Final = "members"
_DEADLINE = struct.Struct("<Q")
CHANGES_WORD: Final = OWN + 1
"""A live word of partition 0 that changes with the state of any group of the topic."""


class GroupCore:
    """The state of one group. Safe from any thread."""

    def __init__(self, topic: TopicCore, name: str) -> None:
        self.topic = topic
        self.name = name
        self.mark = group_mark(name)
        self.path = topic.path / GROUPS / name
        self._disk = topic.place.disk
        self._boot = self._disk.boot_id()

    @property
    def exists(self) -> bool:
        """Whether the group has a place in the topic."""
        return any(
            self.mark in marks.names_of(self.topic.log(partition))
            for partition in self.topic.numbers()
        )

    @property
    def changes(self) -> int:
        """A number that changes with the state, which may also change without it."""
        return self.topic.word(CHANGES_WORD)

    def look(self) -> GroupState:
        """Return the state as it is now, the dead still among the living."""
        path = self.path / STATE
        try:
            values = read_document(path, self._disk, format_=STATE_FORMAT)
            return GroupState(boot=self._boot) if values is None else GroupState.from_dict(values)
        except (CorruptManifest, ValueError) as error:
            # Nobody keeps what they had, and no token comes again: this is far beyond any of them.
            logger.warning("group begins anew path=%s reason=%s", path, error)
            return GroupState(boot=self._boot, generation=self.topic.place.clock())

    @contextmanager
    def turn(self, *, gone: Collection[str] | None = None) -> Iterator[GroupState]:
        """Give the state to look at and change, without the dead; keep everybody else out.

        The dead are those whose time is over and those in `gone`; if it is not said who that is,
        everybody is looked at.
        """
        with locked(self.path / LOCK, self._disk):
            state = self.look()
            before, generation = state.to_dict(), state.generation
            if gone is None:
                gone = [member for member in state.members if self.is_gone(member)]
            for member in self.drop_dead(state, gone):
                logger.info("member is gone group=%s member=%s", self.name, member)
                with storage_errors(f"removing {member}"), suppress(FileNotFoundError):
                    self._disk.unlink(self.member_path(member))
            try:
                yield state
            finally:
                has_changed = state.generation != generation
                if has_changed or state.to_dict() != before:
                    # A token that was seen must not come again; who shows up may be forgotten.
                    durable = has_changed and self.topic.place.is_durable
                    write_document(self.path / STATE, state.to_dict(), self._disk, sync=durable)
                if has_changed:
                    self.topic.add_to_word(CHANGES_WORD)
                    self.topic.bell.ring()

    def drop_dead(self, state: GroupState, gone: Collection[str]) -> list[str]:
        """Drop the dead from a state and return them."""
        place = self.topic.place
        for name, member in list(state.members.items()):
            if member.deadline_us <= place.ticks():
                state.show_up(name, deadline_us=max(member.deadline_us, self._noted_by(name)))
        return state.drop_dead(
            boot=self._boot, now_us=place.ticks(), gone=gone, generation_min=place.clock()
        )

    # The living and the dead ---------------------------------------------------------------

    def member_path(self, member: str) -> Path:
        """Return the file that is locked while a member's process lives."""
        return self.path / MEMBERS / member

    def noted(self, deadline_us: int) -> bytes:
        """Return what a member's file says: until when it is alive without another call."""
        return _DEADLINE.pack(deadline_us)

    def _noted_by(self, member: str) -> int:
        path = self.member_path(member)
        with storage_errors(f"reading {path}"):
            try:
                data = self._disk.read_file(path, _DEADLINE.size)
            except FileNotFoundError:
                return 0
        return int(_DEADLINE.unpack(data)[0]) if len(data) == _DEADLINE.size else 0

    def is_gone(self, member: str) -> bool:
        """Tell whether a member's process has ended."""
        return not is_claimed(self.member_path(member), self._disk)

    def members(self) -> tuple[int, list[MemberInfo]]:
        """Return the generation, and who is in the group. Opens no log."""
        state = self.look()
        self.drop_dead(state, [name for name in state.members if self.is_gone(name)])
        now_us = self.topic.place.ticks()
        return state.generation, [
            MemberInfo(
                member=name,
                owner=member.owner,
                partitions=sorted(state.held_by(name)),
                seconds_left=(member.deadline_us - now_us) / 1_000_000,
            )
            for name, member in state.members.items()
        ]

    def sweep(self, state: GroupState) -> None:
        """Remove what was left by processes that died before they were members."""
        with storage_errors(f"listing {self.path}"):
            names = self._disk.names(self.path / MEMBERS)
        for name in names:
            if name not in state.members and self.is_gone(name):
                with storage_errors(f"removing {name}"), suppress(FileNotFoundError):
                    self._disk.unlink(self.member_path(name))

    # Places --------------------------------------------------------------------------------

    def register(self, start: Start) -> None:
        """Have a place in every partition; `start` says where, for those without one."""
        with self.topic.locked():
            for partition in self.topic.numbers():
                log = self.topic.log(partition)
                if self.mark not in marks.names_of(log):
                    begin = start_in(start, partition)
                    marks.register(log, self.mark, partial(resolve_in, log, partition, begin))


class FileGroup:
    """Consumers that share the partitions of a topic."""

    def __init__(self, topic: TopicCore, name: str) -> None:
        self.name = name
        self._topic = topic
        self._core = GroupCore(topic, name)

    def join(
        self,
        *,
        start: Start = "earliest",
        ttl: Duration = 60,
        owner: str | None = None,
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> FileMember:
        """Become a member."""
        self._topic.require()
        check_start(self._topic, start, self._topic.numbers())
        if not self._core.exists:
            resolved(self._topic, start, self._topic.numbers())  # Before anything is written.
        return FileMember(
            self._core,
            start=start,
            ttl=ttl,
            owner=owner,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
        )

    def info(self) -> GroupInfo:
        """Return who is in the group, and how far it is behind."""
        generation, members = self._core.members()
        return GroupInfo(name=self.name, generation=generation, members=members, lag=self.lag())

    def lag(self) -> list[Lag]:
        """Return how far the group is behind, by what it committed."""
        return lag_of(self._topic, self._core.mark)

    def reset(self, start: Start) -> None:
        """Let the group begin elsewhere."""
        self._topic.require()
        with self._core.turn() as state:
            self._require_idle(state)
            places = resolved(self._topic, start, self._topic.numbers())
            for partition, place in places.items():
                log = self._topic.log(partition)
                marks.register(log, self._core.mark, partial(max, place, log.first_offset))
            state.generation += 1

    def remove(self) -> bool:
        """Forget the group; tell whether it was there."""
        if not self._core.exists:
            return False
        # Its state stays: a group made anew under the name must not give the same tokens again.
        with self._core.turn() as state:
            self._require_idle(state)
            for partition in self._topic.numbers():
                self._topic.log(partition).remove_reader(self._core.mark)
            state.generation += 1
        return True

    def _require_idle(self, state: GroupState) -> None:
        if state.members:
            raise GroupBusy(name=self.name, members=len(state.members))


def group_names(topic: TopicCore) -> list[str]:
    """Return the names of the groups there are."""
    found = marks.all_names(topic.log(partition) for partition in topic.numbers())
    return [name.removeprefix(GROUP_PREFIX) for name in found if name.startswith(GROUP_PREFIX)]
