"""A disk whose power can be cut afterwards, at any moment of what was done to it.

`RecordingDisk` works on a real directory and notes every change. `after_power_cut` then builds, in
another directory, one of the states the first could have been found in. It promises no more than
POSIX does, which is less than most file systems keep:

- What a file held when it was last synced is there. Every write since is kept, lost or torn,
  sector by sector, whatever became of the others; so are changes of size.
- Syncing a file does not keep its name. A name made, replaced or removed since its directory was
  last synced is as it was before or as it is now, whatever became of the others. A rename is one
  step: the old name or the new one.
- What was stored through a mapping is anything: gone, zeros, noise or what it once was.
"""

import itertools
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal

from segue.errors import InvalidArgument
from segue.log.disk import DIRECTORY_MODE, Disk
from segue.testing.contents import Content
from segue.values import dataclass

SECTOR_BYTES: Final = 512
"""What a device writes whole or not at all."""

_KEEP: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""How likely a change survives; drawn per file and cut, or all cuts would look alike."""
_TORN: Final = 0.3
"""How likely a write is torn, where neither everything nor nothing survives."""
_DIRECTORY: Final = 0
"""Stands for a directory where files have their number."""

Change = Literal[
    "create", "mkdir", "rename", "resize", "sync_data", "sync_directory", "unlink", "write"
]

_boot_ids = itertools.count(0x5E60E_0000_0001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change, as it was recorded. Paths are relative to the recorded directory."""

    operation: Change
    path: Path
    """Of a file that has been renamed since it was opened: the name it was opened by."""
    target: Path | None = None
    """The new name in a rename."""
    file: int = _DIRECTORY
    """Tells files apart, whatever they are called."""
    position: int = 0
    """Where a write begins, or the size after a resize."""
    data: bytes = b""

    def __str__(self) -> str:
        name = str(self.path) if self.target is None else f"{self.path} -> {self.target}"
        if self.operation == "write":
            return f"write {name} {self.position}+{len(self.data)}"
        return f"{self.operation} {name}" + (f" {self.position}" if self.position else "")


