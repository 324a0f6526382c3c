"""A directory as a store."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from segue.delivery.rules import QueueRules
from segue.delivery.topic_rules import TopicRules
from segue.errors import LogNotFound, StoreClosed, UnsupportedFileSystem, UnsupportedFormat
from segue.log.disk import storage_errors
from segue.log.options import Duration
from segue.log.outlines import Outlines
from segue.stores.contract import Queue, Ring, RingMode
from segue.stores.file.claims import locked
from segue.stores.file.core import QueueCore, QueueRemoved
from segue.stores.file.lock import FileLock
from segue.stores.file.lock_core import OPEN_MAX, LockCore, OpenLocks, lock_exists
from segue.stores.file.place import Place
from segue.stores.file.queue import FileQueue
from segue.stores.forking import in_every_child
from segue.stores.heartbeat import Heartbeat

# Rings and topics are imported when there is one: most processes use queues alone.
if TYPE_CHECKING:
    from segue.stores.file.ring_core import RingCore
    from segue.stores.file.topics.core import TopicCore
    from segue.stores.file.topics.topic import FileTopic

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_CONTENT: Final = f"format = {FORMAT}\n".encode()
"""What a store's file says unless somebody edited it: then nothing is needed to read it."""
FILENAME: Final = "segue.toml"
QUEUES: Final = "queues"
RINGS: Final = "rings"
LOCKS: Final = "locks"
TOPICS: Final = "topics"
EPOCH_DIGITS_MAX: Final = 8
REMOVAL_LOCK: Final = ".removal"


class _Closable(Protocol):
    def close(self) -> None: ...


Core = TypeVar("Core", bound=_Closable)


