"""The command line: `segue`, or `python -m segue`. Only this package imports typer and rich."""

from segue.cli.app import main

__all__ = ["main"]
