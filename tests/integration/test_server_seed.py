"""The routes of PushPopActor, as its own clients use them."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from segue import QueueRules
from segue.stores.http.store import HttpStore
from segue.testing import ManualClock
from tests.contract.worlds import HttpWorld
from tests.integration.server_support import Client, Failures, served
from tests.integration.test_docs import require_curl
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def world(scratch: Path) -> Iterator[HttpWorld]:
    world = HttpWorld(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def client(world: HttpWorld) -> Iterator[Client]:
    client = Client(world.url)
    yield client
    client.close()


@pytest.fixture
def clock(world: HttpWorld) -> ManualClock:
    return world.clock


@pytest.fixture
def store(world: HttpWorld) -> HttpStore:
    return world.open()


SCRIPT: Final = """
set -eu
for i in {191..200}; do
  curl -sS --fail -o /dev/null -X POST $URL/queue/test/push \\
    -H "Content-Type: application/json" \\
    -d "{\\"item\\": {\\"id\\": $i}}"
done
curl -sS --fail $URL/v1.0/actors/PushPopActor/test/state/queue_0_seg_0; echo
curl -sS --fail $URL/v1.0/actors/PushPopActor/test/state/queue_0_seg_1; echo
curl -sS --fail $URL/v1.0/actors/PushPopActor/test/state/metadata; echo
for i in {1..10}; do
  curl -sS --fail -X POST $URL/queue/test/pop; echo
done
"""


def test_the_loop_with_curl_pushes_looks_and_pops(scratch: Path) -> None:
    """What the manual says to try by hand works as it stands, both of its ports being one.

    A curl for each of 200 messages takes seconds, so most are pushed and popped in this process.
    """
    require_curl(SCRIPT)
    with served(scratch / "data") as server:
        client = Client(server.url)
        for number in range(1, 191):
            client.post("/queue/test/push", {"item": {"id": number}})
        done = subprocess.run(
            ["bash", "-c", SCRIPT],
            env={"URL": server.url, "PATH": "/usr/local/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        rest = [client.post("/queue/test/pop").body for _ in range(190)]
        client.close()
    assert done.returncode == 0, done.stderr
    first, second, metadata, *popped = map(json.loads, done.stdout.splitlines())

    assert first == [{"id": number} for number in range(1, 101)]
    assert second == [{"id": number} for number in range(101, 201)]
    assert metadata == {
        "config": {"segment_size": 100},
        "queues": {"queue_0": {"metadata": {"count": 200, "head_segment": 0, "tail_segment": 1}}},
    }
    assert popped + rest == [{"item": {"id": number}} for number in range(1, 201)]


# Push --------------------------------------------------------------------------------------------


def test_priorities_drain_from_0_up(client: Client) -> None:
    """Strictly in the order of priorities, each in the order of its pushes; 0 unless said."""
    client.post("/queue/q/push", {"item": {"id": 1}, "priority": 2})
    client.post("/queue/q/push", {"item": {"id": 2}})
    pushed = client.post(
        "/queue/q/push",
        {"items": [{"item": {"id": 3}, "priority": 1}, {"item": {"id": 4}, "priority": 0}]},
    )

    assert (pushed.status, pushed["success"], pushed["items_pushed"]) == (200, True, 2)
    assert [client.post("/queue/q/pop")["item"] for _ in range(4)] == [
        {"id": 2},
        {"id": 4},
        {"id": 3},
        {"id": 1},
    ]


BAD_PUSHES: Final[list[object]] = [
    b"",
    b"nonsense",
    b"[]",
    b"null",
    {},
    {"item": "text"},
    {"item": 17},
    {"item": None},
    {"item": [{"id": 1}]},
    {"item": {"id": 1}, "priority": -1},
    {"item": {"id": 1}, "priority": "0"},
    {"item": {"id": 1}, "priority": 1.5},
    {"item": {"id": 1}, "priority": True},
    {"item": {"id": 1}, "priority": 2**31},
    {"item": {"id": 1}, "priority": 10**40},
    {"item": {"id": 1}, "items": [{"item": {"id": 1}}]},
    {"items": []},
    {"items": [{"item": {"id": 1}}, {"item": 2}]},
    {"items": [{"item": {"id": 1}}, {"item": {"id": 2}, "priority": -1}]},
    {"items": [{"item": {"id": 1}}] * 1001},
    b'{"item": {"id": NaN}}',
    b'{"item": {"id": "\xff"}}',
    b'{"item": {"id": "\\ud800"}}',
    b'{"item": {"id": 1}',
    b'{"item":' + b"[" * 100_000,
]


def test_bad_input_is_refused_and_creates_nothing(client: Client, store: HttpStore) -> None:
    """An item is an object, a priority a whole number from 0: else 400, and no queue is made."""
    failures = Failures()
    for body in BAD_PUSHES:
        with failures.case(str(body)[:40]):
            told = client.post("/queue/q/push", body)
            assert told.status == 400
            assert "detail" in str(told.body)
            assert store.queues() == []

    failures.check()


@pytest.mark.parametrize("name", ["..", "%00", "a%2Fb", "%C3%A4", "x" * 101, ""])
def test_bad_names_are_refused(client: Client, store: HttpStore, name: str) -> None:
    """A queue's name cannot lead anywhere."""
    assert client.post(f"/queue/{name}/push", {"item": {}}).status == 400
    assert store.queues() == []


