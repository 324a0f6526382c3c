"""What a server holds for its clients between two requests: transactions, producers, members …

A session ends when its client says so, or has not been heard of for its time to live. Its lock is
for calls that must come one after the other. What becomes of a call that is repeated is said in
requests.py: sessions know nothing of it.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Final, Generic, TypeVar, cast

from segue.clock import Ticks
from segue.errors import SegueError, SessionGone
from segue.server.refusal import Refused
from segue.values import dataclass

logger = logging.getLogger(__name__)

SESSIONS_MAX: Final = 10_000
TOKEN_SESSIONS_MAX: Final = 7_500
"""Of one token: whatever its client does, there is room for those of others."""
KIND_MAX: Final = {"reading": 100}
"""Of those that keep what they answered last."""
SWEEP_SECONDS: Final = 5
ID_BYTES: Final = 16
SWEEP_US: Final = 500_000
"""How often it is worth going through all of them."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Session(Generic[T]):
    """One thing that is held."""

    id: str
    kind: str
    name: str
    """Of the topic or ring it belongs to: roles go by it."""
    token: str
    """The id of the token it was opened with, "" where none is needed."""
    held: T
    close: Callable[[], None]
    ttl_us: int
    until_us: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """All sessions of one server. Safe from any thread."""

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks
        self._sessions: dict[str, Session[object]] = {}
        self._swept_us = -SWEEP_US
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._sessions)

    def open(
        self,
        kind: str,
        name: str,
        held: T,
        close: Callable[[], None],
        ttl_seconds: float,
        *,
        token: str = "",
    ) -> Session[T]:
        """Hold something for a client, who is to call again within `ttl_seconds`."""
        self.sweep()
        ttl_us = round(ttl_seconds * 1_000_000)
        session = Session(
            id=secrets.token_urlsafe(ID_BYTES),
            kind=kind,
            name=name,
            token=token,
            held=held,
            close=close,
            ttl_us=ttl_us,
            until_us=self.ticks() + ttl_us,
        )
        with self._lock:
            if len(self._sessions) >= SESSIONS_MAX or self._has_its_share(token):
                raise Refused(503, "overloaded", "too many sessions are open", retry=SWEEP_SECONDS)
            oldest = self._one_too_many(kind)
            self._sessions[session.id] = cast("Session[object]", session)
        if oldest is not None:
            self._close(oldest)
        return session

    def _has_its_share(self, token: str) -> bool:
        if not token or len(self._sessions) < TOKEN_SESSIONS_MAX:
            return False
        own = sum(each.token == token for each in self._sessions.values())
        return own >= TOKEN_SESSIONS_MAX

    def _one_too_many(self, kind: str) -> Session[object] | None:
        """Return the session, taken out, that makes room for another of a kind that is bounded.

        The one called longest ago: its client begins anew from where it is.
        """
        if kind not in KIND_MAX:
            return None
        alike = [each for each in self._sessions.values() if each.kind == kind]
        if len(alike) < KIND_MAX[kind]:
            return None
        oldest = min(alike, key=lambda each: each.until_us)
        return self._sessions.pop(oldest.id)

    def get(self, kind: str, name: str, id_: str) -> Session[object]:
        """Return a session, which goes on for its time to live. Raises SessionGone."""
        self.sweep()
        with self._lock:
            session = self._sessions.get(id_)
            now_us = self.ticks()
            if (
                session is None
                or session.kind != kind
                or session.name != name
                or session.until_us <= now_us
            ):
                raise SessionGone(session=id_)
            session.until_us = now_us + session.ttl_us
            return session

    def of(self, kind: str, name: str) -> list[Session[object]]:
        """Return what is held of one thing, for all its clients."""
        with self._lock:
            sessions = self._sessions.values()
            return [each for each in sessions if each.kind == kind and each.name == name]

    def end(self, session: Session[object]) -> None:
        """Let go of what a session holds."""
        with self._lock:
            self._sessions.pop(session.id, None)
        session.close()

    def sweep(self) -> None:
        """End the sessions nobody has called for too long."""
        now_us = self.ticks()
        with self._lock:
            if now_us - self._swept_us < SWEEP_US:
                return
            self._swept_us = now_us
            over = [each for each in self._sessions.values() if each.until_us <= now_us]
            for each in over:
                del self._sessions[each.id]
        for each in over:
            logger.info("session is over kind=%s name=%s", each.kind, each.name)
            self._close(each)

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for each in sessions:
            self._close(each)

    def _close(self, session: Session[object]) -> None:
        try:
            session.close()
        except SegueError as error:
            logger.warning("not closed in order session=%s reason=%s", session.kind, error)
