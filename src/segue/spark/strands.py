"""What there is to read: the strands of a table, each a sequence of offsets in a log of its own.

A topic has a strand for each partition, a queue for each priority, for what was pushed with a
delay and for its dead letters, and a ring has one. Logs are opened to read: looking changes
nothing, and a store that is in use can be looked at.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, LogNotFound, TopicNotFound
from segue.log import Log
from segue.log.disk import Disk
from segue.log.horizon import Extent
from segue.spark.decoding import Decoder, MessageDecoder, RingDecoder, TopicDecoder, Wanted
from segue.spark.options import ReadOptions
from segue.spark.sources import ServerSource
from segue.stores.file.core import QueueCore
from segue.stores.file.portrait import LogPortrait, portrait_of
from segue.stores.file.store import RINGS, TOPICS, FileStore
from segue.stores.file.topics import marks
from segue.stores.file.topics.manifest import read_manifest
from segue.stores.http.address import is_http
from segue.stores.opening import directory_of, open_directory
from segue.stores.redis.address import is_redis
from segue.values import dataclass

Source = str | ServerSource
"""Where a strand is: the path of a log, or something on a server."""

LATER: Final = "later"
DEAD: Final = "dead"


class Label(NamedTuple):
    """Names a strand: of which topic, queue or ring, and which of its strands."""

    name: str
    number: str


class AnyStrand(Protocol):
    """A sequence of offsets that can be read."""

    @property
    def label(self) -> Label: ...

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def decoder(self) -> Decoder: ...

    @property
    def source(self) -> Source:
        """Where a task finds it."""

    def offset_at(self, moment: datetime) -> int:
        """Return the first offset that was appended at `moment` or later."""

    def extents(self, start: int, stop: int) -> Iterable[Extent]:
        """Return what there is between two offsets, in parts that need not be cut."""

    def place_of(self, reader: str) -> int | None:
        """Return where a named reader stands."""


@dataclass(kw_only=True)
class Strand:
    """A strand that is a log in a directory."""

    label: Label
    path: Path
    first: int
    end: int
    decoder: Decoder
    log: Log | None = field(repr=False)
    """None while nobody has used it."""

    @property
    def source(self) -> Source:
        return str(self.path)

    def offset_at(self, moment: datetime) -> int:
        """Return the first offset that was appended at `moment` or later."""
        return 0 if self.log is None else min(int(self.log.offset_at(moment)), self.end)

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the parts of segments between two offsets."""
        return iter(()) if self.log is None else self.log.extents(start, stop)

    def place_of(self, reader: str) -> int | None:
        """Return where a named reader stands."""
        return None if self.log is None else marks.saved(self.log, reader)


class Shelf(Protocol):
    """Tells which strands there are, as often as it is asked."""

    def names(self) -> list[str]:
        """Return the topics, or the queue or ring, that are meant and there."""

    def strands(self) -> Mapping[Label, AnyStrand]:
        """Look again. Raises what reading would raise."""

    def close(self) -> None:
        """Let go of every file."""


def open_shelf(options: ReadOptions, wanted: Wanted, *, is_stream: bool = False) -> Shelf:
    """Return what the options ask for. Raises InvalidArgument, LogNotFound, TopicNotFound."""
    if is_http(options.url):
        from segue.spark.servers.http_shelves import open_http_shelf

        return open_http_shelf(options, wanted, is_stream=is_stream)
    if is_redis(options.url):
        from segue.spark.servers.shelves import open_redis_shelf

        return open_redis_shelf(options, wanted)
    root = directory_of(options.url)
    if not (root / "segue.toml").exists():
        raise LogNotFound(f"there is no store at {root}")
    if options.kind == "topic":
        return TopicShelf(root, options, wanted)
    if options.kind == "ring":
        return RingShelf(root, options, wanted)
    return QueueShelf(root, options, wanted, is_stream=is_stream)


@contextmanager
def opened_shelf(options: ReadOptions, wanted: Wanted) -> Iterator[Shelf]:
    """Give a shelf for the length of a block."""
    shelf = open_shelf(options, wanted)
    try:
        yield shelf
    finally:
        shelf.close()


class _Logs:
    """Logs that are open to read."""

    def __init__(self, *, allow_network: bool) -> None:
        self._logs: dict[Path, Log] = {}
        self._allow_network = allow_network

    def open(self, path: Path) -> Log:
        log = self._logs.get(path)
        if log is None:
            log = Log(path, read_only=True, allow_network=self._allow_network)
            self._logs[path] = log
        return log

    def close(self) -> None:
        with ExitStack() as closing:
            for log in self._logs.values():
                closing.callback(log.close)


