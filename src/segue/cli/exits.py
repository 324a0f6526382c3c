"""What the exit codes mean, and which error leads to which."""

from enum import IntEnum
from typing import Final

from segue.errors import (
    AppNotFound,
    Damage,
    GroupBusy,
    InvalidArgument,
    LeaseLost,
    LockBusy,
    LockLost,
    LogLocked,
    LogNotFound,
    OffsetOutOfRange,
    PartitionLost,
    ProducerBusy,
    QueueEmpty,
    QueueFull,
    QueueLocked,
    RecordRemoved,
    ResultTimeout,
    RingExists,
    RingFull,
    RingNotFound,
    SegueError,
    StorageError,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TopicNotFound,
    TransactionAborted,
)


class NotFound(SegueError, LookupError):
    """What was asked for by name is not there."""


class Empty(SegueError, LookupError):
    """There is nothing to take now."""


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    DAMAGE_FOUND = 1
    CHECK_FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    LOCKED = 4
    STORAGE = 5
    DAMAGE_MET = 6
    EMPTY = 7
    FULL = 8
    LEASE_LOST = 9
    MISMATCH = 10
    LAGGING = 11
    TASK_FAILED = 12
    TASK_UNFINISHED = 13
    # Far from what commands end with: `lock run` otherwise ends as its command does.
    LOCK_BUSY = 75
    LOCK_LOST = 76
    NOT_EXECUTABLE = 126
    NO_COMMAND = 127
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.DAMAGE_FOUND: (
        "verify or repair found damage that is still there, or doctor something that fails"
    ),
    ExitCode.USAGE: "a wrong argument, or something that can never fit",
    ExitCode.NOT_FOUND: "no such log, store, queue, ring, topic, task, App, file or offset",
    ExitCode.LOCKED: "another process is at it: log, producer or group; or all leases are out",
    ExitCode.STORAGE: "the system or the server refused, or the files cannot be used here",
    ExitCode.DAMAGE_MET: "damaged data stopped the reading",
    ExitCode.EMPTY: "the queue or ring has nothing to take now",
    ExitCode.FULL: "the queue or ring is full",
    ExitCode.LEASE_LOST: "a lease, transaction or partition was lost to somebody else",
    ExitCode.MISMATCH: "import took everything, but the file does not agree with its own counts",
    ExitCode.LAGGING: "a reader or group is further behind than 'topic lag' was told to bear",
    ExitCode.TASK_FAILED: "the task that was waited for failed for good, or was cancelled",
    ExitCode.TASK_UNFINISHED: "the task that was waited for was not finished in time",
    ExitCode.LOCK_BUSY: "somebody else held the lock for as long as we waited",
    ExitCode.LOCK_LOST: "the lock was lost while the command ran",
    ExitCode.NOT_EXECUTABLE: "the command of lock run cannot be run",
    ExitCode.NO_COMMAND: "the command of lock run was not found",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C, the usual end of tail, or by a no",
    ExitCode.PIPE_CLOSED: "whoever read the output closed it, as head does",
}

_CODES: Final[dict[type[Exception], ExitCode]] = {
    InvalidArgument: ExitCode.USAGE,
    LogNotFound: ExitCode.NOT_FOUND,
    OffsetOutOfRange: ExitCode.NOT_FOUND,
    RecordRemoved: ExitCode.NOT_FOUND,
    FileNotFoundError: ExitCode.NOT_FOUND,
    NotFound: ExitCode.NOT_FOUND,
    RingNotFound: ExitCode.NOT_FOUND,
    TopicNotFound: ExitCode.NOT_FOUND,
    TaskNotFound: ExitCode.NOT_FOUND,
    AppNotFound: ExitCode.NOT_FOUND,
    RingExists: ExitCode.USAGE,
    LogLocked: ExitCode.LOCKED,
    QueueLocked: ExitCode.LOCKED,
    ProducerBusy: ExitCode.LOCKED,
    GroupBusy: ExitCode.LOCKED,
    Empty: ExitCode.EMPTY,
    QueueEmpty: ExitCode.EMPTY,
    QueueFull: ExitCode.FULL,
    RingFull: ExitCode.FULL,
    LeaseLost: ExitCode.LEASE_LOST,
    TransactionAborted: ExitCode.LEASE_LOST,
    PartitionLost: ExitCode.LEASE_LOST,
    TaskFailed: ExitCode.TASK_FAILED,
    TaskCancelled: ExitCode.TASK_FAILED,
    ResultTimeout: ExitCode.TASK_UNFINISHED,
    LockBusy: ExitCode.LOCK_BUSY,
    LockLost: ExitCode.LOCK_LOST,
    StorageError: ExitCode.STORAGE,
    Damage: ExitCode.DAMAGE_MET,
    # What is not named above: formats and file systems we cannot use, and the system's refusals.
    SegueError: ExitCode.STORAGE,
    OSError: ExitCode.STORAGE,
}


def exit_code_of(error: SegueError | OSError) -> ExitCode:
    """Return the code for the closest class of `error` that has one."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
