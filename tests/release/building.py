"""Environments that hold a wheel and exactly the extras asked for, made without a download.

A virtual environment gets the wheel by pip and knows nothing of ours. What the wheel needs is
linked from where the tests run: one directory of links for the core, named in a .pth file, and one
for each set of extras, named in PYTHONPATH. So each process sees what `pip install "segue[…]"`
would have installed, at the versions of the lock, and nothing else.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tests.waiting import LIMIT_SECONDS

ROOT: Final = Path(__file__).parents[2]
EPOCH: Final = 1_750_000_000


class Environment:
    """Where a wheel is installed."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self._directory = directory
        venv = directory / "venv"
        _run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
        self.python = venv / "bin" / "python"
        self.segue = venv / "bin" / "segue"
        pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet"]
        install = ["install", "--no-index", "--no-deps", "--no-compile", str(wheel)]
        _run([*pip, "--python", str(self.python), *install])
        (packages,) = (venv / "lib").glob("python*/site-packages")
        (packages / "core.pth").write_text(str(self.links_to(())), encoding="utf-8")
        (self.about,) = packages.glob("segue-*.dist-info")

    def links_to(self, extras: Sequence[str]) -> Path:
        """Return a directory with what the extras need; for none, what Segue itself needs."""
        place = self._directory / "-".join(("links", *extras))
        if not place.exists():
            place.mkdir()
            for each in needed(_requirements(extras)):
                for path in _tops(each):
                    (place / path.name).symlink_to(path)
        return place

    def run(
        self,
        code: str,
        *,
        extras: Sequence[str] = (),
        cwd: Path,
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code there."""
        words = [str(self.python), "-c", code]
        return self._ask(words, extras=extras, cwd=cwd, environ=environ or {})

    def command(
        self, *words: str, extras: Sequence[str] = (), cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line there."""
        return self._ask([str(self.segue), *words], extras=extras, cwd=cwd, environ={})

    def environ(self, extras: Sequence[str]) -> dict[str, str]:
        """Return the variables of a process there: nothing of the tests' own gets in."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        paths = str(self.links_to(extras)) if extras else ""
        return kept | {"PATH": os.defpath, "PYTHONPATH": paths}

    def _ask(
        self, words: list[str], *, extras: Sequence[str], cwd: Path, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=cwd,
            env={**self.environ(extras), **environ},
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_SECONDS,
            check=False,
        )


def _requirements(extras: Sequence[str]) -> Iterator[Requirement]:
    for text in distribution("segue").requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        # What has no marker is the core, which the .pth file brings.
        if not extras if marker is None else any(marker.evaluate({"extra": e}) for e in extras):
            yield requirement


def needed(requirements: Iterable[Requirement]) -> list[Distribution]:
    """Return what is installed for `requirements`, with all that they need themselves."""
    waiting = list(requirements)
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name.lower(), frozenset(requirement.extras))
        if key in asked:
            continue
        asked.add(key)
        installed = found.setdefault(key[0], distribution(requirement.name))
        for text in installed.requires or []:
            more = Requirement(text)
            extras = requirement.extras or {""}
            if more.marker is None or any(more.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(more)
    return list(found.values())


def _tops(installed: Distribution) -> set[Path]:
    """Return the packages, modules and metadata of a distribution in their directory."""
    files = [file for file in installed.files or [] if file.parts[0] != ".."]
    tops = {Path(str(installed.locate_file(file.parts[0]))) for file in files}
    return {path for path in tops if path.exists() and path.name != "__pycache__"}


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
