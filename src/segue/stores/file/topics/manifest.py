"""What says how a topic is made: `manifest.json`, replaced in one step, never changed in place."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from segue.delivery.topic_rules import PARTITIONS_MAX, TopicRules
from segue.errors import CorruptManifest, InvalidArgument
from segue.log.disk import Disk
from segue.stores.file.documents import number, read_document, write_document

FILENAME: Final = "manifest.json"
FORMAT: Final = 1


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
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgument(
            f"partitions must be a whole number from 1 to {PARTITIONS_MAX}: {partitions!r}"
        )


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
