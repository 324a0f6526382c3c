"""The description at /openapi.json: all of the routes, nothing but the routes, and sound."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import jsonschema_rs
import msgspec
import pytest

from segue.server.examples import EXAMPLES
from segue.server.openapi import description_of, kind_of_class
from segue.server.routes import ALL
from segue.server.routing import Role, Route
from tests.contract.worlds import HttpWorld
from tests.integration.server_support import Client, Failures

Json = dict[str, object]
PAGES: Final = Path("src/segue/server/pages")


@pytest.fixture(scope="module")
def description() -> Json:
    """As a client reads it."""
    return cast("Json", json.loads(msgspec.json.encode(description_of(ALL))))


def part(value: object, *names: str) -> Json:
    """Return what lies at a path of names."""
    for name in names:
        assert isinstance(value, dict), (name, value)
        value = value[name]
    assert isinstance(value, dict)
    return value


def operation_of(description: Json, route: Route) -> Json:
    return part(description, "paths", route.full_path, route.method.lower())


def every(value: object) -> Iterator[Json]:
    """Yield every object in a document."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from every(each)
    elif isinstance(value, list):
        for each in value:
            yield from every(each)


def test_every_route_is_described_and_nothing_else(description: Json) -> None:
    """The table is the only source."""
    described = {
        (method.upper(), path)
        for path, operations in part(description, "paths").items()
        for method in cast("Json", operations)
    }

    assert described == {(route.method, route.full_path) for route in ALL}


def test_operations_have_ids_of_their_own(description: Json) -> None:
    """Generated clients name their functions by them."""
    ids = [str(operation_of(description, route)["operationId"]) for route in ALL]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[A-Za-z0-9_]+", each) for each in ids)


def test_every_reference_leads_somewhere(description: Json) -> None:
    """And every schema that is listed is used."""
    found = {str(each["$ref"]) for each in every(description) if "$ref" in each}
    for reference in found:
        assert part(description, *reference.removeprefix("#/").split("/"))

    listed = {f"#/components/schemas/{name}" for name in part(description, "components", "schemas")}
    assert listed - found == set()


def test_schemas_are_valid(description: Json) -> None:
    """By the dialect that OpenAPI 3.1 goes by."""
    for name in part(description, "components", "schemas"):
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": f"#/components/schemas/{name}",
            "components": description["components"],
        }
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.validator_for(schema)


def test_an_operation_says_all_there_is_to_say(description: Json) -> None:
    """Its parameters, its body, every error it names, and who may ask."""
    failures = Failures()
    for route in ALL:
        with failures.case(f"{route.method} {route.path}"):
            check_operation(description, route)

    failures.check()


def check_operation(description: Json, route: Route) -> None:
    """Hold one operation of the description to its route."""
    operation = operation_of(description, route)
    parameters = cast("list[Json]", operation.get("parameters", []))
    by_place = {
        place: {each["name"] for each in parameters if each["in"] == place}
        for place in ("path", "query", "header")
    }

    assert by_place["path"] == set(re.findall(r"\{(\w+)\}", route.path))
    fields = route.query.__struct_encode_fields__ if route.query is not None else ()
    assert by_place["query"] == set(fields)
    assert ("Idempotency-Key" in by_place["header"]) == route.changes
    assert ("requestBody" in operation) == (route.body is not None or route.has_raw_body)
    assert (operation.get("security") == []) == (route.role is Role.NOBODY)
    responses = part(operation, "responses")
    assert {"200", "204", "302"} & set(responses)
    for error in route.errors:
        kind = kind_of_class(error)
        assert kind.code in str(responses[str(kind.status)])
    assert {"401", "403", "500", "503"} <= set(responses)


def test_examples_fit_their_types() -> None:
    """An example that a server would refuse, or never give, helps nobody."""
    failures = Failures()
    for key in EXAMPLES:
        with failures.case(" ".join(key)):
            check_example(key)

    failures.check()


def check_example(key: tuple[str, str]) -> None:
    """Hold one example to the types of its route."""
    (route,) = [each for each in ALL if (each.method, each.path) == key]
    example = EXAMPLES[key]

    assert (example.body is None) == (route.body is None)
    if route.body is not None:
        msgspec.json.decode(msgspec.json.encode(example.body), type=route.body)
    assert (example.answer is None) == (route.answer is None)
    if route.answer is not None:
        msgspec.json.decode(msgspec.json.encode(example.answer), type=route.answer)


# Served ------------------------------------------------------------------------------------------


@pytest.fixture
def world(scratch: Path) -> Iterator[HttpWorld]:
    world = HttpWorld(scratch / "data")
    yield world
    world.end()


def test_the_description_is_served(world: HttpWorld, description: Json) -> None:
    """The same that is made from the table."""
    client = Client(world.url)
    told = client.get("/openapi.json")
    client.close()

    assert told == (200, description)


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/docs.css", "text/css; charset=utf-8"),
        ("/docs/docs.js", "text/javascript; charset=utf-8"),
    ],
)
def test_pages_are_served_with_a_policy(world: HttpWorld, path: str, media_type: str) -> None:
    """Nothing inline, nothing from elsewhere."""
    client = Client(world.url)
    headers, body = client.raw("GET", path)
    client.close()

    assert headers["content-type"] == media_type
    if path == "/docs":
        (policy,) = headers.get_all("content-security-policy", [])
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
    assert len(body) == int(headers["content-length"])


def test_pages_load_nothing_from_elsewhere() -> None:
    """No CDN, no inline code or style, and no text that could become markup."""
    html = (PAGES / "docs.html").read_text()
    script = (PAGES / "docs.js").read_text()

    assert re.findall(r"(?:src|href)=\"(?!/)", html) == []
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", html)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http"):
        assert name not in script.replace("https://", "http"), name


def test_pages_lie_in_the_package() -> None:
    """A wheel without them would serve nothing."""
    package_data = Path("pyproject.toml").read_text()

    for page in PAGES.iterdir():
        if page.suffix in {".html", ".css", ".js"}:
            assert f"server/pages/*{page.suffix}" in package_data
