"""What is installed: Segue, Python, the compiled parts and every extra."""

import platform
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from segue import __version__
from segue.cli.doctor.check import Check, info, ok, warn

PACKAGE: Final = "segue"
_REQUIREMENT: Final = re.compile(
    r"""(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)[^;]*;.*extra\s*==\s*["'](?P<extra>[^"']+)["']"""
)
_LEAST: Final = re.compile(r"[><=~]=\s*(?P<version>\d+(?:\.\d+)*)")
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A package that an extra is made of."""

    name: str
    least: str
    """The oldest version that will do, "" for any."""
    found: str | None
    """The version that is installed."""

    @property
    def is_too_old(self) -> bool:
        """Whether it is installed, and not new enough."""
        return self.found is not None and _numbers(self.found) < _numbers(self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFacts:
    """What runs us."""

    segue: str
    packaged: str | None
    """The version that the installation says; None if there is none."""
    python: str
    is_compiled: bool
    is_pure_wanted: bool
    """Whether SEGUE_PURE_PYTHON leaves the compiled part aside."""
    has_isal: bool
    extras: Mapping[str, Sequence[Part]]


def installed_checks(facts: InstalledFacts) -> Iterator[Check]:
    """Yield how each part of the installation stands."""
    if facts.packaged is None:
        yield warn("segue", f"{facts.segue}, not installed", "pip install segue")
    elif facts.packaged != facts.segue:
        yield warn(
            "segue", f"{facts.segue}, and {facts.packaged} by its installation", "install it anew"
        )
    else:
        yield ok("segue", facts.segue)
    yield ok("python", facts.python)
    if facts.is_compiled:
        yield ok("hot path", "compiled")
    elif facts.is_pure_wanted:
        yield info("hot path", "in Python, as SEGUE_PURE_PYTHON asks for")
    else:
        yield warn(
            "hot path",
            "in Python: the same, slower",
            "install gcc and the headers of Python, then Segue anew",
        )
    if facts.has_isal:
        yield ok("checksum", "isal")
    else:
        yield warn("checksum", "zlib: the same, slower over long runs", "pip install isal")
    for name, parts in facts.extras.items():
        yield extra_check(name, parts)


def extra_check(name: str, parts: Sequence[Part]) -> Check:
    """Return whether all of an extra is there."""
    title = f"extra {name}"
    remedy = f"pip install 'segue[{name}]'"
    versions = ", ".join(f"{part.name} {part.found}" for part in parts if part.found is not None)
    missing = ", ".join(part.name for part in parts if part.found is None)
    old = [part for part in parts if part.is_too_old]
    if old:
        needs = ", ".join(f"{part.name} {part.least}" for part in old)
        return warn(title, f"{versions}; it takes {needs}", f"pip install -U 'segue[{name}]'")
    if not missing:
        return ok(title, versions)
    return info(title, f"{versions}; without {missing}" if versions else "not installed", remedy)


def extras_from(requirements: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return what each extra takes, by name: packages, each with the oldest version that will do.

    As the metadata of a package has them: `redis[hiredis]>=8.0; extra == "redis"`.
    """
    extras: dict[str, list[tuple[str, str]]] = {}
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is not None:
            least = _LEAST.search(requirement.partition(";")[0])
            package = (found["name"], least["version"] if least else "")
            extras.setdefault(found["extra"], []).append(package)
    return extras


def _numbers(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text)
    numbers = [] if found is None else [int(word) for word in found[0].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()  # 8 is as new as 8.0.
    return tuple(numbers)


def look_at_installed() -> InstalledFacts:
    """Return what is installed here."""
    import os

    from segue.log import checksum, hot

    try:
        packaged, requirements = version(PACKAGE), requires(PACKAGE) or []
    except PackageNotFoundError:
        packaged, requirements = None, []
    return InstalledFacts(
        segue=__version__,
        packaged=packaged,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        is_compiled=hot.COMPILED,
        is_pure_wanted=bool(os.environ.get("SEGUE_PURE_PYTHON")),
        has_isal=checksum.crc32_bulk is not zlib.crc32,
        extras={
            extra: [
                Part(name=name, least=least, found=version_of(name)) for name, least in packages
            ]
            for extra, packages in extras_from(requirements).items()
        },
    )


def version_of(package: str) -> str | None:
    """Return the version of a package that is installed, else None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
