"""Group commit: of the threads that wait for a sync, one writes and syncs for all.

The first to come leads: it takes what waits, commits it in one go and wakes the others. Who came
meanwhile is led by the first of them. Followers make no system call of their own, which is what
makes many threads fast: under the GIL each one would cost a switch.

A signal may interrupt a thread anywhere. Who leads is therefore written down as a thread, and
every way out of here passes a `finally` that hands over if it is still this one.
"""

import threading
from collections.abc import Callable, Sequence

from segue.errors import SegueError, StorageFailed
from segue.log.layout import Offset


class Request:
    """One append that waits: in, `data` cut into `lengths`; out, `offset` or `error`."""

    __slots__ = (
        *("attrs", "data", "error", "gate", "is_committed", "is_settled", "lengths", "offset"),
        "thread",
    )

    def __init__(
        self, lengths: Sequence[int], data: bytes | memoryview, attrs: Sequence[int] | None
    ) -> None:
        self.lengths = lengths
        self.data = data
        self.attrs = attrs
        self.offset = Offset(-1)
        self.error: SegueError | None = None
        self.gate: threading.Lock | None = None
        self.thread = 0
        self.is_committed = False
        self.is_settled = False


class CommitQueue:
    """Brings requests to `commit`, in the order they came, as many at a time as wait."""

    def __init__(self, commit: Callable[[list[Request]], None]) -> None:
        """`commit` gives each request an offset and says that it is committed, or an error."""
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._leader = 0
        """The thread that leads, or 0."""

    def lead_alone(self) -> bool:
        """Tell whether nobody leads; then the caller does. Call it in a try with `hand_over`."""
        with self._lock:
            if self._leader:
                return False
            self._leader = threading.get_ident()
            return True

    def hand_over(self) -> None:
        """If this thread leads, wake the next leader, or leave the place free."""
        if self._leader != threading.get_ident():
            return
        with self._lock:
            if not self._waiting:
                self._leader = 0
                return
            following = self._waiting[0]
            self._leader = following.thread
            assert following.gate is not None, "only who leads at once has no gate"
            following.gate.release()

    def submit(self, request: Request) -> Offset:
        """Return the request's offset once it is committed. Raises its error."""
        request.thread = threading.get_ident()
        try:
            with self._lock:
                self._waiting.append(request)
                if self._leader:
                    request.gate = threading.Lock()
                    request.gate.acquire()
                else:
                    self._leader = request.thread
            if request.gate is not None:
                request.gate.acquire()  # Until the request is settled, or it is our turn to lead.
            if not request.is_settled:
                self._lead()
        except BaseException:
            with self._lock:
                if request in self._waiting:
                    self._waiting.remove(request)
            raise
        finally:
            self.hand_over()
        if request.error is not None:
            raise request.error
        return request.offset

    def _lead(self) -> None:
        requests: list[Request] = []
        try:
            with self._lock:
                requests, self._waiting = self._waiting, []
            self._commit(requests)
        finally:
            self.hand_over()
            for request in requests:
                if not request.is_committed and request.error is None:
                    request.error = StorageFailed("interrupted: it may or may not be in the log")
                request.is_settled = True
                if request.gate is not None and request.gate.locked():
                    request.gate.release()
