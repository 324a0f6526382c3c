"""A function's signature as JSON: arguments and results, checked on both sides.

What goes in must come out as it was: an argument is written, read back by its annotation and
refused if that fails, before anything is queued. Types are whatever msgspec knows (dataclasses,
Structs, TypedDicts, enums, datetimes, UUIDs, decimals, bytes …) and pydantic models. Parameters
without an annotation take plain JSON. Never pickle.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property, partial
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from segue.errors import BadArguments, BadResult, InvalidArgument

RESULT_BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 100
"""How deep plain JSON may be nested."""

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_LOOSE: Final = (Any, object, list, dict, tuple, set, frozenset)
_NOTHING: Final = b"{}"
_NULL: Final = b"null"

Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and named arguments."""


class Signature:
    """Writes and reads the arguments and results of one function. Safe from any thread."""

    def __init__(self, function: Callable[..., object], task: str) -> None:
        self._function = function
        self._task = task
        self._signature = inspect.signature(function)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        # At first use and not when the task is declared: an annotation may name what comes later.
        try:
            return get_type_hints(_annotated(self._function), include_extras=True)
        except Exception as error:  # An annotation is code, and may raise anything.
            raise InvalidArgument(
                f"task {self._task}: its annotations cannot be read: {error!r}"
            ) from error

    @cached_property
    def _loose(self) -> dict[str, object]:
        """The parameters whose annotations do not say what exactly they hold."""
        hints = {name: self._hints.get(name, Any) for name in self._signature.parameters}
        return {name: hint for name, hint in hints.items() if is_loose(hint)}

    @cached_property
    def _decoder(self) -> "msgspec.json.Decoder[Any]":
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in self._signature.parameters.items():
            kind: Any = _known(self._hints.get(name, Any))
            if parameter.kind is _VAR_POSITIONAL:
                fields.append((name, list[kind], msgspec.UNSET))
            elif parameter.kind is _VAR_KEYWORD:
                fields.append((name, dict[str, kind], msgspec.UNSET))
            elif parameter.default is not inspect.Parameter.empty:
                fields.append((name, kind | msgspec.UnsetType, msgspec.UNSET))
            else:
                fields.append((name, kind, msgspec.NODEFAULT))
        return self._decoder_of(_struct_of(fields, self._task))

    @cached_property
    def _result_decoder(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder_of(_known(self._hints.get("return", Any)))

    @cached_property
    def _returns_loosely(self) -> bool:
        return is_loose(self._hints.get("return", Any))

    def _decoder_of(self, kind: Any) -> "msgspec.json.Decoder[Any]":  # noqa: ANN401 - a type
        try:
            return msgspec.json.Decoder(kind, dec_hook=_decode_other)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"task {self._task}: {error}") from error

    # Arguments -----------------------------------------------------------------------------

    def write(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Return a call as JSON, each argument under its name. Raises BadArguments."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadArguments(task=self._task, reason=str(error)) from None
        if not given:
            return _NOTHING
        try:
            for name, hint in self._loose.items():
                if name in given:
                    self._check_loose(name, given[name], hint)
            data = _ENCODER.encode(given)
            check_finite(data, given)
            self._decoder.decode(data)
        except Exception as error:  # Types have validators, which may raise anything.
            raise BadArguments(task=self._task, reason=_reason(error)) from error
        return data

    def _check_loose(self, name: str, value: Any, hint: object) -> None:  # noqa: ANN401 - any
        kind = self._signature.parameters[name].kind
        if kind is _VAR_POSITIONAL:
            hint = list[hint]  # type: ignore[valid-type]
        elif kind is _VAR_KEYWORD:
            hint = dict[str, hint]  # type: ignore[valid-type]
        check_loose(list(value) if kind is _VAR_POSITIONAL else value, hint)

    def canonical(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Return what is the same for all calls that mean the same, defaults said or not."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _CANONICAL.encode(bound.arguments)

    def read(self, data: bytes | msgspec.Raw) -> Call:
        """Return the call that `write`, or anybody, wrote: an object by name, or a list.

        Raises BadArguments.
        """
        if data == _NOTHING and not self._signature.parameters:
            return (), {}
        try:
            if bytes(data).lstrip().startswith(b"["):
                data = self._named(msgspec.json.decode(data, type=list[msgspec.Raw]))
            return self._call(self._decoder.decode(data))
        except Exception as error:  # As above.
            raise BadArguments(task=self._task, reason=_reason(error)) from error

    def _named(self, values: list[msgspec.Raw]) -> bytes:
        given = self._signature.bind_partial(*values).arguments
        return msgspec.json.encode(given)

    def _call(self, values: object) -> Call:
        positional: list[object] = []
        named: dict[str, object] = {}
        spread = False
        parameters = self._signature.parameters.values()
        has_rest = any(parameter.kind is _VAR_POSITIONAL for parameter in parameters)
        for parameter in parameters:
            value = getattr(values, parameter.name)
            if value is msgspec.UNSET:
                if parameter.default is inspect.Parameter.empty:
                    continue
                value = _fresh(parameter.default)
            if parameter.kind is _VAR_POSITIONAL:
                positional.extend(value)
                spread = True
            elif parameter.kind is _VAR_KEYWORD:
                named.update(value)
            elif parameter.kind is _POSITIONAL or (
                has_rest and not spread and parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            ):
                positional.append(value)
            else:
                named[parameter.name] = value
        return tuple(positional), named

    def value_of(
        self,
        of: "str | Callable[..., object]",
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        """Return an argument by the name of its parameter, or what a function makes of all."""
        if callable(of):
            return of(*args, **kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments[of]

    def require_parameter(self, name: str) -> None:
        """Raise InvalidArgument unless there is a parameter of that name."""
        if name not in self._signature.parameters:
            raise InvalidArgument(f"task {self._task} has no parameter {name!r}")

    # Results -------------------------------------------------------------------------------

    def write_result(self, value: object) -> bytes:
        """Return a result as JSON. Raises BadResult."""
        if value is None and self._hints.get("return", None) in (None, type(None)):
            return _NULL
        try:
            if self._returns_loosely:
                check_loose(value, self._hints.get("return", Any))
            data = _ENCODER.encode(value)
            check_finite(data, value)
            self._result_decoder.decode(data)
            if len(data) > RESULT_BYTES_MAX:
                raise ValueError(
                    f"{len(data)} bytes, and at most {RESULT_BYTES_MAX} are kept; put it elsewhere "
                    "and return where"
                )
        except Exception as error:  # As above.
            raise BadResult(task=self._task, reason=f"its result: {_reason(error)}") from error
        return data

    def read_result(self, data: bytes | msgspec.Raw) -> object:
        """Return the result that `write_result` wrote. Raises BadResult."""
        try:
            return self._result_decoder.decode(data)
        except Exception as error:  # As above.
            raise BadResult(task=self._task, reason=f"its result: {_reason(error)}") from error


def is_loose(kind: object) -> bool:
    """Tell whether values of a type may come back as another, because it does not say which."""
    if kind in _LOOSE:
        return True
    return get_origin(kind) is not None and any(map(is_loose, get_args(kind)))


def check_loose(value: Any, kind: object) -> None:  # noqa: ANN401 - any value
    """Raise TypeError unless a value comes back as it is, as far as its type leaves that open."""
    if not is_loose(kind):
        return
    container = get_origin(kind) or kind
    parts = get_args(kind)
    if container in (Union, UnionType):
        if not any(not is_loose(part) and isinstance(value, _class_of(part)) for part in parts):
            check_plain(value)
    elif container in (list, tuple, set, frozenset) and isinstance(value, container):
        for each in value:
            check_loose(each, parts[0] if parts else Any)
    elif container is dict and isinstance(value, dict):
        for name, each in value.items():
            if not parts and not isinstance(name, str):
                raise TypeError(f"keys of plain JSON are text, not {type(name).__name__}")
            check_loose(each, parts[1] if parts else Any)
    else:
        check_plain(value)


def check_finite(data: bytes, value: object) -> None:
    """Raise TypeError if a number was written as null because JSON has none like it."""
    if b"null" in data and not _is_finite(msgspec.to_builtins(value, enc_hook=_encode_other)):
        raise TypeError("JSON has neither nan nor inf")


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple | set | frozenset) or all(map(_is_finite, value))


def check_plain(value: object, depth: int = 0) -> None:
    """Raise TypeError unless JSON gives back what it is given. Tuples come back as lists."""
    if value is None or isinstance(value, bool | str):
        return
    if depth > DEPTH_MAX:
        raise TypeError(f"nested more than {DEPTH_MAX} deep")
    kind = type(value)
    if kind is int:
        return
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise TypeError(f"JSON has no {value}")
    elif kind in (list, tuple):
        for each in value:  # type: ignore[attr-defined]
            check_plain(each, depth + 1)
    elif kind is dict:
        for name, each in value.items():  # type: ignore[attr-defined]
            if not isinstance(name, str):
                raise TypeError(f"keys of plain JSON are text, not {type(name).__name__}")
            check_plain(each, depth + 1)
    else:
        raise TypeError(
            f"{kind.__name__} is no plain JSON; annotate the parameter or result with its type"
        )


def _struct_of(fields: list[tuple[str, Any, Any]], task: str) -> type[msgspec.Struct]:
    try:
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"task {task}: {error}") from error


def _encode_other(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


def _decode_other(kind: type, value: object) -> object:
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")


def _annotated(function: Callable[..., object]) -> Callable[..., object]:
    """Return what has the annotations of a function, a partial one or an object that is called."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _known(kind: Any) -> Any:  # noqa: ANN401 - a type
    """Return a type as msgspec knows it: to it `object` is a class like any other."""
    if kind is object:
        return Any
    parts = get_args(kind)
    if not parts or object not in parts:
        return kind
    parts = tuple(map(_known, parts))
    if isinstance(kind, UnionType):
        return Union[parts]  # noqa: UP007 - there is no other way to make one of many.
    return kind.copy_with(parts) if hasattr(kind, "copy_with") else get_origin(kind)[parts]


def _class_of(kind: object) -> type:
    found = get_origin(kind) or kind
    return found if isinstance(found, type) else type(None)


def _fresh(default: object) -> object:
    """Return a default that no other run has changed."""
    return copy(default) if isinstance(default, list | dict | set) else default


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_CANONICAL: Final = msgspec.json.Encoder(enc_hook=_encode_other, order="deterministic")
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_encode_other)
