"""Streams: how long they last, where they go on from, and that nothing is lost before damage."""

import http.client
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.errors import CorruptRecord, ProducerBusy
from segue.server.routes import records
from segue.server.tokens import remove_token
from segue.stores.contract import Store
from segue.stores.opening import open_http
from segue.stores.topic_contract import Topic
from tests.unit.server_support import Place, all_of, new_token, placed, until
from tests.unit.support import ManualClock
from tests.waiting import LIMIT_SECONDS

RECORDS = "/api/v1/topics/orders/records"
EVENTS = "text/event-stream"
WHOLE_BYTES = 80_000
"""What the records have that are damaged, all together."""


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


@pytest.fixture
def topic(place: Place) -> Topic:
    """A topic with one record."""
    topic = place.store.topic("orders", partitions=1)
    topic.append(b"old")
    return topic


# Tokens that are good no more ----------------------------------------------------------------


@pytest.fixture
def guarded(scratch: Path) -> Iterator[tuple[Place, Path, ManualClock]]:
    """A topic that is read by who has a token, the file of tokens, and the clock they go by."""
    clock, tokens = ManualClock(), scratch / "tokens.json"
    new_token(tokens, "admin")
    with placed(scratch / "data", tokens=tokens, clock=clock) as place:
        place.store.topic("orders", partitions=1)
        yield place, tokens, clock


def look_at_tokens(place: Place) -> None:
    """Have the server look at the file of tokens when it is asked next."""
    tokens = place.app.guard.tokens
    assert tokens is not None
    tokens._look_at = 0


def rest_of(stream: http.client.HTTPResponse) -> bytes:
    """Return what comes until the stream ends; it must."""
    return stream.read()


def test_a_stream_ends_when_its_token_is_taken_back(
    guarded: tuple[Place, Path, ManualClock],
) -> None:
    """Whoever is let in no more is told nothing more, on no connection."""
    place, tokens, _ = guarded
    token, said = new_token(tokens, "read")
    look_at_tokens(place)
    with place.asked("GET", RECORDS, accept=EVENTS, authorization=said) as stream:
        first = stream.readline()
        remove_token(tokens, token.id)
        look_at_tokens(place)
        place.store.topic("orders").append(b"secret")
        rest = rest_of(stream)

    assert first.startswith(b"id: ")
    assert b"secret" not in rest


def test_a_stream_ends_when_its_token_is_over(guarded: tuple[Place, Path, ManualClock]) -> None:
    """A stream may be meant to last longer than what it was let in by."""
    place, tokens, clock = guarded
    _, said = new_token(tokens, "read", expires_us=clock.now_us + 1_000_000)
    look_at_tokens(place)
    with place.asked("GET", RECORDS, accept=EVENTS, authorization=said) as stream:
        stream.readline()
        clock.advance(seconds=1)
        place.store.topic("orders").append(b"secret")
        rest = rest_of(stream)

    assert b"secret" not in rest


