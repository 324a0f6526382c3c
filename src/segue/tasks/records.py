"""What is known of a task: the sum of its events; and what its id is made of."""

from segue.delivery.message import MessageId
from segue.errors import InvalidArgument
from segue.tasks.states import State
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task at one moment. Times are microseconds since 1970; 0 is not yet."""

    id: str
    task: str
    state: State
    attempt: int = 0
    pushed_us: int = 0
    started_us: int = 0
    finished_us: int = 0
    updated_us: int = 0
    due_us: int = 0
    worker: str = ""
    error: str = ""
    traceback: str = ""
    result: bytes | None = None
    """As JSON."""
    progress: bytes | None = None
    """As JSON."""
    args: bytes | None = None
    """As JSON; None where they were too long to repeat."""
    schedule: str = ""

    @property
    def queue(self) -> str:
        return self.id.rpartition("/")[0]

    @property
    def message_id(self) -> str:
        """Of the message in its queue."""
        return self.id.rpartition("/")[2]

    @property
    def error_type(self) -> str:
        """The class of the error, by name."""
        return self.error.partition(":")[0]

    @property
    def wait_us(self) -> int:
        """How long it waited from its push to its start, as far as it has started."""
        return max(0, self.started_us - self.pushed_us) if self.started_us else 0

    @property
    def run_us(self) -> int:
        """How long it ran, as far as it has finished."""
        return max(0, self.finished_us - self.started_us) if self.finished_us else 0


def task_id_of(queue: str, message_id: MessageId) -> str:
    """Return the id of the task that a message is."""
    return f"{queue}/{message_id}"


def split_id(task_id: str) -> tuple[str, MessageId]:
    """Return the queue and the message of a task. Raises InvalidArgument."""
    queue, mark, message_id = task_id.partition("/")
    if not mark or not queue or not message_id:
        raise InvalidArgument(f"{task_id!r} is no id of a task, such as default/2-17")
    return queue, MessageId(message_id)
