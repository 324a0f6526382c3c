"""The hottest code there is: the compiled twin where there is one, else the Python one.

The twin is built when Segue is installed and a compiler is at hand. Setting SEGUE_PURE_PYTHON in
the environment leaves it aside.
"""

import os
from typing import TYPE_CHECKING

from segue.log import hot_python, slots
from segue.log.hot_python import NO_ROOM

try:
    from segue.log import _hot
except ImportError:
    COMPILED = False
else:
    COMPILED = not os.environ.get("SEGUE_PURE_PYTHON")

if TYPE_CHECKING or not COMPILED:
    HotTail = hot_python.HotTail
    encode_batch = slots.encode_batch
    measure_batch = hot_python.measure_batch
    read_records = hot_python.read_records
else:
    HotTail = _hot.HotTail
    encode_batch = _hot.encode_batch
    measure_batch = _hot.measure_batch
    read_records = _hot.read_records

__all__ = ["COMPILED", "NO_ROOM", "HotTail", "encode_batch", "measure_batch", "read_records"]
