"""The description at /openapi.json, made from the table of routes and from nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, cast
from weakref import WeakKeyDictionary

import msgspec

from segue import __version__
from segue.errors import SegueError
from segue.log.layout import NAME_CHARACTERS_MAX
from segue.server.examples import EXAMPLES
from segue.server.requests import KEY_BYTES_MAX
from segue.server.routing import Role, Route, Router
from segue.server.schemas import PLACE, Schemas, without_null
from segue.stores.http.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX, Kind
from segue.stores.http.wire.about import PREFIX

JSON: Final = "application/json"
_NAMES: Final = frozenset({"queue", "topic", "ring", "lock", "group", "reader", "producer"})
"""What stands in paths for a name that somebody chose."""
_NAME_PATTERN: Final = "^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_BY_ERROR: Final = {kind.error: kind for kind in KINDS}

_ELSEWHERE: Final = 302
"""Of routes that lead to another and give nothing themselves."""

Document = dict[str, object]

_ABOUT: Final = f"""\
Queues, topics, rings, locks and tasks of one store.

Bytes are text under their name where they are UTF-8, and else Base64 under the name with `_base64`
behind it. Times are microseconds since 1970, durations seconds. Errors are problem details
(RFC 9457): `code` is for programs and never changes, `detail` is for people. Whoever may repeat a
`POST` gives it an `Idempotency-Key`: it is done once, and every repetition gets the same answer.
Fields may be added to answers below `{PREFIX}`; none is removed or changes its meaning."""

_COMMON: Final = {
    401: "The token is missing, unknown, expired or withdrawn",
    403: "The token's roles or names do not allow this, the server is read-only, or a browser asks "
    "for another site",
    408: "The body did not come",
    413: "The body, or a record in it, is too large",
    422: "Another request had this Idempotency-Key",
    429: "Too many attempts, or there is no room; Retry-After says when to try again",
    431: "The headers are too large",
    500: "Something is wrong with what is stored, or with the server; see its log",
    503: "The store cannot be used now; Retry-After says when to try again",
    507: "There is no space left; nothing was changed",
}
"""What every route may answer, whatever it is about."""
_OTHERS: Final = {
    204: "There is none",
    _ELSEWHERE: "It is elsewhere: Location says where",
    304: "It is what If-None-Match names",
    400: "What was sent cannot be understood, or can never succeed",
    404: "There is no such thing",
    409: "It stands in the way of something else",
    410: "It was there and is no more",
    423: "It is locked; Retry-After says when to try again",
    501: "The server was installed without what this needs",
}
_OPEN: Final = frozenset({401, 403, 429, 500, 503})
"""Statuses whose codes are not all listed with a route."""
_BEFORE_THE_ROUTE: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("invalid_body", "invalid_argument", "invalid_name"),
    413: ("body_too_large",),
}
"""Codes of what is refused before a handler is asked."""


def description_of(routes: Iterable[Route]) -> Document:
    """Return what the routes do, as OpenAPI 3.1 says it."""
    table = tuple(routes)
    sent = (kind for route in table for kind in (route.body, route.answer) if kind is not None)
    schemas = Schemas(sent)
    paths: dict[str, dict[str, object]] = {}
    for route in table:
        operations = paths.setdefault(route.full_path, {})
        operations[route.method.lower()] = _operation(route, schemas)
    tags = dict.fromkeys(route.about for route in table)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Segue", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in tags],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.components.items())), "Problem": _PROBLEM},
            "responses": {
                _response_name(status): _problem(words) for status, words in _COMMON.items()
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "What `segue token add` prints. Needed unless the server is on "
                    "loopback and has no tokens.",
                }
            },
        },
    }


_made: "WeakKeyDictionary[Router, bytes]" = WeakKeyDictionary()


def description_json(router: Router) -> bytes:
    """Return the description of a server's routes as JSON, made once."""
    found = _made.get(router)
    if found is None:
        found = _made[router] = msgspec.json.encode(description_of(router.routes))
    return found


_PROBLEM: Final[dict[str, object]] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457). Some codes come with fields of their own.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "pattern": f"^{TYPE_PREFIX}"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "code", "detail"],
}


# Operations ------------------------------------------------------------------------------------


def _operation(route: Route, schemas: Schemas) -> Document:
    operation: Document = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": f"Role: {route.role.value}.",
        "tags": [route.about],
        "x-segue-role": route.role.value,
    }
    parameters = _parameters(route, schemas)
    if parameters:
        operation["parameters"] = parameters
    body = _body(route, schemas)
    if body is not None:
        operation["requestBody"] = body
    if route.role is Role.NOBODY:
        operation["security"] = []
    operation["responses"] = _responses(route, schemas)
    return operation


