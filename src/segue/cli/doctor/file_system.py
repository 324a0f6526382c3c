"""Whether the file system is one that Segue uses, and one that keeps anything."""

from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.doctor.mounts import Mount
from segue.log.disk import Disk
from segue.values import dataclass

NAME: Final = "file system"
IN_MEMORY: Final = frozenset({"ramfs", "tmpfs", "devtmpfs", "hugetlbfs"})
LOCAL: Final = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "reiserfs", "xfs", "zfs")
)
_WITHOUT_PIPES: Final = frozenset({"exfat", "fuseblk", "msdos", "ntfs", "ntfs3", "vfat"})
_LAYERED: Final = frozenset({"aufs", "overlay"})
VOLATILE: Final = frozenset({"volatile", "fsync=volatile"})
"""The option of an overlay that takes no notice of syncs, as older and newer kernels have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemFacts:
    """What is known of the file system."""

    kind: str
    """Such as "ext4", "" if it cannot be told."""
    is_refused: bool
    """Whether Segue opens nothing there unless it is told to."""
    stores_mapped: bool
    """Whether Segue writes through mappings there."""
    point: str = "/"
    options: frozenset[str] = frozenset()


def file_system_check(facts: FileSystemFacts) -> Check:
    """Return whether a store can live there."""
    found = f"{facts.kind} at {facts.point}"
    if facts.is_refused:
        return fail(
            NAME,
            f"{found}: a network file system, where locks and mapped files are not safe; refused",
            "a local disk; 'segue serve' or Redis for several machines; allow_network=True if "
            "you know better",
        )
    if not facts.kind:
        return warn(NAME, "unknown: the system has no table of mounts", "see that it is local")
    if facts.kind in IN_MEMORY:
        return fail(
            NAME,
            f"{found}: memory; it survives the process and nothing else",
            "a directory on a disk, unless all may be lost when the machine stops",
        )
    if "ro" in facts.options:
        return fail(NAME, f"{found}: mounted read-only", "mount it read-write; logs can be read")
    if facts.kind in _LAYERED and facts.options & VOLATILE:
        return fail(NAME, f"{found}: mounted volatile, which ignores syncs", "a volume")
    if facts.kind in _LAYERED:
        return warn(
            NAME,
            f"{found}: the writable layer of a container, which goes with it",
            "a volume, or a directory of the host",
        )
    if facts.kind in _WITHOUT_PIPES:
        return warn(
            NAME,
            f"{found}: it has neither pipes to wake waiters by nor permissions",
            "ext4 or xfs; waiters look every 10 ms here",
        )
    if facts.kind not in LOCAL:
        return info(
            NAME, f"{found}: not refused, and not known", "see that locks and mapped files work"
        )
    if not facts.stores_mapped:
        return ok(NAME, f"{found}: copies on write, so records are not written through mappings")
    return ok(NAME, found)


def look_at_file_system(place: Path, mount: Mount | None) -> FileSystemFacts:
    """Return what is known of the file system below a directory that is there."""
    disk = Disk()
    kind = disk.file_system(place) if mount is None else mount.kind
    return FileSystemFacts(
        kind=kind,
        is_refused=disk.is_network_file_system(place),
        stores_mapped=disk.may_store_mapped(place),
        point="/" if mount is None else mount.point,
        options=frozenset() if mount is None else mount.options,
    )
