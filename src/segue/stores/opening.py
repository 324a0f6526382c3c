"""Which store a URL means."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.errors import InvalidArgument
from segue.extras import extra
from segue.log.disk import Disk
from segue.log.options import SYNC_INTERVAL_MS_DEFAULT, SyncName, sync_from
from segue.stores.contract import Store
from segue.stores.http.address import address_from, is_http
from segue.stores.redis.address import SCHEMES, is_redis
from segue.stores.redis.address import address_from as redis_address_from

if TYPE_CHECKING:
    from segue.stores.file.store import FileStore
    from segue.stores.http.store import HttpStore
    from segue.stores.redis.store import RedisStore

FILE_SCHEME = "file://"
TOKEN_VARIABLE = "SEGUE_TOKEN"
"""Where a token is looked for that is not given: not on a command line, which everybody sees."""
PORT_MAX: Final = (1 << 16) - 1
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HTTP: Final = re.compile(r"https?:", re.IGNORECASE)
"""What a URL of a Segue server begins with, however it goes on."""
_ENDPOINT: Final = re.compile(r"[^/\\]*:(?P<port>[0-9]{1,5})([/?#]|$)")


def open(
    url: str | os.PathLike[str],
    *,
    sync: SyncName = "always",
    sync_interval_ms: int = SYNC_INTERVAL_MS_DEFAULT,
    exclusive: bool = False,
    create: bool = True,
    allow_network: bool = False,
    clock: Clock = system_clock,
    ticks: Ticks = system_ticks,
    disk: Disk | None = None,
    token: str | None = None,
) -> Store:
    """Open the store at `url`: a path, or the URL of a server.

    `sync` says when what was pushed has reached the device: "always" before the call returns,
    "interval" within `sync_interval_ms`, "os" when the operating system sees fit. `exclusive`
    keeps other processes out and is faster. Raises InvalidArgument, LogLocked, LogNotFound,
    UnsupportedFileSystem, UnsupportedFormat, StorageError.

    `redis://host:6379/0`, `rediss://`, `unix:///path`, `redis+cluster://host,host`,
    `redis+sentinel://host,host/service` name servers (docs/redis.md). There the server's settings
    and the URL say what is durable, and its clock is everybody's. Needs the extra `redis`. Raises
    MissingExtra, StoreUnavailable, UnsupportedServer.

    `http://host:8000` and `https://host` name a Segue server (docs/server.md), which says what is
    durable; `token`, or SEGUE_TOKEN, is what it lets us in by. Needs the extra `http`. Raises
    AccessDenied, too.
    """
    is_manual = clock is not system_clock
    if isinstance(url, str) and (is_http(url) or is_redis(url)):
        _check_for_server(sync=sync, exclusive=exclusive)
    if isinstance(url, str) and is_http(url):
        return open_http(url, token=token, ticks=ticks if is_manual else None)
    if token is not None:
        raise InvalidArgument("a token is for http:// and https:// alone")
    if isinstance(url, str) and is_redis(url):
        return open_redis(
            url,
            create=create,
            clock=clock if is_manual else None,
            ticks=ticks if is_manual else None,
        )
    return open_directory(
        directory_of(url),
        sync=sync,
        sync_interval_ms=sync_interval_ms,
        exclusive=exclusive,
        create=create,
        allow_network=allow_network,
        clock=clock,
        ticks=ticks,
        disk=disk,
    )


def _check_for_server(*, sync: SyncName, exclusive: bool) -> None:
    """Refuse what no server can keep, and what nobody can mean. Raises InvalidArgument."""
    sync_from(sync)  # Which one is of no matter: the server says what is durable.
    if exclusive:
        raise InvalidArgument("exclusive is for directories alone: a server is shared")


def directory_of(url: str | os.PathLike[str]) -> Path:
    """Return the directory that `url` names. Raises InvalidArgument.

    Who misspells the URL of a server must not get a store here that nobody else knows of:
    `localhost:8000` is refused unless it is there, and `./localhost:8000` is a directory.
    """
    text: object = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"a store is named by a path or URL: {url!r}")
    if text.startswith(FILE_SCHEME):
        text = text.removeprefix(FILE_SCHEME)
        if not text:
            raise InvalidArgument(f"{url!r} names no directory")
    elif is_redis(text) or is_http(text):
        raise InvalidArgument("a directory is needed here, and that is a server")
    elif ":/" in text and text.partition(":/")[0] in SCHEMES:
        # Not quoted, here and below: it may have a password.
        raise InvalidArgument("a server is named with two slashes: redis://host")
    elif _HTTP.match(text):
        raise InvalidArgument(
            "a server is named as http://host:8000 or https://host; ./name is a directory"
        )
    elif "://" in text:
        scheme = text.partition("://")[0]
        named = f"no store speaks {scheme}://" if _SCHEME.fullmatch(scheme) else "no such URL"
        raise InvalidArgument(
            f"{named}; give a path, file://<path>, redis://<host> or http://<host>"
        )
    elif isinstance(url, str) and _is_endpoint(text):
        raise InvalidArgument(
            "a host and a port name no store: http://host:8000 is a server, ./name a directory"
        )
    return Path(text)


def _is_endpoint(text: str) -> bool:
    """Tell whether `text` is a host with a port, and no directory that is there."""
    found = _ENDPOINT.match(text)
    return (
        found is not None
        and int(found["port"]) <= PORT_MAX
        and not os.path.lexists(text.partition("/")[0])
    )


def open_directory(
    path: Path,
    *,
    sync: SyncName = "always",
    sync_interval_ms: int = SYNC_INTERVAL_MS_DEFAULT,
    exclusive: bool = False,
    create: bool = True,
    allow_network: bool = False,
    clock: Clock = system_clock,
    ticks: Ticks = system_ticks,
    disk: Disk | None = None,
) -> "FileStore":
    """Open the store in the directory `path`."""
    from segue.stores.file.place import Place
    from segue.stores.file.store import FileStore

    return FileStore(
        Place(
            # Now: who becomes a daemon goes to another directory, and its logs roll on.
            root=path.absolute(),
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            exclusive=exclusive,
            allow_network=allow_network,
            clock=clock,
            ticks=ticks,
            disk=disk or Disk(),
        ),
        url=str(path),
        create=create,
    )


def open_redis(
    url: str, *, create: bool = True, clock: Clock | None = None, ticks: Ticks | None = None
) -> "RedisStore":
    """Open the store on the server that `url` names. With a clock, that is everybody's time."""
    with extra("redis", needed_by="redis://"):
        from segue.stores.redis.store import RedisStore
    return RedisStore(redis_address_from(url), create=create, clock=clock, ticks=ticks)


def open_http(url: str, *, token: str | None = None, ticks: Ticks | None = None) -> "HttpStore":
    """Open the store behind the server that `url` names."""
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
    address = address_from(url, token)
    with extra("http", needed_by="http://"):
        from segue.stores.http.store import HttpStore
    return HttpStore(address, ticks=ticks)
