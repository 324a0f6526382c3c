"""Every error Segue raises, in one tree.

    SegueError
    ├── InvalidArgument (also ValueError)   the caller's mistake; nothing was written
    │   ├── InvalidName                     a name that is no plain file name
    │   ├── RecordTooLarge                  one record can never fit in a segment
    │   ├── BatchTooLarge                   the records of one append never fit in a segment
    │   └── BadArguments (also TypeError)   a task cannot be called, or asked for, like that
    ├── LogClosed                           the handle was closed
    ├── LogReadOnly                         the handle was opened to read
    ├── LogLocked                           another owner holds the log
    ├── LogNotFound                         there is no log at that path
    ├── UnsupportedFileSystem               locks or mapped files cannot be trusted there
    ├── UnsupportedFormat                   written by a newer Segue
    ├── OffsetOutOfRange (also LookupError) no such record; names earliest and latest
    │   ├── OffsetTrimmed                   retention has removed it
    │   └── OffsetNotWritten                nobody has appended it yet
    ├── RecordRemoved (also LookupError)    repaired or compacted away; the offset stays taken
    ├── StoreClosed                         the store was closed
    ├── StoreUnavailable (also ConnectionError) the server does not answer; nobody knows what it did
    │   ├── ConnectionsBusy                 all connections are in use; nothing was sent
    │   └── NotReplicated                   done, and not yet on as many machines as asked for
    ├── UnsupportedServer                   too old, or set up so that it would lose things
    ├── AccessDenied (also PermissionError) the server knows no such token, or not for this
    ├── SessionGone (also LookupError)      what a server held for us is not there any more
    ├── QueueEmpty (also LookupError)       nothing to take now
    ├── QueueFull                           the capacity is used up
    ├── QueueLocked                         as many leases are out as the queue allows
    ├── LeaseLost                           the lease is over; somebody else may have the message
    ├── LockBusy (also TimeoutError)        another holds the lock, and did for as long as we waited
    ├── LockLost                            the lock expired or was taken over
    ├── RingExists                          there is a ring of that name already
    ├── RingNotFound (also LookupError)     there is no ring of that name
    ├── RingFull                            the ring holds as many entries as it can
    ├── TransactionAborted                  a ring's transaction lost its lock before it committed
    ├── TopicNotFound (also LookupError)    there is no topic of that name
    ├── ProducerBusy                        another uses the producer's name
    ├── GroupBusy                           the group has members, and this needs it to have none
    ├── PartitionLost                       somebody else in the group has the partition now
    ├── TaskNotFound (also LookupError)     no such task, or nothing is known of it any more
    ├── BadResult (also TypeError)          a task returned what cannot be kept
    ├── TaskTimeout (also TimeoutError)     a task took longer than it may
    ├── TaskCancelled                       a task was cancelled
    ├── TaskFailed                          a task failed for good; its error is told
    ├── ResultTimeout (also TimeoutError)   a task has no result yet, after all our waiting
    ├── AppNotFound (also LookupError)      module:name leads to no App
    ├── JavaNotFound                        there is no Java to run Spark with
    ├── MissingExtra (also ModuleNotFoundError) what is needed for this is not installed
    ├── Damage                              bytes on disk are not what was written
    │   ├── CorruptRecord                   a batch fails its checksum
    │   ├── CorruptSegment                  a segment's header fails, or its file is missing
    │   ├── CorruptPosition                 a reader's saved position fails its checksum
    │   └── CorruptManifest                 what says how a topic is made cannot be read
    └── StorageError                        the operating system refused
        ├── StorageFull                     no space: nothing was written, try again later
        └── StorageFailed                   a write or sync failed: reopen before writing on

A class of its own exists only where a caller would act differently.
"""

from pathlib import Path


class SegueError(Exception):
    """Anything Segue raises on purpose."""


class InvalidArgument(SegueError, ValueError):
    """The call can never succeed as it stands; nothing was written."""


class InvalidName(InvalidArgument):
    """A name that could leave its directory, or that a file system would refuse."""


class RecordTooLarge(InvalidArgument):
    """One record is larger than any segment of this log could hold."""

    def __init__(self, *, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"a record of {size_bytes} bytes does not fit: at most {size_bytes_max} bytes do here"
        )
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max


class BatchTooLarge(InvalidArgument):
    """The records of one append call do not fit in one segment together."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; append it in several calls or open with larger segments")


class LogClosed(SegueError):
    """The log or reader was closed."""


class LogReadOnly(SegueError):
    """The log was opened with `read_only=True`."""


class LogLocked(SegueError):
    """Another owner holds the log, or holds it exclusively."""


class LogNotFound(SegueError):
    """There is no log at that path, and this call does not create one."""


class UnsupportedFileSystem(SegueError):
    """The directory is on a network file system, where locks and mapped files are not safe."""


class UnsupportedFormat(SegueError):
    """The segment was written by a newer version of Segue."""


class OffsetOutOfRange(SegueError, LookupError):
    """There is no record at `offset`; the log holds `earliest` up to, not including, `latest`."""

    said = "is not in the log"

    def __init__(
        self, *, offset: int, earliest: int, latest: int, partition: int | None = None
    ) -> None:
        place = "" if partition is None else f" of partition {partition}"
        super().__init__(
            f"offset {offset}{place} {self.said}: earliest is {earliest}, latest is {latest}"
        )
        self.offset = offset
        self.earliest = earliest
        self.latest = latest
        self.partition = partition
        """Which partition of a topic, if it is one's."""


