"""Who may do what: tokens, roles, and the names they are good for.

Also what a browser may do: it carries requests of any page to any server it reaches, this one on
the loopback among them. So a page from elsewhere is told nothing and changes nothing.
"""

import ipaddress
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from segue.clock import Clock, system_clock
from segue.errors import UnsupportedFormat
from segue.server.refusal import Headers, Refused
from segue.server.routing import Role, Route
from segue.server.samples import HISTORY_TOPIC
from segue.server.tokens import PREFIX, Token, is_secret, read_tokens
from segue.values import dataclass

logger = logging.getLogger(__name__)

AUDIT_TOPIC: Final = "segue.audit"
"""Only who may do everything gets at it: else whoever may append could forge it."""
FAILURES_MAX: Final = 10
"""How many wrong tokens an address may send in FAILURES_SECONDS."""
FAILURES_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 10_000
HOSTS_KEPT: Final = 1_000
LOOK_SECONDS: Final = 1.0
"""How soon a change to the file of tokens counts."""
PREFLIGHT_SECONDS: Final = 600

_FOR_ALL: Final = (Role.ANY, Role.NOBODY)
_LOOKS: Final = (Role.READ, *_FOR_ALL)
"""Of routes that change nothing, by whichever method they are asked."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})
_LOCAL_NAMES: Final = ("localhost",)
_HOST: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")
"""An address in brackets, or a name or an address, and a port: and nothing else behind them."""
_CORS_METHODS: Final = b"GET, POST, PUT, DELETE"
_CORS_HEADERS: Final = (
    b"authorization, content-type, idempotency-key, last-event-id, prefer, traceparent"
)

Scope = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the holder of a token may do."""

    name: str
    """Whose token it is, for the logs; never the token itself."""
    roles: frozenset[Role]
    patterns: tuple[str, ...] = ("*",)
    """Which queues, topics, rings and locks, as shells match names."""
    id: str = ""
    """Of the token; empty where none was needed."""
    is_limited: bool = field(init=False)
    """Whether there are names it is not good for."""
    is_admin: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_limited", "*" not in self.patterns)
        object.__setattr__(self, "is_admin", Role.ADMIN in self.roles)

    def allows(self, role: Role) -> bool:
        """Tell whether the roles are enough."""
        return self.is_admin or role in self.roles or role in _FOR_ALL

    def covers(self, name: str) -> bool:
        """Tell whether a queue, topic, ring or lock of that name is meant."""
        return not self.is_limited or any(fnmatchcase(name, each) for each in self.patterns)


EVERYTHING: Final = Grant(name="anonymous", roles=frozenset({Role.ADMIN}))
"""Of whoever reaches a server that asks for no token."""
LOOKING: Final = Grant(name="anonymous", roles=frozenset({Role.READ}))
"""The same where nobody may change anything."""
NOTHING: Final = Grant(name="anonymous", roles=frozenset())
"""Of whoever asks for what needs no token, on a server that otherwise does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    digest: bytes
    expires_us: int | None
    grant: Grant


class KnownTokens:
    """The tokens of a file, as it is now or was a second ago. For the event loop alone."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file, if there is one. Raises UnsupportedFormat, OSError."""
        self.path = path
        self._clock = clock
        self._monotonic = monotonic
        self._entries: dict[bytes, _Entry] = {}
        self._seen: tuple[int, int, int] | None = None
        self._look_at = monotonic() + LOOK_SECONDS
        self.are_needed = False
        """Whether there is, or ever was, such a file: from then on nobody gets in without one."""
        self._read()

    def __len__(self) -> int:
        return len(self._entries)

    def look(self) -> None:
        """Read the file anew if it has changed, and the last look was a while ago."""
        now = self._monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        try:
            self._read()
        except (UnsupportedFormat, OSError) as error:
            logger.warning("tokens stay as they were path=%s reason=%s", self.path, error)

    def _read(self) -> None:
        try:
            status = self.path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen == self._seen:
                return
            self._entries = {token.id.encode(): _entry(token) for token in read_tokens(self.path)}
        except UnsupportedFormat:
            self._seen = seen  # Told once: it gets no better by itself, as other errors may.
            raise
        except FileNotFoundError:
            if self._entries:
                logger.warning("the file of tokens is gone, nobody gets in path=%s", self.path)
            self._seen = None
            self._entries = {}
            return
        self._seen = seen
        self.are_needed = True
        logger.info("tokens read path=%s count=%d", self.path, len(self._entries))

    def grant_of(self, said: bytes) -> Grant | None:
        """Return what an Authorization header grants, None if it is not known or over."""
        scheme, _, text = said.partition(b" ")
        prefix, _, rest = text.strip().partition(b"_")
        id_, _, secret = rest.partition(b"_")
        if scheme.lower() != b"bearer" or prefix != PREFIX:
            return None
        entry = self._entries.get(id_)
        if not is_secret(secret, None if entry is None else entry.digest) or entry is None:
            return None
        if entry.expires_us is not None and entry.expires_us <= self._clock():
            return None
        return entry.grant

    def is_good(self, grant: Grant) -> bool:
        """Tell whether a grant that was given still stands."""
        self.look()
        entry = self._entries.get(grant.id.encode())
        return (
            entry is not None
            and entry.grant == grant
            and (entry.expires_us is None or entry.expires_us > self._clock())
        )


