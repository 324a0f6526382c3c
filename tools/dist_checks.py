"""What must, and what must not, be in an archive or a wheel. Pure but for reading the file."""

import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from packaging.metadata import InvalidMetadata, Metadata
from packaging.utils import parse_wheel_filename

WHEEL_HOLDS: Final[Mapping[str, str]] = {
    "segue/py.typed": "that it has types",
    "segue/log/_hot.pyi": "the types of the compiled part",
    "segue/stores/redis/functions/*.lua": "what runs on Redis",
    "segue/server/pages/docs.html": "the page of the API",
    "segue/server/pages/dash/index.html": "the dashboard",
    "segue/server/pages/dash/uPlot.js": "what draws its charts",
    "segue/server/pages/dash/uPlot-LICENSE.txt": "the licence of that",
    "pyspark_segue/__init__.py": "the name that Spark finds it by",
    "segue-*.dist-info/licenses/LICENSE": "our licence",
    "segue-*.dist-info/licenses/*/uPlot-LICENSE.txt": "the licence of uPlot",
    "segue-*.dist-info/entry_points.txt": "the command line",
}
SDIST_HOLDS: Final[Mapping[str, str]] = {
    "pyproject.toml": "how it is built",
    "setup.py": "how the compiled part is built",
    "src/segue/log/_hot.c": "the compiled part",
    "src/segue/py.typed": "that it has types",
    "src/segue/stores/redis/functions/*.lua": "what runs on Redis",
    "src/segue/server/pages/dash/uPlot-LICENSE.txt": "the licence of uPlot",
    "LICENSE": "our licence",
    "README.md": "what it is",
    "CHANGELOG.md": "what changed",
}
NOWHERE: Final = ("*.pyc", "*/__pycache__/*", "tests/*", "benchmarks/*", ".venv/*", "*.o")
COMPILED: Final = "segue/log/_hot.*.so"
EXTRAS: Final = {"columns", "http", "java", "metrics", "redis", "server", "spark", "tasks"}


def check_wheel(path: Path) -> list[str]:
    """Return what is wrong with a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = [info.filename for info in wheel.infolist() if not info.is_dir()]
        # By the name, and not by a sum of all: it is checked when it is read.
        broken = wheel.testzip()
        metadata = _read(names, "segue-*.dist-info/METADATA", wheel.read)
    problems = _contents(path.name, names, WHEEL_HOLDS)
    if broken is not None:
        problems.append(f"{path.name}: {broken} is damaged")
    is_compiled = any(fnmatchcase(name, COMPILED) for name in names)
    if any(name.endswith(".c") for name in names):
        problems.append(f"{path.name}: sources of the compiled part are in it")
    is_pure = any(tag.platform == "any" for tag in parse_wheel_filename(path.name)[3])
    if is_compiled == is_pure:
        problems.append(f"{path.name}: {'a' if is_compiled else 'no'} compiled part is in it")
    return problems + _metadata(path.name, metadata)


def check_sdist(path: Path) -> list[str]:
    """Return what is wrong with an archive of the sources."""
    with tarfile.open(path) as archive:
        names = [each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()]
        owners = {(each.uid, each.gid, each.uname, each.gname) for each in archive.getmembers()}
    problems = _contents(path.name, names, SDIST_HOLDS)
    if owners != {(0, 0, "", "")}:
        problems.append(f"{path.name}: it says who made it")
    return problems


def _read(names: Iterable[str], pattern: str, read: Callable[[str], bytes]) -> bytes:
    found = [name for name in names if fnmatchcase(name, pattern)]
    return read(found[0]) if found else b""


def _contents(who: str, names: list[str], holds: Mapping[str, str]) -> list[str]:
    missing = [
        f"{who}: {pattern} is missing, {why}"
        for pattern, why in holds.items()
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    wrong = [name for name in names if any(fnmatchcase(name, pattern) for pattern in NOWHERE)]
    return missing + [f"{who}: {name} must not be in it" for name in wrong]


def _metadata(who: str, data: bytes) -> list[str]:
    try:
        said = Metadata.from_email(data, validate=True)
    except (InvalidMetadata, ExceptionGroup) as error:
        return [f"{who}: {error!r}"]
    problems = []
    if not (said.description and said.description_content_type == "text/markdown"):
        problems.append(f"{who}: the README is not its description")
    if set(said.provides_extra or []) != EXTRAS:
        problems.append(f"{who}: the extras are {said.provides_extra}")
    if said.license_expression != "Apache-2.0":
        problems.append(f"{who}: the licence is {said.license_expression}")
    return problems
