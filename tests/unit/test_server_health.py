"""How the server says it is: whether it gets anything done, and nothing of where its store is."""

import errno
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.errors import StorageError
from segue.server import threads
from segue.server.building import build_app
from segue.server.health import LATE_SECONDS, SPARE_DESCRIPTORS, Watchdog, has_descriptors
from segue.stores.opening import open_directory
from segue.testing import FaultyDisk
from tests.http_server import shared_http_server
from tests.unit.server_support import Place, placed, until
from tests.unit.support import no_descriptor_left_open
from tests.waiting import LIMIT_SECONDS

ASKED = ("/live", "/ready", "/health")


class Hand:
    """A clock that a test moves, in seconds."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


# What is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["listing /srv/secret/queues: Input/output error", "cache.internal:6379 is down"]
)
def test_health_tells_everybody_that_the_store_fails_and_not_where_it_is(reason: str) -> None:
    """Neither a path nor a host: nobody needs a token to ask."""
    hand = Hand()

    def look() -> None:
        raise StorageError(reason)

    watchdog = Watchdog(look, monotonic=hand)
    hand.seconds += LATE_SECONDS + 1
    watchdog.look()
    found = watchdog.health()

    assert found.status == "failing"
    assert found.reason is not None
    assert "StorageError" in found.reason
    for word in reason.split():
        assert word not in found.reason.split()


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_no_answer_without_a_token_has_a_path_in_it(
    scratch: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the store cannot be read at all."""

    def look() -> None:
        raise StorageError(f"listing {scratch}: Input/output error")

    with placed(scratch) as place:
        watchdog = place.app.operations.watchdog
        monkeypatch.setattr(watchdog, "_look", look)
        monkeypatch.setattr(watchdog, "_began", watchdog._began - LATE_SECONDS - 1)
        watchdog.look()
        answer = place.ask("GET", path)

    assert (answer.status, answer.json["status"]) == (503, "failing")
    assert str(scratch).encode() not in answer.data


# What starting anew would help -----------------------------------------------------------------


def test_a_write_that_fails_by_a_route_of_dapr_is_noticed_as_well(scratch: Path) -> None:
    """Those tell of errors in words of their own; how the server is does not depend on them."""
    disk = FaultyDisk()
    server = shared_http_server()
    with open_directory(scratch, sync="always", disk=disk) as store:
        app = build_app(store, has_audit=False)
        place = Place(store, app, server.add(app))
        method = "/v1.0/actors/PushPopActor/jobs/method/Push"
        try:
            pushed = place.ask("PUT", method, {"item": {}})
            app.operations.watchdog.look()
            well = statuses(place)
            disk.fail(operation="sync_data", error=errno.EIO)
            failed = place.ask("PUT", method, {"item": {}})
            ill = statuses(place)
        finally:
            server.remove(place.url)

    assert (pushed.status, set(well.values())) == (200, {200})
    assert failed.json["errorCode"] == "ERR_STORAGE_FAILED"
    assert set(ill.values()) == {503}


def test_a_server_whose_store_failed_to_write_wants_to_be_started_anew(scratch: Path) -> None:
    """The log takes no more writes until it is reopened, and only a new process does that."""
    disk = FaultyDisk()
    server = shared_http_server()
    with open_directory(scratch, sync="always", disk=disk) as store:
        app = build_app(store, has_audit=False)
        place = Place(store, app, server.add(app))
        try:
            place.push("jobs")
            app.operations.watchdog.look()
            well = statuses(place)
            disk.fail(operation="sync_data", error=errno.EIO)
            failed = place.push("jobs")
            app.operations.watchdog.look()  # That names can be listed says nothing of it.
            found = {path: place.ask("GET", path) for path in ASKED}
            refused = place.push("jobs")
        finally:
            server.remove(place.url)

    assert set(well.values()) == {200}
    assert {failed.code, refused.code} == {"storage_failed"}
    assert {answer.status for answer in found.values()} == {503}
    assert "a write failed" in str(found["/ready"].json["reason"])
    assert "a write failed" in str(found["/live"].json["reason"])
    with placed(scratch, sync="always") as anew:
        assert anew.push("jobs").status == 200


def test_a_server_that_can_open_no_more_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """To list queues takes one, to open one many: that the store answers is not enough."""
    hand = Hand()
    watchdog = Watchdog(lambda: None, monotonic=hand)
    watchdog.look()

    def pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    watchdog.look()
    at_once = (watchdog.health().status, watchdog.is_stuck)
    hand.seconds += LATE_SECONDS + 1
    watchdog.look()
    found = watchdog.health()
    is_stuck = watchdog.is_stuck
    monkeypatch.undo()
    watchdog.look()

    assert at_once == ("ok", False)
    assert (found.status, is_stuck) == ("failing", True)
    assert "descriptors" in str(found.reason)
    assert (watchdog.health().status, watchdog.is_stuck) == ("ok", False)


def test_there_is_room_for_more_files_until_there_is_none() -> None:
    """Asking takes none for good, and tells before the last one is taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with no_descriptor_left_open():
        has_room = has_descriptors()
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + SPARE_DESCRIPTORS // 2, hard))
    try:
        has_none = not has_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert has_room
    assert has_none


# Threads -------------------------------------------------------------------------------------


def statuses(place: Place) -> dict[str, int]:
    """Return how each of those answers that tell how the server is."""
    return {path: place.ask("GET", path).status for path in ASKED}


def test_a_server_whose_threads_are_all_stuck_says_so(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the store answers somebody else helps nobody whose request gets no thread."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    monkeypatch.setattr(threads, "LATE_SECONDS", 0.05)
    with placed(scratch, sync="always") as place, ThreadPoolExecutor(2) as callers:
        place.push("jobs")
        with place.busy_threads(1):
            asked = [callers.submit(place.push, "jobs") for _ in range(2)]
            until(lambda: place.app.threads.pending == 2)
            until(place.app.threads.is_stuck)
            stuck = statuses(place)
            reason = place.ask("GET", "/live").json["status"]
        answered = [each.result(LIMIT_SECONDS).status for each in asked]
        well = statuses(place)

    assert set(stuck.values()) == {503}
    assert reason == "stuck"
    assert answered == [200, 200]
    assert set(well.values()) == {200}


def test_a_server_whose_threads_are_busy_is_well_while_nobody_waits(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long work is no reason to start it anew."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    monkeypatch.setattr(threads, "LATE_SECONDS", 0.0)
    with (
        placed(scratch, sync="always") as place,
        ThreadPoolExecutor(1) as callers,
    ):
        place.push("jobs")
        with place.busy_threads(1):
            asked = callers.submit(place.push, "jobs")
            until(lambda: place.app.threads.pending == 1)
            found = statuses(place)
        asked.result(LIMIT_SECONDS)

    assert set(found.values()) == {200}
