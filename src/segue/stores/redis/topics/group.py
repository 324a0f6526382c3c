"""A group's state on the server: who is a member, and who has which partition.

The state is one document. Whoever wants to change it looks at it, decides by the pure rules of
`delivery/group.py`, and replaces it if it is still the one that was looked at. Until when members
are alive is kept beside it, and renewed without changing it.

The group's places are kept by the partitions, each with the token of the member that may commit
there: that is the fence.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from segue.delivery.group import GroupState
from segue.errors import GroupBusy, StorageError
from segue.log.options import Duration
from segue.stores.redis.topics.answers import number_of, numbers_of, pairs_of, text_of, words_of
from segue.stores.redis.topics.core import CHANGES_MAX, TopicCore
from segue.stores.redis.topics.member import RedisMember
from segue.stores.redis.topics.places import lag_of, resolved
from segue.stores.redis.topics.waiting import NO_WAIT, Wait
from segue.stores.topic_contract import GroupInfo, Lag, MemberInfo, OnRebalance, Start
from segue.stores.topic_manifest import group_mark
from segue.stores.topic_reading import check_start, start_in
from segue.values import dataclass

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.001
PAUSE_SECONDS_MAX: Final = 0.1
"""How long to stand back, by chance, when somebody else changed the state first."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A group at one moment, the dead still among the living."""

    ticks_us: int
    now_us: int
    version: int
    state: GroupState
    strays: list[str]
    """Who is said to be alive and is no member: left from a state that was lost."""

    def drop_dead(self) -> list[str]:
        """Drop the dead from the state and return them, with those who are no members."""
        dead = self.state.drop_dead(boot=self.state.boot, now_us=self.ticks_us)
        return dead + self.strays


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """What a member learns when it shows up."""

    is_alive: bool
    version: int
    has_dead: bool
    partitions: int


class GroupCore:
    """The state of one group. Safe from any thread."""

    def __init__(self, topic: TopicCore, name: str) -> None:
        self.topic = topic
        self.name = name
        self.mark = group_mark(name)
        self._chance = random.Random()

    @property
    def exists(self) -> bool:
        """Whether the group has a place in the topic."""
        topic = self.topic
        return any(self.mark in topic.partition(number).marks() for number in topic.numbers())

    def look(self) -> Look:
        """Return the state as it is now."""
        self.topic.require_open()
        answer = words_of(self.topic.look("group_look", self.name), 5)
        ticks_us, now_us, version = map(number_of, answer[:3])
        state = self._state_from(text_of(answer[3]), now_us)
        alive = dict(pairs_of(answer[4]))
        for member in state.members:
            state.show_up(member, deadline_us=alive.get(member, 0))
        strays = [member for member in alive if member not in state.members]
        return Look(ticks_us=ticks_us, now_us=now_us, version=version, state=state, strays=strays)

    def _state_from(self, text: str, now_us: int) -> GroupState:
        if not text:
            return GroupState()
        try:
            return GroupState.from_dict(json.loads(text))
        except (ValueError, TypeError) as error:
            # Nobody keeps what they had, and no token comes again: this is far beyond any of them.
            logger.warning("group begins anew group=%s reason=%s", self.name, error)
            return GroupState(generation=now_us)

    def change(
        self, act: Callable[[GroupState], Result], *, joining: Mapping[str, int] | None = None
    ) -> tuple[Result, GroupState, int]:
        """Have `act` change the state, without the dead in it; return what it did, and the state.

        And its version. It is called again if others changed the state meanwhile. `joining` are
        new members, and for how many µs they are alive.
        """
        for attempt in range(CHANGES_MAX):
            look = self.look()
            state = look.state
            before, members = _text(state), [*state.members, *look.strays]
            for member in look.drop_dead():
                logger.info("member is gone group=%s member=%s", self.name, member)
            result = act(state)
            if _text(state) == before and not look.strays:
                return result, state, look.version
            alive: list[str | int] = []
            for member in members:
                if member not in state.members:
                    alive += (member, "")
            for member, ttl_us in (joining or {}).items():
                if member in state.members:
                    alive += (member, ttl_us)
            words = (self.name, look.version, _text(state), *alive)
            done, *version = numbers_of(self.topic.change("group_change", *words), 1)
            if done:
                return result, state, version[0]
            time.sleep(self._chance.uniform(0, min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2**attempt)))
        raise StorageError(f"group {self.name} was changed by others all the time")

    def attend(self, member: str, ttl_us: int, wait: Wait = NO_WAIT) -> Attendance:
        """Show that a member is alive, unless it is too late."""
        self.topic.require_open()
        words = (self.name, member, ttl_us, wait.waiter, wait.step_us)
        alive, version, dead, told, partitions = numbers_of(self.topic.look("attend", *words), 5)[
            :5
        ]
        self.topic.saw_version(told)
        return Attendance(
            is_alive=bool(alive), version=version, has_dead=bool(dead), partitions=partitions
        )

    def register(self, start: Start) -> None:
        """Have a place in every partition; `start` says where, for those without one."""
        for partition in self.topic.numbers():
            begin = start_in(start, partition)
            self.topic.partition(partition).register(self.mark, begin, keeps=True)


def _text(state: GroupState) -> str:
    """Return the state as it is kept: until when members live is kept elsewhere."""
    values = state.to_dict()
    values["members"] = [[name, 0, member.owner] for name, member in state.members.items()]
    return json.dumps(values, separators=(",", ":"))


class RedisGroup:
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
    ) -> RedisMember:
        """Become a member."""
        numbers = range(self._topic.require().partitions)
        check_start(self._topic, start, numbers)
        if isinstance(start, Mapping | int) and not self._core.exists:
            resolved(self._topic, start, numbers)  # Before anything is written.
        return RedisMember(
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
        look = self._core.look()
        look.drop_dead()
        state = look.state
        return GroupInfo(
            name=self.name,
            generation=state.generation,
            members=[
                MemberInfo(
                    member=name,
                    owner=member.owner,
                    partitions=sorted(state.held_by(name)),
                    seconds_left=(member.deadline_us - look.ticks_us) / 1_000_000,
                )
                for name, member in state.members.items()
            ],
            lag=self.lag(),
        )

    def lag(self) -> list[Lag]:
        """Return how far the group is behind, by what it committed."""
        return lag_of(self._topic, self._core.mark)

    def reset(self, start: Start) -> None:
        """Let the group begin elsewhere."""
        numbers = range(self._topic.require().partitions)
        places = resolved(self._topic, start, numbers)
        token = self._next_generation()
        for partition in places:
            begin = start_in(start, partition)
            # Who joined meanwhile has a later token, and goes on from where it began.
            self._topic.partition(partition).register(self._core.mark, begin, token=str(token))

    def remove(self) -> bool:
        """Forget the group; tell whether it was there."""
        if not self._core.exists:
            return False
        # Its state stays: a group made anew under the name must not give the same tokens again.
        token = self._next_generation()
        for partition in self._topic.numbers():
            self._topic.partition(partition).forget(self._core.mark, token=str(token))
        return True

    def _next_generation(self) -> int:
        """Outdate the tokens of all who were members. Raises GroupBusy."""

        def move_on(state: GroupState) -> None:
            if state.members:
                raise GroupBusy(name=self.name, members=len(state.members))
            state.generation += 1

        _, state, _ = self._core.change(move_on)
        return state.generation