def _operation_id(route: Route) -> str:
    path = route.path + "index" * route.path.endswith("/")
    words = path.replace("{", "").replace("}", "").replace("-", "_").split("/")
    return "_".join(filter(None, [route.method.lower(), *words])).replace(".", "_")


def _parameters(route: Route, schemas: Schemas) -> list[Document]:
    found = [_in_path(part[1:-1]) for part in route.path.split("/") if part.startswith("{")]
    if route.query is not None:
        found += [
            {"name": name, "in": "query", "required": is_required, "schema": without_null(schema)}
            for name, (schema, is_required) in schemas.fields(route.query).items()
        ]
    if route.changes:
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Any text; the same for every repetition of one request.",
                "schema": {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX},
            }
        )
    return found


def _in_path(name: str) -> Document:
    schema: Document = {"type": "string", "minLength": 1}
    if name in _NAMES:
        schema |= {"maxLength": NAME_CHARACTERS_MAX, "pattern": _NAME_PATTERN}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _body(route: Route, schemas: Schemas) -> Document | None:
    if route.body is not None:
        content: Document = {"schema": schemas.of(route.body)}
        example = EXAMPLES.get((route.method, route.path))
        if example is not None and example.body is not None:
            content["example"] = example.body
        is_required = any(is_required for _, is_required in schemas.fields(route.body).values())
        return {"required": is_required, "content": {JSON: content}}
    if route.has_raw_body:
        return {"required": False, "content": {route.takes: {"schema": {}}}}
    return None


def _responses(route: Route, schemas: Schemas) -> Document:
    responses: dict[int, Document] = {}
    done = _done(route, schemas)
    if _ELSEWHERE not in route.statuses:
        responses[204 if done is None else 200] = done or {"description": "Done"}
    for status in route.statuses:
        responses.setdefault(status, _told(route, status, ()))
        if route.answer is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            # That something does not get on is an answer of routes that tell of it.
            part = cast("Document", responses[status]["content"])
            part[JSON] = {"schema": schemas.of(route.answer)}
    for status, codes in _codes(route).items():
        responses[status] = _told(route, status, codes)
    for status in _COMMON:
        responses.setdefault(status, {"$ref": f"#/components/responses/{_response_name(status)}"})
    return {str(status): responses[status] for status in sorted(responses)}


def _done(route: Route, schemas: Schemas) -> Document | None:
    """Return what 200 comes with; None if there is no 200."""
    content: Document = {}
    if route.answer is not None:
        content[JSON] = {"schema": schemas.of(route.answer)}
        example = EXAMPLES.get((route.method, route.path))
        if example is not None:
            content[JSON] = {"schema": schemas.of(route.answer), "example": example.answer}
    for media_type in route.gives:
        content.setdefault(media_type, {"schema": {}})
    return {"description": "Done", "content": content} if content else None


def _codes(route: Route) -> dict[int, set[str]]:
    """Return the codes of a route's errors by status."""
    found: dict[int, set[str]] = {}
    for error in route.errors:
        kind = kind_of_class(error)
        cases = (each for each in KINDS if issubclass(each.error, error))
        same = {each.code for each in cases if each.status == kind.status}
        found.setdefault(kind.status, set()).update({kind.code, *same})
    if route.changes or route.query is not None or route.body is not None:
        found.setdefault(400, set()).update(_BEFORE_THE_ROUTE[400])
    for status, codes in found.items():
        codes.update(_BEFORE_THE_ROUTE.get(status, ()))
    return found


def kind_of_class(error: type[SegueError]) -> Kind:
    """Return how errors of a class are told."""
    for class_ in error.__mro__:
        kind = _BY_ERROR.get(cast("type[SegueError]", class_))
        if kind is not None:
            return kind
    raise LookupError(f"no status for {error.__name__}")


def _told(route: Route, status: int, codes: Iterable[str]) -> Document:
    words = _OTHERS.get(status) or _COMMON.get(status) or "See the summary"
    if status < HTTPStatus.BAD_REQUEST:
        return {"description": words}
    is_dapr = JSON in route.gives
    listed = sorted(codes)
    if listed:
        words = f"{words}: {', '.join(listed)}"
    return _problem(words, codes=[] if status in _OPEN else listed, is_plain=is_dapr)


def _problem(words: str, *, codes: Sequence[str] = (), is_plain: bool = False) -> Document:
    schema: Document = {"$ref": PLACE + "Problem"}
    if codes:
        schema = {"allOf": [schema, {"properties": {"code": {"enum": codes}}}]}
    content: Document = {MEDIA_TYPE: {"schema": schema}}
    if is_plain:
        content[JSON] = {"schema": {}}
    return {"description": words, "content": content}


def _response_name(status: int) -> str:
    return f"Problem{status}"
