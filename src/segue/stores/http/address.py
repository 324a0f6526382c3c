"""What a URL of a Segue server means: `http(s)://host:port/?option=value`."""

from dataclasses import field, fields, replace
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from segue.errors import InvalidArgument
from segue.values import dataclass

SCHEMES: Final = ("http", "https")
PORT_DEFAULT: Final = 8000
TLS_PORT_DEFAULT: Final = 443
CONNECTIONS_DEFAULT: Final = 16
CONNECTIONS_MAX: Final = 10_000
SECONDS_MAX: Final = 3_600.0
RETRY_SECONDS_MAX: Final = 300.0
"""Well below how long a server remembers its answers: what is repeated later is done twice."""
API_PATH: Final = "/api/v1"
"""What stands before every path but those of the seed; the client puts it there by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to talk to a server: what a URL may say behind its question mark."""

    connections: int = CONNECTIONS_DEFAULT
    """How many connections there are at most, and as many again for who waits; half stay open."""
    pool_wait: float = 4.0
    """How long to wait for one of them."""
    timeout: float = 10.0
    """How long an answer may take, besides what was to be waited for."""
    retry: float = 10.0
    """How long a request is repeated if the server does not answer. Then nobody knows whether it
    was done, and to ask again under the same key would be too late."""
    ca: str = ""
    """A file with the certificates to trust instead of the machine's."""

    def __post_init__(self) -> None:
        _check("connections", self.connections, 1, CONNECTIONS_MAX)
        _check("pool_wait", self.pool_wait, 0, SECONDS_MAX)
        _check("timeout", self.timeout, 0.01, SECONDS_MAX)
        _check("retry", self.retry, 0, RETRY_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is, and how to talk to it."""

    host: str
    """In ASCII, whatever it is called: as it stands in headers and certificates."""
    port: int
    is_encrypted: bool
    path: str = ""
    """What stands before every path, where a proxy puts the server below one."""
    token: str | None = field(default=None, repr=False)
    options: Options = field(default_factory=Options)

    @property
    def url(self) -> str:
        """The URL without a token: what may be shown and logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.is_encrypted}://{host}:{self.port}{self.path}"


def is_http(url: str) -> bool:
    """Tell whether `url` names a Segue server."""
    return url.startswith(("http://", "https://"))


def address_from(url: str, token: str | None = None) -> Address:
    """Return what `url` says. Raises InvalidArgument, without repeating a token."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidArgument("a URL that cannot be read") from None  # It may have a token.
    if parts.username is not None:
        raise InvalidArgument("a token is given as token=…, or SEGUE_TOKEN, and not in the URL")
    if not parts.hostname:
        raise InvalidArgument("the host is missing: http://host:8000")
    host = _ascii(parts.hostname)
    if port == 0 or not host or not _is_path(parts.path):
        raise InvalidArgument("a host, a port from 1 to 65535 and a path of plain characters")
    if token is not None and not _is_token(token):
        raise InvalidArgument("a token is printable text")
    is_encrypted = parts.scheme == "https"
    address = Address(
        host=host,
        port=(TLS_PORT_DEFAULT if is_encrypted else PORT_DEFAULT) if port is None else port,
        is_encrypted=is_encrypted,
        path=parts.path.rstrip("/"),
        token=token,
        options=_options(parts.query),
    )
    if address.path.endswith(API_PATH):
        right = replace(address, path=address.path.removesuffix(API_PATH)).url
        raise InvalidArgument(f"{API_PATH} is no part of the URL, which is {right}")
    return address


def _ascii(host: str) -> str:
    """Return the name that others know a host by, "" if it can be none."""
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        return ""
    return name if name.isprintable() and " " not in name else ""


def _is_token(token: object) -> bool:
    return isinstance(token, str) and token != "" and token.isascii() and token.isprintable()


def _is_path(path: str) -> bool:
    return path.isascii() and path.isprintable() and " " not in path


def _options(query: str) -> Options:
    given = dict(parse_qsl(query, keep_blank_values=True))
    values: dict[str, object] = {}
    for each in fields(Options):
        if each.name in given:
            text = given.pop(each.name)
            try:
                values[each.name] = each.type(text)  # type: ignore[operator]
            except ValueError:
                raise InvalidArgument(f"{each.name}={text!r} makes no sense") from None
    if given:
        known = ", ".join(each.name for each in fields(Options))
        raise InvalidArgument(f"unknown in a URL: {', '.join(given)}; known are {known}")
    return Options(**values)  # type: ignore[arg-type]


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be from {least:g} to {most:g}: {value!r}")