class FileStore:
    """Queues, rings, locks and topics in a directory. Safe from any thread."""

    def __init__(self, place: Place, *, url: str, create: bool = True) -> None:
        self.place = place
        self.url = url
        self.heartbeat = Heartbeat()
        self.begin()
        self._queues: dict[str, QueueCore] = {}
        self._rings: dict[str, RingCore] = {}
        self._locks: WeakValueDictionary[str, LockCore] = WeakValueDictionary()
        """Those that are open, or that somebody has a handle on: everybody may ask for any name."""
        # An exclusive owner keeps others out for as long as it has the files open.
        self._open_locks = OpenLocks(None if place.exclusive else OPEN_MAX)
        self._topics: WeakValueDictionary[str, TopicCore] = WeakValueDictionary()
        self._open_topics: set[TopicCore] = set()
        self.outlines = Outlines(place.disk)
        """What is remembered of logs for whoever only looks at them."""
        self._closed = False
        in_every_child(self)
        _check_directory(place, create=create)

    def begin(self) -> None:
        """Have locks and threads of our own: after a fork nobody is left who frees the parent's.

        What was open before says so to whoever uses it; all else can be used in the child.
        """
        self.heartbeat.begin()
        self._lock = threading.RLock()
        """For what is known to be open. Nothing is opened under it: that may take long."""
        self._turns: WeakValueDictionary[tuple[str, str], threading.RLock] = WeakValueDictionary()
        """Whose turn it is to open, remove or let go of one queue or ring, for those in use."""

    # Queues --------------------------------------------------------------------------------

    def queue(self, name: str, rules: QueueRules | None = None) -> Queue:
        """Return the queue called `name`."""
        with self._turn_of(QUEUES, name):
            core = self._queue_core(name)
            if rules is not None:
                core.configure(rules)
            return FileQueue(core, self.heartbeat)

    def let_go_of_queue(self, name: str) -> None:
        """Close the files of a queue until it is asked for again. Handles from before are closed.

        For servers, where everybody may ask for any name.
        """
        with self._turn_of(QUEUES, name):
            with self._lock:
                core = self._queues.pop(name, None)
            if core is not None:
                core.close()

    def is_queue_open(self, name: str) -> bool:
        """Tell whether the files of a queue are open here."""
        return name in self._queues

    @property
    def queues_open(self) -> int:
        """How many queues have their files open here."""
        return len(self._queues)

    def queues(self) -> list[str]:
        """Return the names of the queues there are."""
        self._require_open()
        return [name for name in self.place.names(QUEUES) if self.has_queue(name)]

    def has_queue(self, name: str) -> bool:
        """Tell whether there is a queue of that name. Raises InvalidName."""
        self._require_open()
        path, exists = self.place.path(QUEUES, name), self.place.disk.exists
        return exists(path / "lanes") or exists(path / "aside")

    def _queue_core(self, name: str) -> QueueCore:
        """Return the queue, opened once; made anew if somebody removed it. For whose turn it is."""
        self._require_open()
        core = self._queues.get(name)
        if core is not None:
            try:
                core.look_at_rules()
            except QueueRemoved:
                self.let_go_of_queue(name)
            else:
                return core
        return self._kept(self._queues, name, self._opened_queue(name))

    def _opened_queue(self, name: str) -> QueueCore:
        path = self.place.path(QUEUES, name)
        epoch_min = _read_epoch(path, self.place) + 1
        try:
            return QueueCore(name, path, self.place, epoch_min=epoch_min)
        except QueueRemoved:
            with self._removing():
                return self._made_anew(name, path)

    def _made_anew(self, name: str, path: Path) -> QueueCore:
        epoch_min = _read_epoch(path, self.place) + 1
        try:
            return QueueCore(name, path, self.place, epoch_min=epoch_min)
        except QueueRemoved:
            # Whoever removed it was killed before the directory was gone.
            _remove(path, self.place)
            return QueueCore(name, path, self.place, epoch_min=epoch_min)

    @contextmanager
    def _removing(self) -> Iterator[None]:
        """Keep other processes from removing queues, and from making removed ones anew."""
        with locked(self.place.root / QUEUES / REMOVAL_LOCK, self.place.disk):
            yield

    def remove_queue(self, name: str) -> bool:
        """Delete a queue with all it holds; tell whether it was there."""
        path = self.place.path(QUEUES, name)
        with self._turn_of(QUEUES, name):
            self._require_open()
            if not self.place.disk.exists(path):
                return False
            core = self._queue_core(name)
            with self._removing(), storage_errors(f"removing {path}"):
                # A queue made anew under the name must not give the same tokens again.
                epoch = str(core.remove()).encode()
                self.place.disk.replace_file(_epoch_path(path), epoch, sync=True)
                self.let_go_of_queue(name)
                return _remove(path, self.place)

    # Rings ---------------------------------------------------------------------------------

    def ring(
        self,
        name: str,
        *,
        capacity: int | None = None,
        entries_per_segment: int | None = None,
        mode: RingMode = "open_or_create",
    ) -> Ring:
        """Return the ring called `name`."""
        from segue.stores.file.ring import FileRing
        from segue.stores.file.ring_opening import open_ring
        from segue.stores.ring_arguments import check_request, require_shape

        path = self.place.path(RINGS, name)
        check_request(capacity, entries_per_segment, mode)
        with self._turn_of(RINGS, name):
            self._require_open()
            core = self._rings.get(name)
            if core is None:
                opened = open_ring(
                    name,
                    path,
                    self.place,
                    capacity=capacity,
                    entries_per_segment=entries_per_segment,
                    mode=mode,
                )
                core = self._kept(self._rings, name, opened)
            else:
                require_shape(
                    name,
                    core.shape,
                    capacity=capacity,
                    entries_per_segment=entries_per_segment,
                    mode=mode,
                )
            return FileRing(core)

    def rings(self) -> list[str]:
        """Return the names of the rings there are."""
        from segue.stores.file.ring_opening import ring_exists

        self._require_open()
        place = self.place
        return [name for name in place.names(RINGS) if ring_exists(place.path(RINGS, name), place)]

    # Locks ---------------------------------------------------------------------------------

    def lock(self, name: str, *, ttl: Duration = 30) -> FileLock:
        """Return the lock called `name`."""
        path = self.place.path(LOCKS, name)
        with self._lock:
            self._require_open()
            core = self._locks.get(name)
            if core is None:
                core = LockCore(name, path, self.place, self._open_locks)
                self._locks[name] = core
            return FileLock(core, self.heartbeat, ttl)

    def locks(self) -> list[str]:
        """Return the names of the locks that were ever taken."""
        self._require_open()
        place = self.place
        return [name for name in place.names(LOCKS) if lock_exists(place.path(LOCKS, name), place)]

    # Topics --------------------------------------------------------------------------------

    def topic(
        self, name: str, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> "FileTopic":
        """Return the topic called `name`."""
        from segue.stores.file.topics.core import KeptTopicCore
        from segue.stores.file.topics.topic import FileTopic

        path = self.place.path(TOPICS, name)
        with self._lock:
            self._require_open()
            core = self._topics.get(name)
            if core is None:
                core = self._topics[name] = KeptTopicCore(name, path, self.place, self._open_topics)
        if partitions is not None or rules is not None:
            core.establish(partitions, rules)
        return FileTopic(core)

    def topics(self) -> list[str]:
        """Return the names of the topics there are."""
        from segue.stores.file.topics.core import exists

        self._require_open()
        place = self.place
        return [name for name in place.names(TOPICS) if exists(place.path(TOPICS, name), place)]

    # Opening and closing -------------------------------------------------------------------

    def _turn_of(self, kind: str, name: str) -> threading.RLock:
        """Return what keeps others from one queue or ring; from all others it keeps nobody."""
        with self._lock:
            return self._turns.setdefault((kind, name), threading.RLock())

    def _kept(self, cores: dict[str, Core], name: str, core: Core) -> Core:
        """Return what was opened, for the next who asks as well. Raises StoreClosed."""
        with self._lock:
            if not self._closed:
                cores[name] = core
                return core
        core.close()  # Whoever closed the store did not know of it.
        raise StoreClosed(f"{self.url} is closed")

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.url} is closed")

    def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            cores: list[_Closable] = [*self._queues.values(), *self._rings.values()]
        self.heartbeat.close()
        with ExitStack() as closing:
            for core in cores:
                closing.callback(core.close)
            for lock in list(self._locks.values()):
                closing.callback(lock.close)
            for topic in list(self._topics.values()):
                closing.callback(topic.close)
            closing.callback(self.outlines.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_directory(place: Place, *, create: bool) -> None:
    """Make the directory a store, or see that it is one."""
    disk, root = place.disk, place.root
    path = root / FILENAME
    with storage_errors(f"opening {root}"):
        if not place.allow_network and disk.is_network_file_system(root):
            raise UnsupportedFileSystem(
                f"{root} is on {disk.file_system(root)}, where locks and mapped files are not "
                "safe; allow_network=True opens it all the same"
            )
        if not disk.exists(path):
            if not create:
                raise LogNotFound(f"there is no store at {root}")
            disk.make_directory(root)
            disk.replace_file(path, _CONTENT, sync=True)
            disk.sync_directory(root)
            return
        text = disk.read_file(path)
    _check_format(path, text)


def _check_format(path: Path, text: bytes) -> None:
    if text == _CONTENT:
        return
    import tomllib

    try:
        number = tomllib.loads(text.decode()).get("format")
    except (ValueError, UnicodeDecodeError) as error:
        raise UnsupportedFormat(f"{path} cannot be read: {error}") from error
    if number != FORMAT:
        raise UnsupportedFormat(f"{path} says format {number!r}; this Segue knows {FORMAT}")


def _epoch_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.epoch")


def _read_epoch(path: Path, place: Place) -> int:
    """Return the epoch of the queue that was removed from `path`, or 0."""
    with storage_errors(f"reading {_epoch_path(path)}"):
        try:
            text = place.disk.read_file(_epoch_path(path), EPOCH_DIGITS_MAX)
        except FileNotFoundError:
            return 0
    return int(text) if text.isdigit() else 0


def _remove(path: Path, place: Place) -> bool:
    if not place.disk.exists(path):
        return False
    import shutil

    # Renamed first: a crash half-way must not leave half a queue under its name.
    aside = path.with_name(f".{path.name}.removed")
    with storage_errors(f"removing {path}"):
        shutil.rmtree(aside, ignore_errors=True)
        place.disk.rename(path, aside)
        place.disk.sync_directory(path.parent)
        shutil.rmtree(aside, ignore_errors=True)
    return True