class OffsetTrimmed(OffsetOutOfRange):
    """The record was there and has been removed by retention or trimming."""

    said = "has been trimmed"


class OffsetNotWritten(OffsetOutOfRange):
    """Nobody has appended that record yet."""

    said = "has not been written"


class RecordRemoved(SegueError, LookupError):
    """The record was set aside by a repair or removed by compaction; its offset stays taken."""

    def __init__(self, *, offset: int) -> None:
        super().__init__(f"the record at offset {offset} was removed")
        self.offset = offset


class StoreClosed(SegueError):
    """The store, or something opened from it, was closed."""


class StoreUnavailable(SegueError, ConnectionError):
    """The server could not be reached, or did not answer, for as long as it was tried.

    What was to be changed may have been changed or not.
    """


class ConnectionsBusy(StoreUnavailable):
    """All connections to the server were in use for as long as we waited; nothing was sent."""

    def __init__(self, *, size: int, seconds: float) -> None:
        super().__init__(f"all {size} connections were in use for {seconds:g} s")
        self.size = size
        self.seconds = seconds


class NotReplicated(StoreUnavailable):
    """The change was made, and not confirmed by as many replicas, or disks, as were asked for."""

    answer: object = None
    """What the server answered. For stores."""

    def __init__(self, message: str, *, answer: object = None) -> None:
        super().__init__(message)
        self.answer = answer


class UnsupportedServer(SegueError):
    """The server is too old, or set up so that it would lose what it is given."""


class AccessDenied(SegueError, PermissionError):
    """The server does not know our token, or the token's roles do not allow this."""


class SessionGone(SegueError, LookupError):
    """The server holds nothing under that session: its time is over, or it was restarted."""

    def __init__(self, *, session: str) -> None:
        super().__init__(f"there is no session {session}: its time is over, or the server's was")
        self.session = session

    was_repeated = False
    """Whether it was told to a second try: then nobody knows what became of the first."""


class QueueEmpty(SegueError, LookupError):
    """No message can be leased now: there is none, or all are delayed, leased or paused."""

    def __init__(self, *, queue: str) -> None:
        super().__init__(f"queue {queue} has no message to take now")
        self.queue = queue


class QueueFull(SegueError):
    """The queue holds `capacity` messages; nothing was pushed."""

    is_final: bool = False
    """Whether waiting is of no use: by its rules nobody waits, or it is more than ever fits."""

    def __init__(self, *, queue: str, capacity: int, is_final: bool = False) -> None:
        super().__init__(f"queue {queue} is full: its capacity is {capacity}")
        self.queue = queue
        self.capacity = capacity
        self.is_final = is_final


class QueueLocked(SegueError):
    """As many leases are out as the queue allows; one ends within `seconds_left`."""

    def __init__(self, *, queue: str, leases_max: int, seconds_left: float) -> None:
        super().__init__(
            f"queue {queue} is locked: {leases_max} of {leases_max} leases are out, "
            f"for up to {seconds_left:.1f} s"
        )
        self.queue = queue
        self.leases_max = leases_max
        self.seconds_left = seconds_left


class LeaseLost(SegueError):
    """The lease is not, or no longer, the holder's: what it did must not be taken as done."""

    def __init__(self, *, receipt: str, reason: str) -> None:
        super().__init__(f"lease {receipt} is lost: {reason}")
        self.receipt = receipt
        self.reason = reason
        self.lost: tuple[str, ...] = (receipt,)
        """All that were lost, where several were settled in one call."""


class LockBusy(SegueError, TimeoutError):
    """Another owner held the lock for as long as we waited."""

    def __init__(self, *, name: str, owner: str, seconds_left: float) -> None:
        super().__init__(f"{name} is held by {owner or 'another'} for up to {seconds_left:.1f} s")
        self.name = name
        self.owner = owner
        self.seconds_left = seconds_left


class LockLost(SegueError):
    """The lock expired or was taken over: what it guards may belong to somebody else."""

    def __init__(self, *, name: str, token: int, reason: str) -> None:
        super().__init__(f"lock {name} with token {token} is lost: {reason}")
        self.name = name
        self.token = token
        self.reason = reason


class RingExists(SegueError):
    """There is a ring of that name already; nothing was changed."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"ring {name} exists already")
        self.name = name


class RingNotFound(SegueError, LookupError):
    """There is no ring of that name."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"there is no ring {name}")
        self.name = name


