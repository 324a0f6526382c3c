"""The unmodified SDK of Dapr, and its HTTP API, against the server without a sidecar."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from segue import QueueRules
from tests.contract.worlds import HttpWorld
from tests.integration.server_support import Client, served
from tests.waiting import LIMIT_SECONDS

ACTOR: Final = "/v1.0/actors/PushPopActor"

SCRIPT: Final = """
import asyncio, json
from dapr.actor import ActorId, ActorInterface, ActorProxy, actormethod
from dapr.clients import DaprActorHttpClient
from dapr.serializers import DefaultJSONSerializer


class PushPopActorInterface(ActorInterface):
    @actormethod(name="Push")
    async def push(self, data): ...
    @actormethod(name="Pop")
    async def pop(self): ...
    @actormethod(name="PopWithAck")
    async def pop_with_ack(self, data): ...
    @actormethod(name="Acknowledge")
    async def acknowledge(self, data): ...
    @actormethod(name="ExtendLock")
    async def extend_lock(self, data): ...
    @actormethod(name="DeadLetter")
    async def dead_letter(self, data): ...


async def main():
    found = {}
    actor = ActorProxy.create("PushPopActor", ActorId("jobs"), PushPopActorInterface)
    found["pushed"] = [
        await actor.Push({"item": {"id": number}, "priority": number % 2}) for number in range(150)
    ]
    client = DaprActorHttpClient(DefaultJSONSerializer())
    found["metadata"] = json.loads(await client.get_state("PushPopActor", "jobs", "metadata"))
    found["missing"] = len(await client.get_state("PushPopActor", "jobs", "queue_7_seg_0"))
    found["bad"] = [
        await actor.Push(bad)
        for bad in ({"item": "text"}, {"item": {}, "priority": -1}, {}, [], {"items": []})
    ]
    found["popped"] = [await actor.Pop() for _ in range(147)]
    locked = await actor.PopWithAck({"ttl_seconds": 30})
    found["locked"] = locked
    lock = {"lock_id": locked["lock_id"]}
    found["extended"] = await actor.ExtendLock({**lock, "additional_ttl_seconds": 10})
    found["acknowledged"] = await actor.Acknowledge(lock)
    found["again"] = await actor.Acknowledge(lock)
    dying = await actor.PopWithAck({})
    found["dead"] = await actor.DeadLetter({"lock_id": dying["lock_id"]})
    raw = ActorProxy.create("PushPopActor", ActorId("jobs"))
    found["last"] = json.loads(await raw.invoke_method("Pop"))
    found["empty"] = [await actor.Pop(), await actor.PopWithAck({})]
    try:
        await raw.invoke_method("Push", b"{nonsense")
    except Exception as error:
        found["error"] = [type(error).__name__, error.error_code, error.status_code]
    print(json.dumps(found))

