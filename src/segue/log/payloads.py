"""What a caller hands in to be appended, checked before memory is taken or anything is written."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import cast

from segue.errors import BatchTooLarge, InvalidArgument, RecordTooLarge
from segue.log.hot import measure_batch

Payload = bytes | bytearray | memoryview


def checked_payload(payload: Payload, size_bytes_max: int) -> bytes:
    """Return `payload` as bytes. Raises InvalidArgument, RecordTooLarge."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgument(f"a payload is bytes, not {type(payload).__name__}")
    size_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size_bytes > size_bytes_max:
        raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=size_bytes_max)
    return bytes(payload)


def checked_batch(
    payloads: Iterable[Payload], size_bytes_max: int, items_max: int
) -> tuple[list[bytes], list[int]]:
    """Return the payloads and their lengths. Raises InvalidArgument, BatchTooLarge."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise InvalidArgument("append_many takes several payloads; append takes one")
    # Copied: another thread may change the caller's list under our hands.
    taken = list(islice(payloads, items_max + 1))
    if len(taken) > items_max:
        raise BatchTooLarge(f"a batch has at most {items_max} records here")
    batch = cast("list[bytes]", taken)
    lengths = measure_batch(batch)
    if lengths is None:
        batch = [checked_payload(item, size_bytes_max) for item in taken]
        lengths = list(map(len, batch))
    if sum(lengths) > size_bytes_max:
        raise BatchTooLarge(
            f"a batch of {sum(lengths)} bytes does not fit: at most {size_bytes_max} bytes here"
        )
    return batch, lengths


def checked_whole(
    lengths: Sequence[int], data: Payload, attrs: Sequence[int]
) -> tuple["array[int]", memoryview, "array[int]"]:
    """Return a batch that lies side by side in `data`, which is not copied.

    Raises InvalidArgument.
    """
    check_attrs(attrs, len(lengths))
    try:
        whole = memoryview(data).cast("B")
    except TypeError:
        raise InvalidArgument("a batch must lie side by side, as bytes do") from None
    try:
        sizes = array("I", lengths)
    except (OverflowError, TypeError):
        raise InvalidArgument("a length must fit in 32 bits without a sign") from None
    if sum(sizes) != len(whole):
        raise InvalidArgument(f"lengths of {sum(sizes)} bytes for {len(whole)} bytes of data")
    return sizes, whole, array("Q", attrs)


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