class RingFull(SegueError):
    """The ring holds `capacity` entries; nothing was written."""

    def __init__(self, *, name: str, capacity: int) -> None:
        super().__init__(f"ring {name} is full: its capacity is {capacity}")
        self.name = name
        self.capacity = capacity


class TransactionAborted(SegueError):
    """The transaction lost its lock before it committed: nothing of it has happened."""

    def __init__(self, *, ring: str, txn_id: str, reason: str) -> None:
        super().__init__(f"transaction {txn_id} on ring {ring} aborted: {reason}")
        self.ring = ring
        self.txn_id = txn_id
        self.reason = reason


class TopicNotFound(SegueError, LookupError):
    """There is no topic of that name, and this call does not create one."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"there is no topic {name}")
        self.name = name


class ProducerBusy(SegueError):
    """Another producer of that name is open, here or in another process."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"producer {name} is in use; it is free when its user closes it or dies")
        self.name = name


class GroupBusy(SegueError):
    """The group has members, and what was asked for needs it to have none."""

    def __init__(self, *, name: str, members: int) -> None:
        super().__init__(f"group {name} has {members} members; stop them first")
        self.name = name
        self.members = members


class PartitionLost(SegueError):
    """Partitions are not, or no longer, the member's: what it did there must not be committed."""

    def __init__(self, *, group: str, partitions: tuple[int, ...]) -> None:
        lost = ", ".join(map(str, partitions)) or "all"
        super().__init__(f"partitions lost to others in group {group}: {lost}")
        self.group = group
        self.partitions = partitions


class TaskNotFound(SegueError, LookupError):
    """No task of that name or id is known here, or its record has outlived its time."""


class BadArguments(InvalidArgument, TypeError):
    """What a task was given does not fit its signature, or cannot be written as JSON."""

    def __init__(self, *, task: str, reason: str) -> None:
        super().__init__(f"task {task}: {reason}")
        self.task = task
        self.reason = reason


class BadResult(SegueError, TypeError):
    """What a task returned does not fit its annotation, or cannot be written as JSON."""

    def __init__(self, *, task: str, reason: str) -> None:
        super().__init__(f"task {task}: {reason}")
        self.task = task
        self.reason = reason


class TaskTimeout(SegueError, TimeoutError):
    """A task was stopped, or given up, because it took longer than its timeout."""


class TaskCancelled(SegueError):
    """The task was cancelled: it has no result and will have none."""


class TaskFailed(SegueError):
    """The task failed for good and is a dead letter; `segue task retry` brings it back."""

    def __init__(self, *, task_id: str, error: str, attempts: int, traceback: str = "") -> None:
        super().__init__(f"task {task_id} failed after {attempts} attempts: {error}")
        self.task_id = task_id
        self.error = error
        self.attempts = attempts
        self.traceback = traceback
        """As it was where the task ran."""


class ResultTimeout(SegueError, TimeoutError):
    """The task has neither a result nor an error yet."""


class AppNotFound(SegueError, LookupError):
    """There is no App where `module:name` points to."""


class MissingExtra(SegueError, ModuleNotFoundError):
    """What is needed for this comes with an extra that is not installed; the error says which."""

    def __init__(self, *, extra: str, module: str, needed_by: str) -> None:
        message = f'{needed_by} needs {module}: pip install "segue[{extra}]"'
        ModuleNotFoundError.__init__(self, message, name=module)
        self.extra = extra


class JavaNotFound(SegueError):
    """Neither the machine nor the extra `java` has a Java to run Spark with."""

    def __init__(self) -> None:
        super().__init__(
            "Spark needs Java 17 or newer, and there is none: install it and have JAVA_HOME name "
            'it, or pip install "segue[java]"'
        )


class Damage(SegueError):
    """Bytes on disk are not what was written there."""


class CorruptRecord(Damage):
    """A batch fails its checksum: offsets `first_offset` to `last_offset` cannot be read."""

    def __init__(self, *, path: Path, first_offset: int, last_offset: int, position: int) -> None:
        super().__init__(
            f"damaged batch in {path} at byte {position}: offsets {first_offset} to "
            f"{last_offset}; 'segue repair' sets it aside, on_damage=\"skip\" reads past it"
        )
        self.path = path
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.position = position


class CorruptSegment(Damage):
    """A segment cannot be read at all."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; 'segue repair' sets it aside")
        self.path = path
        self.reason = reason


class CorruptPosition(Damage):
    """The saved position of a reader fails its checksum; open it with an explicit start."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; open the reader with an explicit start")
        self.path = path
        self.reason = reason


class CorruptManifest(Damage):
    """What says how a topic is made is missing or cannot be read; its records are untouched."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StorageError(SegueError):
    """The operating system refused a read or a write; its error is the cause."""


class StorageFull(StorageError):
    """There was no space for the record; nothing was written and the log stays usable."""


class StorageFailed(StorageError):
    """A write or sync failed, so nobody can say what is on disk: reopen the log to go on."""
