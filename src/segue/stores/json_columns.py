"""Many small JSON objects parsed at once, into columns of given types."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

_BLOCK_SLACK_BYTES: Final = 1 << 16
"""How much larger than the text a block of it is, so that there is only one."""
_BEFORE: Final = b'{"v":['
_AFTER: Final = b"]}\n"
"""What each object is wrapped in: no text between them, however cut or made up, can take in a part
of the next, so as many rows as objects means one each."""


def are_text(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Tell which values are there and UTF-8."""
    usable: npt.NDArray[np.bool_] = np.array(values.is_valid())
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        usable &= np.array([each is not None and _is_text(each) for each in values.to_pylist()])
    return usable


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_objects(values: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray | None:
    """Return what objects say; None if one of them is not what it should be.

    Each value must be text, as `are_text` has it.
    """
    count = len(values)
    if not count:
        return pa.array([], type_)
    wrapped = pc.binary_join_element_wise(
        pa.scalar(_BEFORE, pa.binary()), values, pa.scalar(_AFTER, pa.binary()), b""
    )
    bounds = np.frombuffer(wrapped.buffers()[1], dtype=np.int32)[wrapped.offset :]
    text = wrapped.buffers()[2].slice(int(bounds[0]), int(bounds[count] - bounds[0]))
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            # One block: what spans two would be parsed twice as slowly.
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=text.size + _BLOCK_SLACK_BYTES
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([("v", pa.list_(type_))]),
                unexpected_field_behavior="ignore",
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    lists = table.column("v").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks)
    if len(lists) != count or not pc.all(pc.equal(pc.list_value_length(lists), 1)).as_py():
        return None
    return lists.flatten()
