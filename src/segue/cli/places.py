"""Where stores and logs are, as people write it: a directory, or the URL of a server.

One parser for each kind of argument. Nothing is opened here, and nothing that can open is imported.
"""

import re
from pathlib import Path
from typing import Final

import typer

FILE_SCHEME: Final = "file://"

_SEGUE_SCHEMES: Final = ("http://", "https://")
_SERVER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOGIN: Final = re.compile(r"://([^\s/:@?]*):\S*@")
"""Up to the last `@`: what stands before it may be a password that was not written as it should."""


def is_server(url: str) -> bool:
    """Tell whether `url` names a server and no directory; whether there is such a kind or not."""
    return _SERVER.match(url) is not None and not url.startswith(FILE_SCHEME)


def is_segue_server(url: str) -> bool:
    """Tell whether `url` names a Segue server, which has a store behind it."""
    return url.startswith(_SEGUE_SCHEMES)


def store_url(text: str | Path) -> str:
    """Return where a store is: the URL of a server as it was written, or a path."""
    # A path would make one slash of the two that a URL has, and drop what says that it is a path.
    text = str(text)
    if is_server(text) or text.startswith("./"):
        return text
    path = Path(text.removeprefix(FILE_SCHEME))
    is_bare = text.startswith(FILE_SCHEME) and not path.is_absolute()
    return f"./{path}" if is_bare else str(path)


def directory(text: str | Path) -> Path:
    """Return a directory. Raises BadParameter for a server."""
    url = store_url(text)
    if is_server(url):
        raise typer.BadParameter(
            f"{without_passwords(url)} is a server; this works on directories only"
        )
    return Path(url)


def without_passwords(text: str) -> str:
    """Return `text` with the passwords of all URLs in it left out."""
    return _LOGIN.sub(lambda found: f"://{found[1]}@" if found[1] else "://", text)
