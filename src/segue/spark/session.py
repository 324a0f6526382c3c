"""A Spark session with the settings that make Python sources fast.

pyspark is imported when a session is asked for, and not before.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from segue.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOCAL_ADDRESS = "127.0.0.1"

_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\*|\d+)(,\s*\d+)?\])?")

_CHECKPOINTS_ON_ONE_MACHINE = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(
    app_name: str = "segue",
    master: str | None = None,
    *,
    config: Mapping[str, str] | None = None,
    memory: str = "2g",
) -> "SparkSession":
    """Return a Spark session that reads and writes Segue, on all cores of this machine.

    `config` goes before every setting made here, and `memory` is what the driver gets. If a
    session runs already, it is returned with `config` applied as far as Spark allows; what can no
    longer be set is logged. Under `spark-submit` the master is the one given there.

    Raises JavaNotFound if there is no Java to run Spark with, and MissingExtra without the extra
    `spark`.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    given = dict(config or {})
    if master is not None:
        given.setdefault("spark.master", master)
    running = _running_session()
    if running is not None:
        place = {"spark.master": running.conf.get("spark.master", None) or ""}
        _warn_of_what_is_fixed(running, settings(place | given, os.environ, memory=memory))
        spark = _build(SparkSession.builder, given)
    else:
        wanted = settings(given, os.environ, memory=memory)
        with _environment(launch_environment(wanted, os.environ)):
            spark = _build(SparkSession.builder, {"spark.app.name": app_name, **wanted})
    if is_remote():
        # Elsewhere Spark finds the source by its name.
        from segue.spark.source import register

        register(spark)
    return spark


def settings(
    given: Mapping[str, str], environ: Mapping[str, str], *, memory: str
) -> dict[str, str]:
    """Return all settings of a new session: those `given`, and ours where none is given."""
    if "spark.remote" in given or "SPARK_REMOTE" in environ:
        return dict(given)
    ours = {
        # A Python task over TCP waits some 40 ms for an acknowledgement that comes late.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.memory": memory,
    }
    if not _has_launched_us(environ):
        ours["spark.master"] = "local[*]"
    cores = _local_cores({**ours, **given}.get("spark.master", ""))
    if cores is not None:
        ours |= {
            "spark.driver.host": environ.get("SPARK_LOCAL_IP", LOCAL_ADDRESS),
            "spark.sql.shuffle.partitions": str(cores),
            # Starts no process for each file it writes; not safe on every shared file system.
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS_ON_ONE_MACHINE,
        }
    return ours | dict(given)


def launch_environment(
    wanted: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the variables Spark must start with; None stands for one it must not see."""
    master = wanted.get("spark.master", "")
    remote = wanted.get("spark.remote", environ.get("SPARK_REMOTE", ""))
    if remote.startswith("sc://") or _has_launched_us(environ):
        return {}
    home = java_home(environ)
    changes = {"JAVA_HOME": None if home is None else str(home)}
    if _local_cores(master or remote) is not None:
        changes["SPARK_LOCAL_IP"] = environ.get("SPARK_LOCAL_IP", LOCAL_ADDRESS)
        changes["PYSPARK_PYTHON"] = wanted.get(
            "spark.pyspark.python", environ.get("PYSPARK_PYTHON", sys.executable)
        )
    return changes


def _has_launched_us(environ: Mapping[str, str]) -> bool:
    """Tell whether Spark started this process, as `spark-submit` does, and not we Spark."""
    return "PYSPARK_GATEWAY_PORT" in environ


def _local_cores(master: str) -> int | None:
    """Return how many cores a master on this machine uses, or None if it is elsewhere."""
    match = _LOCAL_MASTER.fullmatch(master)
    if match is None:
        return None
    cores = match["cores"] or "1"
    return len(os.sched_getaffinity(0)) if cores == "*" else int(cores)


def _running_session() -> "SparkSession | None":
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _warn_of_what_is_fixed(running: "SparkSession", wanted: Mapping[str, str]) -> None:
    fixed = [
        f"{key}={value}"
        for key, value in wanted.items()
        if (running.conf.get(key, None) or "") != value and not running.conf.isModifiable(key)
    ]
    if fixed:
        logger.warning("a session runs already, too late to set %s", " ".join(fixed))


def _build(builder: "SparkSession.Builder", wanted: Mapping[str, str]) -> "SparkSession":
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    _change_environment(changes)
    try:
        yield
    finally:
        _change_environment(before)


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
