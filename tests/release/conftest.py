"""One build of the working tree for all tests of a process."""

import shutil
from pathlib import Path

import pytest

from tests.release.building import EPOCH, ROOT, Environment
from tools.dist import build, export


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests that need a build to the long run."""
    for item in items:
        if "built" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The archive and the compiled wheel of what is checked out."""
    place = tmp_path_factory.mktemp("built")
    export(ROOT, place / "taken")
    # Building leaves things among the sources.
    shutil.copytree(place / "taken", place / "sources")
    return build(place / "sources", place / "dist", epoch=EPOCH, pure=False)


@pytest.fixture(scope="session")
def environment(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A virtual environment with the wheel and what it needs without an extra."""
    return Environment(tmp_path_factory.mktemp("environment"), built[1])
