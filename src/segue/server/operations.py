"""What goes on beside the requests: counting, logging, auditing, looking whether all is well."""

import itertools
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from segue.clock import Clock, system_clock
from segue.server.access import Grant, is_for_admins
from segue.server.access_log import AccessLog, Note
from segue.server.audit import Act, Audit
from segue.server.health import Watchdog
from segue.server.metrics import RequestMetrics
from segue.server.routing import Role, Route

REQUEST_ID: Final = b"x-request-id"
LAST_LINES_SECONDS: Final = 5.0
"""How long the end waits for an access log that takes nothing."""
DID_BYTES_MAX: Final = 200
"""How long the answer to an act may be that is kept with it."""
_REFUSED: Final = 400
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_OWN_NAMES: Final = "segue."
"""How names begin of what only admins get at: with this, nearly all paths are not looked at more.
"""
_STREAMED: Final = 200
"""The status of an answer that was sent in pieces: it had begun."""

Scope = Mapping[str, Any]


class Operations:
    """Of one server. For the event loop, unless said otherwise."""

    def __init__(
        self,
        watchdog: Watchdog,
        *,
        access_log: AccessLog | None = None,
        audit: Audit | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.watchdog = watchdog
        self.requests = RequestMetrics()
        self.is_ending = False
        self.syncs: Callable[[], int] | None = None
        """How often the store has synced, where that is counted."""
        self.connections: Callable[[], int] = lambda: 0
        self._access_log = access_log
        self._audit = audit
        self._clock = clock
        self._ids = map(f"{secrets.token_hex(4)}-{{:x}}".format, itertools.count(1))

    def request_id(self, scope: Scope) -> str:
        """Return the id of a request: what its client calls it, if that makes sense, or ours."""
        said = next((value for name, value in scope["headers"] if name == REQUEST_ID), None)
        is_sane = said is not None and _SANE_ID.fullmatch(said) is not None
        return said.decode() if said is not None and is_sane else next(self._ids)

    def finished(
        self,
        scope: Scope,
        status: int,
        size_bytes: int,
        begun: float,
        request_id: str | None,
        body: bytes = b"",
    ) -> None:
        """Take note of an answered request. `begun` is of `time.perf_counter`."""
        route: Route | None = scope.get("segue.route")
        seconds = time.perf_counter() - begun
        self.requests.count(route, status or _STREAMED, seconds)
        if self._access_log is not None:
            self._log(self._access_log, scope, route, status, size_bytes, seconds, request_id)
        if self._audit is not None and route is not None and _is_act(route, scope["path"]):
            self._note_act(self._audit, scope, route, status or _STREAMED, body)

    def _log(
        self,
        log: AccessLog,
        scope: Scope,
        route: Route | None,
        status: int,
        size_bytes: int,
        seconds: float,
        request_id: str | None,
    ) -> None:
        grant: Grant | None = scope.get("segue.grant")
        log.note(
            Note(
                self._clock(),
                scope["method"],
                scope["path"],
                None if route is None else route.full_path,
                status or _STREAMED,
                size_bytes if status else None,
                round(seconds * 1_000_000),
                "" if grant is None else grant.name,
                "" if grant is None else grant.id,
                _remote(scope),
                request_id or self.request_id(scope),
            )
        )

    def _note_act(self, audit: Audit, scope: Scope, route: Route, status: int, body: bytes) -> None:
        grant: Grant | None = scope.get("segue.grant")
        if grant is None or route.method == "GET":
            return  # Who was not let in has done nothing.
        audit.note(
            Act(
                time_us=self._clock(),
                token=grant.name,
                token_id=grant.id,
                method=route.method,
                path=scope["path"],
                remote=_remote(scope),
                status=status,
                did=_did(status, body),
            )
        )

    # Beginning and ending ------------------------------------------------------------------

    def begin(self, connections: Callable[[], int]) -> None:
        """Start looking after the server."""
        self.connections = connections
        self.watchdog.begin()

    def flush(self) -> None:
        """Write out what was only noted. From a thread."""
        if self._access_log is not None:
            self._access_log.flush()

    def close(self) -> None:
        """Write out everything, as far as the access log takes it.

        From any thread, once no request is left.
        """
        self.watchdog.end()
        if self._audit is not None:
            self._audit.close()
        if self._access_log is not None:
            # A pipe that nobody reads must not keep the store from being closed in order.
            writing = threading.Thread(target=self.flush, name="segue-serve-log", daemon=True)
            writing.start()
            writing.join(LAST_LINES_SECONDS)


def _is_act(route: Route, path: str) -> bool:
    """Tell whether a request takes the role `admin`, or is one of the others that are audited."""
    if route.role is Role.ADMIN or route.is_audited:
        return True
    return _OWN_NAMES in path and any(is_for_admins(route, part) for part in path.split("/"))


def _did(status: int, body: bytes) -> str:
    """Return what was answered to an act that was done, if it is JSON and short."""
    is_short = status < _REFUSED and body.startswith(b"{") and len(body) <= DID_BYTES_MAX
    return body.decode(errors="replace") if is_short else ""


def _remote(scope: Scope) -> str:
    client = scope["client"]
    return client[0] if client else ""