class TopicShelf:
    """The partitions of one topic, or of all whose name matches."""

    def __init__(self, root: Path, options: ReadOptions, wanted: Wanted) -> None:
        self._root = root / TOPICS
        self._options = options
        self._wanted = wanted
        self._disk = Disk()
        self._logs = _Logs(allow_network=options.allows_network)

    def names(self) -> list[str]:
        """Return the topics that are meant and exist. Raises TopicNotFound."""
        options = self._options
        if not options.is_pattern:
            if read_manifest(self._root / options.name, self._disk) is None:
                raise TopicNotFound(name=options.name)
            return [options.name]
        pattern = re.compile(options.name)
        return [
            name
            for name in sorted(self._disk.names(self._root))
            if pattern.fullmatch(name) and read_manifest(self._root / name, self._disk) is not None
        ]

    def strands(self) -> dict[Label, Strand]:
        found = {}
        for name in self.names():
            manifest = read_manifest(self._root / name, self._disk)
            assert manifest is not None
            numbers = range(manifest.partitions)
            wanted = self._options.partitions
            if wanted is not None and not wanted <= set(numbers):
                raise InvalidArgument(
                    f"topic {name} has no partition {max(wanted)}, only {len(numbers)}"
                )
            for number in numbers:
                if wanted is None or number in wanted:
                    label = Label(name, str(number))
                    found[label] = self._strand(label, self._root / name / f"partition_{number}")
        return found

    def _strand(self, label: Label, path: Path) -> Strand:
        log: Log | None = None
        with suppress(LogNotFound):  # Nobody has used it yet.
            log = self._logs.open(path)
        end = 0 if log is None else int(log.next_offset)
        return Strand(
            label=label,
            path=path,
            first=0 if log is None else min(int(log.first_offset), end),
            end=end,
            decoder=TopicDecoder(
                wanted=self._wanted, topic=label.name, partition=int(label.number)
            ),
            log=log,
        )

    def close(self) -> None:
        self._logs.close()


class QueueShelf:
    """The messages of a queue, or its dead letters alone.

    A stream of a queue is what is pushed to it: a message that dies is not told a second time.
    """

    def __init__(
        self, root: Path, options: ReadOptions, wanted: Wanted, *, is_stream: bool
    ) -> None:
        self._is_stream = is_stream
        self._options = options
        self._wanted = wanted
        self._store = _store(root, options)
        self._logs = _Logs(allow_network=options.allows_network)
        try:
            names = self._store.queues()
            if options.name not in names:
                raise InvalidArgument(
                    f"there is no queue {options.name}; there are {', '.join(names) or 'none'}"
                )
            self._store.queue(options.name)
        except BaseException:
            self._store.close()
            raise

    @property
    def _core(self) -> QueueCore:
        return self._store._queue_core(self._options.name)

    def names(self) -> list[str]:
        return [self._options.name]

    def strands(self) -> dict[Label, Strand]:
        found = {}
        for portrait in portrait_of(self._core):
            number = self._number(portrait)
            if number is not None:
                label = Label(self._options.name, number)
                found[label] = Strand(
                    label=label,
                    path=portrait.path,
                    first=portrait.first,
                    end=portrait.end,
                    decoder=MessageDecoder(
                        wanted=self._wanted,
                        queue=self._options.name,
                        portrait=portrait,
                        is_letters=self._options.kind == "dead_letters",
                        is_stream=self._is_stream,
                        priorities=self._options.priorities,
                    ),
                    log=self._logs.open(portrait.path),
                )
        return found

    def _number(self, portrait: LogPortrait) -> str | None:
        """Return what the strand of a log is called, None if it is not wanted."""
        is_letters = self._options.kind == "dead_letters"
        if portrait.lane is None:
            return DEAD if is_letters or not self._is_stream else None
        if is_letters:
            return None
        if portrait.lane == ASIDE:
            return LATER
        chosen = self._options.priorities
        return str(portrait.lane) if chosen is None or portrait.lane in chosen else None

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._store.close)
            closing.callback(self._logs.close)


class RingShelf:
    """The entries of a ring that are not overwritten."""

    def __init__(self, root: Path, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options
        self._wanted = wanted
        self._path = root / RINGS / options.name / "entries"
        self._store = _store(root, options)
        self._logs = _Logs(allow_network=options.allows_network)
        try:
            self._ring = self._store.ring(options.name, mode="open")
        except BaseException:
            self._store.close()
            raise

    def names(self) -> list[str]:
        return [self._options.name]

    def strands(self) -> dict[Label, Strand]:
        info = self._ring.info()
        label = Label(self._options.name, "0")
        log = self._logs.open(self._path)
        strand = Strand(
            label=label,
            path=self._path,
            first=max(int(log.first_offset), info.head_offset),
            end=info.tail_offset,
            decoder=RingDecoder(wanted=self._wanted, ring=self._options.name),
            log=log,
        )
        return {label: strand}

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._store.close)
            closing.callback(self._logs.close)


def _store(root: Path, options: ReadOptions) -> FileStore:
    return open_directory(
        root, sync=options.sync, create=False, allow_network=options.allows_network
    )
