"""Group commit: of the threads that wait for a sync, one writes and syncs for all.

The first to come leads: it takes what waits, commits it in one go and wakes the others. Who came
meanwhile is led by the first of them. Followers make no system call of their own, which is what
makes many threads fast: under the GIL each one would cost a switch.
"""

import threading
from collections.abc import Callable, Sequence

from segue.errors import SegueError, StorageFailed
from segue.log.layout import Offset


class Request:
    """One append that waits: in, `data` cut into `lengths`; out, `offset` or `error`."""

    __slots__ = (
        *("attrs", "data", "error", "gate", "is_committed", "is_settled", "lengths", "offset"),
    )

    def __init__(self, lengths: Sequence[int], data: bytes, attrs: Sequence[int] | None) -> None:
        self.lengths = lengths
        self.data = data
        self.attrs = attrs
        self.offset = Offset(-1)
        self.error: SegueError | None = None
        self.gate: threading.Lock | None = None
        self.is_committed = False
        self.is_settled = False


class CommitQueue:
    """Brings requests to `commit`, in the order they came, as many at a time as wait."""

    def __init__(self, commit: Callable[[list[Request]], None]) -> None:
        """`commit` gives each request an offset and says that it is committed, or an error."""
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._is_led = False

    def submit(self, request: Request) -> Offset:
        """Return the request's offset once it is committed. Raises its error."""
        with self._lock:
            self._waiting.append(request)
            if self._is_led:
                request.gate = threading.Lock()
                request.gate.acquire()
            self._is_led = True
        if request.gate is not None:
            self._wait(request, request.gate)
        if not request.is_settled:
            self._lead()
        if request.error is not None:
            raise request.error
        return request.offset

    def lead_alone(self) -> bool:
        """Tell whether nobody leads; then the caller does, and must `hand_over` at the end."""
        with self._lock:
            if self._is_led:
                return False
            self._is_led = True
            return True

    def hand_over(self) -> None:
        """Wake the next leader, if anyone waits."""
        with self._lock:
            self._hand_over()

    def _wait(self, request: Request, gate: threading.Lock) -> None:
        """Return when the request is settled or it is its turn to lead."""
        try:
            gate.acquire()
        except BaseException:
            # Interrupted: whoever waits behind us must not wait for a leader that has left.
            with self._lock:
                if request in self._waiting:
                    leads = self._waiting[0] is request and not gate.locked()
                    self._waiting.remove(request)
                    if leads:
                        self._hand_over()
            raise

    def _lead(self) -> None:
        with self._lock:
            requests, self._waiting = self._waiting, []
        try:
            self._commit(requests)
        finally:
            self.hand_over()
            for request in requests:
                if not request.is_committed and request.error is None:
                    request.error = StorageFailed("interrupted: it may or may not be in the log")
                request.is_settled = True
                if request.gate is not None and request.gate.locked():
                    request.gate.release()

    def _hand_over(self) -> None:
        if self._waiting:
            gate = self._waiting[0].gate
            assert gate is not None, "only the first to come has no gate"
            gate.release()
        else:
            self._is_led = False
