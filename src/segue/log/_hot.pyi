import mmap
from collections.abc import Sequence
from typing import TypeVar

_Record = TypeVar("_Record", bound=tuple[object, ...])

class HotTail:
    segment: int
    index: int
    position: int
    chain: int
    key: int
    seed: int
    time_us: int
    first_offset: int
    slots_ready: int
    payloads_ready: int
    publish_at_once: bool
    def __init__(
        self, mapping: mmap.mmap | None, words: memoryview, publish_at_once: bool
    ) -> None: ...
    def store(self, payload: bytes, attr: int, time_us: int) -> int: ...
    def detach(self) -> None: ...

def encode_batch(
    lengths: Sequence[int],
    attrs: Sequence[int] | None,
    *,
    time_us: int,
    position: int,
    before: int,
    after: int,
    key: int,
    seed: int,
) -> bytes: ...
def read_records(
    record_type: type[_Record],
    segment: mmap.mmap | memoryview | bytes,
    index: int,
    stop: int,
    first_offset: int,
    /,
) -> list[_Record]: ...
def measure_batch(payloads: list[object]) -> list[int] | None: ...
