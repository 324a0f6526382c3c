"""The dashboard at /dash/: static files, which ask the API as any client does."""

from typing import Final

from segue.server.call import Call
from segue.server.page_files import MEDIA_TYPES, PAGES, PageFiles
from segue.server.routing import AsyncHandler, Reply, Role, Route

INDEX: Final = "index.html"
_FILES: Final = PageFiles(PAGES / "dash")
_THERE: Final = Reply(
    status=302,
    body=b"see dash/\n",
    media_type="text/plain; charset=utf-8",
    # Relative, so that it holds behind a proxy that serves us below a path of its own.
    headers=((b"location", b"dash/"), (b"cache-control", b"no-cache")),
)


# In the event loop, which needs no store and no thread: the page must come, and say what is wrong,
# also while all threads are stuck.


async def to_dashboard(call: Call) -> Reply:
    """Send a browser to the dashboard."""
    del call
    return _THERE


async def index(call: Call) -> Reply:
    """Return the page."""
    return _FILES.reply(INDEX, call.headers)


async def file(call: Call) -> Reply:
    """Return what the page loads."""
    return _FILES.reply(call.names[0], call.headers)


def _route(
    path: str,
    summary: str,
    handle: AsyncHandler,
    *,
    gives: tuple[str, ...] = (),
    statuses: tuple[int, ...],
) -> Route:
    return Route(
        method="GET",
        path=path,
        summary=summary,
        role=Role.NOBODY,
        about="dashboard",
        handle_async=handle,
        gives=gives,
        statuses=statuses,
        is_absolute=True,
    )


_KINDS: Final = tuple(each.partition(";")[0] for each in MEDIA_TYPES.values())

ROUTES: Final = (
    _route("/", "Lead a browser to the dashboard", to_dashboard, statuses=(302,)),
    _route("/dash", "Lead a browser to the dashboard", to_dashboard, statuses=(302,)),
    _route("/dash/", "Show the dashboard", index, gives=("text/html",), statuses=(304,)),
    _route("/dash/{file}", "What the dashboard loads", file, gives=_KINDS, statuses=(304, 404)),
)
