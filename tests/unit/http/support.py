"""Helpers for tests of the HTTP client."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal, TypeVar

import pytest

from segue.server.waiting import Waiting
from segue.stores.http.answer import Answer
from segue.stores.http.line import Line
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_http
from tests.http_proxy import HttpProxy, Impostor, answer_of
from tests.waiting import LIMIT_SECONDS, wait_until

T = TypeVar("T")
Opener = Callable[..., HttpStore]
"""Opens a store, with options as its address has them."""
Act = Callable[[HttpStore], object]
ABOUT: Final = b'{"server":"segue","version":"1","api":1,"store":"directory","durable":"os"}'
"""What a server says of itself."""


def asked(act: Act, *answers: bytes) -> object:
    """Return what comes of answers that no server of ours would give, the last one for ever."""
    given = (answer_of(200, each) for each in (ABOUT, *answers))
    with Impostor(*given) as server, open_http(f"{server.url}?retry=0") as store:
        return act(store)


def in_time(act: Callable[[], T]) -> T:
    """Return what `act` returns. Fails if that takes longer than LIMIT_SECONDS."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:  # noqa: BLE001 - raised again by `result` below.
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(LIMIT_SECONDS)


def let_pass(seconds: float) -> None:
    """Return after at least `seconds`. A test that uses this passes however much later it is."""
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun >= seconds)


def count_heard(proxy: HttpProxy, request: bytes) -> int:
    """Return how many requests with `request` in their first line reached the proxy."""
    return sum(request in line for line in proxy.heard)


def has_heard(proxy: HttpProxy, request: bytes, count: int) -> bool:
    """Return whether at least `count` such requests reached the proxy."""
    return count_heard(proxy, request) >= count


@contextmanager
def timeouts(word: bytes) -> Iterator[list[float]]:
    """Record how many seconds each answer to a request with `word` in its path may take."""
    seen: list[float] = []
    ask = Line.ask

    def asking(
        line: Line,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        wait: float,
        timeout: float,
    ) -> Answer:
        if word in target.encode():
            seen.append(wait + timeout)
        return ask(line, method, target, body, headers, wait=wait, timeout=timeout)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(Line, "ask", asking)
        yield seen


@contextmanager
def using(store: HttpStore, *, timeout: float, retry: float) -> Iterator[None]:
    """Use these options for calls of `store`, which was opened with patience."""
    calls = store.calls
    usual = calls.address
    calls.address = replace(usual, options=replace(usual.options, timeout=timeout, retry=retry))
    try:
        yield
    finally:
        calls.address = usual


@contextmanager
def long_polls_seen(method: Literal["until", "ask_again"]) -> Iterator[list[str]]:
    """Record when requests begin to wait in this process's servers, and when they end.

    `until` waits for a queue, `ask_again` for anything else.
    """
    seen: list[str] = []
    wait = getattr(Waiting, method)

    async def waiting(*words: object, **named: object) -> object:
        seen.append("begun")
        try:
            return await wait(*words, **named)
        finally:
            seen.append("ended")

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(Waiting, method, waiting)
        yield seen