def test_a_silent_stream_ends_when_its_token_is_taken_back(
    guarded: tuple[Place, Path, ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next beat, though nothing happens that it could tell of."""
    monkeypatch.setattr(records, "BEAT_SECONDS", 0.02)
    place, tokens, _ = guarded
    token, said = new_token(tokens, "read")
    look_at_tokens(place)
    with place.asked("GET", RECORDS, accept=EVENTS, authorization=said) as stream:
        stream.readline()
        remove_token(tokens, token.id)
        look_at_tokens(place)
        rest_of(stream)


def test_who_waits_is_given_nothing_once_the_token_is_taken_back(
    guarded: tuple[Place, Path, ManualClock],
) -> None:
    """A long poll lasts up to half a minute: what comes in that time is not for it any more."""
    place, tokens, _ = guarded
    token, said = new_token(tokens, "consume")
    look_at_tokens(place)
    with ThreadPoolExecutor(1) as threads:
        path, body = "/api/v1/queues/jobs/pop", {"wait": 30}
        waiting = threads.submit(place.ask, "POST", path, body, authorization=said)
        until(lambda: place.app.waiting.count == 1)
        remove_token(tokens, token.id)
        look_at_tokens(place)
        place.store.queue("jobs").push(b"secret")
        answer = waiting.result(LIMIT_SECONDS)

    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert place.store.queue("jobs").count().ready == 1


# Where to go on ------------------------------------------------------------------------------


def test_a_stream_says_where_it_is_before_anything_happens(place: Place, topic: Topic) -> None:
    """Who is cut off before the first event misses nothing: browsers keep an id without one."""
    with place.asked("GET", RECORDS, accept=EVENTS) as stream:
        first = stream.readline() + stream.readline()
    topic.append(b"meanwhile")
    last = first.decode().removeprefix("id: ").strip()
    with place.asked("GET", RECORDS, accept=EVENTS, last_event_id=last) as stream:
        lines = [stream.readline() for _ in range(4)]

    assert first == b"id: 0:1\n\n"
    assert lines[2] == b"id: 0:2\n"
    assert b"meanwhile" in lines[3]


# Heads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [EVENTS, "application/x-ndjson"])
def test_the_head_of_a_stream_is_a_whole_answer(place: Place, topic: Topic, accept: str) -> None:
    """It ends, and what is asked behind it is answered."""
    with place.connected() as line:
        line.sendall(place.head("HEAD", RECORDS, f"Accept: {accept}"))
        line.sendall(place.head("GET", "/live", "Connection: close"))
        answers = all_of(line).split(b"HTTP/1.1 ")[1:]

    assert [answer[:3] for answer in answers] == [b"200", b"200"]
    assert f"content-type: {accept}".encode() in answers[0].lower()
    assert answers[0].endswith(b"\r\n\r\n")


# Damage --------------------------------------------------------------------------------------


def followed(store: Store) -> list[int]:
    """Return the offsets of what is there before damage, which must be met."""
    found: list[int] = []
    with pytest.raises(CorruptRecord):
        found.extend(record.offset for record in store.topic("orders").follow({0: 0}, timeout=0))
    return found


@pytest.fixture
def damaged(place: Place) -> list[int]:
    """A topic damaged in the midst of a segment; the offsets of what lies before that."""
    topic = place.store.topic("orders", partitions=1)
    for _ in range(20):
        topic.append(os.urandom(2_000).hex().encode())
    topic.roll()
    root = place.store.place.root / "topics" / "orders"
    path = next(each for each in sorted(root.rglob("*.q")) if each.stat().st_size > WHOLE_BYTES)
    data = bytearray(path.read_bytes())
    middle = len(data.rstrip(b"\0")) - WHOLE_BYTES // 2
    data[middle : middle + 100] = bytes(each ^ 0xFF for each in data[middle : middle + 100])
    path.write_bytes(data)
    before = followed(place.store)
    assert 0 < len(before) < 20
    return before


def test_what_lies_before_damage_is_followed_over_http_too(
    place: Place, damaged: list[int]
) -> None:
    """As from a directory: first all that is sound, then what is wrong."""
    with open_http(place.url) as store:
        found = followed(store)

    assert found == damaged


def test_a_stream_tells_what_lies_before_damage(place: Place, damaged: list[int]) -> None:
    """And then the problem, as its last event."""
    with place.asked("GET", f"{RECORDS}?start=earliest", accept=EVENTS) as stream:
        events = rest_of(stream).split(b"\n\n")

    told = [each for each in events if b"data: " in each]
    assert len(told) == len(damaged) + 1
    assert told[-1].startswith(b"event: problem\n")
    assert str(place.store.place.root).encode() not in told[-1]


# Producers -----------------------------------------------------------------------------------


def test_a_producer_that_slept_while_another_had_its_name_loses_nothing(scratch: Path) -> None:
    """Its number is another's now: it is told so, and not that its record is there already."""
    clock = ManualClock()
    with (
        placed(scratch, ticks=clock) as place,
        open_http(place.url) as sleeper_store,
        open_http(place.url) as store,
    ):
        place.store.topic("orders", partitions=1)
        sleeper = sleeper_store.topic("orders").producer("importer")
        sleeper.append(b"a0")
        sleeper._pulse.stop()
        clock.advance(seconds=40)
        with store.topic("orders").producer("importer") as other:
            other.append(b"b1")
        with pytest.raises(ProducerBusy):
            sleeper.append(b"a1")
        again = sleeper.append(b"a1")
        found = [record.value for record in store.topic("orders").records()]

    assert again is not None
    assert found == [b"a0", b"b1", b"a1"]
