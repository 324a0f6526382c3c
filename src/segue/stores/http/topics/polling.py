"""What a reader and a member of a group have in common: they poll.

We know where we are, and the server where it is. Each poll says where the two differ: after an
answer that was lost, and after a loop over records that was left before its end.
"""

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from segue.delivery.topic_record import TopicRecord
from segue.errors import (
    SegueError,
    SessionGone,
    StoreClosed,
    StoreUnavailable,
    UnsupportedServer,
)
from segue.extras import extra
from segue.log.options import Duration
from segue.stores.http.patience import Patience, waited
from segue.stores.http.sense import at_most, making_sense, nonsense
from segue.stores.http.topics.session import Handle
from segue.stores.http.wire.starts import LIMIT_MAX, limit_json
from segue.stores.http.wire.topics import ARROW, STATE, Poll, Polled
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT
from segue.stores.topic_reading import check_limits

if TYPE_CHECKING:
    import pyarrow as pa

RETURNS_MAX: Final = 3
"""How often one poll opens a session anew."""
_IN_DOUBT: Final = (StoreUnavailable, StoreClosed, SessionGone, UnsupportedServer)

S = TypeVar("S", bound=Sized)
T = TypeVar("T")


class Poller(Handle):
    """Polls a session."""

    _position: dict[int, int]
    """Where we are."""
    _there: dict[int, int]
    """Where the server is, as far as we know."""

    def _come_back(self) -> None:
        """Open a session anew."""
        raise NotImplementedError

    def _asked(self, max_records: int, max_bytes: int | None) -> Poll:
        """Return what to ask for, without waiting for it."""
        raise NotImplementedError

    def _heard(self, polled: Polled) -> bool:
        """Take note of an answer; tell whether there is to be another before anything is read."""
        raise NotImplementedError

    # Polling -------------------------------------------------------------------------------

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records, at least one if any comes within `timeout`."""
        return self._polled(max_records, max_bytes, timeout, self._records)

    def poll_table(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> "pa.Table":
        """Return the next records as an Arrow table."""
        return self._polled(max_records, max_bytes, timeout, self._table)

    def _polled(
        self,
        max_records: int,
        max_bytes: int | None,
        timeout: Duration | None,
        fetch: Callable[[Poll], tuple[Polled, S]],
    ) -> S:
        check_limits(max_records, max_bytes, may_be_all=False)
        patience = Patience(timeout, name="timeout")
        returns = 0
        while True:
            self._require_open()
            asked = self._asked(min(max_records, LIMIT_MAX), limit_json(max_bytes))
            try:
                with self._in_doubt():
                    polled, found = waited(patience, partial(_fetched, fetch, asked))
            except SessionGone:
                self._require_open()
                if returns == RETURNS_MAX:
                    raise StoreUnavailable(f"{self._what} does not last at the server") from None
                returns += 1
                self._come_back()
                continue
            self._position, self._there = dict(polled.position), polled.position
            if not self._heard(polled) and (len(found) or patience.is_over):
                return found

    def _records(self, asked: Poll) -> tuple[Polled, list[TopicRecord]]:
        polled = self._calls.post(f"{self._path}/poll", asked, Polled, wait=asked.wait)
        return polled, [each.record() for each in at_most(asked.max_records, polled.records)]

    def _table(self, asked: Poll) -> "tuple[Polled, pa.Table]":
        data = self._calls.fetch(
            "POST", f"{self._path}/poll", asked, headers={"Accept": ARROW}, wait=asked.wait
        )
        table = at_most(asked.max_records, table_from(data))
        with making_sense():
            state = (table.schema.metadata or {})[STATE]
            return msgspec.json.decode(state, type=Polled), table.replace_schema_metadata(None)

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        """Take the server to be anywhere, unless it answers."""
        there, self._there = self._there, {}
        try:
            yield
        except SegueError as error:
            if not isinstance(error, _IN_DOUBT):
                self._there = there
            raise

    def _moves(self) -> dict[int, int] | None:
        """Return where to go on, where the server is elsewhere."""
        there = self._there
        if self._position == there:
            return None
        return {
            partition: offset
            for partition, offset in self._position.items()
            if there.get(partition) != offset
        }

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next record, by partition."""
        return dict(self._position)


def _fetched(fetch: Callable[[Poll], T], asked: Poll, step: float) -> T:
    return fetch(msgspec.structs.replace(asked, wait=step))


def table_from(data: bytes) -> "pa.Table":
    """Return the table that was sent. Raises UnsupportedServer for what is none."""
    with extra("columns", needed_by="a topic as a table"):
        import pyarrow as pa

        from segue.stores.topic_columns import SCHEMA

    try:
        with making_sense():
            # A later server may have columns that we do not know: those are passed over.
            table = pa.ipc.open_stream(data).read_all().select(SCHEMA.names)
            table.validate()
    except (pa.ArrowException, OSError) as error:
        raise nonsense(str(error)) from error
    if not table.schema.equals(SCHEMA):
        raise nonsense(f"a table of other columns: {table.schema.types}")
    return table
