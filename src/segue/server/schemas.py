"""JSON schemas of the structs that are sent and answered.

As `msgspec.json.schema_components` makes them, and with what that leaves out: what the docstring
below a field says of it, and fields whose default is raw JSON.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import inspect as types

Schema = dict[str, object]
PLACE: Final = "#/components/schemas/"
_NULL: Final = {"type": "null"}


class Schemas:
    """The schemas of some structs and of all they are made of."""

    def __init__(self, kinds: Iterable[type[msgspec.Struct]]) -> None:
        self.components: dict[str, Schema] = {}
        self._kinds: dict[str, type] = {}
        for kind in dict.fromkeys(kinds):
            self.of(kind)

    def of(self, kind: type[msgspec.Struct]) -> Schema:
        """Return where the schema of a struct lies."""
        info = types.type_info(kind)
        assert isinstance(info, types.StructType)
        return self._struct(info)

    def fields(self, kind: type[msgspec.Struct]) -> dict[str, tuple[Schema, bool]]:
        """Return the schema of each field, and whether it is required; the struct is not listed."""
        info = types.type_info(kind)
        assert isinstance(info, types.StructType)
        said = _said_of_fields(kind)
        return {
            field.encode_name: (self._field(field, said), field.required) for field in info.fields
        }

    def _struct(self, info: types.StructType) -> Schema:
        name = self._name(info.cls)
        if name not in self.components:
            self._kinds[name] = info.cls
            schema: Schema = {"title": info.cls.__name__, "type": "object"}
            self.components[name] = schema  # Before its fields: they may be of its own type.
            if doc := info.cls.__dict__.get("__doc__"):
                schema["description"] = inspect.cleandoc(doc)
            fields = self.fields(info.cls)
            schema["properties"] = {each: field for each, (field, _) in fields.items()}
            schema["required"] = [each for each, (_, is_required) in fields.items() if is_required]
            if info.forbid_unknown_fields:
                schema["additionalProperties"] = False
        return {"$ref": PLACE + name}

    def _name(self, kind: type) -> str:
        """Return what a struct is called: its name, and where it is from if that is taken."""
        for name in (kind.__name__, f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"):
            if self._kinds.get(name, kind) is kind:
                return name
        return f"{kind.__module__}.{kind.__name__}"

    def _field(self, field: types.Field, said: dict[str, str]) -> Schema:
        schema = self._schema(field.type)
        if field.name in said:
            schema["description"] = said[field.name]
        default = field.default
        if isinstance(default, bool | int | float | str):
            schema["default"] = default
        elif default is None:
            schema["default"] = None
        return schema

    def _schema(self, info: types.Type) -> Schema:
        match info:
            case types.Metadata():
                return {**self._schema(info.type), **(info.extra_json_schema or {})}
            case types.StructType():
                return self._struct(info)
            case types.UnionType():
                return {"anyOf": [self._schema(each) for each in info.types]}
            case types.ListType():
                items: Schema = {"type": "array", "items": self._schema(info.item_type)}
                return items | _bounds(minItems=info.min_length, maxItems=info.max_length)
            case types.TupleType():
                members = [self._schema(each) for each in info.item_types]
                size = len(members)
                return {
                    "type": "array",
                    "prefixItems": members,
                    "minItems": size,
                    "maxItems": size,
                    "items": False,
                }
            case types.DictType():
                return {
                    "type": "object",
                    "additionalProperties": self._schema(info.value_type),
                }
            case types.LiteralType():
                return {"enum": list(info.values)}
            case types.EnumType():
                return {"enum": [each.value for each in info.cls]}
            case _:
                return _plain(info)


def _plain(info: types.Type) -> Schema:
    match info:
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType():
            return {"type": "integer"} | _bounds(minimum=info.ge, maximum=info.le)
        case types.FloatType():
            return {"type": "number"} | _bounds(minimum=info.ge, maximum=info.le)
        case types.StrType():
            text: Schema = {"type": "string"}
            return text | _bounds(minLength=info.min_length, maxLength=info.max_length)
        case types.BytesType():
            return {"type": "string", "contentEncoding": "base64"}
        case types.NoneType():
            return dict(_NULL)
        case types.AnyType() | types.RawType():
            return {}
        case types.CustomType() if info.cls is object:
            return {}
        case _:
            raise NotImplementedError(f"no schema for {info}")


def _bounds(**bounds: float | None) -> Schema:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def without_null(schema: Schema) -> Schema:
    """Return what can be said in a query, where leaving out is the way to say nothing."""
    choices = schema.get("anyOf")
    rest = {
        name: value
        for name, value in schema.items()
        if name != "anyOf" and not (name == "default" and value is None)
    }
    if not isinstance(choices, list):
        return rest
    left = [each for each in choices if each != _NULL]
    return {**left[0], **rest} if len(left) == 1 else {**rest, "anyOf": left}


def _said_of_fields(kind: type) -> dict[str, str]:
    """Return what the docstrings below the fields of a class say, with those of its bases."""
    said: dict[str, str] = {}
    for class_ in reversed(kind.__mro__):
        if class_.__module__.startswith("segue."):
            said |= _said_in(class_.__module__).get(class_.__name__, {})
    return said


@lru_cache
def _said_in(module: str) -> dict[str, dict[str, str]]:
    """Return what the docstrings below fields say, by class, in a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}  # Without its source there is nothing to read.
    classes = (each for each in tree.body if isinstance(each, ast.ClassDef))
    return {each.name: _docstrings_in(each) for each in classes}


def _docstrings_in(definition: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            name, said = field.target, below.value
            if isinstance(name, ast.Name) and isinstance(said, ast.Constant):
                found[name.id] = inspect.cleandoc(str(said.value))
    return found
