"""What the URL of a Redis store says, checked before anything is connected."""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from segue.errors import InvalidArgument
from segue.log.layout import checked_name
from segue.values import dataclass

Kind = Literal["single", "unix", "cluster", "sentinel"]

SCHEMES: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("unix", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
PORT_DEFAULT: Final = 6379
SENTINEL_PORT_DEFAULT: Final = 26379
CONNECTIONS_DEFAULT: Final = 32
CONNECTIONS_MAX: Final = 10_000
POOL_WAIT_SECONDS: Final = 4.0
TIMEOUT_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 15.0
RETRY_SECONDS_MAX: Final = 300.0
"""Well below how long the server remembers requests (functions/common.lua)."""
NAMESPACE_DEFAULT: Final = "segue"
SECONDS_MAX: Final = 86_400.0
REPLICAS_MAX: Final = 100
DATABASES_MAX: Final = 1 << 16

Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may follow the `?` of a URL."""

    namespace: str = NAMESPACE_DEFAULT
    """What every key begins with: stores of different namespaces share a server."""
    connections: int = CONNECTIONS_DEFAULT
    """How many connections to one server are open at most; half of them are kept when idle."""
    pool_wait: float = POOL_WAIT_SECONDS
    """How long a call waits for one of them to be free, in seconds."""
    timeout: float = TIMEOUT_SECONDS
    """How long the server may take to answer one try, or to accept a connection."""
    retry: float = RETRY_SECONDS
    """How long a call is tried again while the server cannot be reached or is being replaced."""
    replicas: int = 0
    """How many replicas must have a change before the call that made it returns."""
    fsync: bool = False
    """Whether a change must be in the server's append-only file, synced, before the call returns.
    The server must keep one."""
    ca: str = ""
    """A file with the certificates that are trusted, where TLS is used."""
    certificate: str = ""
    """A file with our own certificate, for a server that asks for one."""
    key: str = ""
    """A file with the key to it."""
    sentinel_username: str = ""
    """Who we are to sentinels that ask for it."""
    sentinel_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        checked_name(self.namespace)
        _check("connections", self.connections, 1, CONNECTIONS_MAX)
        _check("replicas", self.replicas, 0, REPLICAS_MAX)
        _check("pool_wait", self.pool_wait, 0, SECONDS_MAX)
        _check("timeout", self.timeout, 0.01, SECONDS_MAX)
        _check("retry", self.retry, 0, RETRY_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a store is, and how to talk to it."""

    kind: Kind
    endpoints: tuple[Endpoint, ...] = ()
    path: str = ""
    """Of the socket, where that is what the URL names."""
    service: str = ""
    """What the sentinels call the server."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_encrypted: bool = False
    options: Options = field(default_factory=Options)

    @property
    def url(self) -> str:
        """The URL without its password: what may be shown and logged."""
        scheme = next(
            name for name, said in SCHEMES.items() if said == (self.kind, self.is_encrypted)
        )
        user = f"{self.username}@" if self.username else ""
        said = [f"db={self.database}"] if self.kind == "unix" and self.database else []
        if self.options.namespace != NAMESPACE_DEFAULT:
            said.append(f"namespace={self.options.namespace}")
        query = "?" * bool(said) + "&".join(said)
        if self.kind == "unix":
            return f"{scheme}://{user}{self.path}{query}"
        hosts = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints
        )
        path = f"/{self.service}" if self.service else ""
        path += f"/{self.database}" if self.kind != "cluster" else ""
        return f"{scheme}://{user}{hosts}{path}{query}"


def is_redis(url: str) -> bool:
    """Tell whether `url` names a Redis store."""
    return url.partition("://")[0] in SCHEMES and "://" in url


def address_from(url: str) -> Address:
    """Return what `url` says. Raises InvalidArgument, without repeating a password."""
    scheme, _, rest = url.partition("://")
    kind, is_encrypted = SCHEMES[scheme]
    # Several hosts are no URL to the standard library: only what stands around them is.
    try:
        parts = urlsplit(f"redis://{rest}")
    except ValueError:
        raise InvalidArgument("a URL that cannot be read") from None  # It may have a password.
    if "@" in rest and "@" not in parts.netloc:
        raise InvalidArgument("in a login / ? # and @ are written %2F %3F %23 and %40")
    username, password = _login(parts.netloc)
    options, extra = _options(parts.query)
    hosts = parts.netloc.rpartition("@")[2]
    words = [unquote(word) for word in parts.path.split("/") if word]
    if kind == "unix":
        if not parts.path or hosts:
            raise InvalidArgument("a socket is named by its path: unix:///run/redis.sock")
        return Address(
            kind=kind,
            path=unquote(parts.path),
            database=_database(extra.pop("db", "0")),
            username=username,
            password=password,
            options=_nothing_left(extra, options),
        )
    service = ""
    if kind == "sentinel":
        if not words:
            raise InvalidArgument("the name of the service is missing: redis+sentinel://host/name")
        service = words.pop(0)
    if kind == "cluster" and (words or "db" in extra):
        raise InvalidArgument("a cluster has no numbered databases: leave the path away")
    if len(words) > 1:
        raise InvalidArgument(f"{parts.path!r} is not the number of a database")
    return Address(
        kind=kind,
        endpoints=_endpoints(hosts, many=kind != "single", sentinel=kind == "sentinel"),
        service=service,
        database=_database(words[0] if words else extra.pop("db", "0")),
        username=username,
        password=password,
        is_encrypted=is_encrypted,
        options=_nothing_left(extra, options),
    )


def _login(netloc: str) -> tuple[str | None, str | None]:
    said, _, _ = netloc.rpartition("@")
    if not said:
        return None, None
    username, _, password = said.partition(":")
    return unquote(username) or None, unquote(password) or None


def _endpoints(hosts: str, *, many: bool, sentinel: bool) -> tuple[Endpoint, ...]:
    port_default = SENTINEL_PORT_DEFAULT if sentinel else PORT_DEFAULT
    found = []
    for each in hosts.split(",") if many else [hosts]:
        host, port = each, str(port_default)
        if each.startswith("["):
            host, _, rest = each[1:].partition("]")
            if rest:
                port = rest.removeprefix(":")
        elif ":" in each:
            host, _, port = each.rpartition(":")
            if ":" in host:
                raise InvalidArgument("a host with colons is written in brackets: redis://[::1]")
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            # Not quoted: where the host was forgotten it is a password.
            raise InvalidArgument("what stands behind the colon is no port, from 1 to 65535")
        found.append((host or "localhost", int(port)))
    return tuple(found)


def _database(text: str) -> int:
    if not text.isdecimal() or int(text) >= DATABASES_MAX:
        raise InvalidArgument(f"{text!r} is not the number of a database")
    return int(text)


def _options(query: str) -> tuple[Options, dict[str, str]]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    values: dict[str, object] = {}
    for each in fields(Options):
        if each.name in given:
            values[each.name] = _parsed(each.name, given.pop(each.name), _PARSERS[each.type])
    return Options(**values), given  # type: ignore[arg-type]


def _nothing_left(extra: Mapping[str, str], options: Options) -> Options:
    if extra:
        known = ", ".join(each.name for each in fields(Options))
        raise InvalidArgument(f"unknown in a URL: {', '.join(extra)}; known are {known}")
    return options


def _parsed(name: str, text: str, parse: Callable[[str], object]) -> object:
    try:
        return parse(text)
    except ValueError:
        raise InvalidArgument(f"{name}={text!r} makes no sense") from None


def _flag(text: str) -> bool:
    if text.lower() in ("1", "yes", "true", "on"):
        return True
    if text.lower() in ("0", "no", "false", "off"):
        return False
    raise ValueError(text)


_PARSERS: Final[Mapping[object, Callable[[str], object]]] = {
    str: str,
    int: int,
    float: float,
    bool: _flag,
}


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} must be from {least:g} to {most:g}: {value!r}")
