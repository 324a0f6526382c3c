"""Our dataclasses do what those of the standard library do."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import ClassVar, TypeVar

import pytest

from segue.values import dataclass

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What most values of Segue are like."""

    name: str
    size: int = 3
    tags: list[str] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False, compare=False)
    shout: str = dataclasses.field(init=False)
    kind: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shout", self.name.upper())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """The same by the standard library."""

    name: str
    size: int = 3
    tags: list[str] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False, compare=False)
    shout: str = dataclasses.field(init=False)
    kind: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shout", self.name.upper())


@dataclass(slots=True)
class Changing:
    """Positions, defaults, and a hash that nobody may ask for."""

    first: int
    second: int = 2
    third: int = dataclasses.field(default=3, init=False)
    fourth: list[int] = dataclasses.field(default_factory=list, init=False)


@dataclass(frozen=True)
class Pair:
    """Without slots, and with an opinion of its own on equality."""

    left: int
    right: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.left == other.left

    def __hash__(self) -> int:
        return self.left


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No field at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer(Frozen):
    """One field more than its base."""

    more: int = 0


TELLING: list[Callable[[Frozen | Standard], object]] = [
    lambda value: repr(value).partition("(")[2],
    dataclasses.asdict,
    lambda value: [(f.name, f.init, f.kw_only) for f in dataclasses.fields(value)],
    lambda value: list(inspect.signature(type(value)).parameters),
    lambda value: dataclasses.asdict(dataclasses.replace(value, size=9)),
    lambda value: dataclasses.asdict(copy.deepcopy(value)),
    lambda value: type(value).__match_args__,
    lambda value: type(value).__slots__,
    lambda value: value.kind,
]


@pytest.mark.parametrize("tell", TELLING)
def test_a_value_tells_what_one_of_the_standard_library_tells(
    tell: Callable[[Frozen | Standard], object],
) -> None:
    """Whoever looks at a dataclass finds what is promised of any."""
    said = {"name": "ada", "tags": ["x"], "secret": "s"}

    assert tell(Frozen(**said)) == tell(Standard(**said))  # type: ignore[arg-type]


def test_values_are_equal_by_what_is_compared() -> None:
    """Type and fields decide, and what is left out of comparisons does not."""
    assert Frozen(name="a") == Frozen(name="a", secret="other")
    assert Frozen(name="a") != Frozen(name="b")
    other: object = Standard(name="a")
    assert Frozen(name="a") != other
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


def test_a_method_of_the_class_itself_is_kept() -> None:
    """A class may know better what makes it equal."""
    assert Pair(1, 2) == Pair(1, 3)
    assert hash(Pair(1, 2)) == 1


def test_a_frozen_value_cannot_be_changed() -> None:
    """Neither set nor deleted, as AttributeError says."""
    value = Frozen(name="ada")

    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
        value.size = 4  # type: ignore[misc]  # that is the point
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
        del value.size
    assert value.size == 3


@pytest.mark.parametrize("value", [Frozen(name="a"), Changing(1), Pair(1, 2), Longer(name="a")])
def test_a_value_survives_pickling_and_copying(value: object) -> None:
    """Workers and Spark hand values from process to process."""
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value


def test_what_can_change_is_set_by_position_and_has_no_hash() -> None:
    """Defaults are each instance's own, also of fields nobody can give."""
    one, other = Changing(1), Changing(1, 5)
    one.fourth.append(1)

    assert (one.second, one.third, one.fourth) == (2, 3, [1])
    assert (other.second, other.fourth) == (5, [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_missing_argument_is_told_with_the_name_of_the_class() -> None:
    """The message is Python's own, for a function of that name."""
    with pytest.raises(TypeError, match=r"Frozen\.__init__\(\) missing 1 required keyword-only"):
        Frozen()  # type: ignore[call-arg]  # that is the point


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    """Inheriting works, `__post_init__` included."""
    value = Longer(name="ada", more=1)

    assert (value.shout, value.more, value.size) == ("ADA", 1, 3)
