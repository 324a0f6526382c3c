"""What tests of the client share."""

from collections.abc import Callable

from segue.stores.http.store import HttpStore

Opener = Callable[..., HttpStore]
"""Opens a store, with options as its address has them."""
