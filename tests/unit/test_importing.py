"""What `import segue` brings along, and that its public names are all there all the same."""

import ast
import json
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from tests.unit.support import failing_cases

STARTING_MODULES_MAX: Final = 60
"""How many modules `import segue` may load, those of the standard library included."""
QUEUE_MODULES_MAX: Final = 110
"""How many of Segue's own a process needs that pushes into a queue of a directory."""
NOBODY_ASKED_FOR: Final = {
    "asyncio",
    "cronsim",
    "hdrh",
    "msgspec",
    "numpy",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "redis",
    "rich",
    "typer",
    "uvicorn",
}


def _loaded_by(code: str) -> set[str]:
    """Return the modules that a new interpreter loads while it runs `code`."""
    watched = (
        f"import json, sys\nbefore = set(sys.modules)\n{code}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def _tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_segue_loads_the_standard_library_and_nothing_else() -> None:
    """No extra, no dependency and nothing of Segue itself before it is used."""
    loaded = _loaded_by("import segue")

    assert {name for name in loaded if name.startswith("segue")} == {"segue"}
    assert _tops(loaded) - sys.stdlib_module_names == {"segue"}
    assert len(loaded) <= STARTING_MODULES_MAX


def test_pushing_into_a_directory_loads_no_extra(tmp_path: Path) -> None:
    """A queue in a directory pays for no topic, task, server or table, and for no extra."""
    loaded = _loaded_by(
        f"import segue\nwith segue.open({str(tmp_path)!r}) as store:\n"
        "    store.queue('mail').push(b'to: ada')"
    )
    own = {name for name in loaded if name.startswith("segue.")}

    assert _tops(loaded) & NOBODY_ASKED_FOR == set()
    assert len(own) <= QUEUE_MODULES_MAX


def test_public_names_are_listed_once_and_come_from_where_type_checkers_find_them() -> None:
    """Type checkers read the imports, programs the table of homes: both say the same."""
    read = dict(_imports_for_type_checkers())

    assert sorted(segue.__all__) == segue.__all__
    assert {*read, "__version__"} == set(segue.__all__)
    assert {name: home for name, home in read.items() if name != "errors"} == segue._HOME_OF


def _imports_for_type_checkers() -> Iterator[tuple[str, str]]:
    tree = ast.parse(Path(segue.__file__).read_text(encoding="utf-8"))
    for block in tree.body:
        for node in block.body if isinstance(block, ast.If) else []:
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    yield name.name, str(node.module)


def test_a_public_name_is_the_same_thing_wherever_it_is_imported_from() -> None:
    """Lazily or not, there is one class of a name."""

    def check(name: str) -> None:
        value = getattr(segue, name)

        assert getattr(segue, name) is value
        if not isinstance(value, types.ModuleType):
            assert getattr(sys.modules[value.__module__], value.__name__) is value

    assert failing_cases(check, [name for name in segue.__all__ if name != "__version__"]) == []


def test_a_star_import_brings_every_public_name() -> None:
    """`from segue import *` works as if nothing were lazy."""
    names: dict[str, object] = {}
    exec("from segue import *", names)  # Inside a function it is no syntax.

    assert set(segue.__all__) <= set(names)


def test_dir_tells_all_public_names_before_they_are_used() -> None:
    """A prompt completes what nobody has asked for yet."""
    code = "import segue, sys; sys.exit(not set(segue.__all__) <= set(dir(segue)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_error_can_be_caught_by_the_name_it_has_in_the_package() -> None:
    """`except segue.SegueError` needs no import of its own, nor does `segue.errors`."""
    code = (
        "import segue\ntry:\n    segue.open('')\nexcept segue.SegueError as error:\n"
        "    assert isinstance(error, segue.errors.InvalidArgument)\nelse:\n    assert False"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_public_class_survives_pickling() -> None:
    """A class is pickled by its name and its module, and found again."""
    for value in (segue.QueueRules, segue.Message, segue.open, segue.SegueError):
        assert pickle.loads(pickle.dumps(value)) is value


def test_what_is_no_public_name_is_told_as_python_tells_it() -> None:
    """Tools ask modules for names that are not there, and count on AttributeError."""
    with pytest.raises(AttributeError, match="module 'segue' has no attribute 'nothing'"):
        _ = segue.nothing  # type: ignore[attr-defined]  # that is the point