def _entry(token: Token) -> _Entry:
    grant = Grant(
        name=token.name,
        id=token.id,
        roles=frozenset(map(Role, token.roles)),
        patterns=token.names,
    )
    digest = bytes.fromhex(token.sha256)
    return _Entry(digest=digest, expires_us=token.expires_us, grant=grant)


class Failures:
    """How often an address failed of late. Forgets those that failed longest ago."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_address: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """Take note of one; return after how many seconds to try again, 0 for at once."""
        now = self._monotonic()
        began, count = self._by_address.get(address, (now, 0))
        if now - began >= FAILURES_SECONDS:
            began, count = now, 0
        count = min(count + 1, FAILURES_MAX + 1)
        self._by_address[address] = began, count
        self._by_address.move_to_end(address)
        if len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        return 0 if count <= FAILURES_MAX else max(1, round(began + FAILURES_SECONDS - now))


class Guard:
    """Decides who gets in. For the event loop alone."""

    def __init__(
        self,
        tokens: KnownTokens | None = None,
        *,
        hosts: Collection[str] = (),
        cors_origins: Collection[str] = (),
        is_read_only: bool = False,
        failures: Failures | None = None,
    ) -> None:
        self.tokens = tokens
        self.is_read_only = is_read_only
        """Whether nobody may change anything, whatever the token."""
        self.cors_origins = frozenset(origin.encode() for origin in cors_origins)
        """Whose pages may ask, and read the answers."""
        self._hosts = {host.lower() for host in (*hosts, *_LOCAL_NAMES)}
        self._hosts_seen: set[bytes] = set()
        self._failures = failures or Failures()

    def is_good(self, grant: Grant) -> bool:
        """Tell whether what was granted still stands: a stream may last longer than a token."""
        return self.tokens is None or not self.tokens.are_needed or self.tokens.is_good(grant)

    def admit(
        self, scope: Scope, route: Route, names: list[str], headers: Mapping[bytes, bytes]
    ) -> Grant:
        """Return what whoever asks may do. Raises Refused if that is not this."""
        if b"sec-fetch-site" in headers or b"origin" in headers:
            self._check_page(scope["method"], headers)
        if self.is_read_only and route.changes and route.role not in _LOOKS:
            raise Refused(
                403, "read_only", "this server only shows; segue dash --allow-acts lets it act, too"
            )
        tokens = self.tokens
        if tokens is not None:
            tokens.look()
            if tokens.are_needed:
                return self._known(tokens, scope, route, names, headers)
        if route.role is not Role.NOBODY:
            host = headers.get(b"host", b"")
            if host not in self._hosts_seen:
                self._check_host(host)
        return LOOKING if self.is_read_only else EVERYTHING

    # Tokens --------------------------------------------------------------------------------

    def _known(
        self,
        tokens: KnownTokens,
        scope: Scope,
        route: Route,
        names: list[str],
        headers: Mapping[bytes, bytes],
    ) -> Grant:
        role = route.role
        if role is Role.NOBODY:
            return NOTHING
        said = headers.get(b"authorization") or _from_dapr(headers)
        if said is None:
            raise _unknown("a token is needed: Authorization: Bearer segue_…", b"Bearer")
        grant = tokens.grant_of(said)
        if grant is None:
            # Whoever has a good token gets in meanwhile: the limit is there so that wrong ones are
            # not worth sending, and must not lock out all others behind the same address.
            again = self._failures.count(scope["client"][0] if scope["client"] else "")
            if again:
                raise Refused(429, "too_many_failures", "too many wrong tokens", retry=again)
            raise _unknown("this token is not known, or is over", b'Bearer error="invalid_token"')
        if names and is_for_admins(route, names[0]):
            role = Role.ADMIN
        if not grant.is_admin and not grant.allows(role):
            raise Refused(
                403, "access_denied", f"this needs the role {role.value}, which the token lacks"
            )
        if grant.is_limited and names and route.is_guarded and not grant.covers(names[0]):
            raise Refused(403, "access_denied", f"the token is not for {names[0][:200]}")
        return grant

    # Browsers ------------------------------------------------------------------------------

    def _check_host(self, host: bytes) -> None:
        """Refuse names that are not ours: a page elsewhere can have its own name lead here."""
        if not is_own_host(host.decode("latin-1"), self._hosts):
            raise Refused(
                421, "wrong_host", "this server has no such name; segue serve --allow-host adds one"
            )
        if len(self._hosts_seen) < HOSTS_KEPT:
            self._hosts_seen.add(host)

    def _check_page(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a page from elsewhere asks for. Whoever is no browser sends neither."""
        origin = headers.get(b"origin")
        if origin in self.cors_origins:
            return
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            is_link = method in _SAFE and headers.get(b"sec-fetch-mode") == b"navigate"
            is_own = site in _OWN_SITE or is_link
        else:
            assert origin is not None
            is_own = origin.partition(b"://")[2] == headers.get(b"host")
        if not is_own:
            raise Refused(
                403, "cross_site", "pages from elsewhere may not ask; see segue serve --cors-origin"
            )

    def cors_of(self, scope: Scope) -> Headers:
        """Return the headers that let a page from elsewhere read an answer; none if it may not."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin not in self.cors_origins:
            return ((b"vary", b"origin"),)
        assert origin is not None
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))

    def preflight_of(self, scope: Scope) -> Headers:
        """Return the headers that tell a browser what such a page may ask."""
        return (
            *self.cors_of(scope),
            (b"access-control-allow-methods", _CORS_METHODS),
            (b"access-control-allow-headers", _CORS_HEADERS),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
        )


def is_for_admins(route: Route, name: str) -> bool:
    """Tell whether a route takes the role `admin` for what it is about, whatever it says itself."""
    if name == HISTORY_TOPIC:
        # It is everybody's to read: but who may append to it could make one up, and who has its
        # lock has no server record any.
        return route.role is Role.PRODUCE or (route.role is Role.CONSUME and route.about == "locks")
    return name == AUDIT_TOPIC


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Tell whether a Host header is one of `names` or an address. Nobody can rebind an address."""
    parts = _HOST.fullmatch(host.lower())
    if parts is None:
        return False
    address, name = parts.groups()
    if name is not None:
        address = name.removesuffix(".")
        if address in names:
            return True
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _unknown(detail: str, challenge: bytes) -> Refused:
    return Refused(401, "unauthenticated", detail, headers=((b"www-authenticate", challenge),))


def _from_dapr(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return a token as the SDK of Dapr sends it, in a header of its own."""
    said = headers.get(b"dapr-api-token")
    return None if said is None else b"Bearer " + said
