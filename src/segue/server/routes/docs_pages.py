"""What the server does, told by itself: /openapi.json for programs and /docs for people."""

from functools import lru_cache
from importlib.resources import files
from typing import Final

from segue.server.call import Call
from segue.server.openapi import JSON, description_json
from segue.server.routing import Reply, Role, Route

_HEADERS: Final = ((b"cache-control", b"no-cache"),)
"""A new version may come at the same address. What a page may load, the application says."""
_MEDIA_TYPES: Final = {
    "docs.html": "text/html; charset=utf-8",
    "docs.css": "text/css; charset=utf-8",
    "docs.js": "text/javascript; charset=utf-8",
}


def openapi(call: Call) -> Reply:
    """Return the description of every route."""
    return Reply(body=description_json(call.desk.router), headers=_HEADERS)


@lru_cache
def page(name: str) -> Reply:
    """Return a static page."""
    data = (files("segue.server.pages") / name).read_bytes()
    return Reply(body=data, media_type=_MEDIA_TYPES[name], headers=_HEADERS)


def _page_route(path: str, name: str, summary: str) -> Route:
    def handle(call: Call) -> Reply:
        del call
        return page(name)

    return Route(
        method="GET",
        path=path,
        summary=summary,
        role=Role.NOBODY,
        about="description",
        handle=handle,
        gives=(_MEDIA_TYPES[name].partition(";")[0],),
        is_quick=True,
        is_absolute=True,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/openapi.json",
        summary="Describe every operation, as OpenAPI 3.1",
        role=Role.NOBODY,
        about="description",
        handle=openapi,
        gives=(JSON,),
        is_absolute=True,
    ),
    _page_route("/docs", "docs.html", "Show the description to people"),
    _page_route("/docs/docs.css", "docs.css", "How that page looks"),
    _page_route("/docs/docs.js", "docs.js", "What that page does"),
)
