"""What a caller hands in to be appended, checked before memory is taken or anything is written."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, cast

from segue.errors import BatchTooLarge, InvalidArgument, RecordTooLarge
from segue.log.layout import SegmentHeader

Payload = bytes | bytearray | memoryview

_BYTES: Final = frozenset({bytes})


def checked_payload(payload: Payload, limits: SegmentHeader) -> bytes:
    """Return `payload` as bytes. Raises InvalidArgument, RecordTooLarge."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a payload is bytes, not {type(payload).__name__}")
    size_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size_bytes > limits.payload_bytes_max:
        raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=limits.payload_bytes_max)
    return bytes(payload)


def checked_batch(
    payloads: Iterable[Payload], limits: SegmentHeader
) -> tuple[list[bytes], list[int]]:
    """Return the payloads and their lengths. Raises InvalidArgument, BatchTooLarge."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise InvalidArgument("append_many takes several payloads; append takes one")
    taken = payloads if type(payloads) is list else list(islice(payloads, limits.items_max + 1))
    if len(taken) > limits.items_max:
        raise BatchTooLarge(f"a batch has at most {limits.items_max} records here")
    if set(map(type, taken)) <= _BYTES:
        batch = cast("list[bytes]", taken)
    else:
        batch = [item if type(item) is bytes else checked_payload(item, limits) for item in taken]
    lengths = list(map(len, batch))
    if sum(lengths) > limits.payload_bytes_max:
        raise BatchTooLarge(
            f"a batch of {sum(lengths)} bytes does not fit: at most "
            f"{limits.payload_bytes_max} bytes here"
        )
    return batch, lengths


def check_attrs(attrs: Sequence[int] | None, count: int) -> None:
    """Refuse attrs that are not as many as the payloads or do not fit in a slot."""
    if attrs is None:
        return
    if len(attrs) != count:
        raise InvalidArgument(f"{len(attrs)} attrs for {count} payloads")
    try:
        array("Q", attrs)
    except (OverflowError, TypeError):
        raise InvalidArgument("an attr must fit in 64 bits without a sign") from None
