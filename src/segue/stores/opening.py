"""Which store a URL means."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.errors import InvalidArgument
from segue.log.disk import Disk
from segue.log.options import SYNC_INTERVAL_MS_DEFAULT, SyncName
from segue.stores.contract import Store

if TYPE_CHECKING:
    from segue.stores.file.store import FileStore

FILE_SCHEME = "file://"


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
) -> Store:
    """Open the store at `url`: a directory, as a path or as `file://…`.

    `sync` says when what was pushed has reached the device: "always" before the call returns,
    "interval" within `sync_interval_ms`, "os" when the operating system sees fit. `exclusive`
    keeps other processes out and is faster. Raises InvalidArgument, LogLocked, LogNotFound,
    UnsupportedFileSystem, UnsupportedFormat, StorageError.
    """
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


def directory_of(url: str | os.PathLike[str]) -> Path:
    """Return the directory that `url` names. Raises InvalidArgument."""
    text: object = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"a store is named by a path or URL: {url!r}")
    if text.startswith(FILE_SCHEME):
        text = text.removeprefix(FILE_SCHEME)
        if not text:
            raise InvalidArgument(f"{url!r} names no directory")
    elif "://" in text:
        scheme = text.partition("://")[0]
        raise InvalidArgument(f"no store speaks {scheme}://; give a path or file://<path>")
    return Path(text)


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
            root=path,
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            exclusive=exclusive,
            allow_network=allow_network,
            clock=clock,
            ticks=ticks,
            disk=disk or Disk(),
        ),
        create=create,
    )
