"""Queues that stay open for the next who asks, and what is done about those that are not there.

Everybody may ask for any name. Who looks makes nothing; who pushes has the queue opened, and if it
is refused what it pushes, a queue is open that is not there: a phantom. Nobody needs one any more
when no request is about it, so they are let go of. Their directories, which are empty but for a
ledger, stay: another process may have one open, and be about to push.

Whoever looks at all queues of a directory, one after the other, opens no more of them than there
are descriptors for: all who do so share one limit.
"""

import resource
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from segue.log.layout import checked_name
from segue.server.refusal import Refused
from segue.stores.contract import Queue, Store
from segue.stores.file.absent import AbsentQueue
from segue.stores.file.queue import FileQueue
from segue.stores.file.store import FileStore

QUEUES_KEPT: Final = 4096
PHANTOMS_MAX: Final = 300
"""How many queues one token has opened that are not there, with requests about them under way."""
RETRY_SECONDS: Final = 1
OPEN_TO_LOOK_MAX: Final = 2_000
"""How many queues are open at most for being looked at, however many descriptors there are."""
DESCRIPTORS_SHARE: Final = 4
"""Queues are opened to be looked at while they take up one part in so many of the descriptors."""
DESCRIPTORS_PER_QUEUE: Final = 16


class OpenQueues:
    """The queues of a server. Safe from any thread, but `begin_use` and `end_use`."""

    def __init__(self, store: Store, is_awaited: Callable[[str], bool]) -> None:
        """`is_awaited` tells whether somebody waits for a queue."""
        self._store = store
        self._is_awaited = is_awaited
        self.opened: dict[str, Queue] = {}
        self.phantoms: dict[str, str] = {}
        """Queues that were opened before they were there, and by which token."""
        self._opening = threading.Lock()
        self._used: Counter[str] = Counter()

    def find(self, name: str) -> Queue:
        """Return a queue to look at, which is not made by that."""
        queue = self.opened.get(name)
        if queue is not None:
            return queue
        store = self._store
        if not isinstance(store, FileStore) or store.has_queue(name):
            return self._open(name)
        return AbsentQueue(
            name, find=partial(self._found, store, name), make=partial(self.make, name, "")
        )

    def make(self, name: str, token: str) -> Queue:
        """Return a queue for who is about to push. Raises Refused if that are too many."""
        queue = self.opened.get(name)
        if queue is None:
            with self._opening:
                self._note_phantom(name, token)
            queue = self._open(name)
        return queue

    def _open(self, name: str) -> Queue:
        queue = self._store.queue(name)
        if len(self.opened) >= QUEUES_KEPT:
            self.opened.clear()
        self.opened[name] = queue
        return queue

    def _found(self, store: FileStore, name: str) -> FileQueue | None:
        """Return a queue that was not there before, if it is now."""
        queue = self.opened.get(name)
        if queue is None and store.has_queue(name):
            queue = self._open(name)
        assert queue is None or isinstance(queue, FileQueue)
        return queue

    def forget(self, name: str | None = None) -> None:
        """Open a queue anew when it is asked for next, or all of them."""
        if name is None:
            self.opened.clear()
        else:
            self.opened.pop(name, None)

    # Queues that are not there -------------------------------------------------------------

    def is_new(self, name: str) -> bool:
        """Tell whether a queue is not open yet, or was opened before it was there."""
        return name not in self.opened or name in self.phantoms

    def begin_use(self, name: str) -> None:
        """Keep a queue open that is not there, while a request is about it."""
        self._used[name] += 1

    def end_use(self, name: str) -> None:
        """Take back one `begin_use`. A queue that was made meanwhile is one like any other."""
        self._used[name] -= 1
        if not self._used[name]:
            del self._used[name]
        store = self._store
        if name in self.phantoms and isinstance(store, FileStore) and store.has_queue(name):
            self.phantoms.pop(name, None)

    def _note_phantom(self, name: str, token: str) -> None:
        store = self._store
        if not isinstance(store, FileStore) or store.has_queue(name):
            return
        if len(self.phantoms) >= PHANTOMS_MAX:
            self._let_go_of_phantoms(store)
            # Only its own count: nobody is shut out by what others do.
            if list(self.phantoms.values()).count(token) >= PHANTOMS_MAX:
                raise Refused(
                    429, "too_many_names", "many queues are about to be made", retry=RETRY_SECONDS
                )
        self.phantoms[checked_name(name)] = token

    def _let_go_of_phantoms(self, store: FileStore) -> None:
        """Close queues that are not there, and that no request is about."""
        for name in list(self.phantoms):
            is_there = store.has_queue(name)
            if not is_there and (self._used[name] or self._is_awaited(name)):
                continue
            del self.phantoms[name]
            if not is_there:
                self.opened.pop(name, None)
                store.let_go_of_queue(name)


# Looking at all of them ------------------------------------------------------------------------


def queues_max() -> int:
    """Return how many queues of a directory may be open, with descriptors left for the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_TO_LOOK_MAX
    return min(OPEN_TO_LOOK_MAX, max(1, soft // DESCRIPTORS_SHARE // DESCRIPTORS_PER_QUEUE))


def may_look_into(store: Store, name: str) -> bool:
    """Tell whether a queue may be opened just to be looked at: it is open, or there is room."""
    if not isinstance(store, FileStore):
        return True
    return store.is_queue_open(name) or store.queues_open < queues_max()
