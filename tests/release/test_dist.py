"""What is released: the same to the byte, complete, and nothing else."""

import json
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import segue
from tests.release.building import EPOCH, ROOT, needed
from tools.dist import NotReleasable, build, normalize, require_clean, require_same
from tools.dist_checks import check_sdist, check_wheel
from tools.sbom import sbom


def test_two_builds_in_two_directories_are_the_same_to_the_byte(
    built: list[Path], tmp_path: Path
) -> None:
    """Whoever builds a release again can tell that it is what we say, compiled part included."""
    sources = tmp_path / "in" / "a-directory" / "of-another-length"
    shutil.copytree(built[0].parents[1] / "taken", sources)
    again = build(sources, tmp_path / "dist", epoch=EPOCH, pure=False)

    require_same(built, again)


def test_an_archive_is_the_same_whoever_packs_it_and_when(tmp_path: Path) -> None:
    """Order, times and owners are not part of what is released."""
    archives = []
    for number, names in enumerate((("a", "b"), ("b", "a"))):
        path = tmp_path / str(number) / "x.tar.gz"
        path.parent.mkdir()
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                (path.parent / name).write_text(name)
                archive.add(path.parent / name, arcname=f"x/{name}", filter=_owned_by(number))
        normalize(path, epoch=EPOCH)
        archives.append(path.read_bytes())

    assert archives[0] == archives[1]


def _owned_by(number: int) -> Any:  # noqa: ANN401 - a callback of tarfile
    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.uname, member.mtime = number, f"user-{number}", number
        return member

    return owned


def test_builds_that_differ_are_told(built: list[Path], tmp_path: Path) -> None:
    """By the name of the file, and nothing is released."""
    other = tmp_path / built[0].name
    other.write_bytes(built[0].read_bytes() + b"\0")

    with pytest.raises(NotReleasable, match=r"segue-.*\.tar\.gz differs from build to build"):
        require_same(built[:1], [other])


@pytest.mark.parametrize(
    "missing",
    [
        "segue/py.typed",
        "segue/stores/redis/functions/",
        "segue/server/pages/dash/uPlot-LICENSE.txt",
        "pyspark_segue/",
    ],
)
def test_a_wheel_that_lacks_something_is_not_released(
    built: list[Path], tmp_path: Path, missing: str
) -> None:
    """What Python does not import is forgotten easily, and missed late."""
    wheel = tmp_path / built[1].name
    with zipfile.ZipFile(built[1]) as whole, zipfile.ZipFile(wheel, "w") as less:
        for info in whole.infolist():
            if not info.filename.startswith(missing):
                less.writestr(info, whole.read(info))

    assert check_wheel(built[1]) == []
    assert [problem for problem in check_wheel(wheel) if missing in problem]


def test_a_wheel_with_tests_or_bytecode_is_not_released(built: list[Path], tmp_path: Path) -> None:
    """Nobody wants our tests as a package of theirs."""
    wheel = tmp_path / built[1].name
    wheel.write_bytes(built[1].read_bytes())
    with zipfile.ZipFile(wheel, "a") as more:
        more.writestr("tests/test_x.py", "")
        more.writestr("segue/__pycache__/x.pyc", "")

    assert len(check_wheel(wheel)) == 2


def test_every_file_beside_the_code_is_package_data() -> None:
    """As the settings have it; that the wheel holds it all is seen when one is built."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["segue"]
    package = ROOT / "src" / "segue"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    beside = {
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".c", ".so"}
    }

    assert sorted(beside - packed) == []


def test_an_archive_does_not_say_who_made_it(built: list[Path], tmp_path: Path) -> None:
    """Owners are of the machine it was made on."""
    path = tmp_path / built[0].name
    with tarfile.open(path, "w:gz") as archive:
        archive.add(Path(__file__), arcname="x/x.py", filter=_owned_by(1))

    assert check_sdist(built[0]) == []
    assert any(problem.endswith("it says who made it") for problem in check_sdist(path))


def test_what_was_compiled_names_no_directory_of_the_machine(built: list[Path]) -> None:
    """Neither where it was built, nor where its Python was."""
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".so"))
        content = wheel.read(name)

    assert str(built[1].parent).encode() not in content
    assert re.findall(rb"/(?:home|root|tmp|work)/[\w./-]+", content) == []


def test_a_checkout_with_changes_is_not_released(tmp_path: Path) -> None:
    """What is released can be found again under its commit."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    require_clean(tmp_path)
    (tmp_path / "new").write_text("")

    with pytest.raises(NotReleasable, match="1 changes are not committed, such as new"):
        require_clean(tmp_path)


# The version -------------------------------------------------------------------------------------


def test_the_version_stands_in_one_place(built: list[Path]) -> None:
    """The archive, the wheel and whatever shows a version take it from there."""
    literal = re.compile(rf"""["']{re.escape(segue.__version__)}["']""")
    code = [*(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "setup.py"]
    found = [path for path in code if literal.search(path.read_text(encoding="utf-8"))]

    assert found == [ROOT / "src" / "segue" / "__init__.py"]
    assert all(path.name.startswith(f"segue-{segue.__version__}") for path in built)


def test_the_changelog_has_what_comes_next_or_this_version() -> None:
    """A release has a dated section of its own (docs/releasing.md)."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (.+)$", text, re.MULTILINE)

    assert first is not None
    dated = rf"{re.escape(segue.__version__)} \(\d{{4}}-\d{{2}}-\d{{2}}\)"
    assert first[1] == "Unreleased" or re.fullmatch(dated, first[1])


# What it is made of ------------------------------------------------------------------------------


def test_the_list_of_parts_is_valid_cyclonedx() -> None:
    """By the schema of the format itself."""
    schemas = files("cyclonedx.schema") / "_res"
    read = {
        name: json.loads((schemas / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    at = "http://cyclonedx.org/schema/{}.SNAPSHOT.schema.json"
    registry = jsonschema_rs.Registry([(at.format(name), read[name]) for name in read])
    validator = jsonschema_rs.validator_for(read["bom-1.6"], registry=registry)

    validator.validate(_listed())


def test_the_list_of_parts_is_the_same_each_time_and_names_no_host() -> None:
    """It is part of a release, and those are the same to the byte."""
    text = sbom(version="1.2.3", epoch=EPOCH)

    assert sbom(version="1.2.3", epoch=EPOCH) == text
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"cyclonedx.org"}


def test_every_runtime_dependency_is_listed_with_version_licence_and_hashes() -> None:
    """All that the extras bring, through others too, as it is installed here; and uPlot."""
    parts = {(part["name"], part["version"]): part for part in _listed()["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(text for extra in extras for text in extra)]
    installed = {
        (canonicalize_name(each.name), each.version) for each in needed(map(Requirement, wanted))
    }

    assert installed - set(parts) == set()
    assert ("uplot", "1.6.32") in parts
    for part in parts.values():
        assert part["licenses"], part["name"]
        assert all(len(each["content"]) == 64 for each in part["hashes"])
        assert part["hashes"], part["name"]
    required = {name for (name, _), part in parts.items() if part["scope"] == "required"}
    assert {"isal", "rich", "typer", "uplot"} <= required
    assert required & {"numpy", "pyspark", "redis", "uvicorn"} == set()


def _listed() -> dict[str, Any]:
    document = json.loads(sbom(version=segue.__version__, epoch=EPOCH))
    assert isinstance(document, dict)
    return document
