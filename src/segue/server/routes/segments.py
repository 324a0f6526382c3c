"""Whole segments in and out of topics."""

import tempfile
import threading
from pathlib import Path
from typing import IO, Final, Self, cast

import msgspec

from segue.errors import CorruptRecord, CorruptSegment, InvalidArgument
from segue.log.disk import storage_errors
from segue.log.layout import SEGMENT_BYTES_MAX
from segue.log.sending import Writable
from segue.server.call import Call
from segue.server.refusal import Refused
from segue.server.routes.topics import ASKING, TOPIC, topic_of
from segue.server.routing import Role, Route, Stream
from segue.stores.http.wire.numbers import whole_number
from segue.stores.http.wire.topic_reports import Adopted

SEGMENT: Final = "application/octet-stream"
PIECE_BYTES: Final = 1 << 20
ADOPTED_BYTES_MAX: Final = SEGMENT_BYTES_MAX


SENT_AT_ONCE_MAX: Final = 32
"""How many segments may be under way to readers, however slow: each lies in a file meanwhile."""
_SENDING: Final = threading.BoundedSemaphore(SENT_AT_ONCE_MAX)


class From(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From which byte on."""

    position: int = 0


class Under(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to, and what to remember it by."""

    partition: int
    key: str


def send(call: Call) -> Stream:
    """Send a sealed segment."""
    partition, segment = map(_number, call.names[1:])
    if not _SENDING.acquire(blocking=False):
        raise Refused(503, "overloaded", "many segments are being sent", retry=1)
    # Through a file without a name: the store copies it there without its bytes coming up here,
    # and whatever is wrong with it is known before the first of them is sent.
    try:
        with storage_errors("making room for a segment"):
            file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all of it was sent.
    except BaseException:
        _SENDING.release()
        raise
    try:
        topic_of(call).send_segment(
            partition, segment, cast("Writable", file), position=call.query(From).position
        )
        file.seek(0)
    except BaseException:
        file.close()
        _SENDING.release()
        raise
    return Stream(media_type=SEGMENT, pieces=_Pieces(file))


class _Pieces:
    """What a file holds, piece by piece; closing it makes room for another, also unread."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        with storage_errors("reading a segment"):
            piece = self._file.read(PIECE_BYTES)
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Let go of the file."""
        if not self._file.closed:
            self._file.close()
            _SENDING.release()


def adopt(call: Call) -> Adopted:
    """Append all records of a sealed segment that was written elsewhere."""
    asked = call.query(Under)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "adopted.q"
        with storage_errors("keeping what is to be adopted"):
            path.write_bytes(call.data)
        try:
            report = topic_of(call).adopt(path, partition=asked.partition, key=asked.key)
        except (CorruptSegment, CorruptRecord) as error:
            if error.path != path:
                raise
            # Not ours: whoever sent it can do something about it.
            reason = str(error).replace(str(path), "it")
            raise InvalidArgument(f"what was sent is no sound segment: {reason}") from error
    return Adopted(
        partition=report.partition,
        first_offset=report.first_offset,
        count=report.count,
        is_new=report.is_new,
    )


def _number(text: str) -> int:
    return whole_number(text, what="a partition or segment")


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{TOPIC}/segments/{{partition}}/{{segment}}",
        summary="Send a sealed segment as it is, or the rest of it",
        role=Role.READ,
        about="segments",
        handle=send,
        query=From,
        gives=(SEGMENT,),
        errors=(*ASKING, CorruptSegment),
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/segments",
        summary="Append all records of a sealed segment, once under each key",
        role=Role.PRODUCE,
        about="segments",
        handle=adopt,
        query=Under,
        takes=SEGMENT,
        has_raw_body=True,
        body_bytes_max=ADOPTED_BYTES_MAX,
        answer=Adopted,
        errors=ASKING,
    ),
)
