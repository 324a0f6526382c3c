"""A group's state on disk: who is a member, and who has which partition.

groups/<name>/state.json   replaced in one step by whoever holds the lock beside it
groups/<name>/members/     a file each, locked by its member's process while that lives

The places of the group are positions of each partition (`marks.py`), saved under the same lock
after a look at the state: that look is the fence.
"""

import contextlib
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from segue.delivery.group import GroupState
from segue.errors import GroupBusy
from segue.log.disk import storage_errors
from segue.log.options import Duration
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import GROUPS, TopicCore
from segue.stores.file.topics.member import FileMember
from segue.stores.file.topics.places import check_start, resolve_in, start_in
from segue.stores.file.topics.reader import lag_of
from segue.stores.topic_contract import GroupInfo, Lag, MemberInfo, OnRebalance, Start

logger = logging.getLogger(__name__)

STATE: Final = "state.json"
LOCK: Final = "lock"
MEMBERS: Final = "members"


class GroupCore:
    """The state of one group. Safe from any thread."""

    def __init__(self, topic: TopicCore, name: str) -> None:
        self.topic = topic
        self.name = name
        self.mark = marks.group_mark(name)
        self.path = topic.path / GROUPS / name
        self._disk = topic.place.disk
        self._boot = self._disk.boot_id()

    @property
    def exists(self) -> bool:
        """Whether the group has a place in the topic."""
        return any(
            marks.saved(self.topic.log(partition), self.mark) is not None
            for partition in self.topic.numbers()
        )

    def look(self) -> GroupState:
        """Return the state as it is now, the dead still among the living."""
        with storage_errors(f"reading {self.path}"):
            try:
                fd = self._disk.open_to_read(self.path / STATE)
            except FileNotFoundError:
                return GroupState(boot=self._boot)
            try:
                data = self._disk.read_at(fd, self._disk.size(fd), 0)
            finally:
                self._disk.close(fd)
        try:
            return GroupState.from_json(data)
        except ValueError as error:
            # Nobody keeps what they had, and no token comes again: this is far beyond any of them.
            logger.warning("group begins anew path=%s reason=%s", self.path, error)
            return GroupState(boot=self._boot, generation=self.topic.place.clock())

    @contextmanager
    def turn(self) -> Iterator[GroupState]:
        """Give the state to look at and change, without the dead; keep everybody else out."""
        with self._locked():
            state = self.look()
            before, generation = state.to_json(), state.generation
            now_us = self.topic.place.ticks()
            dead = state.drop_dead(boot=self._boot, now_us=now_us, gone=self._gone(state))
            for member in dead:
                logger.info("member is gone group=%s member=%s", self.name, member)
                self.forget(member)
            try:
                yield state
            finally:
                has_changed = state.generation != generation
                after = state.to_json()
                if after != before:
                    # A token that was seen must not come again; who shows up may be forgotten.
                    self._write(after, sync=has_changed and self.topic.place.is_durable)
                if has_changed:
                    self.topic.bell.ring()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with storage_errors(f"locking {self.path}"):
            self._disk.make_directory(self.path)
            fd = self._disk.open_to_write(self.path / LOCK, create=True)
        try:
            with storage_errors(f"locking {self.path}"):
                self._disk.lock(fd)
            yield
        finally:
            self._disk.close(fd)

    def _write(self, data: bytes, *, sync: bool) -> None:
        with storage_errors(f"writing {self.path}"):
            is_new = not self._disk.exists(self.path / STATE)
            self._disk.replace_file(self.path / STATE, data, sync=sync)
            if is_new:
                self._disk.sync_directory(self.path)

    # The living and the dead ---------------------------------------------------------------

    def appear(self, member: str) -> int:
        """Make the file that says a member's process is alive; return what keeps it so."""
        path = self.path / MEMBERS / member
        with storage_errors(f"joining group {self.name}"):
            self._disk.make_directory(path.parent)
            fd = self._disk.open_to_write(path, create=True)
            self._disk.lock(fd)
        return fd

    def forget(self, member: str) -> None:
        """Remove the file of a member that is gone."""
        with storage_errors(f"leaving group {self.name}"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.path / MEMBERS / member)

    def _gone(self, state: GroupState) -> list[str]:
        return [member for member in state.members if self.is_gone(member)]

    def is_gone(self, member: str) -> bool:
        """Tell whether a member's process has ended."""
        with storage_errors(f"looking for member {member}"):
            try:
                fd = self._disk.open_to_read(self.path / MEMBERS / member)
            except FileNotFoundError:
                return True
            try:
                return self._disk.try_lock(fd, shared=True)
            finally:
                self._disk.close(fd)

    # Places --------------------------------------------------------------------------------

    def register(self, start: Start) -> None:
        """Have a place in every partition; `start` says where, for those without one."""
        for partition in self.topic.numbers():
            log = self.topic.log(partition)
            if marks.saved(log, self.mark) is None:
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
    ) -> FileMember:
        """Become a member."""
        self._topic.existing()
        check_start(self._topic, start, self._topic.numbers())
        return FileMember(
            self._core, start=start, ttl=ttl, owner=owner, on_assign=on_assign, on_revoke=on_revoke
        )

    def info(self) -> GroupInfo:
        """Return who is in the group, and how far it is behind."""
        state = self._core.look()
        now_us = self._topic.place.ticks()
        return GroupInfo(
            name=self.name,
            generation=state.generation,
            members=[
                MemberInfo(
                    member=name,
                    owner=member.owner,
                    partitions=sorted(state.held_by(name)),
                    seconds_left=(member.deadline_us - now_us) / 1_000_000,
                )
                for name, member in state.members.items()
                if not self._core.is_gone(name)
            ],
            lag=self.lag(),
        )

    def lag(self) -> list[Lag]:
        """Return how far the group is behind, by what it committed."""
        return lag_of(self._topic, self._core.mark)

    def reset(self, start: Start) -> None:
        """Let the group begin elsewhere."""
        check_start(self._topic, start, self._topic.numbers())
        with self._core.turn() as state:
            self._require_idle(state.members)
            for partition in self._topic.numbers():
                log = self._topic.log(partition)
                begin = start_in(start, partition)
                marks.register(log, self._core.mark, partial(resolve_in, log, partition, begin))
            state.generation += 1

    def remove(self) -> bool:
        """Forget the group; tell whether it was there."""
        if not self._core.exists:
            return False
        # Its state stays: a group made anew under the name must not give the same tokens again.
        with self._core.turn() as state:
            self._require_idle(state.members)
            for partition in self._topic.numbers():
                self._topic.log(partition).remove_reader(self._core.mark)
            state.generation += 1
        return True

    def _require_idle(self, members: Collection[str]) -> None:
        if members:
            raise GroupBusy(name=self.name, members=len(members))


def group_names(topic: TopicCore) -> list[str]:
    """Return the names of the groups there are."""
    found = marks.all_names(topic.log(partition) for partition in topic.numbers())
    prefix = marks.GROUP_PREFIX
    return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
