"""Groups, and joining them."""

import os
import socket
from typing import TYPE_CHECKING, Final

from segue.errors import InvalidArgument
from segue.log.options import Duration
from segue.stores.http.calls import path_of
from segue.stores.http.patience import seconds
from segue.stores.http.topics.member import Callbacks, HttpMember
from segue.stores.http.wire.starts import start_json
from segue.stores.http.wire.topic_reports import GroupJson, Lags
from segue.stores.http.wire.topics import Join, Reset
from segue.stores.topic_contract import GroupInfo, Lag, OnRebalance, Start
from segue.stores.topic_manifest import group_mark

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

OWNER_CHARACTERS_MAX: Final = 200


class HttpGroup:
    """Consumers that share the partitions of a topic."""

    def __init__(self, store: "HttpStore", topic: str, name: str) -> None:
        group_mark(name)
        self.name = name
        self._store = store
        self._topic = topic
        self._path = path_of("topics", topic, "groups", name)

    def join(
        self,
        *,
        start: Start = "earliest",
        ttl: Duration = 60,
        owner: str | None = None,
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> HttpMember:
        """Become a member."""
        ttl_seconds = seconds(ttl, name="ttl")
        if ttl_seconds is None:
            raise InvalidArgument("ttl must be seconds or a timedelta")
        given: object = owner
        if given is not None and not isinstance(given, str):
            raise InvalidArgument(f"owner must be text: {owner!r}")
        callbacks = Callbacks(assign=on_assign, revoke=on_revoke, lost=on_lost)
        body = Join(
            start=start_json(start),
            ttl=ttl_seconds,
            owner=(owner or f"{socket.gethostname()}:{os.getpid()}")[:OWNER_CHARACTERS_MAX],
            wants=callbacks.wanted,
        )
        return HttpMember(self._store, self._topic, self.name, body, callbacks)

    def info(self) -> GroupInfo:
        """Return who is in the group, and how far it is behind."""
        self._store.require_open()
        return self._store.calls.get(self._path, GroupJson).info()

    def lag(self) -> list[Lag]:
        """Return how far the group is behind, by what it committed."""
        self._store.require_open()
        return [each.lag() for each in self._store.calls.get(f"{self._path}/lag", Lags).lag]

    def reset(self, start: Start) -> None:
        """Let the group begin elsewhere."""
        self._store.require_open()
        self._store.calls.tell(f"{self._path}/reset", Reset(start=start_json(start)))