asyncio.run(main())
"""


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


def test_the_sdk_pushes_and_pops(scratch: Path) -> None:
    """DAPR_HTTP_ENDPOINT is all that it is told."""
    with served(scratch / "data") as server:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "DAPR_HTTP_ENDPOINT": server.url, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["pushed"] == [True] * 150
    assert found["metadata"]["queues"]["queue_1"]["metadata"] == {
        "count": 75,
        "head_segment": 0,
        "tail_segment": 0,
    }
    assert found["missing"] == 0
    assert found["bad"] == [False] * 5
    order = [*range(0, 150, 2), *range(1, 150, 2)]
    assert found["popped"] == [[{"id": number}] for number in order[:147]]
    assert found["locked"]["items"] == [{"id": order[147]}]
    assert (found["locked"]["count"], found["locked"]["locked"]) == (1, True)
    assert found["extended"]["success"]
    assert (found["acknowledged"]["success"], found["acknowledged"]["items_acknowledged"]) == (
        True,
        1,
    )
    assert (found["again"]["success"], found["again"]["error_code"]) == (False, "LOCK_NOT_FOUND")
    assert found["dead"]["success"]
    assert found["last"] == [{"id": order[149]}]
    assert found["empty"][0] == []
    assert (found["empty"][1]["locked"], found["empty"][1]["lock_id"]) == (False, None)
    assert found["error"] == ["DaprHttpError", "ERR_MALFORMED_REQUEST", 400]


@pytest.mark.parametrize("path", ["/v1.0/healthz", "/v1.0/healthz/outbound"])
def test_the_sidecar_is_ready(client: Client, path: str) -> None:
    """Its clients wait for that before anything else."""
    assert client.get(path) == (204, None)


def test_methods_can_be_put_or_posted(client: Client) -> None:
    """As Dapr takes them."""
    assert client.ask("PUT", f"{ACTOR}/q/method/Push", {"item": {"id": 1}}) == (200, True)
    assert client.ask("PUT", f"{ACTOR}/q/method/Pop") == (200, [{"id": 1}])


def test_a_key_without_state_is_no_content(client: Client) -> None:
    """As Dapr says of keys it does not know; the metadata of an empty queue names no queues."""
    assert client.get(f"{ACTOR}/q/state/queue_0_seg_0") == (204, None)
    assert client.get(f"{ACTOR}/q/state/anything") == (204, None)
    assert client.get(f"{ACTOR}/q/state/metadata")["queues"] == {}


def test_segments_are_numbered_for_each_priority(client: Client) -> None:
    """350 items are four segments; what is drained is gone, and numbers never start over."""
    for start in range(0, 350, 50):
        items = [{"item": {"id": number}} for number in range(start, start + 50)]
        client.post("/queue/q/push", {"items": items})
    for _ in range(3):
        client.post("/queue/q/pop?count=50")

    metadata = client.get(f"{ACTOR}/q/state/metadata")["queues"]
    assert metadata == {
        "queue_0": {"metadata": {"count": 200, "head_segment": 1, "tail_segment": 3}}
    }
    assert client.get(f"{ACTOR}/q/state/queue_0_seg_0").status == 204
    head = client.get(f"{ACTOR}/q/state/queue_0_seg_1").body
    assert head == [{"id": number} for number in range(150, 200)]


def test_any_body_can_be_shown(world: HttpWorld, client: Client) -> None:
    """Also what is no JSON, or no number there, or half a pair of surrogates."""
    queue = world.open().queue("q")
    queue.push_many([b"\xff", b"text", b"1e999", b'"\\ud800"', b"NaN"])

    told = client.get(f"{ACTOR}/q/state/queue_0_seg_0")
    assert told == (200, [{"base64": "/w=="}, "text", "1e999", "\ud800", "NaN"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "q/method/PopWithAck", b"nonsense", 400),
        ("POST", "q/method/PopWithAck", {"ttl_seconds": "soon"}, 400),
        ("POST", "q/method/Acknowledge", {}, 400),
        ("POST", "q/method/ExtendLock", {"lock_id": "0-0.1", "additional_ttl_seconds": 0}, 400),
        ("POST", "q/method/Push", b'{"item":' + b"[" * 100_000, 400),
        ("GET", "%20/state/metadata", None, 400),
    ],
)
def test_errors_are_as_dapr_tells_them(
    client: Client, method: str, path: str, body: object, status: int
) -> None:
    """By `errorCode` and `message`."""
    told = client.ask(method, f"{ACTOR}/{path}", body)

    assert told.status == status
    assert str(told["errorCode"]).startswith("ERR_")
    assert told["message"]


def test_a_strict_queue_that_is_locked_says_so(world: HttpWorld, client: Client) -> None:
    """By 423, whoever asks."""
    world.open().queue("q", QueueRules(max_leases=1))
    for number in range(2):
        client.post(f"{ACTOR}/q/method/Push", {"item": {"id": number}})
    assert client.post(f"{ACTOR}/q/method/PopWithAck")["locked"] is True

    for name in ("Pop", "PopWithAck"):
        told = client.post(f"{ACTOR}/q/method/{name}")
        assert (told.status, told["errorCode"]) == (423, "ERR_QUEUE_LOCKED")


@pytest.mark.parametrize("name", ["..%2F..%2Fetc", "%00", "%20", "x" * 101])
def test_bad_names_are_refused(world: HttpWorld, client: Client, name: str) -> None:
    """Whatever is asked of an actor of that name, nothing is made."""
    for path in ("method/Push", "method/Pop", "method/PopWithAck"):
        assert client.post(f"{ACTOR}/{name}/{path}", {"item": {}}).status == 400
    assert client.get(f"{ACTOR}/{name}/state/metadata").status == 400
    assert world.open().queues() == []


@pytest.mark.parametrize("path", ["OtherActor/q/method/Pop", "PushPopActor/q/method/Peek"])
def test_there_are_no_other_actors_or_methods(client: Client, path: str) -> None:
    """Not even empty ones."""
    assert client.post(f"/v1.0/actors/{path}").status == 404
