"""A member of a group: it reads its share, and is told what it gives up, gets and loses.

The server has the member. It tells us what there is to be told in its answers to polls, and goes on
when we poll again: see `segue.server.members`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from segue.errors import PartitionLost, SessionGone
from segue.stores.http.calls import path_of
from segue.stores.http.sense import making_sense
from segue.stores.http.topics.polling import Poller
from segue.stores.http.wire.topics import (
    Happening,
    Join,
    MemberSession,
    Offsets,
    Poll,
    Polled,
    PollMember,
    Position,
    Told,
)
from segue.stores.topic_contract import OnRebalance
from segue.stores.topic_reading import check_offsets
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Whom to tell."""

    assign: OnRebalance | None
    revoke: OnRebalance | None
    lost: OnRebalance | None

    @property
    def wanted(self) -> list[Happening]:
        """What anybody is to be told of."""
        every: dict[Happening, OnRebalance | None] = {
            "assign": self.assign,
            "revoke": self.revoke,
            "lost": self.lost,
        }
        return [what for what, callback in every.items() if callback is not None]

    def tell(self, what: Happening, partitions: list[int]) -> None:
        """Tell whoever wants to know."""
        callback = {"assign": self.assign, "revoke": self.revoke, "lost": self.lost}[what]
        if callback is not None:
            callback(partitions)


class HttpMember(Poller):
    """One of those who share the partitions of a topic."""

    def __init__(
        self, store: "HttpStore", topic: str, group: str, join: Join, callbacks: Callbacks
    ) -> None:
        path = path_of("topics", topic, "groups", group, "members")
        super().__init__(store, f"member of group {group}", path)
        self.name = group
        self._request = join
        self._callbacks = callbacks
        self._untold: deque[Told] = deque()
        self._approved: set[int] = set()
        """What the server may give up."""
        self._join()
        try:
            self._tell()
        except BaseException:
            self.close()
            raise
        store.users.add(self)

    def _join(self) -> None:
        answer = self._calls.post(self._sessions, self._request, MemberSession)
        self._session = answer.session
        self._position, self._there = dict(answer.state.position), answer.state.position
        self._assignment = answer.state.assignment or {}
        self._untold.extend(answer.state.events)

    def _come_back(self) -> None:
        """Join anew, as one who was taken for dead: what we had may be somebody else's by now."""
        lost = sorted(self._assignment)
        self._assignment, self._position, self._there = {}, {}, {}
        self._approved.clear()
        self._untold.clear()
        if lost:
            self._callbacks.tell("lost", lost)
        self._join()

    def _tell(self) -> None:
        """Tell what there is to tell. What was told is not told again, also if that fails."""
        while self._untold:
            told = self._untold.popleft()
            self._callbacks.tell(told.what, told.partitions)
            if told.what == "revoke":
                self._approved.update(told.partitions)
            else:
                self._approved.difference_update(told.partitions)

    # Reading -------------------------------------------------------------------------------

    def _asked(self, max_records: int, max_bytes: int | None) -> Poll:
        self._tell()
        moves = self._moves()
        return PollMember(
            max_records=max_records,
            max_bytes=max_bytes,
            moves=moves,
            tokens=self._assignment if moves else None,
            approved=sorted(self._approved) or None,
        )

    def _heard(self, polled: Polled) -> bool:
        self._assignment = polled.assignment or {}
        if not polled.events:
            self._approved.clear()
            return False
        self._untold.extend(polled.events)
        self._tell()
        return True

    @property
    def assignment(self) -> Mapping[int, int]:
        """Our partitions, each with its fencing token."""
        return dict(sorted(self._assignment.items()))

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on elsewhere in partitions that are ours."""
        self._require_open()
        check_offsets(offsets)
        there = self._there
        with self._in_doubt(), self._lost_with_session(offsets):
            body = Offsets(offsets=dict(offsets))
            found = self._calls.post(f"{self._path}/seek", body, Position).position
        with making_sense():
            places = {partition: found[partition] for partition in offsets}
        self._position |= places
        self._there = {**there, **places}

    # Committing ----------------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the position in all our partitions, for whoever reads on."""
        self._require_open()
        places = self._position if offsets is None else offsets
        check_offsets(places)
        body = Offsets(offsets=dict(places))
        with self._lost_with_session(places):
            self._calls.tell(f"{self._path}/commit", body)

    def show_up(self) -> None:
        """Show that we are alive. Raises PartitionLost if we were taken for dead."""
        with self._lost_with_session(self._assignment):
            self._calls.tell(f"{self._path}/show-up")

    def _lost_with_session(self, partitions: Mapping[int, int]) -> "_Lost":
        return _Lost(self.name, partitions, self._require_open)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Lost:
    """Raises PartitionLost where the server does not know us any more: our share is not ours."""

    def __init__(
        self, group: str, partitions: Mapping[int, int], require_open: Callable[[], None]
    ) -> None:
        self._group = group
        self._partitions = tuple(sorted(partitions))
        self._require_open = require_open

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SessionGone):
            self._require_open()
            raise PartitionLost(group=self._group, partitions=self._partitions) from None
