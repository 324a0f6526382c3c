"""CRC-32 with zlib's polynomial: the standard library can always check what we write.

`isal` computes the same checksum many times faster over long runs; over short ones zlib's call
is the cheaper (measured: they meet near `SHORT_BYTES`).
"""

from typing import Final
from zlib import crc32 as crc32_short

try:
    from isal.isal_zlib import crc32 as crc32_bulk
except ImportError:  # pragma: no cover - the fallback where no wheel exists
    from zlib import crc32 as crc32_bulk

SHORT_BYTES: Final = 256

__all__ = ["SHORT_BYTES", "crc32_bulk", "crc32_short"]
