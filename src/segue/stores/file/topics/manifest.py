"""What says how a topic is made: `manifest.json`, replaced in one step, never changed in place."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from segue.delivery.rules import check_count
from segue.delivery.topic_rules import PARTITIONS_MAX, TopicRules
from segue.errors import CorruptManifest, InvalidArgument, UnsupportedFormat
from segue.log.disk import Disk, storage_errors

FILENAME: Final = "manifest.json"
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """How a topic is made."""

    partitions: int
    rules: TopicRules = field(default_factory=TopicRules)
    version: int = 1
    created_us: int = 0

    def __post_init__(self) -> None:
        check_partitions(self.partitions)

    def changed(
        self, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> "Manifest":
        """Return the next version. Raises InvalidArgument for fewer partitions."""
        if partitions is not None and partitions < self.partitions:
            raise InvalidArgument(
                f"partitions are never removed: there are {self.partitions}, not {partitions}"
            )
        return replace(
            self,
            partitions=partitions or self.partitions,
            rules=rules or self.rules,
            version=self.version + 1,
        )


def check_partitions(partitions: int) -> None:
    """Raise InvalidArgument unless a topic can have so many partitions."""
    if partitions is None:
        raise InvalidArgument("partitions must be a whole number")
    check_count("partitions", partitions, most=PARTITIONS_MAX)
    if partitions > PARTITIONS_MAX:
        raise InvalidArgument(f"a topic has at most {PARTITIONS_MAX} partitions: {partitions}")


def write_manifest(directory: Path, manifest: Manifest, disk: Disk) -> None:
    """Make `manifest` the one that `read_manifest` returns, whole or not at all, synced."""
    body = json.dumps(
        {
            "format": FORMAT,
            "version": manifest.version,
            "partitions": manifest.partitions,
            "created_us": manifest.created_us,
            "rules": manifest.rules.to_dict(),
        },
        sort_keys=True,
    )
    text = json.dumps({"crc32": crc32(body.encode()), "manifest": json.loads(body)}, indent=2)
    with storage_errors(f"writing {directory / FILENAME}"):
        disk.replace_file(directory / FILENAME, text.encode(), sync=True)
        disk.sync_directory(directory)


def read_manifest(directory: Path, disk: Disk) -> Manifest | None:
    """Return the manifest in `directory`, None if there is none.

    Raises CorruptManifest, UnsupportedFormat.
    """
    path = directory / FILENAME
    with storage_errors(f"reading {path}"):
        try:
            fd = disk.open_to_read(path)
        except FileNotFoundError:
            return None
        try:
            data = disk.read_at(fd, MANIFEST_BYTES_MAX, 0)
        finally:
            disk.close(fd)
    try:
        outer = json.loads(data)
        values = outer["manifest"]
        body = json.dumps(values, sort_keys=True)
        if crc32(body.encode()) != outer["crc32"]:
            raise CorruptManifest(path=path, reason="checksum does not match")
        if values["format"] != FORMAT:
            raise UnsupportedFormat(f"{path}: format {values['format']!r} needs a newer Segue")
        return Manifest(
            partitions=values["partitions"],
            rules=TopicRules.from_dict(values["rules"]),
            version=values["version"],
            created_us=values["created_us"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptManifest(path=path, reason=f"it cannot be read: {error}") from error
