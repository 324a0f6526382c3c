"""Tables as they are sent. Needs the extra `columns`, which is looked for when one is asked for."""

import io
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from segue.errors import InvalidArgument, SegueError
from segue.server.routing import Reply
from segue.stores.http.wire.topics import ARROW, STATE

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


class _Pieces(io.RawIOBase):
    """Takes what is written, to be handed on bit by bit."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: "ReadableBuffer", /) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        """Return what was written since this was last asked."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def require_arrow() -> None:
    """Raise InvalidArgument where tables cannot be made. In a thread: loading it takes a while."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InvalidArgument("this server sends no tables: it lacks the extra columns") from error
    del pa


def pieces_of(tables: "Iterator[pa.Table]") -> Iterator[bytes]:
    """Yield tables as one stream of Arrow."""
    import pyarrow as pa

    from segue.stores.topic_columns import SCHEMA

    sink = _Pieces()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for table in tables:
            writer.write_table(table)
            yield sink.taken()
    yield sink.taken()


def pieces_of_batches(batches: "Iterator[pa.RecordBatch]") -> Iterator[bytes]:
    """Yield batches of one schema as one stream of Arrow, which ends with an empty batch.

    What goes wrong after the first batch is not told here: the stream lacks its end then, and
    whoever asks again from where it broke off is told.
    """
    import pyarrow as pa

    from segue.stores.message_pages import RECORD_SCHEMA

    first = next(batches, None)
    schema = RECORD_SCHEMA if first is None else first.schema
    sink = _Pieces()
    try:
        with pa.ipc.new_stream(sink, schema) as writer:
            if first is not None:
                writer.write_batch(first)
                yield sink.taken()
            for batch in batches:
                writer.write_batch(batch)
                yield sink.taken()
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
    except SegueError as error:
        logger.warning("a stream breaks off: %s", error)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    yield sink.taken()


def table_reply(table: "pa.Table", state: bytes = b"") -> Reply:
    """Return a table as an answer, with what else there is to say in its schema."""
    import pyarrow as pa

    if state:
        table = table.replace_schema_metadata({STATE: state})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Reply(body=sink.getvalue().to_pybytes(), media_type=ARROW)
