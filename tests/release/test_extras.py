"""A wheel in a clean environment: alone, with each extra, and what is said without it."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import segue
from segue.cli.exits import ExitCode
from segue.extras import MODULES
from tests.redis_server import shared_server
from tests.release.building import ROOT, Environment

QUEUE: Final = """
import segue
with segue.open({url!r}) as store:
    queue = store.queue("mail")
    queue.push(b"to: ada")
    with queue.lease() as job:
        assert job.body == b"to: ada", job.body
print("done")
"""
COLUMNS: Final = """
import segue
with segue.Log("log") as log:
    log.append_many([b"one", b"two"])
    assert sum(len(part) for part in log.columns()) == 2
with segue.open("data") as store:
    topic = store.topic("orders", partitions=1)
    topic.append(b"x", key=b"ada")
    assert sum(table.num_rows for table in topic.tables()) == 1
print("done")
"""
TASKS: Final = """
import segue
app = segue.App("data")
@app.task
def add(a: int, b: int) -> int:
    return a + b
add.enqueue(1, b=2)
app.close()
print("done")
"""
METRICS: Final = """
from segue.tasks.metrics import Metrics
from segue.tasks.prometheus import prometheus_collector
assert list(prometheus_collector(Metrics().snapshot).collect())
print("done")
"""
SPARK: Final = """
from segue.spark import SegueDataSource
assert SegueDataSource.name() == "segue"
print("done")
"""
JAVA: Final = """
from segue.java import packaged_java
assert packaged_java() is not None
print("done")
"""
NO_JAVA: Final = "import segue.spark\nsegue.spark.session()"
CLOSED: Final = "127.0.0.1:1"
"""Where nobody listens; it is not asked for, either."""

WITH: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "columns": (("columns",), COLUMNS),
    "tasks": (("tasks",), TASKS),
    "metrics": (("tasks", "metrics"), METRICS),
    "spark": (("spark",), SPARK),
    "java": (("spark", "java"), JAVA),
}
WITHOUT: Final[dict[str, list[tuple[tuple[str, ...], str]]]] = {
    "columns": [((), COLUMNS)],
    "tasks": [((), "import segue\nsegue.App"), ((), "import segue.tasks")],
    "metrics": [(("tasks",), METRICS)],
    "spark": [((), "import segue.spark"), ((), "from segue.spark.session import session")],
    "redis": [((), f"import segue\nsegue.open('redis://{CLOSED}')")],
    "http": [((), f"import segue\nsegue.open('http://{CLOSED}')")],
}
COMMANDS: Final = [
    ("tasks", ("task", "ls", "data")),
    ("tasks", ("worker", "shop:app")),
    ("spark", ("spark", "archive", "data", "orders", "--to", "archive")),
    ("redis", ("ls", f"redis://{CLOSED}")),
    ("http", ("queue", "ls", f"http://{CLOSED}")),
    ("server", ("serve", "data")),
    ("server", ("dash", "data")),
]


def test_the_core_works_without_any_extra(environment: Environment, tmp_path: Path) -> None:
    """Opening, pushing and leasing need nothing but the wheel and three small packages."""
    done = environment.run(QUEUE.format(url="data"), cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_command_line_works_without_any_extra(environment: Environment, tmp_path: Path) -> None:
    """And says the version that the wheel was built with."""
    version = environment.command("--version", cwd=tmp_path)
    pushed = environment.command("queue", "push", "data", "mail", "to: ada", cwd=tmp_path)
    listed = environment.command("ls", "data", "--json", cwd=tmp_path)

    assert f"segue-{version.stdout.split()[1]}.dist-info" == environment.about.name
    assert (pushed.returncode, pushed.stderr) == (0, "")
    assert [row["queue"] for row in json.loads(listed.stdout)["queues"]] == ["mail"]


def test_the_installed_code_is_the_compiled_one(environment: Environment, tmp_path: Path) -> None:
    """It comes from the wheel, not from here, and has its compiled part."""
    code = "import segue, segue.log.hot as hot; print(hot.COMPILED, segue.__file__)"
    done = environment.run(code, cwd=tmp_path)

    is_compiled, path = done.stdout.split()
    assert is_compiled == "True"
    assert Path(path).is_relative_to(environment.about.parent)


@pytest.mark.parametrize("extra", WITH)
def test_an_extra_brings_what_its_part_needs(
    environment: Environment, tmp_path: Path, extra: str
) -> None:
    """With it, and with nothing else of what developers have."""
    extras, code = WITH[extra]
    done = environment.run(code, extras=extras, cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_extra_redis_is_all_that_redis_takes(environment: Environment, tmp_path: Path) -> None:
    """The same few lines, against a server."""
    url = f"{shared_server().url}?namespace=release"
    done = environment.run(QUEUE.format(url=url), extras=("redis",), cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_extras_server_and_http_are_all_that_http_takes(
    environment: Environment, tmp_path: Path
) -> None:
    """A server with the one, its client with the other, and its version and health."""
    with _served(environment, tmp_path) as url:
        done = environment.run(QUEUE.format(url=url), extras=("http",), cwd=tmp_path)

    assert (done.stdout, done.stderr) == ("done\n", "")


@contextmanager
def _served(environment: Environment, directory: Path) -> Iterator[str]:
    with subprocess.Popen(
        [environment.segue, "serve", "data", "--port", "0"],
        cwd=directory,
        env=environment.environ(("server",)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://\S+?:\d+", said)
        try:
            assert found is not None, (said, server.stderr and server.stderr.read())
            yield found[0]
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("extra", "given", "code"),
    [(extra, given, code) for extra, cases in WITHOUT.items() for given, code in cases],
)
def test_without_its_extra_a_part_says_what_to_install(
    environment: Environment, tmp_path: Path, extra: str, given: tuple[str, ...], code: str
) -> None:
    """By an error of ours, which is a ModuleNotFoundError too, with the whole command in it."""
    done = environment.run(code, extras=given, cwd=tmp_path)

    last = done.stderr.splitlines()[-1]
    assert last.startswith("segue.errors.MissingExtra: ")
    assert last.endswith(f'pip install "segue[{extra}]"')


def test_without_a_java_the_error_names_the_extra(environment: Environment, tmp_path: Path) -> None:
    """Spark is there, and what it runs on is not."""
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    done = environment.run(NO_JAVA, extras=("spark",), cwd=tmp_path, environ=nowhere)

    assert done.stderr.splitlines()[-1].startswith("segue.errors.JavaNotFound: ")
    assert done.stderr.splitlines()[-1].endswith('pip install "segue[java]"')


@pytest.mark.parametrize(("extra", "words"), COMMANDS)
def test_without_its_extra_a_verb_says_what_to_install_in_one_line(
    environment: Environment, tmp_path: Path, extra: str, words: tuple[str, ...]
) -> None:
    """And ends with a code that says so; with --json the line is JSON."""
    with segue.open(tmp_path / "data") as store:
        store.topic("orders").append(b"x")
    plain = environment.command(*words, cwd=tmp_path)
    told = environment.command(*words, "--json", cwd=tmp_path)

    assert plain.returncode == ExitCode.STORAGE
    assert re.fullmatch(rf'segue: .*pip install "segue\[{extra}\]"\n', plain.stderr)
    if told.returncode != ExitCode.USAGE:  # Not every verb has something to say in JSON.
        assert told.returncode == ExitCode.STORAGE
        assert json.loads(told.stderr)["error"] == "MissingExtra"


def test_every_extra_is_tried_with_and_without() -> None:
    """An extra that somebody adds is tried here, or this fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])

    assert extras == set(MODULES)
    assert extras == {*WITH, "redis", "server", "http"}
    assert extras == {*WITHOUT, *(extra for extra, _ in COMMANDS), "java"}
