"""What says how a topic is made: `manifest.json`, replaced in one step, never changed in place."""

from pathlib import Path
from typing import Final

from segue.delivery.topic_rules import TopicRules
from segue.errors import CorruptManifest
from segue.log.disk import Disk
from segue.stores.file.documents import number, read_document, write_document
from segue.stores.topic_manifest import Manifest

FILENAME: Final = "manifest.json"
FORMAT: Final = 1


def write_manifest(directory: Path, manifest: Manifest, disk: Disk) -> None:
    """Make `manifest` the one that `read_manifest` returns, whole or not at all, synced."""
    values = {
        "format": FORMAT,
        "version": manifest.version,
        "partitions": manifest.partitions,
        "created_us": manifest.created_us,
        "rules": manifest.rules.to_dict(),
    }
    write_document(directory / FILENAME, values, disk, sync=True)


def read_manifest(directory: Path, disk: Disk) -> Manifest | None:
    """Return the manifest in `directory`, None if there is none.

    Raises CorruptManifest, UnsupportedFormat.
    """
    path = directory / FILENAME
    values = read_document(path, disk, format_=FORMAT)
    if values is None:
        return None
    try:
        rules = values["rules"]
        if not isinstance(rules, dict):
            raise TypeError(f"not rules: {rules!r}")
        return Manifest(
            partitions=number(values["partitions"]),
            rules=TopicRules.from_dict(rules),
            version=number(values["version"]),
            created_us=number(values["created_us"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptManifest(path=path, reason=f"it cannot be read: {error}") from error
