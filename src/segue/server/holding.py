"""What a session of a topic holds: a producer, a reader, a member or a place in what is read.

Such things are for one thread at a time, and requests come in any: each has a lock, which is never
held while anybody waits for records or for a client.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar

from segue.errors import SessionGone
from segue.server.call import Call

if TYPE_CHECKING:
    from segue.server.sessions import Session


class Held:
    """Something that is held."""

    kind: ClassVar[str]

    def __init__(self, name: str, let_go: Callable[[], None]) -> None:
        self.name = name
        """Of the reader, group or producer."""
        self._let_go = let_go
        self._lock = threading.Lock()
        self._is_over = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other requests from it. Raises SessionGone if it was let go of meanwhile."""
        with self._lock:
            if self._is_over:
                raise SessionGone(session=f"of {self.kind} {self.name}")
            yield

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._let_go()


H = TypeVar("H", bound=Held)


def hold(call: Call, held: H, ttl_seconds: float) -> str:
    """Hold something of the topic that the path names first; return its session's name."""
    try:
        session = call.desk.sessions.open(
            held.kind, call.names[0], held, held.close, ttl_seconds, token=call.grant.id
        )
    except BaseException:
        held.close()
        raise
    return session.id


def held_for(call: Call, kind: type[H]) -> H:
    """Return what the session holds that the path names last. Raises SessionGone."""
    return _found(call, kind)[1]


def _found(call: Call, kind: type[H]) -> "tuple[Session[object], H]":
    topic, id_ = call.names[0], call.names[-1]
    session = call.desk.sessions.get(kind.kind, topic, id_)
    held = session.held
    assert isinstance(held, kind)
    if held.name != call.names[-2]:
        raise SessionGone(session=id_)
    return session, held


def end(call: Call, kind: type[Held]) -> None:
    """End the session that the path names last. One that is gone is as good as ended."""
    try:
        session, _ = _found(call, kind)
    except SessionGone:
        return
    call.desk.sessions.end(session)
