"""Builds what is released, and checks it: `make dist`.

    python -m tools.dist [--dirty] [DIRECTORY]

An archive of the sources, a wheel for this machine, one in Python alone for all others, and the
list of what they are made of; with their hashes in SHA256SUMS. Everything is built twice, in two
directories of different names, and has to be the same to the byte; the wheels are built from the
archive. The time in them is that of the last commit, or SOURCE_DATE_EPOCH. Only files that git
knows are taken, and a checkout with changes is refused unless told otherwise.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.dist_checks import check_sdist, check_wheel
from tools.sbom import sbom

ROOT: Final = Path(__file__).parents[1]
DIRECTORIES: Final = ("one", "another/with-a-longer/name")
"""Where it is built, below a temporary directory: two that differ in length."""
SUMS: Final = "SHA256SUMS"
_BUILD: Final = "import sys; from setuptools import build_meta as b; b.{what}(sys.argv[1])"


class NotReleasable(Exception):
    """What is there must not be released; says why."""


def main(arguments: Sequence[str]) -> int:
    """Build and check everything; return 0 if it may be released."""
    words = [word for word in arguments if word != "--dirty"]
    target = Path(words[0]) if words else ROOT / "dist"
    try:
        if "--dirty" not in arguments:
            require_clean(ROOT)
        made = make_release(target, epoch=epoch_of(ROOT))
    except NotReleasable as error:
        sys.stderr.write(f"dist: {error}\n")
        return 1
    for path in made:
        sys.stdout.write(f"{path.name}  {path.stat().st_size} bytes\n")
    return 0


def make_release(target: Path, *, epoch: int) -> list[Path]:
    """Make `target` hold a release and nothing else; return its files. Raises NotReleasable."""
    with tempfile.TemporaryDirectory(prefix="segue-dist-") as scratch:
        taken = Path(scratch, "taken")
        export(ROOT, taken)
        built = []
        for name in DIRECTORIES:
            sources = Path(scratch, name, "sources")
            shutil.copytree(taken, sources)
            built.append(build(sources, Path(scratch, name, "dist"), epoch=epoch))
        require_same(*built)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        made = [Path(shutil.copy2(path, target)) for path in built[0]]
    version = version_of(made[0])
    listed = target / f"segue-{version}.cdx.json"
    listed.write_text(sbom(version=version, epoch=epoch), encoding="utf-8")
    made.append(listed)
    sums = target / SUMS
    sums.write_text("".join(f"{_sum(path)}  {path.name}\n" for path in made), encoding="utf-8")
    return [*made, sums]


def build(sources: Path, target: Path, *, epoch: int, pure: bool = True) -> list[Path]:
    """Build the archive, from that the wheels; check all; return them. Raises NotReleasable."""
    target.mkdir(parents=True)
    _run_build(sources, "build_sdist", target, epoch=epoch)
    (archive,) = target.glob("*.tar.gz")
    normalize(archive, epoch=epoch)
    wheels = [_wheel_from(archive, target, epoch=epoch, is_pure=False)]
    if pure:
        wheels.append(_wheel_from(archive, target, epoch=epoch, is_pure=True))
    problems = check_sdist(archive)
    for wheel in wheels:
        problems += check_wheel(wheel)
    if problems:
        raise NotReleasable("; ".join(problems))
    return [archive, *wheels]


def _wheel_from(archive: Path, target: Path, *, epoch: int, is_pure: bool) -> Path:
    place = target / ("pure" if is_pure else "compiled")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    (sources,) = place.iterdir()
    _run_build(sources, "build_wheel", place / "wheel", epoch=epoch, is_pure=is_pure)
    (wheel,) = (place / "wheel").glob("*.whl")
    return Path(shutil.move(wheel, target / wheel.name))


def _run_build(
    sources: Path, what: str, target: Path, *, epoch: int, is_pure: bool = False
) -> None:
    target.mkdir(parents=True, exist_ok=True)
    environ = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C.UTF-8",
        "SOURCE_DATE_EPOCH": str(epoch),
        # What was compiled must not say where: not in debug information or macros, and not where
        # this Python would have libraries looked for.
        "CFLAGS": f"{sysconfig.get_config_var('CFLAGS')} -g0 -ffile-prefix-map={sources}=.",
        "LDSHARED": f"{sysconfig.get_config_var('CC')} -shared",
        **({"SEGUE_PURE_PYTHON": "1"} if is_pure else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", _BUILD.format(what=what), str(target)],
        cwd=sources,
        env=environ,
        umask=0o022,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotReleasable(f"{what} failed: {done.stderr[-2_000:]}")


def export(root: Path, target: Path) -> None:
    """Copy the files that git knows of, with plain modes: what else lies about is not released."""
    for name in _git(root, "ls-files", "-z").split("\0"):
        source, copy = root / name, target / name
        if name and source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def normalize(archive: Path, *, epoch: int) -> None:
    """Write an archive anew without what differs from build to build: order, times and owners."""
    with tarfile.open(archive) as tar:
        members = sorted(tar.getmembers(), key=lambda member: member.name)
        read = [(each, tar.extractfile(each)) for each in members]
        contents = [(each, file.read() if file else None) for each, file in read]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in contents:
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.addfile(plain, None if content is None else io.BytesIO(content))
    # Without a name in the header: that is the path it was written to.
    archive.write_bytes(gzip.compress(packed.getvalue(), compresslevel=9, mtime=epoch))


def require_same(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Raise NotReleasable unless both builds have the same files with the same bytes."""
    if [path.name for path in first] != [path.name for path in second]:
        raise NotReleasable("two builds made different files")
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise NotReleasable(f"{one.name} differs from build to build")


def require_clean(root: Path) -> None:
    """Raise NotReleasable if the checkout is not what was committed."""
    changes = _git(root, "status", "--porcelain").splitlines()
    if changes:
        raise NotReleasable(f"{len(changes)} changes are not committed, such as {changes[0][3:]}")


def epoch_of(root: Path) -> int:
    """Return the time that all files of a release get: that of the last commit, unless told."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct"))


def version_of(archive: Path) -> str:
    """Return the version in the name of an archive of sources."""
    return archive.name.removeprefix("segue-").removesuffix(".tar.gz")


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
