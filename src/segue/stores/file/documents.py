"""Small documents on disk: JSON with a checksum, replaced in one step."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

from segue.errors import CorruptManifest, UnsupportedFormat
from segue.log.disk import Disk, storage_errors

NUMBER_MAX: Final = (1 << 64) - 1


def write_document(path: Path, values: Mapping[str, object], disk: Disk, *, sync: bool) -> None:
    """Make `values` what `read_document` returns, whole or not at all."""
    text = json.dumps(values, sort_keys=True)
    data = json.dumps({"crc32": crc32(text.encode()), "holds": json.loads(text)}, sort_keys=True)
    with storage_errors(f"writing {path}"):
        disk.replace_file(path, data.encode(), sync=sync)
        if sync:
            disk.sync_directory(path.parent)


def read_document(path: Path, disk: Disk, *, format_: int) -> dict[str, object] | None:
    """Return what was written at `path`, None if nothing was.

    Raises CorruptManifest, UnsupportedFormat.
    """
    with storage_errors(f"reading {path}"):
        try:
            data = disk.read_file(path)
        except FileNotFoundError:
            return None
    try:
        document = json.loads(data)
        values = document["holds"]
        text = json.dumps(values, sort_keys=True)
        is_whole = crc32(text.encode()) == document["crc32"] and isinstance(values, dict)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptManifest(path=path, reason=f"it cannot be read: {error}") from error
    if not is_whole:
        raise CorruptManifest(path=path, reason="checksum does not match")
    if values.get("format") != format_:
        raise UnsupportedFormat(f"{path}: format {values.get('format')!r} needs a newer Segue")
    return dict(values)


def number(value: object) -> int:
    """Return `value` if it is a number to be found in a document. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"not a number to be found here: {value!r}")
    return value
