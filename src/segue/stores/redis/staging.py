"""Writes that are prepared aside by many and made to happen by one: the doors to staging.lua.

Whatever is put aside lies where it will go, in blocks that are adopted with one call each, once by
their names. What nobody adopts is gone after a while.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import batched
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np

from segue.delivery.message import unpack_prefix
from segue.delivery.topic_record import adoption_digest
from segue.errors import QueueFull, StorageError
from segue.log.staging import Batch
from segue.stores.redis.calls import Refusal
from segue.stores.redis.items import ITEM_BYTES_MAX, parcel_from
from segue.stores.redis.libraries import library
from segue.stores.redis.topics.answers import (
    bytes_of,
    number_of,
    numbers_of,
    text_of,
    words_of,
)
from segue.stores.redis.topics.appending import after_roll
from segue.stores.redis.topics.core import CHANGES_MAX
from segue.stores.redis.topics.partition import Batch as Sent
from segue.stores.redis.topics.room import room_by

if TYPE_CHECKING:
    from segue.stores.redis.calls import Word
    from segue.stores.redis.store import RedisStore

KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long what is put aside waits for its write: longer than any write takes."""
BLOCK_RECORDS_MAX: Final = 5_000
BLOCK_BYTES_MAX: Final = 4 << 20
"""What one call adopts: the server does nothing else meanwhile."""
NAMES_PER_CALL: Final = 1_000
