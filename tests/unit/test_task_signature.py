"""Arguments and results as JSON: what goes in comes out as it was, or is refused."""

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import product
from typing import Annotated, Any, Literal, Optional, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from segue.errors import BadArguments, BadResult, InvalidArgument
from segue.tasks.signature import DEPTH_MAX, Call, Signature, check_plain, is_loose
from tests.unit.support import failing_cases


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: float = 0.5
    names: list[str] = field(default_factory=list)


@dataclass
class Node:
    value: int
    below: "Node | None" = None


class Order(msgspec.Struct):
    id: int
    lines: dict[str, Decimal]


class Address(TypedDict):
    street: str
    number: int


class Model(pydantic.BaseModel):
    name: str
    when: datetime


class Angry(msgspec.Struct):
    """Something whose own code fails when it is read."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise RuntimeError("no database")


def signature_of(function: Callable[..., object]) -> Signature:
    return Signature(function, "task")


def there_and_back(function: Callable[..., object], *args: object, **kwargs: object) -> Call:
    """Return a call as the worker gets it."""
    signature = signature_of(function)
    return signature.read(signature.write(args, kwargs))


def of_type(kind: object) -> Callable[..., object]:
    """Return a function of one parameter of a type."""

    def function(value: object) -> object:
        return value

    function.__annotations__ = {"value": kind, "return": kind}
    return function


def plain() -> Callable[..., object]:
    """Return a function of one parameter without an annotation."""
    return lambda value: value


# Types -------------------------------------------------------------------------------------


TYPED = [
    (int, 7),
    (int, -(2**63) - 1),
    (int, 10**300),
    (float, 0.1),
    (bool, True),
    (str, "žluťoučký 🐎\x00"),
    (bytes, bytes(range(256))),
    (bytearray, bytearray(b"\x00\xff")),
    (Decimal, Decimal("0.1000")),
    (Decimal, Decimal("1e400")),
    (uuid.UUID, uuid.UUID(int=2**127)),
    (datetime, datetime(2024, 3, 31, 1, 59, 59, 999_999, tzinfo=UTC)),
    (datetime, datetime(2024, 3, 31, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    (datetime, datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))),
    (date, date(1, 1, 1)),
    (timedelta, timedelta(days=3, microseconds=1)),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Point, Point(3, 1.5, ["a"])),
    (Node, Node(1, Node(2, Node(3)))),
    (Order, Order(5, {"apple": Decimal("1.10")})),
    (Address, {"street": "Long", "number": 3}),
    (Model, Model(name="n", when=datetime(2024, 1, 1, tzinfo=UTC))),
    (list[Model], [Model(name="n", when=datetime(2024, 1, 1, tzinfo=UTC))]),
    (Model | None, None),
    (Optional[Point], Point(1)),  # noqa: UP045 - the old spelling must do, too.
    (Optional[Point], None),  # noqa: UP045 - as above
    (int | str | None, "x"),
    (int | float, 1),
    (int | float, 1.0),
    (Literal["a", "b"], "b"),
    (Annotated[int, msgspec.Meta(ge=0)], 0),
    (tuple[int, str], (1, "x")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (dict[str, list[Point]], {"a": [Point(1)]}),
    (dict[int, str], {1: "x"}),
    (dict[uuid.UUID, bytes], {uuid.UUID(int=1): b"\xff"}),
    (None, None),
]


def test_an_argument_comes_out_as_its_annotation_says() -> None:
    """Whatever type is named, the worker's function gets an equal value of that type."""

    def check(kind: object, value: object) -> None:
        _, named = there_and_back(of_type(kind), value)
        found = named["value"]

        assert found == value
        assert type(found) is type(value)

    assert failing_cases(check, TYPED) == []


def test_a_result_comes_out_as_its_annotation_says() -> None:
    """Results go the same way as arguments do."""

    def check(kind: object, value: object) -> None:
        signature = signature_of(of_type(kind))
        found = signature.read_result(signature.write_result(value))

        assert found == value

    assert failing_cases(check, TYPED) == []


