"""What the pages say of Spark is true: every snippet and every command, in the shared session."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segue.cli import main
from segue.spark.options import BATCH_OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS
from tests.integration.docs_server import ENVIRONMENT, PageServer
from tests.integration.test_docs import ROOT, blocks, commands, for_real
from tests.waiting import LIMIT_SECONDS

PLACES = r"data|checkpoints|archive|report|customers\.csv|v3\.json"
SPARK = ROOT / "docs" / "spark.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def placed(word: str, directory: Path) -> str:
    """Return a word of a command with what it names inside `directory`: Spark runs elsewhere."""
    return f"{directory}/{word}" if re.fullmatch(rf"(?:{PLACES})(?:/.*)?", word) else word


def run_snippet(text: str, directory: Path, names: dict[str, object]) -> None:
    """Run a block of Python, with what its literals name inside `directory`."""
    literal = re.compile(rf'"((?:{PLACES})(?:/[^"\n]*)?)"')
    placed_text = literal.sub(rf'"{directory}/\1"', for_real(text))
    exec(compile(placed_text, "a page", "exec"), names)


def run_command(line: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command and return its exit code and what it printed; Spark's in this process."""
    if not line.startswith("segue spark "):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=directory,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout
    capsys.readouterr()
    _, group, verb, *words = shlex.split(line)
    code = main([group, verb, *(placed(word, directory) for word in words)])
    said = capsys.readouterr()
    return code, said.out if code == 0 else said.err


def test_snippets_of_the_page_name_options_that_are_there() -> None:
    """They are run only at length; a misspelt option of the source or sink is found here, too."""
    known = {*BATCH_OPTIONS, *STREAM_OPTIONS, *WRITE_OPTIONS}
    named: set[str] = set()
    for text in blocks(SPARK, "python"):
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                if call.func.attr == "options":
                    named.update(each.arg for each in call.keywords if each.arg is not None)
                elif call.func.attr == "option" and isinstance(call.args[0], ast.Constant):
                    named.add(str(call.args[0].value))

    assert named - known == set()
    assert {"topic", "url", "maxOffsetsPerTrigger"} <= named


@pytest.mark.long
@pytest.mark.timeout(0)  # Every command has a limit of its own.
def test_the_page_on_spark_is_true(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Block after block, as a reader would try them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    server = PageServer(tmp_path)
    request.addfinalizer(server.end)
    for language, text in BLOCK.findall(SPARK.read_text()):
        if language == "python":
            run_snippet(server.for_real(text), tmp_path, names)
            continue
        for command in commands(text):
            code, printed = run_command(command.line, tmp_path, capsys)

            assert code == 0, (command.line, printed)
            if command.prints:
                assert printed == command.prints, command.line


def test_the_quickstart_in_the_readme_runs(spark: SparkSession, tmp_path: Path) -> None:
    """What the README shows of Spark works as it stands."""
    texts = [text for text in blocks(ROOT / "README.md", "python") if "segue.spark" in text]
    for text in texts:
        run_snippet(text, tmp_path, {})

    assert texts
