"""Which file system a path is on, by the path alone.

`Disk.file_system` asks by the number of the device first, and says nothing of the rest. What Segue
refuses is for `Disk` to say.
"""

from pathlib import Path

from segue.log.disk import MOUNT_TABLE
from segue.log.mounts import Mount, mount_of

__all__ = ["Mount", "look_up_mount", "mount_of"]


def look_up_mount(place: Path) -> Mount | None:
    """Return where a directory lies; None where the system has no such table."""
    try:
        return mount_of(place.resolve(), MOUNT_TABLE.read_text(errors="surrogateescape"))
    except OSError:
        return None
