"""What the server says of itself."""

from typing import Final

from segue import __version__
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.stores.file.store import FileStore
from segue.stores.http.wire.about import API, About


def about(call: Call) -> About:
    """Tell who answers."""
    store = call.store
    is_directory = isinstance(store, FileStore)
    return About(
        server="segue",
        version=__version__,
        api=API,
        store="directory" if is_directory else "redis",
        durable=store.place.sync if isinstance(store, FileStore) else "redis",
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="",
        summary="Tell who answers, and how durable what it acknowledges is",
        role=Role.ANY,
        handle=about,
        answer=About,
        is_quick=True,
    ),
)
