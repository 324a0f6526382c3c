"""What the server does, told by itself: /openapi.json for programs and /docs for people."""

from typing import Final

from segue.server.call import Call
from segue.server.openapi import JSON, description_json
from segue.server.page_files import MEDIA_TYPES, PageFiles
from segue.server.routing import Reply, Role, Route

_FILES: Final = PageFiles()
_HEADERS: Final = ((b"cache-control", b"no-cache"),)


def openapi(call: Call) -> Reply:
    """Return the description of every route."""
    return Reply(body=description_json(call.desk.router), headers=_HEADERS)


def _page_route(path: str, name: str, summary: str) -> Route:
    async def handle(call: Call) -> Reply:
        return _FILES.reply(name, call.headers)

    return Route(
        method="GET",
        path=path,
        summary=summary,
        role=Role.NOBODY,
        about="description",
        handle_async=handle,
        gives=(MEDIA_TYPES[name[name.rindex(".") :]].partition(";")[0],),
        statuses=(304,),
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
