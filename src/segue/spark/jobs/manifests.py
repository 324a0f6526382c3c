"""What an archive consists of: Parquet files by date, and a manifest for each run that wrote some.

    date=2026-01-31/000007-part-….parquet    rows of run 7; they count once its manifest is there
    _segue/000007.json                       what run 7 archived: offsets, and in which files
    _segue/writing-…/                        what a run is writing, or a killed one left
    _segue/lock                              locked while a run is at it

A run happens with one step, when its manifest gets its name. Whoever reads goes by the manifests,
so what a killed run left is never seen; the next run removes it.
"""

import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

import pyarrow.parquet

from segue.errors import CorruptManifest, InvalidArgument, LogLocked
from segue.log.disk import Disk, storage_errors
from segue.spark.jobs.running import spark_files
from segue.stores.file.claims import claim
from segue.stores.file.documents import number, read_document, write_document
from segue.values import dataclass

FORMAT: Final = 1
DIRECTORY: Final = "_segue"
WRITING: Final = "writing-"
LOCK: Final = "lock"
_MANIFEST: Final = re.compile(r"(\d{6,})\.json", re.ASCII)
_DATA: Final = re.compile(r"(\d{6,})-.*\.parquet", re.ASCII)

ArchiveKind = Literal["topic", "queue"]
Ranges = Mapping[str, tuple[int, int]]
"""From which offset up to which, by partition, or by priority and "later"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of an archive."""

    path: str
    """Below the archive."""
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one run archived."""

    run: int
    kind: ArchiveKind
    name: str
    ranges: Ranges
    ends: Mapping[str, int]
    """Up to where everything is archived after this run, by partition or priority."""
    pending: Mapping[str, Sequence[int]]
    """What lies before these ends and was not settled yet, by priority."""
    files: Sequence[DataFile]


class Archive:
    """An archive in a directory, which need not be there yet."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self._own = path / DIRECTORY
        self._disk = Disk()
        self._sync = sync

    def place_to_write(self) -> Path:
        """Return where a run may write, and nobody else ever did.

        Tasks of a killed run may still be at work where that one wrote.
        """
        return self._own / f"{WRITING}{uuid.uuid4().hex}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs away for the length of a block. Raises LogLocked."""
        held = claim(self._own / LOCK, self._disk)
        if held is None:
            raise LogLocked(f"another run is archiving to {self.path}")
        try:
            yield
        finally:
            held.release()

    def exists(self) -> bool:
        """Tell whether anything was ever archived here."""
        return self._own.is_dir() and bool(self._runs())

    def manifests(self, kind: ArchiveKind | None = None, name: str = "") -> list[Manifest]:
        """Return what each run archived, oldest first.

        Raises InvalidArgument if it is the archive of something else than `kind` and `name` say,
        CorruptManifest if a manifest is damaged or missing.
        """
        found = [self._read(run) for run in self._runs()]
        for expected, manifest in enumerate(found, 1):
            if manifest.run != expected:
                path = self._path(expected)
                raise CorruptManifest(path=path, reason="it is missing, and later ones are there")
            if kind is not None and (manifest.kind, manifest.name) != (kind, name):
                raise InvalidArgument(
                    f"{self.path} is the archive of {manifest.kind} {manifest.name}, "
                    f"not of {kind} {name}"
                )
        return found

    def add(self, manifest: Manifest) -> None:
        """Have a run happen."""
        values: dict[str, object] = {
            "format": FORMAT,
            "run": manifest.run,
            "kind": manifest.kind,
            "name": manifest.name,
            "ranges": {label: list(ends) for label, ends in manifest.ranges.items()},
            "ends": dict(manifest.ends),
            "pending": {label: list(offsets) for label, offsets in manifest.pending.items()},
            "files": [[file.path, file.records, file.size_bytes] for file in manifest.files],
        }
        write_document(self._path(manifest.run), values, self._disk, sync=self._sync)

    def take_in(self, written: Path, run: int) -> list[DataFile]:
        """Move what a run has written to where it belongs, and return it; it does not count yet."""
        files = []
        with storage_errors(f"moving to {self.path}"):
            for source in sorted(written.glob("date=*/*.parquet")):
                date = source.parent.name
                target = self.path / date / f"{run:06d}-{source.name}"
                self._disk.make_directory(target.parent)
                self._sync_file(source)
                self._disk.rename(source, target)
                files.append(
                    DataFile(
                        path=f"{date}/{target.name}",
                        records=pyarrow.parquet.read_metadata(target).num_rows,
                        size_bytes=target.stat().st_size,
                    )
                )
            if self._sync:
                for date in sorted({Path(file.path).parent.name for file in files}):
                    self._disk.sync_directory(self.path / date)
        shutil.rmtree(written, ignore_errors=True)
        return files

    def drop_leftovers(self, last_run: int) -> None:
        """Remove what a killed run has left."""
        for path in self._own.glob(f"{WRITING}*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob("date=*/*.parquet"):
            match = _DATA.fullmatch(path.name)
            if match is not None and int(match[1]) > last_run:
                with storage_errors(f"removing {path}"), suppress(FileNotFoundError):
                    self._disk.unlink(path)

    def paths(self, manifests: Sequence[Manifest]) -> list[str]:
        """Return the files that manifests list, as Spark takes them."""
        return [spark_files(self.path / file.path) for each in manifests for file in each.files]

    def _runs(self) -> list[int]:
        with storage_errors(f"listing {self._own}"):
            names = self._disk.names(self._own)
        return sorted(int(match[1]) for name in names if (match := _MANIFEST.fullmatch(name)))

    def _path(self, run: int) -> Path:
        return self._own / f"{run:06d}.json"

    def _read(self, run: int) -> Manifest:
        path = self._path(run)
        values = read_document(path, self._disk, format_=FORMAT)
        try:
            if values is None:
                raise ValueError("it is gone")
            return _manifest_from(cast("dict[str, Any]", values))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptManifest(path=path, reason=f"it makes no sense: {error}") from error

    def _sync_file(self, path: Path) -> None:
        if self._sync:
            fd = self._disk.open_to_read(path)
            try:
                self._disk.sync_data(fd)
            finally:
                self._disk.close(fd)


def _manifest_from(values: dict[str, Any]) -> Manifest:
    if values["kind"] not in {"topic", "queue"}:
        raise ValueError(f"no kind of archive: {values['kind']!r}")
    return Manifest(
        run=number(values["run"]),
        kind=values["kind"],
        name=str(values["name"]),
        ranges={
            str(label): (number(start), number(stop))
            for label, (start, stop) in values["ranges"].items()
        },
        ends={str(label): number(end) for label, end in values["ends"].items()},
        pending={
            str(label): [number(offset) for offset in offsets]
            for label, offsets in values["pending"].items()
        },
        files=[
            DataFile(path=str(path), records=number(records), size_bytes=number(size_bytes))
            for path, records, size_bytes in values["files"]
        ],
    )
