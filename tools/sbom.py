"""What a release is made of, as CycloneDX: every runtime dependency, and what is vendored.

Goes by requirements.lock, so that it is the same on every machine: names, versions, markers and
hashes. Licences are what the installed packages say of themselves. It names no registry.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = "requirements.lock"
OURSELVES: Final = "segue (pyproject.toml)"
"""How the lock says that we need something ourselves, and not only for development."""
PAGES: Final = Path("src/segue/server/pages/dash")
ELSEWHERE: Final[Mapping[str, str]] = {"async-timeout": "Apache-2.0", "colorama": "BSD-3-Clause"}
"""Licences of what this machine may have no use for: older Pythons and other systems do."""
_ENTRY: Final = re.compile(r"(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\]+?))? \\")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NEEDED_BY: Final = re.compile(r"^ +# +(?:via )?(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One entry of the lock."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]


def locked(text: str) -> Iterator[Locked]:
    """Yield the entries of a lock."""
    for block in re.split(r"\n(?=\S)", text):
        found = _ENTRY.match(block)
        if found:
            yield Locked(
                name=found["name"],
                version=found["version"],
                marker=(found["marker"] or "").strip(),
                hashes=tuple(_HASH.findall(block)),
                needed_by=frozenset(_NEEDED_BY.findall(block)),
            )


def needed(entries: list[Locked], start: set[str]) -> set[str]:
    """Return `start` and the names of all that it needs, at once or through others."""
    wanted = set(start)
    while more := {entry.name for entry in entries if entry.needed_by & wanted} - wanted:
        wanted |= more
    return wanted


def core(root: Path = ROOT) -> set[str]:
    """Return the names of what Segue needs without any extra."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {Requirement(each).name for each in project["dependencies"]}


def sbom(*, version: str, epoch: int, root: Path = ROOT) -> str:
    """Return the document, the same for the same lock, version and time."""
    ours = Component(
        name="segue",
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pkg:pypi/segue@{version}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        purl=PackageURL("pypi", name="segue", version=version),
    )
    entries = list(locked((root / LOCK).read_text(encoding="utf-8")))
    runtime, required = needed(entries, {OURSELVES}), needed(entries, core(root))
    parts = [
        _dependency(entry, is_required=entry.name in required)
        for entry in entries
        if entry.name in runtime
    ]
    vendored = _uplot(root)
    bom = Bom(
        serial_number=uuid5(NAMESPACE_DNS, f"segue {version} {epoch}"),
        metadata=BomMetaData(component=ours, timestamp=datetime.fromtimestamp(epoch, UTC)),
        components=[*parts, vendored],
    )
    bom.register_dependency(ours, [*parts, vendored])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _dependency(entry: Locked, *, is_required: bool) -> Component:
    purl = PackageURL("pypi", name=entry.name, version=entry.version)
    return Component(
        name=entry.name,
        version=entry.version,
        bom_ref=purl.to_string(),
        purl=purl,
        scope=ComponentScope.REQUIRED if is_required else ComponentScope.OPTIONAL,
        licenses=[LicenseFactory().make_from_string(_licence(entry.name))],
        # One of each file that may be installed: an archive, or a wheel for some machine.
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in entry.hashes],
        properties=[Property(name="segue:marker", value=entry.marker)] if entry.marker else [],
    )


def _licence(name: str) -> str:
    """Return what a package says: an expression, else its words, else what classifies it."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return ELSEWHERE[name]
    keys = ("License-Expression", "License")
    words = next(filter(None, (said[key] for key in keys if key in said)), "")
    if words and "\n" not in words:
        return words
    prefix = "License :: OSI Approved :: "
    classes = [each for each in said.get_all("Classifier") or [] if each.startswith(prefix)]
    return " AND ".join(each.removeprefix(prefix) for each in classes) or words.splitlines()[0]


def _uplot(root: Path) -> Component:
    """Return the library in the dashboard, with the version it says on top."""
    data = (root / PAGES / "uPlot.js").read_bytes()
    found = re.search(rb"\(v([0-9.]+)\)", data[:200])
    assert found is not None, "uPlot says on its first line which version it is"
    purl = PackageURL("npm", name="uplot", version=found[1].decode())
    return Component(
        name="uplot",
        version=found[1].decode(),
        bom_ref=purl.to_string(),
        purl=purl,
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseFactory().make_from_string("MIT")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())],
        properties=[Property(name="segue:vendored", value=(PAGES / "uPlot.js").as_posix())],
    )
