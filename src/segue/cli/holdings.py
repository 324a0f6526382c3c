"""What a store holds, as tables: shared by `ls` and the `ls` of queues, topics and so on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from segue.cli.exits import ExitCode, exit_code_of
from segue.cli.output import Column, Kind, Rows, Value
from segue.cli.store_arguments import allow_many_files
from segue.errors import SegueError

if TYPE_CHECKING:
    from segue.stores.contract import Store

_QUEUE_COLUMNS: Final = (
    Column("queue"),
    Column("ready", Kind.COUNT),
    Column("delayed", Kind.COUNT),
    Column("leased", Kind.COUNT),
    Column("dead", Kind.COUNT),
    Column("paused"),
    Column("size_bytes", Kind.SIZE),
    Column("problem"),
)
_TOPIC_COLUMNS: Final = (
    Column("topic"),
    Column("partitions", Kind.COUNT),
    Column("records", Kind.COUNT),
    Column("size_bytes", Kind.SIZE),
    Column("readers", Kind.COUNT),
    Column("groups", Kind.COUNT),
    Column("problem"),
)
_RING_COLUMNS: Final = (
    Column("ring"),
    Column("count", Kind.COUNT),
    Column("capacity", Kind.COUNT),
    Column("head_offset", Kind.COUNT),
    Column("tail_offset", Kind.COUNT),
    Column("groups", Kind.COUNT),
    Column("problem"),
)
_LOCK_COLUMNS: Final = (
    Column("lock"),
    Column("owner"),
    Column("token", Kind.COUNT),
    Column("seconds_left", Kind.SECONDS),
    Column("problem"),
)


class Holdings:
    """Looks at everything in a store. What cannot be opened is shown with its problem."""

    def __init__(self, store: "Store", *, marks: bool = False) -> None:
        """`marks` begins each plain line with what it is, where tables follow each other."""
        allow_many_files()  # All of it stays open until the store is closed.
        self._store = store
        self._marks = marks
        self.code = ExitCode.OK
        """That of the first problem."""

    def queues(self) -> Rows:
        """Return how every queue stands."""
        return self._table("queue", _QUEUE_COLUMNS, self._store.queues(), self._queue)

    def topics(self) -> Rows:
        """Return how every topic stands."""
        return self._table("topic", _TOPIC_COLUMNS, self._store.topics(), self._topic)

    def rings(self) -> Rows:
        """Return how every ring stands."""
        return self._table("ring", _RING_COLUMNS, self._store.rings(), self._ring)

    def locks(self) -> Rows:
        """Return who holds which lock."""
        return self._table("lock", _LOCK_COLUMNS, self._store.locks(), self._lock)

    def _table(
        self,
        kind: str,
        columns: tuple[Column, ...],
        names: list[str],
        look: Callable[[str], tuple[Value, ...]],
    ) -> Rows:
        rows: list[tuple[Value, ...]] = []
        for name in names:
            try:
                rows.append((name, *look(name), None))
            except SegueError as error:
                nothing = [None] * (len(columns) - 2)
                rows.append((name, *nothing, str(error)))
                self.code = self.code or exit_code_of(error)
        return Rows(name=f"{kind}s", mark=kind if self._marks else None, columns=columns, rows=rows)

    def _queue(self, name: str) -> tuple[Value, ...]:
        stats = self._store.queue(name).stats()
        counts = stats.counts
        return (
            counts.ready,
            counts.delayed,
            counts.leased,
            counts.dead,
            stats.paused,
            stats.size_bytes,
        )

    def _topic(self, name: str) -> tuple[Value, ...]:
        info = self._store.topic(name).info()
        return (
            len(info.partitions),
            info.count,
            info.size_bytes,
            len(info.readers),
            len(info.groups),
        )

    def _ring(self, name: str) -> tuple[Value, ...]:
        info = self._store.ring(name, mode="open").info()
        return info.count, info.capacity, info.head_offset, info.tail_offset, len(info.groups)

    def _lock(self, name: str) -> tuple[Value, ...]:
        return self._store.lock(name).holder() or (None, None, None)
