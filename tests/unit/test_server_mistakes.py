"""Mistakes of who asks: refused as such, and without a trace."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.delivery.rules import QueueRules
from segue.delivery.topic_rules import TopicRules
from segue.errors import OffsetNotWritten, OffsetTrimmed
from segue.server.openapi import kind_of_class
from segue.server.routes import ALL
from segue.stores.opening import open_http
from tests.http_proxy import Impostor, answer_of
from tests.unit.server_support import Place, placed

ABOUT = answer_of(200, b'{"server":"segue","version":"9","api":1,"store":"file","durable":"os"}')


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


# Rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/queues/jobs/rules", {"max_deliverys": 3}),
        ("/topics/orders/rules", {"keep_secnds": 3}),
        ("/topics/orders", {"rules": {"keep_secnds": 3}}),
    ],
)
def test_rules_with_a_misspelt_field_are_refused(
    place: Place, path: str, body: dict[str, object]
) -> None:
    """What was set before stays: nobody asked for the rules by default."""
    queue = place.store.queue("jobs", QueueRules(lease_ttl=7))
    topic = place.store.topic("orders", partitions=1, rules=TopicRules(keep_seconds=7))
    answer = place.ask("PUT", f"/api/v1{path}", body)

    assert (answer.status, answer.code) == (400, "invalid_body")
    assert (queue.rules.lease_ttl, topic.rules.keep_seconds) == (7, 7)


def test_rules_of_a_newer_server_are_read() -> None:
    """A client passes over what it does not know yet."""
    with (
        Impostor(ABOUT, answer_of(200, b'{"lease_ttl":7,"colour":"red"}')) as server,
        open_http(server.url) as store,
    ):
        rules = store.queue("jobs").rules

    assert rules == QueueRules(lease_ttl=7)


# Segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"nonsense" * 1_000, b"\0" * 10_000])
@pytest.mark.parametrize("path", ["/queues/jobs", "/topics/orders"])
def test_what_is_no_segment_is_a_mistake_of_who_sends_it(
    place: Place, path: str, sent: bytes
) -> None:
    """As where it is adopted at once; nothing of it is kept, nor told where it would have been."""
    pytest.importorskip("pyarrow")
    place.store.topic("orders", partitions=1)
    answer = place.ask("PUT", f"/api/v1{path}/writes/{'a' * 32}/{'b' * 32}", sent)
    root = place.store.place.root

    assert (answer.status, answer.code) == (400, "invalid_argument")
    assert str(root).encode() not in answer.data
    assert [*root.rglob(f"{'b' * 32}*")] == []


# Offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "error"), [(1 << 40, OffsetNotWritten), (0, OffsetTrimmed)])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_lies_outside_of_a_history_is_an_error_that_the_route_lists(
    place: Place, method: str, start: int, error: type[OffsetNotWritten | OffsetTrimmed]
) -> None:
    """Who goes by the description knows what may come."""
    queue = place.store.queue("jobs", QueueRules(segment_items=16))
    queue.push_many([b"x"] * 64)
    queue.pop_many(40)
    what = "history" if method == "GET" else "replay"
    asked = {"priority": 0, "start": start}
    query = "?" + "&".join(f"{name}={value}" for name, value in asked.items())
    path = f"/api/v1/queues/jobs/{what}" + (query if method == "GET" else "")
    answer = place.ask(method, path, None if method == "GET" else asked)
    (route,) = (each for each in ALL if each.path == f"/queues/{{queue}}/{what}")
    kind = kind_of_class(error)

    assert (answer.status, answer.code) == (kind.status, kind.code)
    assert error in route.errors
