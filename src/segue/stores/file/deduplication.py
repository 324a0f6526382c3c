"""How a deduplication key is remembered: as sixteen bytes, however long it is."""

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16


def digest_of(key: str) -> bytes:
    """Return what stands for `key` in the ledger."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
