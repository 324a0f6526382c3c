"""How a topic is made, and under which names it keeps places. The same on every store."""

from dataclasses import field, replace
from typing import Final

from segue.delivery.topic_rules import PARTITIONS_MAX, TopicRules
from segue.errors import InvalidArgument, InvalidName
from segue.log.layout import checked_name
from segue.values import dataclass

GROUP_PREFIX: Final = "group."
"""What the name of a group's place begins with; a reader's is its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """How a topic is made."""

    partitions: int
    rules: TopicRules = field(default_factory=TopicRules)
    version: int = 1
    created_us: int = 0

    def __post_init__(self) -> None:
        check_partitions(self.partitions)

    def changed(
        self, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> "Manifest":
        """Return the next version. Raises InvalidArgument for fewer partitions."""
        if partitions is not None and partitions < self.partitions:
            raise InvalidArgument(
                f"partitions are never removed: there are {self.partitions}, not {partitions}"
            )
        return replace(
            self,
            partitions=partitions or self.partitions,
            rules=rules or self.rules,
            version=self.version + 1,
        )


def check_partitions(partitions: int) -> None:
    """Raise InvalidArgument unless a topic can have so many partitions."""
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgument(
            f"partitions must be a whole number from 1 to {PARTITIONS_MAX}: {partitions!r}"
        )


def check_rules(rules: TopicRules) -> None:
    """Raise InvalidArgument for what is no rules."""
    given: object = rules
    if not isinstance(given, TopicRules):
        raise InvalidArgument(f"rules must be TopicRules: {rules!r}")


def reader_mark(name: str) -> str:
    """Return the name of a reader's place. Raises InvalidName."""
    if checked_name(name).startswith(GROUP_PREFIX):
        raise InvalidName(f"{name!r}: names that begin with {GROUP_PREFIX!r} are for groups")
    return name


def group_mark(name: str) -> str:
    """Return the name of a group's place. Raises InvalidName."""
    return checked_name(GROUP_PREFIX + checked_name(name))