def test_a_time_keeps_its_moment_whatever_its_zone_is_called() -> None:
    """JSON has offsets and no names of zones: the moment is the same, the offset too."""
    moment = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    _, named = there_and_back(of_type(datetime), moment)
    found = named["value"]

    assert isinstance(found, datetime)
    assert found.utcoffset() == timedelta(hours=2)


def test_an_argument_of_another_type_is_refused() -> None:
    """Before anything is queued, and as the caller's fault: BadArguments names the task."""

    def check(kind: object, value: object) -> None:
        with pytest.raises(BadArguments) as caught:
            signature_of(of_type(kind)).write((value,), {})

        assert caught.value.task == "task"
        assert caught.value.reason

    failing = failing_cases(
        check,
        [
            (int, "7"),
            (int, True),
            (int, 1.5),
            (str, 7),
            (bool, 1),
            (Colour, "green"),
            (Point, {"x": "no"}),
            (Order, 5),
            (Address, {"street": "Long"}),
            (Model, {"name": "n"}),
            (Literal["a", "b"], "c"),
            (Annotated[int, msgspec.Meta(ge=0)], -1),
            (tuple[int, str], (1,)),
            (list[int], [1, None]),
            (uuid.UUID, "no uuid"),
            (datetime, "yesterday"),
            (float, math.nan),
            (list[float], [math.inf]),
            (complex, 1j),
            (int, object()),
            (str, "\ud800"),
            (int, 10**5_000),
            (bytes | str, b"either"),
            (Model | int, 5),
        ],
    )
    assert failing == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_refused_where_none_would_do(value: float) -> None:
    """It must not come out as None, which is something else."""
    signature = signature_of(of_type(float | None))

    with pytest.raises(BadArguments):
        signature.write((value,), {})
    with pytest.raises(BadResult):
        signature.write_result(value)


def test_a_value_nested_beyond_reason_is_refused() -> None:
    """Neither side runs out of stack."""
    node = Node(0)
    for number in range(100_000):
        node = Node(number, node)
    signature = signature_of(of_type(Node))

    with pytest.raises(BadArguments):
        signature.write((node,), {})


# Plain JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 2**64, -(10**30), 0.1, -0.0, "text", [], [1, [2, {"a": None}]], {"a": {}}],
)
def test_a_parameter_without_an_annotation_takes_plain_json(value: object) -> None:
    """Nothing says what it should become, so it must be what JSON gives back."""
    _, named = there_and_back(plain(), value)

    assert named == {"value": value}
    assert type(named["value"]) is type(value)


def test_what_would_come_back_as_something_else_is_refused() -> None:
    """Bytes would come back as text, sets as lists, NaN as null: the annotation must say so."""

    def check(value: object, function: Callable[..., object]) -> None:
        if function.__annotations__.get("value") == list[Any]:
            value = [value]

        with pytest.raises(BadArguments, match="JSON"):
            signature_of(function).write((value,), {})

    failing = failing_cases(
        check,
        product(
            [
                b"bytes",
                {1, 2},
                math.nan,
                -math.inf,
                {1: "key"},
                Decimal(1),
                datetime(2024, 1, 1, tzinfo=UTC),
                Point(1),
                [b"inside"],
                {"a": {"b": b"inside"}},
                Level.LOW,
                object(),
            ],
            [plain(), of_type(Any), of_type(object), of_type(list[Any])],
        ),
    )
    assert failing == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [(object, 5), (dict[str, object], {"a": [1, "x"]}), (list[object], [None]), (Any, "text")],
)
def test_an_annotation_that_takes_anything_takes_plain_json(kind: object, value: object) -> None:
    """`object` and `Any` are as good as none."""
    signature = signature_of(of_type(kind))

    assert there_and_back(of_type(kind), value) == ((), {"value": value})
    assert signature.read_result(signature.write_result(value)) == value


def test_a_tuple_without_an_annotation_comes_back_as_a_list() -> None:
    """The one thing that plain JSON changes."""
    assert there_and_back(plain(), (1, (2,))) == ((), {"value": [1, [2]]})


