"""What tests of the client share."""

from collections.abc import Callable
from typing import Final

from segue.stores.http.store import HttpStore
from segue.stores.opening import open_http
from tests.http_proxy import Impostor, answer_of

Opener = Callable[..., HttpStore]
"""Opens a store, with options as its address has them."""
Act = Callable[[HttpStore], object]
ABOUT: Final = b'{"server":"segue","version":"1","api":1,"store":"directory","durable":"os"}'
"""What a server says of itself."""


def asked(act: Act, *answers: bytes) -> object:
    """Return what comes of answers that no server of ours would give, the last one for ever."""
    given = (answer_of(200, each) for each in (ABOUT, *answers))
    with Impostor(*given) as server, open_http(f"{server.url}?retry=0&timeout=5") as store:
        return act(store)
