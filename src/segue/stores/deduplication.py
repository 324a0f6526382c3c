"""How a deduplication key is remembered: as sixteen bytes, however long it is."""

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16


def digest_of(key: str) -> bytes:
    """Return what stands for `key` in the ledger."""
    return blake2b(key.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


ADOPTION_REMEMBERED_US: Final = 30 * 24 * 3600 * 1_000_000
"""How long an adoption is remembered that nobody says is done with."""


def adoption_digest(key: str) -> bytes:
    """Return what stands for an adoption in the ledger, where no user's key can stand for it."""
    return digest_of(f"\0adopted\0{key}")
