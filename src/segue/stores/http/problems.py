"""Errors as problem details (RFC 9457), and back. Both ends go by the one table here.

A code is for programs and never changes; the detail is for people. What an error carries besides
its words travels under the same names, so that a client raises what the server's store raised.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path, PurePath
from typing import Final, NamedTuple, cast

from segue import errors
from segue.errors import SegueError
from segue.values import dataclass

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:segue:problem:"


class Kind(NamedTuple):
    """How one class of errors is told."""

    error: type[SegueError]
    status: int
    code: str
    fields: tuple[str, ...] = ()


_RANGE: Final = ("offset", "earliest", "latest", "partition")
_BATCH: Final = ("first_offset", "last_offset", "position")

KINDS: Final = (
    Kind(errors.InvalidArgument, 400, "invalid_argument"),
    Kind(errors.InvalidName, 400, "invalid_name"),
    Kind(errors.RecordTooLarge, 413, "record_too_large", ("size_bytes", "size_bytes_max")),
    Kind(errors.BatchTooLarge, 413, "batch_too_large"),
    Kind(errors.BadArguments, 400, "bad_task_arguments", ("task", "reason")),
    Kind(errors.AccessDenied, 403, "access_denied"),
    Kind(errors.SessionGone, 404, "session_gone", ("session",)),
    Kind(errors.LogNotFound, 404, "store_not_found"),
    Kind(errors.RingNotFound, 404, "ring_not_found", ("name",)),
    Kind(errors.TopicNotFound, 404, "topic_not_found", ("name",)),
    Kind(errors.TaskNotFound, 404, "task_not_found"),
    Kind(errors.OffsetOutOfRange, 404, "offset_out_of_range", _RANGE),
    Kind(errors.OffsetNotWritten, 404, "offset_not_written", _RANGE),
    Kind(errors.OffsetTrimmed, 410, "offset_trimmed", _RANGE),
    Kind(errors.RecordRemoved, 410, "record_removed", ("offset",)),
    Kind(errors.LeaseLost, 410, "lease_lost", ("receipt", "reason", "lost")),
    Kind(errors.LockLost, 410, "lock_lost", ("name", "token", "reason")),
    Kind(errors.RingExists, 409, "ring_exists", ("name",)),
    Kind(errors.TransactionAborted, 409, "transaction_aborted", ("ring", "txn_id", "reason")),
    Kind(errors.ProducerBusy, 409, "producer_busy", ("name",)),
    Kind(errors.GroupBusy, 409, "group_busy", ("name", "members")),
    Kind(errors.PartitionLost, 409, "partition_lost", ("group", "partitions")),
    Kind(errors.QueueLocked, 423, "queue_locked", ("queue", "leases_max", "seconds_left")),
    Kind(errors.LockBusy, 423, "lock_busy", ("name", "owner", "seconds_left")),
    Kind(errors.QueueFull, 429, "queue_full", ("queue", "capacity", "is_final")),
    Kind(errors.RingFull, 429, "ring_full", ("name", "capacity")),
    Kind(errors.StorageFull, 507, "storage_full"),
    Kind(errors.StorageFailed, 503, "storage_failed"),
    Kind(errors.StorageError, 503, "storage_error"),
    Kind(errors.StoreClosed, 503, "store_closed"),
    Kind(errors.LogClosed, 503, "store_closed"),
    Kind(errors.ConnectionsBusy, 503, "connections_busy", ("size", "seconds")),
    Kind(errors.NotReplicated, 503, "not_replicated"),
    Kind(errors.StoreUnavailable, 503, "store_unavailable"),
    Kind(errors.UnsupportedServer, 501, "not_supported"),
    Kind(errors.Damage, 500, "damaged"),
    Kind(errors.CorruptRecord, 500, "corrupt_record", ("path", *_BATCH)),
    Kind(errors.CorruptSegment, 500, "corrupt_segment", ("path", "reason")),
    Kind(errors.CorruptPosition, 500, "corrupt_position", ("path", "reason")),
    Kind(errors.CorruptManifest, 500, "corrupt_manifest", ("path", "reason")),
    Kind(errors.UnsupportedFormat, 500, "unsupported_format"),
    Kind(errors.LogReadOnly, 503, "read_only"),
    Kind(errors.LogLocked, 503, "store_locked"),
)

_LISTS: Final[dict[str, type]] = {"lost": str, "partitions": int}
_NUMBERS: Final = frozenset(
    {
        *(*_RANGE, "size_bytes", "size_bytes_max", "token", "members", "leases_max", "capacity"),
        *("seconds_left", "size", "seconds", *_BATCH),
    }
)

_OURS: Final = 500
"""From here on it is the server's fault, and the words are about its files."""
_DIRECTORIES: Final = re.compile(r"(?<![\w…])/(?:[^\s/:]+/)+")

