"""Where a store is: a directory that every executor sees, or a server that all of them reach.

A server's URL may hold a password, and a token may go with it. They travel to executors, and are
never part of what is shown.
"""

from typing import TYPE_CHECKING

from segue.errors import InvalidArgument
from segue.log.options import SyncName
from segue.stores.http.address import address_from as http_address_from
from segue.stores.http.address import is_http
from segue.stores.opening import directory_of, open_directory, open_http, open_redis
from segue.stores.redis.address import address_from as redis_address_from
from segue.stores.redis.address import is_redis

if TYPE_CHECKING:
    from segue.stores.file.store import FileStore
    from segue.stores.http.store import HttpStore
    from segue.stores.redis.store import RedisStore

    ServerStore = RedisStore | HttpStore
    AnyStore = FileStore | RedisStore | HttpStore


def is_server(url: str) -> bool:
    """Tell whether `url` names a server rather than a directory."""
    return is_redis(url) or is_http(url)


def absolute(url: str) -> str:
    """Return a URL that means the same wherever a task runs. Raises InvalidArgument."""
    if is_server(url):
        shown(url)
        return url
    return str(directory_of(url).absolute())


def shown(url: str) -> str:
    """Return what may be said of a URL, without its password. Raises InvalidArgument."""
    if is_http(url):
        return http_address_from(url).url
    return redis_address_from(url).url if is_redis(url) else url


def open_place(
    url: str,
    *,
    sync: SyncName = "always",
    allow_network: bool = False,
    token: str | None = None,
) -> "AnyStore":
    """Open a store that is there. Raises LogNotFound, StoreUnavailable and what opening raises."""
    if is_server(url):
        return open_server(url, token=token)
    return open_directory(directory_of(url), sync=sync, create=False, allow_network=allow_network)


def open_server(url: str, *, token: str | None = None) -> "ServerStore":
    """Open a store on a server. Raises LogNotFound, StoreUnavailable and what opening raises."""
    return open_http(url, token=token) if is_http(url) else open_redis(url, create=False)


def place_options(url: str, *, allow_network: bool) -> dict[str, str]:
    """Return the options that say where a table is."""
    if is_server(url):
        return {"url": url}
    return {"url": url, "allowNetwork": str(allow_network).lower()}


def require_directory(url: str, what: str) -> None:
    """Raise InvalidArgument for a server, where `what` cannot be had."""
    if is_server(url):
        raise InvalidArgument(f"{what} needs a store in a directory, and {shown(url)} is a server")