def test_a_thousand_items_are_pushed_at_once(client: Client) -> None:
    """All of them are there, in their order."""
    items = [{"item": {"id": number}} for number in range(1000)]
    told = client.post("/queue/q/push", {"items": items})

    assert told["items_pushed"] == 1000
    found = [
        item
        for _ in range(10)
        for item in client.post("/queue/q/pop?count=100")["items"]  # type: ignore[attr-defined]
    ]
    assert found == [each["item"] for each in items]


def test_items_come_back_to_the_letter(client: Client) -> None:
    """Numbers no float can hold, and the order and doubling of keys, survive."""
    item = b'{"b": 1.10, "a": 123456789012345678901234567890, "a": 1e999}'
    client.raw("POST", "/queue/q/push", b'{"item": ' + item + b"}")
    _, popped = client.raw("POST", "/queue/q/pop")

    assert popped == b'{"item":' + item + b"}"


def test_what_others_pushed_is_shown_as_json_too(client: Client, store: HttpStore) -> None:
    """JSON as it is, other text as text, other bytes as Base64."""
    store.queue("q").push_many([b"[1, 2]", b"{not json", b"\xff\x00", b"NaN"])

    found = [client.post("/queue/q/pop")["item"] for _ in range(4)]
    assert found == [[1, 2], "{not json", {"base64": "/wA="}, "NaN"]


def test_a_full_queue_refuses(client: Client, store: HttpStore) -> None:
    """Capacity holds here, too."""
    store.queue("q", QueueRules(capacity=1))
    assert client.post("/queue/q/push", {"item": {}}).status == 200

    assert client.post("/queue/q/push", {"item": {}}).status == 429


def test_a_push_that_is_repeated_with_its_key_happens_once(client: Client) -> None:
    """An Idempotency-Key makes repeating safe."""
    told = [
        client.ask("POST", "/queue/q/push", {"item": {"id": 1}}, {"Idempotency-Key": "one"})
        for _ in range(3)
    ]

    assert told[0] == told[1] == told[2]
    assert client.post("/queue/q/pop?count=10")["count"] == 1


# Pop ---------------------------------------------------------------------------------------------


def test_an_empty_pop_is_answered_as_it_was_asked(client: Client) -> None:
    """As 4.0 did without `count` and headers, and by 204 as later versions did with them."""
    assert client.post("/queue/q/pop") == (200, {"item": None})
    assert client.post("/queue/q/pop?require_ack=false") == (200, {"item": None})
    assert client.post("/queue/q/pop?require_ack=true") == (
        200,
        {
            "items": [],
            "count": 0,
            "locked": False,
            "lock_id": None,
            "lock_expires_at": None,
            "message": "Queue is empty",
        },
    )
    assert client.post("/queue/q/pop?count=3") == (204, None)
    assert client.post("/queue/q/pop", require_ack="true") == (204, None)
    assert client.ask("POST", "/queue/q/pop", headers={"require-ack": "true"}) == (204, None)


