"""Finding an App by `module:name`, or hearing exactly why there is none."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue.errors import AppNotFound
from segue.tasks import App
from segue.tasks.loading import load_app, target_of

Write = Callable[[str], str]
_numbers = itertools.count(1)


@pytest.fixture
def write(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module where Python finds it, and return its name; it is forgotten afterwards."""
    monkeypatch.syspath_prepend(scratch)
    written: list[str] = []

    def write(code: str) -> str:
        name = f"loading_{os.getpid()}_{next(_numbers)}"
        (scratch / f"{name}.py").write_text(code)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


APP = "from segue.tasks import App\napp = App('nowhere')\nother = App('elsewhere')\n"


def reason(target: str) -> str:
    """Return why there is no App."""
    with pytest.raises(AppNotFound) as caught:
        load_app(target)
    return str(caught.value)


def test_an_app_is_found_by_its_module_and_name(write: Write) -> None:
    """`app` is what it is called unless said; a name may have dots."""
    name = write(APP + "class Holder:\n    held = app\n")

    assert load_app(name) is load_app(f"{name}:app") is load_app(f"{name}:Holder.held")
    assert load_app(f"{name}:other").url == "elsewhere"


def test_a_module_in_the_current_directory_is_found(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `python -m` finds it, wherever the command was installed."""
    name = f"here_{os.getpid()}"
    (scratch / f"{name}.py").write_text(APP)
    monkeypatch.chdir(scratch)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.curdir)])
    try:
        found = load_app(f"{name}:app")
    finally:
        sys.modules.pop(name, None)

    assert isinstance(found, App)


def test_no_such_module_says_where_was_looked() -> None:
    """The commonest mistake: the wrong directory."""
    words = reason("no_such_module_at_all:app")

    assert "no module 'no_such_module_at_all'" in words
    assert str(Path.cwd()) in words


def test_no_such_submodule_names_what_is_missing() -> None:
    """The package may well be there."""
    assert "no module 'segue.no_such'" in reason("segue.no_such:app")


def test_a_module_that_imports_what_is_not_there_is_said_with_its_line(write: Write) -> None:
    """Otherwise it would look as if the module itself were missing."""
    name = write("import os\n\nimport not_installed_at_all\n")
    words = reason(f"{name}:app")

    assert f"{name} imports 'not_installed_at_all', which is not installed" in words
    assert f"{name}.py, line 3" in words


def test_an_error_in_the_module_is_said_with_its_file_and_line(write: Write) -> None:
    """And with the error itself."""
    name = write("x = 1\ny = x / 0\n")
    words = reason(f"{name}:app")

    assert "ZeroDivisionError: division by zero" in words
    assert f"{name}.py, line 2" in words


def test_an_error_in_what_the_module_imports_is_said_with_that_file(write: Write) -> None:
    """Where it is, and not where it was noticed."""
    inner = write("def fail():\n    raise ValueError('deep down')\nfail()\n")
    outer = write(f"import {inner}\n")
    words = reason(outer)

    assert "deep down" in words
    assert f"{inner}.py, line 2" in words


def test_a_syntax_error_is_said_with_its_line(write: Write) -> None:
    """It is no traceback that anybody has to read."""
    name = write("def broken(:\n    pass\n")
    words = reason(f"{name}:app")

    assert "SyntaxError" in words
    assert f"{name}.py, line 1" in words


def test_a_module_that_ends_the_program_is_said_so(write: Write) -> None:
    """A script without `if __name__ == "__main__"` is no reason to end silently."""
    name = write("import sys\nsys.exit(3)\n")

    assert "SystemExit" in reason(name)


def test_a_missing_name_says_which_apps_there_are(write: Write) -> None:
    """Whoever mistyped it sees it at once."""
    name = write(APP)
    empty = write("x = 1\n")

    assert reason(f"{name}:ap") == f"{name} has no 'ap'; its Apps are: app, other"
    assert reason(f"{empty}:app") == f"{empty} has no 'app'; it has no App at all"


def test_something_else_than_an_app_is_said_so(write: Write) -> None:
    """With what it is."""
    name = write("app = 5\n")

    assert reason(f"{name}:app") == f"{name}:app is no App but a int"


@pytest.mark.parametrize("target", ["tasks.py", "tasks.py:app", "src/tasks:app", "./tasks.py"])
def test_a_file_is_answered_with_its_module(target: str) -> None:
    """What people type first."""
    words = reason(target)

    assert "is a file" in words
    assert "tasks:app" in words


@pytest.mark.parametrize("target", ["", ":", ":app", "..", ".tasks:app", "a b:app", "x:"])
def test_nonsense_is_no_app(target: str) -> None:
    """Whatever it is, it is AppNotFound and nothing else."""
    assert reason(target)


def test_an_app_is_found_again_by_other_processes(write: Write) -> None:
    """By its module and its name there."""
    name = write(APP)
    app = load_app(f"{name}:other")

    assert target_of(app) == f"{name}:other"
    assert load_app(target_of(app)) is app


def test_an_app_that_is_nowhere_cannot_be_found_again() -> None:
    """Made in a function, say: no other process could get at it."""
    with pytest.raises(AppNotFound, match="top of a module"):
        target_of(App("nowhere"))
