"""What the pages say of Spark is true: every snippet and every command, in the shared session."""

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segue.cli import main
from tests.integration.test_docs import ROOT, blocks, commands

PLACES = re.compile(r"\b(data|checkpoints|archive|report|export|replay)\b")
SPARK = ROOT / "docs" / "spark.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def placed(text: str, directory: Path) -> str:
    """Return `text` with the directories it names inside `directory`: Spark runs elsewhere."""
    return PLACES.sub(lambda match: str(directory / match[1]), text)


def run_snippet(text: str, directory: Path, names: dict[str, object]) -> None:
    """Run a block of Python, its literals moved into `directory`."""
    literal = re.compile(r'"(?:data|checkpoints|archive|report|export|replay)[^"\n]*"')
    moved = literal.sub(lambda match: f'"{directory}/{match[0][1:-1]}"', text)
    exec(compile(moved, "docs/spark.md", "exec"), names)


@pytest.mark.timeout(300)
def test_the_page_on_spark_is_true(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Block after block, as a reader would try them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, text in BLOCK.findall(SPARK.read_text()):
        if language == "python":
            run_snippet(text, tmp_path, names)
            continue
        for command in commands(text):
            words = [placed(word, tmp_path) for word in shlex.split(command.line)]
            capsys.readouterr()
            code = main(words[1:])
            printed = capsys.readouterr().out

            assert code == 0, (command.line, printed)
            if command.prints:
                assert printed == command.prints, command.line


@pytest.mark.timeout(180)
def test_the_quickstart_in_the_readme_runs(spark: SparkSession, tmp_path: Path) -> None:
    """What the README shows of Spark works as it stands."""
    texts = [text for text in blocks(ROOT / "README.md", "python") if "segue.spark" in text]
    for text in texts:
        run_snippet(text, tmp_path, {})

    assert texts
