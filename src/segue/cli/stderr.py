"""What goes to standard error: one line for an error, one for each warning of the library."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from segue.cli.places import without_passwords
from segue.cli.text import visible

# Their warnings repeat the error that ends the command.
_SAID_BY_ERRORS: Final = frozenset({"segue.log.appender", "segue.log.segment"})


def report_error(error: Exception, *, as_json: bool) -> None:
    """Say in one line what went wrong; a program gets the name of the error's class, too."""
    line = _one_line(error)
    if as_json:
        _say(json.dumps({"error": type(error).__name__, "message": line}))
    else:
        _say(f"segue: {line}")


def warn(message: str | Exception, *, as_json: bool) -> None:
    """Say something that does not stop the command."""
    line = _one_line(message)
    _say(json.dumps({"warning": line}) if as_json else f"segue: warning: {line}")


def _one_line(message: str | Exception) -> str:
    if isinstance(message, OSError) and message.strerror is not None:
        named = "" if message.filename is None else f"{message.filename}: "
        message = named + message.strerror
    # Usage errors say in which option or argument they are only when asked like this.
    formatted = getattr(message, "format_message", lambda: message)()
    return without_passwords(visible(" ".join(str(formatted).splitlines())))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class _Warnings(logging.Handler):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        if record.name not in _SAID_BY_ERRORS:
            warn(record.getMessage(), as_json=self._as_json)


@contextmanager
def library_warnings(*, as_json: bool) -> Iterator[None]:
    """Show what the library warns of: data it cut, damage it passed over."""
    logger = logging.getLogger("segue")
    handler = _Warnings(as_json=as_json)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
