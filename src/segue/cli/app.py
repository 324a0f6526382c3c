"""The command line as a whole: its verbs, and the one place where errors become exit codes."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from segue import __version__
from segue.cli import stderr
from segue.cli.append import append
from segue.cli.bench import bench
from segue.cli.cat import cat
from segue.cli.dash import dash
from segue.cli.doctor.command import doctor
from segue.cli.exits import MEANINGS, ExitCode, exit_code_of
from segue.cli.info import info
from segue.cli.ls import ls
from segue.cli.repair import repair
from segue.cli.serve import serve
from segue.cli.tail import tail
from segue.cli.top import top
from segue.cli.transfer import export, import_
from segue.cli.verify import verify
from segue.cli.worker import worker
from segue.errors import SegueError, StorageError

_HELP: Final = """Use, look into, check and repair durable queues, topics, rings, locks and logs.

A STORE is a directory of queues, topics, rings and locks, or the URL of a server that has them, a
LOG a directory of segments. People get tables, pipes get tab-separated lines, --json gives JSON.
Errors are one line on standard error.

\b
Exit codes:
""" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in MEANINGS.items())

_GROUPS: Final = {
    "queue": "Push, take, settle and look at the messages of queues.",
    "topic": "Fill, read and look after streams that can be read again.",
    "ring": "Fill, drain and look at bounded buffers.",
    "lock": "Run commands under a lock, and see who holds one.",
    "task": "Queue tasks, see what became of them, bring back or cancel them.",
    "schedule": "See when schedules fire, and fire one by hand.",
    "token": "Say who may use a store that is served.",
    "spark": "Run jobs over a store on Spark.",
}

# Typer carries click inside or beside itself, as the version may be: the class is found either way.
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"segue {__version__}\n")
        raise typer.Exit


def _callback(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take what comes before the verb."""


def _make_app(words: Sequence[str]) -> typer.Typer:
    app = _make_group()
    app.callback(help=_HELP)(_callback)
    for verb in (ls, info, append, cat, tail, verify, repair, bench):
        app.command()(verb)
    app.command("import")(import_)
    app.command()(export)
    app.command()(worker)
    app.command()(top)
    app.command()(serve)
    app.command()(dash)
    app.command()(doctor)
    for name, purpose in _GROUPS.items():
        group = _make_group()
        group.callback(help=purpose)(_nothing)
        # Only the group that is asked for gets its verbs: there are many, and making them is slow.
        if name in words:
            _add_verbs(name, group)
        app.add_typer(group, name=name)
    return app


def _make_group() -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
    )


def _add_verbs(name: str, group: typer.Typer) -> None:
    module = import_module(f"segue.cli.{name}")
    module.add_verbs(group)


def _nothing() -> None:
    """Take nothing: a group has no options of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What stands behind "--" is somebody else's command.
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    if not _has_output():
        stderr.report_error(StorageError("standard output is closed"), as_json=as_json)
        return ExitCode.STORAGE
    try:
        try:
            with stderr.library_warnings(as_json=as_json):
                return _run([*words, "--help"] if _says_nothing(words) else words)
        finally:
            sys.stdout.flush()  # What was printed comes before the error that ended it.
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.PIPE_CLOSED
    except _UsageError as error:
        stderr.report_error(error, as_json=as_json)
        return ExitCode.USAGE
    except (SegueError, OSError) as error:
        stderr.report_error(error, as_json=as_json)
        return exit_code_of(error)
    finally:
        _drop_unwritten_output()


def _has_output() -> bool:
    """Tell whether there is a standard output; have something in the place of the others."""
    streams: dict[str, object] = vars(sys)  # Python has None where a stream was closed before.
    for name, mode in (("stdin", "r"), ("stderr", "w")):
        if streams[name] is None:
            streams[name] = Path(os.devnull).open(mode)  # noqa: SIM115 - for as long as we run
    return streams["stdout"] is not None


def _says_nothing(words: list[str]) -> bool:
    return not words or (len(words) == 1 and words[0] in _GROUPS)


def _run(words: list[str]) -> int:
    command = typer.main.get_command(_make_app(words))
    try:
        # By hand and not through `app()`, which has its own ideas about errors and exit codes.
        with command.make_context("segue", words) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return ExitCode.OK


def _drop_unwritten_output() -> None:
    """Make sure that the interpreter, which flushes once more at its end, has nothing to say."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
