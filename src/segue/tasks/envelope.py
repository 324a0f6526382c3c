"""What the message of a task says. JSON that any language can write:

    {"task": "resize", "args": {"path": "a.png"}}

`args` is an object by name or a list by position. The rest may be left out.
"""

from typing import Final

import msgspec

from segue.errors import InvalidArgument

EMPTY: Final = msgspec.Raw(b"{}")
RETRIES_MAX: Final = 1_000
TASK_NAME_MAX: Final = 200
"""How many characters the name of a task, or of a schedule, has at most."""


class Envelope(msgspec.Struct, omit_defaults=True, frozen=True):
    """A call of a task, and what this one call has of its own."""

    task: str
    args: msgspec.Raw = EMPTY
    retries: int | None = None
    timeout: float | None = None
    schedule: str | None = None
    """The schedule that it comes from."""

    def __post_init__(self) -> None:
        # Anybody may push: names go into events, and must fit there beside what came of the task.
        if max(len(self.task), len(self.schedule or "")) > TASK_NAME_MAX:
            raise ValueError(f"a name has at most {TASK_NAME_MAX} characters")
        if self.retries is not None and not 0 <= self.retries <= RETRIES_MAX:
            raise ValueError(f"retries must be from 0 to {RETRIES_MAX}: {self.retries}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be positive: {self.timeout}")


def write_envelope(envelope: Envelope) -> bytes:
    """Return an envelope as the body of a message."""
    return _ENCODER.encode(envelope)


def read_envelope(body: bytes) -> Envelope:
    """Return what a message says. Raises InvalidArgument if it is no task."""
    try:
        return _DECODER.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the message is no task: {error}") from error


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Envelope)
