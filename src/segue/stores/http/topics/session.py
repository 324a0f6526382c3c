"""What the server holds for us, as we see it."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from segue.errors import SessionGone, StoreClosed, StoreUnavailable
from segue.stores.http.calls import Calls, path_of

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore


class Handle:
    """Something open, with a session at the server. For one thread at a time."""

    def __init__(self, store: "HttpStore", what: str, path: str) -> None:
        self._store = store
        self._what = what
        self._sessions = path
        """Where sessions are opened."""
        self._session = ""
        self._closed = False
        self._pid = os.getpid()

    @property
    def _calls(self) -> Calls:
        """What asks the server. Raises StoreClosed."""
        self._require_open()
        return self._store.calls

    @property
    def _path(self) -> str:
        """Of our session."""
        return f"{self._sessions}{path_of(self._session)}"

    def _require_open(self) -> None:
        self._store.require_open()
        if self._closed:
            raise StoreClosed(f"{self._what} is closed")
        if os.getpid() != self._pid:
            raise StoreClosed(f"{self._what} was opened before a fork: open it again in the child")

    def close(self) -> None:
        """Let go of it."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        # Whatever keeps us from saying so, the session is over when its time is.
        with suppress(StoreClosed, SessionGone, StoreUnavailable):
            self._store.calls.tell(self._path, method="DELETE", within=self._store.closing_seconds)