@pytest.mark.parametrize(
    "query",
    [
        "count=-1",
        "count=101",
        "count=x",
        "count=1e400",
        "require_ack=maybe",
        "require_ack=true&count=2",
        "ttl_seconds=soon",
    ],
)
def test_bad_ways_to_pop_are_refused(client: Client, query: str) -> None:
    """And nothing is taken."""
    client.post("/queue/q/push", {"item": {"id": 1}})

    assert client.post(f"/queue/q/pop?{query}").status == 400
    name, _, value = query.rpartition("&")[2].partition("=")
    if "&" not in query:
        assert client.ask("POST", "/queue/q/pop", headers={name: value}).status == 400
    assert client.post("/queue/q/pop") == (200, {"item": {"id": 1}})


def test_count_takes_many(client: Client) -> None:
    """Up to as many as asked for; none at all if 0."""
    client.post("/queue/q/push", {"items": [{"item": {"id": number}} for number in range(3)]})

    assert client.post("/queue/q/pop?count=0") == (204, None)
    assert client.post("/queue/q/pop?count=2") == (
        200,
        {"items": [{"id": 0}, {"id": 1}], "count": 2},
    )
    assert client.post("/queue/q/pop?count=2") == (200, {"items": [{"id": 2}], "count": 1})


# Locks -------------------------------------------------------------------------------------------


def test_a_locked_item_is_settled_once(client: Client, store: HttpStore) -> None:
    """Acknowledged it is gone; the same lock is unknown from then on."""
    client.post("/queue/q/push", {"item": {"id": 1}})
    popped = client.post("/queue/q/pop?require_ack=true&ttl_seconds=60")

    assert popped["items"] == [{"id": 1}]
    assert (popped["count"], popped["locked"]) == (1, True)
    lock = {"lock_id": popped["lock_id"]}
    told = client.post("/queue/q/acknowledge", lock)
    assert (told.status, told["success"], told["items_acknowledged"]) == (200, True, 1)
    again = client.post("/queue/q/acknowledge", lock)
    assert (again.status, again["error_code"]) == (404, "LOCK_NOT_FOUND")
    assert store.queue("q").count().total == 0


@pytest.mark.parametrize("path", ["acknowledge", "extend-lock", "deadletter", "dead-letter"])
def test_locks_that_are_none(client: Client, path: str) -> None:
    """A missing id is 400, one that names nothing 404."""
    bodies: tuple[object, ...] = (b"", {}, {"lock_id": None}, {"lock_id": 17}, [])
    for body in bodies:
        assert client.post(f"/queue/q/{path}", body).status == 400
    for lock_id in ("", "x", "0-0.1", "0-0/1", "later-3.4", "0-99999999999999999999.1", "ä\x00"):
        told = client.post(f"/queue/q/{path}", {"lock_id": lock_id})
        assert (told.status, told["code"]) == (404, "lock_not_found")


@pytest.mark.parametrize("path", ["acknowledge", "extend-lock", "deadletter"])
def test_an_expired_lock_is_gone(client: Client, clock: ManualClock, path: str) -> None:
    """410 LOCK_EXPIRED, also when somebody else has the item by then; and that lock holds."""
    client.post("/queue/q/push", {"item": {"id": 1}})
    first = client.post("/queue/q/pop?require_ack=true&ttl_seconds=30")
    clock.advance(seconds=31)
    lock = {"lock_id": first["lock_id"]}
    told = client.post(f"/queue/q/{path}", lock)
    assert (told.status, told["error_code"]) == (410, "LOCK_EXPIRED")

    second = client.post("/queue/q/pop?require_ack=true")
    assert second["items"] == [{"id": 1}]
    assert second["lock_id"] != first["lock_id"]
    assert client.post(f"/queue/q/{path}", lock).status == 410
    assert client.post("/queue/q/acknowledge", {"lock_id": second["lock_id"]}).status == 200


def test_expired_items_return_to_the_front_of_their_priority(
    client: Client, clock: ManualClock
) -> None:
    """Before those behind them, and in the head segment."""
    client.post("/queue/q/push", {"items": [{"item": {"id": number}} for number in range(101)]})
    client.post("/queue/q/pop?require_ack=true&ttl_seconds=1")
    clock.advance(seconds=2)

    head = client.get("/v1.0/actors/PushPopActor/q/state/queue_0_seg_0")
    assert head.body == [{"id": number} for number in range(100)]
    assert client.post("/queue/q/pop")["item"] == {"id": 0}


