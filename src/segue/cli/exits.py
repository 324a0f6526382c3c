"""What the exit codes mean, and which error leads to which."""

from enum import IntEnum
from typing import Final

from segue.errors import (
    Damage,
    InvalidArgument,
    LogLocked,
    LogNotFound,
    OffsetOutOfRange,
    RecordRemoved,
    SegueError,
    StorageError,
)


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    DAMAGE_FOUND = 1
    USAGE = 2
    NOT_FOUND = 3
    LOCKED = 4
    STORAGE = 5
    DAMAGE_MET = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.DAMAGE_FOUND: "verify or repair found damage that is still there",
    ExitCode.USAGE: "a wrong argument, or a record that can never fit",
    ExitCode.NOT_FOUND: "no such log, file or offset",
    ExitCode.LOCKED: "another process holds the log",
    ExitCode.STORAGE: "the operating system refused, or the log cannot be used here",
    ExitCode.DAMAGE_MET: "damaged data stopped the reading",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C, the usual end of tail",
    ExitCode.PIPE_CLOSED: "whoever read the output closed it, as head does",
}

_CODES: Final[dict[type[Exception], ExitCode]] = {
    InvalidArgument: ExitCode.USAGE,
    LogNotFound: ExitCode.NOT_FOUND,
    OffsetOutOfRange: ExitCode.NOT_FOUND,
    RecordRemoved: ExitCode.NOT_FOUND,
    FileNotFoundError: ExitCode.NOT_FOUND,
    LogLocked: ExitCode.LOCKED,
    StorageError: ExitCode.STORAGE,
    Damage: ExitCode.DAMAGE_MET,
    # What is not named above: formats and file systems we cannot use, and the system's refusals.
    SegueError: ExitCode.STORAGE,
    OSError: ExitCode.STORAGE,
}


def exit_code_of(error: SegueError | OSError) -> ExitCode:
    """Return the code for the closest class of `error` that has one."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