class RecordingDisk(Disk):
    """Does everything on the real directory `root` and records it, for `after_power_cut`.

        disk = RecordingDisk(root)
        with Log(root / "log", disk=disk) as log:
            log.append(b"one")
            moment = disk.moment
        after = disk.after_power_cut(elsewhere, moment, Random(1))
        Log(elsewhere / "log", disk=after)

    What `root` holds at first counts as synced. Only changes made through this disk are known, so
    a log stores nothing through mappings but its live words. Syncs are recorded and not performed:
    no process can tell, and a test is faster. Safe from any thread.
    """

    stores_mapped = False

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._boot_id = next(_boot_ids)
        self._recording = threading.RLock()
        self._events: list[Event] = []
        self._numbers = itertools.count(_DIRECTORY + 1)
        self._open: dict[int, tuple[int, Path]] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._names: dict[Path, int] = {}
        self._initial = _Device()
        self._take_stock()
        self._device, self._device_moment = self._initial.copy(), 0

    def _take_stock(self) -> None:
        for directory, directories, files in os.walk(self._root):
            place = Path(directory).relative_to(self._root)
            for name in directories:
                self._names[place / name] = _DIRECTORY
            for name in files:
                path = Path(directory, name)
                if path.is_file():  # Pipes hold nothing that could be lost.
                    number = next(self._numbers)
                    self._names[place / name] = number
                    self._initial.contents[number] = Content.read(path)
        self._initial.names.update(self._names)

    # What the test asks ----------------------------------------------------------------------

    @property
    def moment(self) -> int:
        """How many changes were recorded so far: now, as `after_power_cut` counts."""
        return len(self._events)

    @property
    def events(self) -> Sequence[Event]:
        """Everything recorded, in order."""
        with self._recording:
            return tuple(self._events)

    def boot_id(self) -> int:
        """Return a number of this disk alone: another one is another start of the machine."""
        return self._boot_id

    def after_power_cut(self, target: Path, moment: int, random: Random) -> "RecordingDisk":
        """Build in `target` what may be left if the power fails after `moment` changes.

        Which of the possible states it is, `random` decides; the same one gives the same state.
        Returns the disk of the machine after its restart. Opening `target` with any other needs
        one with a `boot_id` of its own, or stale live words would be believed.
        """
        with self._recording:
            if not 0 <= moment <= len(self._events):
                raise InvalidArgument(f"there is no moment {moment}: 0 to {len(self._events)}")
            if moment < self._device_moment:
                self._device, self._device_moment = self._initial.copy(), 0
            for event in self._events[self._device_moment : moment]:
                self._device.apply(event)
            self._device_moment = moment
            names, contents = self._device.cut(random)
            for number, mapped in self._mapped.items():
                _scramble(number, mapped.until(moment), names, contents, random)
        _materialise(target, names, contents)
        return RecordingDisk(target)

    # What is recorded ------------------------------------------------------------------------

    def open_to_read(self, path: Path) -> int:
        with self._recording:
            fd = super().open_to_read(path)
            self._note_open(fd, path)
            return fd

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        with self._recording:
            fd = super().open_to_write(path, create=create)
            self._note_open(fd, path)
            return fd

    def _note_open(self, fd: int, path: Path) -> None:
        name = self._relative(path)
        if name is None:
            return
        if name not in self._names:
            self._names[name] = next(self._numbers)
            self._record(Event(operation="create", path=name, file=self._names[name]))
        self._open[fd] = self._names[name], name

    def close(self, fd: int) -> None:
        with self._recording:
            self._open.pop(fd, None)
            super().close(fd)

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        with self._recording:
            super().write_at(fd, data, position)
            self._record_file(fd, "write", position=position, data=bytes(data))

    def resize(self, fd: int, size_bytes: int) -> None:
        with self._recording:
            super().resize(fd, size_bytes)
            self._record_file(fd, "resize", position=size_bytes)

    def sync_data(self, fd: int) -> None:
        with self._recording:
            self._record_file(fd, "sync_data")

    def _record_file(
        self, fd: int, operation: Change, *, position: int = 0, data: bytes = b""
    ) -> None:
        if fd in self._open:
            file, path = self._open[fd]
            self._record(
                Event(operation=operation, path=path, file=file, position=position, data=data)
            )

    def map_to_write(self, fd: int, size_bytes: int) -> mmap.mmap:
        with self._recording:
            mapping = super().map_to_write(fd, size_bytes)
            if fd in self._open:
                file, path = self._open[fd]
                mapped = self._mapped.setdefault(file, _Mapped(self._root / path))
                mapped.take_snapshot(self.moment)
            return mapping

    def rename(self, source: Path, target: Path) -> None:
        with self._recording:
            super().rename(source, target)
            old, new = self._relative(source), self._relative(target)
            if old is not None and new is not None and old in self._names:
                file = self._names[new] = self._names.pop(old)
                self._record(Event(operation="rename", path=old, target=new, file=file))

    def unlink(self, path: Path) -> None:
        with self._recording:
            super().unlink(path)
            name = self._relative(path)
            if name is not None and name in self._names:
                file = self._names.pop(name)
                self._record(Event(operation="unlink", path=name, file=file))

    def make_directory(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with self._recording:
                try:
                    directory.mkdir(DIRECTORY_MODE)
                except FileExistsError:
                    continue
                name = self._relative(directory)
                if name is not None and name.parts:  # The root itself is beyond doubt.
                    self._names[name] = _DIRECTORY
                    self._record(Event(operation="mkdir", path=name))
            self.sync_directory(directory.parent)

    def sync_directory(self, path: Path) -> None:
        with self._recording:
            name = self._relative(path)
            if name is not None:
                self._record(Event(operation="sync_directory", path=name))

    def _relative(self, path: Path) -> Path | None:
        path = path.absolute()
        return path.relative_to(self._root) if path.is_relative_to(self._root) else None

    def _record(self, event: Event) -> None:
        if event.operation in ("sync_data", "sync_directory"):
            for mapped in self._mapped.values():
                mapped.take_snapshot(self.moment)
        self._events.append(event)


class _Mapped:
    """What a file that is written through a mapping held at some moments."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._snapshots: list[tuple[int, bytes]] = []

    def take_snapshot(self, moment: int) -> None:
        if not self._path.exists():
            return
        content = self._path.read_bytes()
        if not self._snapshots or self._snapshots[-1][1] != content:
            self._snapshots.append((moment, content))

    def until(self, moment: int) -> list[bytes]:
        return [content for taken, content in self._snapshots if taken <= moment]


class _Device:
    """What is certainly on the device, and what was asked of it since."""

    def __init__(self) -> None:
        self.names: dict[Path, int] = {}
        self.contents: dict[int, Content] = {}
        self._unsynced_names: list[Event] = []
        self._unsynced: dict[int, list[Event]] = {}

    def copy(self) -> "_Device":
        device = _Device()
        device.names = dict(self.names)
        device.contents = {file: content.copy() for file, content in self.contents.items()}
        return device

    def apply(self, event: Event) -> None:
        match event.operation:
            case "write" | "resize":
                self._unsynced.setdefault(event.file, []).append(event)
            case "sync_data":
                content = self.contents.setdefault(event.file, Content())
                for change in self._unsynced.pop(event.file, ()):
                    _change(content, change)
            case "sync_directory":
                self._sync_names(event.path)
            case _:
                self._unsynced_names.append(event)

    def _sync_names(self, directory: Path) -> None:
        waiting: list[Event] = []
        for event in self._unsynced_names:
            target = event.path if event.target is None else event.target
            if directory not in (event.path.parent, target.parent):
                waiting.append(event)
                continue
            _change_name(self.names, event)
            if event.operation == "rename":
                # The file has its new name for good, so how it came by the old one is void.
                waiting = [other for other in waiting if other.file != event.file]
        self._unsynced_names = waiting

    def cut(self, random: Random) -> tuple[dict[Path, int], dict[int, Content]]:
        """Return the names and contents of one possible state after a power cut."""
        names = dict(self.names)
        keep = random.choice(_KEEP)
        for event in self._unsynced_names:
            if random.random() < keep:
                _change_name(names, event)
        contents = {}
        for file in sorted(set(names.values()) - {_DIRECTORY}):
            content = contents[file] = self.contents.get(file, Content()).copy()
            keep = random.choice(_KEEP)
            for event in self._unsynced.get(file, ()):
                _change_in_part(content, event, keep, random)
        return names, contents


def _change_name(names: dict[Path, int], event: Event) -> None:
    match event.operation:
        case "unlink":
            names.pop(event.path, None)
        case "rename":
            if names.get(event.path) == event.file:
                del names[event.path]
            assert event.target is not None
            names[event.target] = event.file
        case _:
            names[event.path] = event.file


def _change(content: Content, event: Event) -> None:
    if event.operation == "resize":
        content.resize(event.position)
    else:
        content.write(event.data, event.position)


def _change_in_part(content: Content, event: Event, keep: float, random: Random) -> None:
    """Do what is left of a change that nobody synced: all of it, some sectors, or nothing."""
    if event.operation == "resize":
        if random.random() < keep:
            content.resize(event.position)
        return
    end = event.position + len(event.data)
    if end > content.size_bytes and random.random() < keep:
        content.resize(end)  # The size may be there without the bytes.
    torn = 0 < keep < 1 and random.random() < _TORN
    whole = random.random() < keep
    first = event.position - event.position % SECTOR_BYTES
    for sector in range(first, end, SECTOR_BYTES):
        if random.random() < keep if torn else whole:
            start, stop = max(sector, event.position), min(sector + SECTOR_BYTES, end)
            piece = event.data[start - event.position : stop - event.position]
            content.write(piece, start)


def _scramble(
    file: int,
    snapshots: list[bytes],
    names: dict[Path, int],
    contents: dict[int, Content],
    random: Random,
) -> None:
    """Leave of a file written through a mapping whatever the device happened to have."""
    if not snapshots or file not in contents:
        return
    match random.randrange(4):
        case 0:
            for name in [name for name, number in names.items() if number == file]:
                del names[name]
        case 1:
            contents[file] = Content(bytes(len(snapshots[-1])))
        case 2:
            contents[file] = Content(random.randbytes(len(snapshots[-1])))
        case _:
            contents[file] = Content(random.choice(snapshots))


def _materialise(target: Path, names: dict[Path, int], contents: dict[int, Content]) -> None:
    target.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise InvalidArgument(f"{target} is not empty")
    for name in sorted(names):  # Sorted, so that a directory comes before what is in it.
        path = target / name
        if not path.parent.is_dir():
            continue  # Its directory is lost, and it with it.
        if names[name] == _DIRECTORY:
            path.mkdir(DIRECTORY_MODE)
        else:
            contents[names[name]].save(path)
