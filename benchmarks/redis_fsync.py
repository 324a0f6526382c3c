"""What it costs to have each push on the device: the server syncs always, or every second.

The setting is changed on the one server before each slice, so that both take part in a round. With
`?fsync=yes` Segue also has the server confirm that its file is synced (WAITAOF).
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import segue
from benchmarks.race import Contestant, Job, race
from benchmarks.redis_bench import PAYLOAD_BYTES, WHERE, Bench, Fsync, Valkey
from benchmarks.redis_peers import Way, ways
from benchmarks.report import Section
from benchmarks.stores import Payloads

if TYPE_CHECKING:
    from segue.stores.contract import Queue

SIZES: Final = (1, 100)
COUNT_MAX: Final = 50_000
EVERYSEC: Final = "Segue, everysec"
ALWAYS: Final = "Segue, always and ?fsync=yes"
