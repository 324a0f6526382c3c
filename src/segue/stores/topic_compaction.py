"""Compaction: which records of a partition later ones have made needless. For every store."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, Literal, Protocol

from segue.delivery.topic_record import HAS_KEY, is_tombstone, key_of
from segue.errors import OffsetTrimmed
from segue.log import Record

KEYS_MAX: Final = 1_000_000
"""How many keys compaction has in memory at once; for more it takes several rounds."""


class Removal(Protocol):
    """What became of records that were to go."""

    @property
    def removed_records(self) -> int: ...

    @property
    def freed_bytes(self) -> int: ...

    @property
    def segments(self) -> Mapping[int, int] | list[int]: ...