_BY_ERROR: Final = {kind.error: kind for kind in KINDS}
_BY_CODE: Final = {kind.code: kind for kind in reversed(KINDS)}

RETRY_AFTER_SECONDS: Final = 1
"""When it may make sense to ask again, where nothing better is known."""
NOT_BEGUN: Final = frozenset({"overloaded", "store_closed", "connections_busy"})
"""Codes of 503 that say that nothing was done: such a request is simply asked again."""
RETRIED_STATUSES: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong, as it is sent."""

    status: int
    code: str
    detail: str
    fields: Mapping[str, object]
    retry_after_seconds: int | None = None

    def to_json(self) -> bytes:
        """Return the body of the answer."""
        document = {
            "type": TYPE_PREFIX + self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.fields,
        }
        return json.dumps(document).encode()


def kind_of(error: SegueError) -> Kind:
    """Return how an error is told: as what it is, or as what it is a case of."""
    for class_ in type(error).__mro__:
        kind = _BY_ERROR.get(class_)
        if kind is not None:
            return kind
    return Kind(SegueError, 500, "internal")


def problem_of(error: SegueError) -> Problem:
    """Return what to tell of an error."""
    kind = kind_of(error)
    return Problem(
        status=kind.status,
        code=kind.code,
        detail=_without_paths(str(error)) if kind.status >= _OURS else str(error),
        fields={name: _sent(getattr(error, name)) for name in kind.fields},
        retry_after_seconds=_retry_after(kind, error),
    )


def _sent(value: object) -> object:
    """Return a field as it is sent: of a path its last word, the rest is the server's own."""
    return value.name if isinstance(value, PurePath) else value


def _without_paths(text: str) -> str:
    """Return words that do not tell where on the server's machine something is."""
    return _DIRECTORIES.sub("…/", text)


def _retry_after(kind: Kind, error: SegueError) -> int | None:
    if kind.status not in RETRIED_STATUSES and kind.status != HTTPStatus.LOCKED:
        return None
    seconds = getattr(error, "seconds_left", None)
    return RETRY_AFTER_SECONDS if seconds is None else max(1, min(60, round(seconds)))


def code_of(body: bytes) -> str:
    """Return the code that an answer tells, "" if it tells none."""
    return str(_document(body).get("code", ""))


def error_of(body: bytes) -> SegueError | None:
    """Return the error that an answer tells of, None if it tells of none that is known."""
    document = _document(body)
    kind = _BY_CODE.get(str(document.get("code")))
    detail = document.get("detail")
    if kind is None or not isinstance(detail, str):
        return None
    # Not through its constructor: the words are the server's, and so are the fields.
    error = kind.error.__new__(kind.error)
    Exception.__init__(error, detail)
    for name in kind.fields:
        value = document.get(name)
        if not _fits(name, value):
            return None
        setattr(error, name, _received(name, value))
    return error


def _received(name: str, value: object) -> object:
    if name == "path":
        return Path(str(value))
    return tuple(value) if isinstance(value, list) else value


def _fits(name: str, value: object) -> bool:
    """Tell whether a field is of the type that whoever catches the error expects."""
    if name == "partition" and value is None:
        return True
    if name in _LISTS:
        return isinstance(value, list) and all(type(each) is _LISTS[name] for each in value)
    if name in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool if name == "is_final" else str)


def _document(body: bytes) -> dict[str, object]:
    try:
        document = cast("object", json.loads(body))
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", document) if isinstance(document, dict) else {}
