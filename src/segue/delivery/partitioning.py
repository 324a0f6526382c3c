"""Which partition a record goes to. The same for every store, language and version, for ever.

A record with a key goes to partition CRC-32(key) mod the number of partitions: the CRC of zip and
Ethernet, which every language has, and what librdkafka calls its consistent partitioner. Records
without a key stay with one partition for a while and then move on to the next.
"""

import random
from typing import Final
from zlib import crc32

STICKY_RECORDS: Final = 256
"""How many records without a key go to one partition before the next has its turn."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return crc32(key) % partitions


class StickyTurn:
    """Whose turn it is among the partitions. Not exact between threads, and need not be."""

    __slots__ = ("_left", "_partition")

    def __init__(self) -> None:
        # Anywhere: a hundred short-lived producers must not all begin with the same.
        self._partition = random.getrandbits(16)
        self._left = STICKY_RECORDS

    def take(self, partitions: int) -> int:
        """Return the partition that takes the next record."""
        if self._left <= 0:
            self._left = STICKY_RECORDS
            self._partition += 1
        self._left -= 1
        return self._partition % partitions
