"""Whole segments in and out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from segue.errors import InvalidArgument, StoreUnavailable
from segue.log.disk import Disk, storage_error, storage_errors
from segue.log.sealed import read_sealed
from segue.log.sending import WRITE_STEP_BYTES, HasFileno, Writable, Write, writer_to
from segue.stores.http.answer import Answer
from segue.stores.http.sense import making_sense
from segue.stores.http.wire.starts import partition_json
from segue.stores.http.wire.topic_reports import Adopted
from segue.stores.topic_adoption import check_key, records_of
from segue.stores.topic_contract import Adoption

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

SENDING_SECONDS: Final = 120.0
"""How long the server may take, besides what any answer may take, before the first byte comes."""
SEGMENT: Final = "application/octet-stream"


# Out -----------------------------------------------------------------------------------------


def send(
    store: "HttpStore",
    path: str,
    partition: int,
    segment: int,
    target: Writable | HasFileno,
    *,
    position: int,
) -> int:
    """Send a sealed segment from `position` on; return how many bytes that were."""
    store.require_open()
    if type(segment) is not int or type(position) is not int:
        raise InvalidArgument(f"segment and position are whole numbers: {segment!r}, {position!r}")
    where = f"{path}/segments/{partition_json(partition)}/{segment}"
    write = writer_to(target)
    sent = 0
    while True:
        before = sent
        try:
            query = {"position": position + sent}
            with store.calls.asked("GET", where, query=query, takes=SENDING_SECONDS) as response:
                for piece in _pieces(response):
                    for count in _written(piece, write, f"{where} from byte {position + sent} on"):
                        sent += count
            return sent
        except StoreUnavailable:
            if sent == before:
                raise  # What broke off is gone on with for as long as anything comes.


def _pieces(response: Answer) -> Iterator[memoryview]:
    while piece := response.read(WRITE_STEP_BYTES):
        yield memoryview(piece)


def _written(piece: memoryview, write: Write, what: str) -> Iterator[int]:
    """Write a piece and yield how much of it was, bit by bit."""
    while piece:
        with _naming(what):
            count = write(piece)
        yield count
        piece = piece[count:]


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Say up to where a transfer came that broke."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgument(f"nothing can be sent there: {error}") from error
    except OSError as error:
        raise storage_error(f"sending {what}", error) from error


# In ------------------------------------------------------------------------------------------


def adopt(store: "HttpStore", path: str, file: Path, *, partition: int, key: str) -> Adoption:
    """Append all records of a sealed segment, unless that was done before under `key`."""
    store.require_open()
    check_key(key)
    query: dict[str, str | int] = {"partition": partition_json(partition), "key": key}
    with read_sealed(file, Disk()) as sealed:
        if not sealed.count:
            raise InvalidArgument(f"{file} holds no records to adopt")
        records_of(sealed)  # The server would refuse it, after all of it was sent.
    with storage_errors(f"reading {file}"):
        data = file.read_bytes()
    answer = store.calls.fetch(
        "POST",
        f"{path}/segments",
        data,
        query=query,
        headers={"Content-Type": SEGMENT},
        takes=SENDING_SECONDS,
    )
    with making_sense():
        return msgspec.json.decode(answer, type=Adopted).adoption()