@pytest.mark.parametrize(
    ("kind", "value"),
    [(set, {1, 2}), (frozenset, frozenset({"a"})), (dict[int, Any], {1: [2]}), (tuple, (1, 2))],
)
def test_a_bare_collection_says_enough(kind: object, value: object) -> None:
    """An annotation that names the collection is kept to."""
    _, named = there_and_back(of_type(kind), value)

    assert named == {"value": value}
    assert type(named["value"]) is type(value)


def test_nesting_has_a_limit_and_the_limit_is_allowed() -> None:
    """So that no reader runs out of stack; what holds itself is refused by it, too."""
    deep: list[object] = []
    for _ in range(DEPTH_MAX):
        deep = [deep]
    endless: list[object] = []
    endless.append(endless)
    _, named = there_and_back(plain(), deep)

    assert named == {"value": deep}
    for value in ([deep], endless):
        with pytest.raises(BadArguments, match="deep"):
            signature_of(plain()).write((value,), {})


@pytest.mark.parametrize(
    ("kind", "loose"),
    [(Any, True), (list, True), (list[int], False), (dict[str, Any], True), (Point, False)],
)
def test_a_type_is_loose_if_it_does_not_say_what_it_holds(kind: object, loose: bool) -> None:
    """Only those are held to plain JSON."""
    assert is_loose(kind) is loose


def test_plain_values_are_checked_in_their_depths() -> None:
    """A good outside makes no good inside."""
    check_plain({"a": [1, 2.5, None, {"b": "c"}]})

    with pytest.raises(TypeError, match="set"):
        check_plain({"a": [1, {"b": {1}}]})


# Calls -------------------------------------------------------------------------------------


def everything(
    first: int, /, second: str, *rest: float, named: bytes = b"n", **others: Point
) -> None:
    """Have a parameter of each kind."""


def test_every_kind_of_parameter_goes_through() -> None:
    """Positional-only, either, *args, keyword-only and **kwargs, each by its annotation."""
    args, kwargs = there_and_back(everything, 1, "two", 3.0, 4.0, named=b"\xff", p=Point(5))

    assert args == (1, "two", 3.0, 4.0)
    assert kwargs == {"named": b"\xff", "p": Point(5)}


def test_a_name_may_be_that_of_a_positional_only_parameter() -> None:
    """As Python has it: `f(1, "x", first=…)` puts `first` among the others."""
    args, kwargs = there_and_back(everything, 1, "two", first=Point(9))

    assert args == (1, "two")
    assert kwargs == {"named": b"n", "first": Point(9)}


def test_what_is_left_out_is_left_to_the_worker() -> None:
    """A default that the code changes meanwhile is the new one."""

    def before(value: int, extra: str = "old") -> None: ...

    def after(value: int, extra: str = "new", more: bool = True) -> None: ...

    written = signature_of(before).write((1,), {})
    args, kwargs = signature_of(after).read(written)

    assert written == b'{"value":1}'
    assert (args, kwargs) == ((), {"value": 1, "extra": "new", "more": True})


def test_a_default_that_is_given_is_kept() -> None:
    """A caller who says None means None."""

    def function(value: int | None = 5) -> None: ...

    assert there_and_back(function, None) == ((), {"value": None})


