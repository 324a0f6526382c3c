"""Who of a group reads which partition. Pure rules: takes a state and a time, changes the state.

Rebalancing is cooperative: a partition that is to move is first let go by the one who has it, and
only then taken by the one who should have it; whoever keeps a partition is not disturbed. Every
taking has a token, the group's generation at that moment, which only grows: who lost a partition
cannot commit for it, whatever it believes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple

from segue.log.layout import is_name
from segue.values import dataclass

STATE_FORMAT: Final = 1


class MemberState(NamedTuple):
    """A member as the others see it."""

    deadline_us: int
    """When it is taken for dead unless it shows up before, in ticks."""
    owner: str
    """Who it is, for people."""


class Holding(NamedTuple):
    """Who has a partition."""

    member: str
    token: int


@dataclass(slots=True)
class GroupState:
    """The members of a group and what each of them has."""

    boot: int = 0
    """The boot that `deadline_us` counts in: nobody outlives a restart of the machine."""
    generation: int = 0
    """Grows with every change, for ever."""
    members: dict[str, MemberState] = field(default_factory=dict)
    """In the order they came."""
    holdings: dict[int, Holding] = field(default_factory=dict)

    # Members -------------------------------------------------------------------------------

    def join(self, member: str, *, owner: str, deadline_us: int) -> None:
        """Take in a member; it has nothing yet."""
        self.members[member] = MemberState(deadline_us, owner)
        self.generation += 1

    def show_up(self, member: str, *, deadline_us: int) -> None:
        """Note that a member is alive."""
        self.members[member] = self.members[member]._replace(deadline_us=deadline_us)

    def leave(self, member: str) -> None:
        """Drop a member; what it had is free."""
        if self.members.pop(member, None) is not None:
            self.holdings = {
                partition: holding
                for partition, holding in self.holdings.items()
                if holding.member != member
            }
            self.generation += 1

    def drop_dead(
        self, *, boot: int, now_us: int, gone: Collection[str] = (), generation_min: int = 0
    ) -> list[str]:
        """Drop the members whose time is over or who are known to be gone; return them.

        After a restart of the machine that is everybody, and as what was kept then may be old,
        the generation goes on from `generation_min` at least.
        """
        if boot != self.boot:
            dead = list(self.members)
            self.generation = max(self.generation, generation_min)
        else:
            dead = [
                name
                for name, member in self.members.items()
                if member.deadline_us <= now_us or name in gone
            ]
        for name in dead:
            self.leave(name)
        self.boot = boot
        return dead

    # Partitions ----------------------------------------------------------------------------

    def held_by(self, member: str) -> dict[int, int]:
        """Return the partitions a member has, each with its token."""
        return {
            partition: holding.token
            for partition, holding in self.holdings.items()
            if holding.member == member
        }

    def share_of(self, member: str, partitions: int) -> set[int]:
        """Return the partitions a member should have."""
        return shares(partitions, list(self.members), self.holdings)[member]

    def let_go(self, member: str, partitions: Iterable[int]) -> None:
        """Free what a member gives up."""
        given_up = set(partitions) & self.held_by(member).keys()
        if given_up:
            for partition in given_up:
                del self.holdings[partition]
            self.generation += 1

    def take(self, member: str, partitions: int) -> dict[int, int]:
        """Give a member what it should have and nobody has; return those with their tokens."""
        free = sorted(self.share_of(member, partitions) - self.holdings.keys())
        if free:
            self.generation += 1
            for partition in free:
                self.holdings[partition] = Holding(member, self.generation)
        return dict.fromkeys(free, self.generation)

    def holds(self, member: str, partition: int, token: int) -> bool:
        """Tell whether a member still has what it took with `token`."""
        return self.holdings.get(partition) == (member, token)

    # Kept ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, object]:
        """Return the state as it is kept."""
        return {
            "format": STATE_FORMAT,
            "boot": self.boot,
            "generation": self.generation,
            "members": [[name, *member] for name, member in self.members.items()],
            "holdings": {
                str(partition): list(holding) for partition, holding in self.holdings.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GroupState":
        """Return the state that `to_dict` gave. Raises ValueError for anything else."""
        try:
            state = cls(
                boot=_number(values["boot"]),
                generation=_number(values["generation"]),
                members={
                    _name(name): MemberState(_number(deadline_us), str(owner))
                    for name, deadline_us, owner in values["members"]
                },
                holdings={
                    _number(int(partition)): Holding(_name(member), _number(token))
                    for partition, (member, token) in values["holdings"].items()
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a group's state: {error!r}") from error
        if not {holding.member for holding in state.holdings.values()} <= state.members.keys():
            raise ValueError("a partition is held by somebody who is no member")
        return state


def shares(
    partitions: int, members: list[str], holdings: dict[int, Holding]
) -> dict[str, set[int]]:
    """Return which partitions each member should have.

    Nobody has two more than another, and as few as possible change hands.
    """
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in members}
    for partition in sorted(holdings):
        if partition < partitions and holdings[partition].member in held:
            held[holdings[partition].member].append(partition)
    least, extra = divmod(partitions, len(members))
    # One more for those who have it already, then in the order they came: that does not change
    # while partitions change hands.
    ranked = sorted(members, key=lambda member: len(held[member]) <= least)
    quota = {member: least + (place < extra) for place, member in enumerate(ranked)}
    result = {member: set(held[member][: quota[member]]) for member in members}
    rest = iter(sorted(set(range(partitions)) - set().union(*result.values())))
    for member in members:
        while len(result[member]) < quota[member]:
            result[member].add(next(rest))
    return result


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"not a number to be found here: {value!r}")
    return value


def _name(value: object) -> str:
    # It becomes the name of a file.
    if not isinstance(value, str) or not is_name(value):
        raise ValueError(f"not the name of a member: {value!r}")
    return value
