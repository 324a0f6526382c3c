"""What stands between jobs and Spark: its errors as Segue's, and paths as it takes them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

import segue.errors
from segue.errors import InvalidArgument, SegueError

_OURS: Final = re.compile(r"^[^\w\n]*(?:[\w.$]+: )*segue\.errors\.(\w+): (.*)$", re.MULTILINE)
_PYTHONS: Final = re.compile(
    r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt)): (.*)$", re.MULTILINE
)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .*)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*$")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise what goes wrong in Spark as SegueError, of the class that was raised in a task."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise segue_error(error) from error


def segue_error(error: Exception) -> SegueError:
    """Return what lies at the bottom of an error of Spark."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = getattr(segue.errors, name, SegueError)
        # Made without its fields, which did not come through Spark.
        made: SegueError = kind.__new__(kind, message.strip())
        return made
    pythons = _PYTHONS.findall(text)
    if pythons:
        return SegueError(": ".join(pythons[-1]).strip())
    causes = _CAUSE.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    line = causes[-1] if causes else lines[0] if lines else type(error).__name__
    kind = InvalidArgument if isinstance(error, AnalysisException) else SegueError
    return kind(_STATE.sub("", _CONDITION.sub("", line.strip())))


def spark_directory(path: Path) -> str:
    """Return a directory as Spark takes it to write to."""
    return f"file://{path.absolute()}"  # No URI in spite of its looks: Spark takes % for itself.


def spark_files(path: Path) -> str:
    """Return a file or directory as Spark takes it to read from, whatever its name."""
    return _GLOB.sub(r"\\\g<0>", spark_directory(path))