def test_a_mutable_default_is_not_shared_between_runs() -> None:
    """What one run does to it is not seen by the next, nor by the function."""

    def function(value: list[int] = []) -> None:  # noqa: B006 - that is the point
        value.append(1)

    signature = signature_of(function)
    for _ in range(2):
        args, kwargs = signature.read(b"{}")
        function(*args, **kwargs)  # type: ignore[arg-type]
    _, named = signature.read(b"{}")

    assert named in ({}, {"value": []})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, "two"), {"second": "again"}),
        ((1, "two", "three"), {}),
        ((1, "two"), {"other": 5}),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Where it is made, and not in a worker an hour later."""
    with pytest.raises(BadArguments):
        signature_of(everything).write(args, kwargs)


def test_a_bad_call_is_a_type_error_and_a_value_error() -> None:
    """Callers who catch what Python raises catch it."""
    with pytest.raises(TypeError):
        signature_of(everything).write((), {})
    with pytest.raises(ValueError, match="missing"):
        signature_of(everything).write((), {})


def test_a_function_without_parameters_takes_nothing() -> None:
    """The commonest call costs two characters."""
    signature = signature_of(lambda: None)

    assert signature.write((), {}) == b"{}"
    assert signature.read(b"{}") == ((), {})
    assert signature.read(b" [ ] ") == ((), {})


def test_arguments_may_be_a_list_by_position() -> None:
    """What other languages write: JSON that needs no names."""
    args, kwargs = signature_of(everything).read(b'[1, "two", 3.5, 4]')

    assert (args, kwargs) == ((1, "two", 3.5, 4.0), {"named": b"n"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"null",
        b'"text"',
        b"{",
        b"[1]",
        b'[1, "two", "x"]',
        b'{"first": 1}',
        b'{"first": 1, "second": "two", "unknown": 3}',
        b'{"first": "\xff", "second": "two"}',
        pytest.param(b"[" * 100_000, id="brackets"),
        b'{"first": 1, "second": 2}',
    ],
)
def test_what_is_no_such_call_is_refused_by_the_worker(data: bytes) -> None:
    """Anybody may write to a queue: whatever it is, it is BadArguments and nothing else."""
    with pytest.raises(BadArguments):
        signature_of(everything).read(data)


def test_a_type_whose_own_code_fails_makes_the_arguments_bad() -> None:
    """Whatever it raises: it is what was given that cannot be made into it."""
    with pytest.raises(BadArguments, match="no database"):
        signature_of(of_type(Angry)).read(b'{"value": {"value": -1}}')


# Annotations -------------------------------------------------------------------------------


def early(value: "Later") -> "Later":
    """Name what is defined below."""
    return value


@dataclass
class Later:
    number: int


def test_an_annotation_may_name_what_comes_later() -> None:
    """It is looked up when it is first needed."""
    assert there_and_back(early, Later(5)) == ((), {"value": Later(5)})


def test_an_annotation_that_names_nothing_is_said_so() -> None:
    """With the name of the task and of what is missing."""
    with pytest.raises(InvalidArgument, match=r"task task.*Missing"):
        signature_of(of_type("Missing")).write((1,), {})


def test_an_annotation_that_is_no_type_is_said_so() -> None:
    """Some write prose there."""
    with pytest.raises(InvalidArgument):
        signature_of(of_type("the value, in metres")).write((1,), {})


def test_a_key_is_an_argument_or_what_a_function_makes_of_all() -> None:
    """Defaults count, and so does the position."""

    def function(user: str, size: int = 3) -> None: ...

    signature = signature_of(function)

    assert signature.value_of("user", ("ann",), {}) == "ann"
    assert signature.value_of("size", ("ann",), {}) == 3
    assert signature.value_of(lambda user, size: f"{user}{size}", (), {"user": "b", "size": 1}) == (
        "b1"
    )
    with pytest.raises(InvalidArgument, match="other"):
        signature.require_parameter("other")


# Results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"bytes", {1}, math.nan, object(), Decimal(1), [Point(1)]])
def test_a_result_without_an_annotation_is_plain_json(value: object) -> None:
    """Otherwise it would be something else to whoever asks for it."""
    with pytest.raises(BadResult, match="result"):
        signature_of(plain()).write_result(value)


def test_a_result_of_another_type_is_refused() -> None:
    """The annotation is a promise to whoever asks for it."""

    def function() -> int:
        return 1

    with pytest.raises(BadResult) as caught:
        signature_of(function).write_result("text")

    assert caught.value.task == "task"


def test_nothing_is_a_result() -> None:
    """With an annotation or without."""

    def annotated() -> None: ...

    for function in (annotated, plain()):
        signature = signature_of(function)

        assert signature.write_result(None) == b"null"
        assert signature.read_result(b"null") is None


def test_a_result_that_another_version_wrote_may_not_fit() -> None:
    """Then it is said, and not handed out as something it is not."""

    def function() -> int:
        return 1

    with pytest.raises(BadResult):
        signature_of(function).read_result(b'"text"')
