"""Dataclasses that are made quickly: `dataclass` as in the standard library, where it is slow.

That one compiles up to six methods of each class, for about a millisecond, in every process that
only imports it; and a process that pushes one message imports dozens. Here a class compiles its
`__init__` and shares the rest. `fields`, `replace`, `asdict`, `copy` and `pickle` work as ever.
Only what Segue uses is there: no order, no InitVar, and what repeats itself has no `repr`.
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        kw_only: bool = False,
        slots: bool = False,
    ) -> object:
        """Make a dataclass of what it decorates."""

        def made(cls: type) -> type:
            return _dataclass(cls, frozen=frozen, kw_only=kw_only, slots=slots)

        return made if cls is None else made(cls)


__all__ = ["dataclass"]

_Field = dataclasses.Field[object]
_MISSING = dataclasses.MISSING


def _dataclass(cls: type, *, frozen: bool, kw_only: bool, slots: bool) -> type:
    own = set(vars(cls))
    # Finding the fields, and a class anew for slots, is what it does quickly.
    decorate = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)
    made: type = decorate(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, object] = {"__init__": _init(made, fields, frozen=frozen), "__repr__": _repr}
    methods |= _comparing(fields, frozen=frozen)
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    if frozen and slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _init(cls: type, fields: tuple[_Field, ...], *, frozen: bool) -> object:
    """Return the one method that is written for each class: it has the fields as parameters."""
    names: dict[str, object] = {"_put": object.__setattr__, "_missing": _MISSING}
    # As in the standard library: those by position first, and the others in their order.
    given = [f for f in fields if f.init]
    parameters = [_parameter(f, names) for f in given if not f.kw_only]
    by_keyword = [_parameter(f, names) for f in given if f.kw_only]
    lines = [_assignment(f, names, frozen=frozen) for f in fields]
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    signature = ", ".join(["self", *parameters, *(["*", *by_keyword] if by_keyword else [])])
    exec("\n".join([f"def __init__({signature}):", *(lines or [" pass"])]), names)
    init: Callable[..., None] = names["__init__"]  # type: ignore[assignment]  # just written
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


def _parameter(field: _Field, names: dict[str, object]) -> str:
    if field.default_factory is not _MISSING:
        return f"{field.name}=_missing"
    if field.default is not _MISSING:
        names[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    return field.name


def _assignment(field: _Field, names: dict[str, object], *, frozen: bool) -> str:
    name = field.name
    value = name
    if field.default_factory is not _MISSING:
        names[f"_make_{name}"] = field.default_factory
        value = f"_make_{name}()" + f" if {name} is _missing else {name}" * field.init
    elif not field.init:
        if field.default is _MISSING:
            return " pass"  # What __post_init__ is for.
        names[f"_default_{name}"] = field.default
        value = f"_default_{name}"
    return f" _put(self, {name!r}, {value})" if frozen else f" self.{name} = {value}"


def _comparing(fields: tuple[_Field, ...], *, frozen: bool) -> dict[str, object]:
    compared = [f.name for f in fields if f.compare]
    content: Callable[[object], object] = attrgetter(*compared) if compared else lambda _: ()

    def equals(self: object, other: object) -> object:
        if other.__class__ is self.__class__:
            return content(self) == content(other)
        return NotImplemented

    def hash_of(self: object) -> int:
        return hash(content(self))

    return {"__eq__": equals, "__hash__": hash_of if frozen else None}


def _repr(self: object) -> str:
    shown = (f for f in dataclasses.fields(self) if f.repr)  # type: ignore[arg-type]  # it is one
    said = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in shown)
    return f"{type(self).__qualname__}({said})"


def _refuse_to_set(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: object) -> list[object]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]  # type: ignore[arg-type]


def _set_state(self: object, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):  # type: ignore[arg-type]
        object.__setattr__(self, field.name, value)