@pytest.mark.parametrize(("asked", "lasts"), [("0", 1), ("-5", 1), ("30", 30), ("9999", 300)])
def test_the_time_of_a_lock_is_clamped(
    client: Client, clock: ManualClock, asked: str, lasts: int
) -> None:
    """To 1 to 300 seconds."""
    client.post("/queue/q/push", {"item": {}})
    popped = client.post(f"/queue/q/pop?require_ack=true&ttl_seconds={asked}")
    clock.advance(seconds=lasts - 0.5)
    assert client.post("/queue/q/pop")["item"] is None
    clock.advance(seconds=1)

    assert client.post("/queue/q/acknowledge", {"lock_id": popped["lock_id"]}).status == 410


def test_extending_adds_to_what_is_left(client: Client, clock: ManualClock) -> None:
    """20 of 30 seconds left and 40 more are 60."""
    client.post("/queue/q/push", {"item": {}})
    lock = {"lock_id": client.post("/queue/q/pop?require_ack=true&ttl_seconds=30")["lock_id"]}
    clock.advance(seconds=10)
    told = client.post("/queue/q/extend-lock", lock | {"additional_ttl_seconds": 40})

    assert (told.status, told["lock_id"]) == (200, lock["lock_id"])
    clock.advance(seconds=59)
    assert client.post("/queue/q/pop")["item"] is None
    assert client.post("/queue/q/acknowledge", lock).status == 200


@pytest.mark.parametrize("seconds", [0, -1, "soon", None])
def test_a_lock_is_extended_by_a_time(client: Client, seconds: object) -> None:
    """By nothing, backwards or by words it cannot be."""
    client.post("/queue/q/push", {"item": {}})
    lock = {"lock_id": client.post("/queue/q/pop?require_ack=true")["lock_id"]}

    body = lock | {"additional_ttl_seconds": seconds}
    assert client.post("/queue/q/extend-lock", body).status == 400


@pytest.mark.parametrize("path", ["deadletter", "dead-letter"])
def test_a_locked_item_can_be_dead_lettered(client: Client, store: HttpStore, path: str) -> None:
    """It keeps its priority and can be brought back."""
    client.post("/queue/q/push", {"item": {"id": 1}, "priority": 3})
    lock = {"lock_id": client.post("/queue/q/pop?require_ack=true")["lock_id"]}
    told = client.post(f"/queue/q/{path}", lock)

    assert told.status == 200
    letters = client.get(str(told["dead_letters"]))["letters"]
    assert [letter["message"]["priority"] for letter in letters] == [3]  # type: ignore[attr-defined]
    store.queue("q").redrive()
    assert client.post("/queue/q/pop")["item"] == {"id": 1}


def test_consumers_compete_unless_the_queue_is_strict(client: Client, store: HttpStore) -> None:
    """Many locks at once; with one lease allowed, every pop is 423 while it is out."""
    client.post("/queue/q/push", {"items": [{"item": {"id": number}} for number in range(3)]})
    locks = [client.post("/queue/q/pop?require_ack=true")["lock_id"] for _ in range(2)]
    assert len(set(locks)) == 2
    for lock_id in locks:
        assert client.post("/queue/q/acknowledge", {"lock_id": lock_id}).status == 200

    store.queue("q").configure(QueueRules(max_leases=1))
    lock = {"lock_id": client.post("/queue/q/pop?require_ack=true")["lock_id"]}
    assert client.post("/queue/q/pop?require_ack=true").status == 423
    assert client.post("/queue/q/pop").status == 423
    assert client.post("/queue/q/acknowledge", lock).status == 200
    assert client.post("/queue/q/pop") == (200, {"item": None})


def test_no_item_goes_to_two_consumers(world: HttpWorld, client: Client) -> None:
    """However many lock and acknowledge at once."""
    for start in range(0, 200, 50):
        items = [{"item": {"id": number}} for number in range(start, start + 50)]
        client.post("/queue/q/push", {"items": items})

    def consume(_: int) -> list[int]:
        mine = Client(world.url)
        found: list[int] = []
        while True:
            popped = mine.post("/queue/q/pop?require_ack=true")
            if not popped["locked"]:
                mine.close()
                return found
            assert mine.post("/queue/q/acknowledge", {"lock_id": popped["lock_id"]}).status == 200
            found += [item["id"] for item in popped["items"]]  # type: ignore[attr-defined]

    with ThreadPoolExecutor(4) as threads:
        found = [number for each in threads.map(consume, range(4)) for number in each]
    assert sorted(found) == list(range(200))
