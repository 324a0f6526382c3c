"""Topics over HTTP: what goes over the line, and what becomes of answers and sessions lost."""

import http.client
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

import segue
from segue import Event, Member, TopicRecord, TopicRules
from segue.errors import (
    OffsetTrimmed,
    PartitionLost,
    ProducerBusy,
    SessionGone,
    StoreUnavailable,
)
from segue.server.app import App
from segue.server.asgi import Gone
from segue.server.routes import ALL, records
from segue.server.routing import Router
from segue.server.serving import ServerThread
from segue.server.sessions import Sessions
from segue.server.waiting import Waiting
from segue.stores.http.answer import Answer
from segue.stores.http.store import HttpStore
from segue.stores.http.topics.topic import HttpTopic
from segue.stores.http.wire.topics import ARROW
from segue.stores.opening import open_http
from tests.contract.worlds import HttpWorld
from tests.ports import free_port
from tests.waiting import LIMIT_SECONDS

SMALL = TopicRules(segment_bytes=1 << 18)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

Json = dict[str, object]


@pytest.fixture
def store(world: HttpWorld) -> HttpStore:
    return world.open()


@pytest.fixture
def topic(store: HttpStore) -> HttpTopic:
    """A topic with two partitions and three records in each."""
    topic = store.topic("orders", partitions=2, rules=SMALL)
    for number in range(6):
        topic.append(b"%d" % number, partition=number % 2)
    return topic


def sessions_of(world: HttpWorld) -> Sessions:
    return world._server._apps[world.url.rpartition("/")[2].encode()].sessions


def forget_sessions(world: HttpWorld) -> None:
    """Have the server know no session any more, as if it had been restarted."""
    sessions_of(world).close()


@contextmanager
def asked(
    world: HttpWorld,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Yield an answer as any client would get it."""
    host, _, prefix = world.url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=LIMIT_SECONDS)
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, f"/{prefix}/api/v1{path}", data, dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()


def ask(
    world: HttpWorld,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Json]:
    with asked(world, method, path, body, headers) as response:
        text = response.read()
    return response.status, cast("Json", json.loads(text)) if text else {}


def values(found: Iterator[TopicRecord] | list[TopicRecord]) -> list[bytes | None]:
    return [record.value for record in found]


def lose_next_answer(store: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server do what it is asked next, and the answer never arrive."""
    real = store.calls.fetch

    def fetch(*args: object, **options: object) -> bytes:
        monkeypatch.setattr(store.calls, "fetch", real)
        real(*args, **options)  # type: ignore[arg-type]
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(store.calls, "fetch", fetch)


# What goes over the line -----------------------------------------------------------------------


def test_what_a_record_holds_is_said_in_one_way(world: HttpWorld, topic: HttpTopic) -> None:
    """Text, Base64 or JSON to the letter; null is a tombstone, and nothing is a mistake."""
    given: list[Json] = [
        {"value": "text", "key": "größe"},
        {"value_base64": "/w==", "key_base64": "/g==", "headers": {"a": "b"}},
        {"json": {"a": 1}, "timestamp_us": 7},
        {"value": None, "key": "gone"},
    ]
    sent = [{**record, "partition": 0} for record in given]
    status, answer = ask(world, "POST", "/topics/orders/records", {"records": sent})
    for bad in ({}, {"value": "a", "value_base64": "/w=="}, {"value": "a", "other": 1}):
        refused, _ = ask(world, "POST", "/topics/orders/records", {"records": [bad]})
        assert refused == 400

    found = list(topic.records({0: 3}, partitions=[0]))
    assert status == 200
    assert answer == {"places": [{"partition": 0, "offset": offset} for offset in range(3, 7)]}
    assert [(record.key, record.value) for record in found] == [
        ("größe".encode(), b"text"),
        (b"\xfe", b"\xff"),
        (None, b'{"a": 1}'),
        (b"gone", None),
    ]
    assert (dict(found[1].headers), found[2].timestamp_us) == ({"a": "b"}, 7)


def test_records_come_as_lines(world: HttpWorld, topic: HttpTopic) -> None:
    """From anywhere to anywhere, by the words of a query."""
    path = "/topics/orders/records?start=0:1,1:2&stop=latest&partitions=0,1&max_records=2"
    with asked(world, "GET", path) as response:
        lines = [json.loads(line) for line in response.read().splitlines()]

    assert response.getheader("Content-Type") == "application/x-ndjson"
    assert [(line["partition"], line["offset"], line["value"]) for line in lines] == [
        (0, 1, "2"),
        (0, 2, "4"),
    ]


@pytest.mark.parametrize(
    "query", ["start=resume", "start=0:x", "partitions=a", "partitions=9", "start=5", "stop=first"]
)
def test_a_query_that_makes_no_sense_is_refused(
    world: HttpWorld, topic: HttpTopic, query: str
) -> None:
    """Before anything is sent."""
    for accept in ("*/*", "text/event-stream"):
        if query.startswith("stop") and accept != "*/*":
            continue  # What comes has no end.
        headers = {"Accept": accept}
        status, problem = ask(world, "GET", f"/topics/orders/records?{query}", None, headers)
        assert (status, problem["code"]) == (400, "invalid_argument")


def test_records_come_as_arrow(world: HttpWorld, topic: HttpTopic) -> None:
    """One stream of all tables, if that is what is accepted."""
    topic.roll()
    topic.append(b"last", partition=1)
    with asked(world, "GET", "/topics/orders/records", None, {"Accept": ARROW}) as response:
        table = pa.ipc.open_stream(response.read()).read_all()
    with asked(world, "GET", "/topics/none/records", None, {"Accept": ARROW}) as response:
        nothing = pa.ipc.open_stream(response.read()).read_all()

    assert table["value"].to_pylist() == [b"0", b"2", b"4", b"1", b"3", b"5", b"last"]
    assert table["partition"].to_pylist() == [0] * 3 + [1] * 4
    assert len(nothing) == 0


def test_what_comes_is_told_as_events(world: HttpWorld, topic: HttpTopic) -> None:
    """Each with the place behind it, from which another stream goes on."""
    headers = {"Accept": "text/event-stream"}
    with asked(world, "GET", "/topics/orders/records?start=0:2,1:3", None, headers) as response:
        begun = [response.readline() for _ in range(5)]
        topic.append(b"new", partition=1)
        came = [response.readline() for _ in range(3)]
    place = came[0].decode().removeprefix("id: ").strip()
    topic.append(b"later", partition=0)
    headers["Last-Event-ID"] = place
    with asked(world, "GET", "/topics/orders/records", None, headers) as response:
        rest = [response.readline() for _ in range(5)]

    assert begun[:3] == [b"id: 0:2,1:3\n", b"\n", b"id: 0:3,1:3\n"]
    assert json.loads(begun[3].removeprefix(b"data: "))["value"] == "4"
    assert place == "0:3,1:4"
    assert json.loads(came[1].removeprefix(b"data: "))["value"] == "new"
    assert json.loads(rest[3].removeprefix(b"data: "))["value"] == "later"


def test_a_stream_of_events_says_when_it_was_overtaken(world: HttpWorld, topic: HttpTopic) -> None:
    """At once if it is then, and by an event if it is later."""
    topic.roll()
    headers = {"Accept": "text/event-stream"}
    path = "/topics/orders/records?start=0:3,1:3"
    with asked(world, "GET", path, None, headers) as response:
        begun = [response.readline() for _ in range(2)]
        topic.append(b"x", partition=0)
        first = [response.readline() for _ in range(3)]
    topic.roll()
    topic.clean(keep_bytes=0)
    status, problem = ask(world, "GET", path, None, headers)

    assert begun[1] == b"\n"
    assert first[0] == b"id: 0:4,1:3\n"
    assert (status, problem["code"], problem["earliest"]) == (410, "offset_trimmed", 4)


def test_a_stream_on_which_nothing_happens_shows_that_it_is_alive(
    world: HttpWorld, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody in between takes it for dead."""
    monkeypatch.setattr(records, "BEAT_SECONDS", 0.01)
    headers = {"Accept": "text/event-stream"}
    with asked(world, "GET", "/topics/orders/records", None, headers) as response:
        found = [response.readline() for _ in range(6)]

    assert found == [b"id: 0:3,1:3\n", b"\n", b": alive\n", b"\n", b": alive\n", b"\n"]


def test_who_does_not_listen_any_more_is_told_nothing(
    world: HttpWorld, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks for nothing on behalf of somebody who has left."""
    is_over = threading.Event()
    real = records._events

    async def events(*args: object) -> AsyncIterator[bytes]:
        async for piece in real(*args):  # type: ignore[arg-type]
            yield piece
        is_over.set()

    monkeypatch.setattr(records, "_events", events)
    headers = {"Accept": "text/event-stream"}
    with asked(world, "GET", "/topics/orders/records", None, headers) as response:
        response.readline()
        assert not is_over.is_set()

    assert is_over.wait(LIMIT_SECONDS)


def test_events_end_in_order_if_nobody_seems_to_listen(
    world: HttpWorld,
    topic: HttpTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who closed its own half alone gets a whole answer, and nobody is told of a mistake."""

    async def ask_again(*_: object) -> object:
        raise Gone

    monkeypatch.setattr(Waiting, "ask_again", ask_again)
    headers = {"Accept": "text/event-stream"}
    with asked(world, "GET", "/topics/orders/records", None, headers) as response:
        assert response.read() == b"id: 0:3,1:3\n\n"

    assert [record.getMessage() for record in caplog.records] == []


def test_nobody_can_wait_for_a_topic_that_is_not_there(world: HttpWorld) -> None:
    """Its name was mistaken."""
    headers = {"Accept": "text/event-stream"}
    status, problem = ask(world, "GET", "/topics/none/records", None, headers)

    assert (status, problem["code"], problem["name"]) == (404, "topic_not_found", "none")


def test_a_topic_is_made_by_saying_so(world: HttpWorld, store: HttpStore) -> None:
    """With one partition unless it is said; saying it again changes nothing."""
    for _ in range(2):
        assert ask(world, "PUT", "/topics/plain", {})[0] == 204
    assert ask(world, "PUT", "/topics/wide", {"partitions": 3, "rules": {"lag_max": 5}})[0] == 204
    assert ask(world, "PUT", "/topics/wide", {})[0] == 204
    status, problem = ask(world, "PUT", "/topics/wide", {"partitions": 4})

    assert store.topics() == ["plain", "wide"]
    assert (store.topic("wide").partitions, store.topic("wide").rules.lag_max) == (3, 5)
    assert (status, problem["code"]) == (400, "invalid_argument")


def test_the_trace_of_a_request_goes_on_in_its_records(world: HttpWorld, topic: HttpTopic) -> None:
    """Unless a record has one of its own; also those of producers."""
    headers = {"traceparent": TRACE}
    own = {"value": "b", "partition": 0, "headers": {"traceparent": "mine", "x": "y"}}
    body: Json = {"records": [{"value": "a", "partition": 0}, own]}
    ask(world, "POST", "/topics/orders/records", body, headers)
    _, opened = ask(world, "POST", "/topics/orders/producers/p/sessions")
    path = f"/topics/orders/producers/p/sessions/{opened['session']}/records"
    ask(world, "POST", path, {**body, "first_sequence": 0}, headers)

    found = [dict(record.headers) for record in topic.records({0: 3}, partitions=[0])]
    expected = [{"traceparent": TRACE}, {"traceparent": "mine", "x": "y"}]
    assert found == expected * 2


def test_a_poll_that_is_repeated_gets_the_same_answer(world: HttpWorld, topic: HttpTopic) -> None:
    """Nothing is passed over when an answer was lost on the way."""
    _, opened = ask(world, "POST", "/topics/orders/readers/audit/sessions", {})
    path = f"/topics/orders/readers/audit/sessions/{opened['session']}/poll"
    body = {"max_records": 2}
    first = ask(world, "POST", path, body, {"Idempotency-Key": "a/1"})
    again = ask(world, "POST", path, body, {"Idempotency-Key": "a/1"})
    second = ask(world, "POST", path, body, {"Idempotency-Key": "a/2"})

    assert first == again
    assert first[1]["position"] != second[1]["position"]


def test_a_page_may_be_asked_for_again_until_the_next_is(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """And no page is left out."""
    _, opened = ask(world, "POST", "/topics/orders/reads", {})
    path = f"/topics/orders/reads/{opened['session']}"
    pages = [ask(world, "GET", f"{path}?number={number}&count=2") for number in (2, 2, 3)]
    skipped, _ = ask(world, "GET", f"{path}?number=9")
    ended = [ask(world, "DELETE", path)[0] for _ in range(2)]
    gone, problem = ask(world, "GET", f"{path}?number=4")

    assert pages[0] == pages[1] != pages[2]
    assert (skipped, ended, gone, problem["code"]) == (400, [204, 204], 404, "session_gone")


def test_a_session_is_good_for_what_it_was_opened_for(world: HttpWorld, topic: HttpTopic) -> None:
    """Neither for another reader nor for a topic that somebody else may use."""
    _, opened = ask(world, "POST", "/topics/orders/readers/audit/sessions", {})
    session = opened["session"]
    for path in (
        f"/topics/orders/readers/other/sessions/{session}/poll",
        f"/topics/others/readers/audit/sessions/{session}/poll",
        f"/topics/orders/groups/audit/members/{session}/poll",
    ):
        status, problem = ask(world, "POST", path, {})
        assert (status, problem["code"]) == (404, "session_gone")


# Readers ---------------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_was_when_its_session_is_gone(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """Where it was and not where it had committed, for each of its calls."""
    reader = topic.reader("audit")
    first = values(reader.poll(1))
    reader.commit()
    first += values(reader.poll(2))
    forget_sessions(world)
    rest = values(reader.poll())
    forget_sessions(world)
    reader.commit({0: 2})
    forget_sessions(world)
    lag = {each.partition: each.committed for each in reader.lag()}
    forget_sessions(world)
    reader.seek({1: 2})

    assert sorted(first + rest, key=repr) == [b"%d" % number for number in range(6)]
    assert lag[0] == 2
    assert reader.position == {0: 3, 1: 2}
    assert values(reader.poll()) == [b"5"]


def test_a_reader_that_was_forgotten_reads_its_partitions_only(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """What it was opened with still holds."""
    reader = topic.reader("audit", "latest", partitions=[1])
    forget_sessions(world)
    topic.append(b"a", partition=0)
    topic.append(b"b", partition=1)

    assert values(reader.poll()) == [b"b"]


@pytest.mark.parametrize("as_table", [False, True])
def test_records_of_a_poll_whose_answer_was_lost_come_again(
    store: HttpStore, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch, as_table: bool
) -> None:
    """The server is told where we are."""
    reader, member = topic.reader("audit"), topic.group("workers").join()
    for poller in (reader, member):
        lose_next_answer(store, monkeypatch)
        with pytest.raises(StoreUnavailable):
            poller.poll_table() if as_table else poller.poll()
        assert poller.position == {0: 0, 1: 0}
        assert len(poller.poll_table() if as_table else poller.poll()) == 6
        assert poller.position == {0: 3, 1: 3}


def test_a_loop_that_was_left_goes_on_after_its_session_is_gone(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """Nothing is passed over and nothing comes twice."""
    reader = topic.reader("audit")
    found = []
    for _ in range(6):
        found += values(islice(reader, 1))
        forget_sessions(world)

    assert sorted(found, key=repr) == [b"%d" % number for number in range(6)]


# Reading without a name ------------------------------------------------------------------------


def test_reading_goes_on_when_its_place_was_forgotten(world: HttpWorld, store: HttpStore) -> None:
    """In the same order, up to the end as it was, and within its limits."""
    topic = store.topic("long", partitions=3, rules=SMALL)
    topic.append_many([Event(value=b"%d" % number, partition=number % 3) for number in range(90)])
    expected = values(topic.records())
    for limits in ({}, {"max_records": 70}, {"max_bytes": 100}):
        whole = values(topic.records(**limits))  # type: ignore[arg-type]
        reading = topic.records(**limits)  # type: ignore[arg-type]
        topic.append(b"late", partition=0)
        found = []
        for number, record in enumerate(reading):
            found.append(record.value)
            if number % 10 == 5:
                forget_sessions(world)
        assert found == whole == expected[: len(whole)]
        expected = values(topic.records())


def test_tables_go_on_when_their_place_was_forgotten(world: HttpWorld, topic: HttpTopic) -> None:
    """As many rows as were asked for, none of them twice."""
    for number in range(4):
        topic.roll()
        topic.append(b"more %d" % number, partition=number % 2)
    whole = [value for table in topic.tables() for value in table["value"].to_pylist()]
    for limit in (None, 7):
        found = []
        for table in topic.tables(max_records=limit):
            found += table["value"].to_pylist()
            forget_sessions(world)
        assert found == whole[:limit]


def test_reading_lets_go_of_its_place(world: HttpWorld, topic: HttpTopic) -> None:
    """At its end and when it is given up; a few records take no place at all."""
    sessions = sessions_of(world)
    list(topic.records())
    list(topic.tables())
    list(topic.records(max_records=2))
    topic.records()
    reading, tables = topic.records(), topic.tables()
    next(reading)
    next(tables)
    held = sessions.count
    reading.close()  # type: ignore[attr-defined]
    tables.close()  # type: ignore[attr-defined]

    assert (held, sessions.count) == (2, 0)


# Producers -------------------------------------------------------------------------------------


def test_a_producer_takes_its_name_again(world: HttpWorld, topic: HttpTopic) -> None:
    """When its session is gone and nobody else has it: nothing is appended twice."""
    producer = topic.producer("importer")
    producer.append(b"a", partition=0)
    forget_sessions(world)
    producer.append(b"b", partition=0)
    forget_sessions(world)
    again = producer.append(b"b", partition=0, sequence=1)
    forget_sessions(world)
    last = producer.last_sequence(0)

    assert (again, last, producer.last_sequence()) == (None, 1, 1)
    assert values(topic.records({0: 3}, partitions=[0])) == [b"a", b"b"]


def test_an_append_that_was_done_is_not_done_again_after_a_restart(
    world: HttpWorld, store: HttpStore, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers went with it, whoever chose them."""
    producer = topic.producer("importer")
    producer.append_many([b"a", b"b"])
    real = store.calls.post
    is_done = threading.Event()

    def post(path: str, *args: object, **options: object) -> object:
        answer: object = real(path, *args, **options)  # type: ignore[arg-type]
        if path.endswith("/records") and not is_done.is_set():
            is_done.set()
            forget_sessions(world)
            gone = SessionGone(session="after the append, as after a restart")
            gone.was_repeated = True
            raise gone
        return answer

    monkeypatch.setattr(store.calls, "post", post)
    producer.append_many([b"c", b"d"])

    assert producer.last_sequence() == 3
    assert len(list(topic.records({0: 3, 1: 3}))) == 4


def test_a_producer_whose_name_was_used_by_another_says_so(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """Its numbers are taken: what it appends under them would be lost."""
    there = world.open().topic("orders")
    producer = topic.producer("importer")
    producer.append(b"a", partition=0)
    forget_sessions(world)
    with there.producer("importer") as other:
        other.append(b"x", partition=0)
    with pytest.raises(ProducerBusy):
        producer.append(b"b", partition=0)

    assert producer.append(b"b", partition=0) is not None


def test_the_name_of_who_does_not_call_is_free_when_its_time_is_over(
    world: HttpWorld, store: HttpStore, topic: HttpTopic
) -> None:
    """And who calls now and then keeps it."""
    there = world.open().topic("orders")
    producer = topic.producer("importer")
    for _ in range(3):
        world.clock.advance(seconds=20)
        producer.renew()
        with pytest.raises(ProducerBusy):
            there.producer("importer")
    world.crash(store)
    world.clock.advance(seconds=31)

    there.producer("importer").close()


# Members ---------------------------------------------------------------------------------------


def test_a_member_whose_session_is_gone_was_taken_for_dead(
    world: HttpWorld, topic: HttpTopic
) -> None:
    """It cannot commit, is told what it lost, and goes on from what was committed."""
    told: list[tuple[str, list[int]]] = []
    member = topic.group("workers").join(
        on_assign=lambda partitions: told.append(("assign", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )
    member.poll()
    member.commit({0: 2, 1: 3})
    before = max(member.assignment.values())
    forget_sessions(world)
    calls: list[Callable[[], object]] = [
        member.commit,
        member.show_up,
        lambda: member.seek({0: 0, 1: 0}),
    ]
    for call in calls:
        with pytest.raises(PartitionLost) as refusal:
            call()
        assert refusal.value.partitions == (0, 1)
    found = values(member.poll())

    assert found == [b"4"]
    assert told == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]
    assert min(member.assignment.values()) > before
    member.commit()


def test_a_member_may_go_elsewhere_when_it_is_told_what_it_got(topic: HttpTopic) -> None:
    """Nothing was read before it was told, so where it goes is where it reads."""
    there = topic.group("workers").join()

    def go_to_the_end(partitions: list[int]) -> None:
        if held:
            held[0].seek(dict.fromkeys(partitions, 2))

    held: list[Member] = []
    member = topic.group("workers").join(on_assign=go_to_the_end)
    held.append(member)
    there.close()
    found = values(member.poll())

    assert found == [b"4", b"5"]
    assert member.position == {0: 3, 1: 3}


def test_what_was_given_up_and_then_kept_begins_anew(topic: HttpTopic) -> None:
    """Who was told that it loses something is told that it has it, from what was committed."""
    told: list[tuple[str, list[int]]] = []
    group = topic.group("workers")

    def give_up(partitions: list[int]) -> None:
        told.append(("revoke", partitions))
        one.commit(dict.fromkeys(partitions, 1))
        two.close()

    one = group.join(
        on_assign=lambda partitions: told.append(("assign", partitions)), on_revoke=give_up
    )
    one.poll()
    two = group.join()
    found = values(one.poll())

    assert told == [("assign", [0, 1]), ("revoke", [1]), ("assign", [1])]
    assert found == [b"3", b"5"]
    assert list(one.assignment) == [0, 1]


def test_a_callback_that_fails_after_the_fact_is_not_called_again(topic: HttpTopic) -> None:
    """What was got is ours all the same, and is read with the next poll."""
    calls: list[list[int]] = []

    def fail(partitions: list[int]) -> None:
        calls.append(partitions)
        if len(calls) > 1:
            raise ZeroDivisionError

    other = topic.group("workers").join()
    member = topic.group("workers").join(on_assign=fail)
    calls.append([])
    other.close()
    with pytest.raises(ZeroDivisionError):
        member.poll()
    found = member.poll()

    assert calls == [[], [0, 1]]
    assert len(found) == 6


def test_who_fails_when_it_joins_is_no_member(topic: HttpTopic) -> None:
    """The others need not wait for it."""

    def fail(partitions: list[int]) -> None:
        raise ZeroDivisionError

    group = topic.group("workers")
    with pytest.raises(ZeroDivisionError):
        group.join(on_assign=fail)

    assert group.info().members == []


def test_a_gap_in_what_was_just_got_is_told(topic: HttpTopic) -> None:
    """After whoever wants to know was told what it got."""
    group = topic.group("workers")
    first = group.join()
    told: list[list[int]] = []
    member = group.join(on_assign=told.append)
    topic.roll()
    topic.append(b"new", partition=0)
    topic.clean(keep_bytes=0, partitions=[0])
    first.close()
    with pytest.raises(OffsetTrimmed) as gap:
        [member.poll(1) for _ in range(5)]

    assert told == [[0, 1]]
    assert (gap.value.partition, gap.value.earliest) == (0, 3)


# Segments --------------------------------------------------------------------------------------


def test_a_segment_that_broke_off_is_gone_on_with(
    store: HttpStore, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the byte that was written last, as long as anything comes."""
    topic.append(bytes(1 << 17), partition=0)
    topic.roll()
    whole = io.BytesIO()
    topic.send_segment(0, 0, whole)
    real = Answer.read
    reads = iter(range(100))

    def read(response: Answer, size: int) -> bytes | None:
        if next(reads) % 2:
            raise ConnectionResetError("cut")
        return real(response, min(size, 50_000))

    target = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(Answer, "read", read)
        count = topic.send_segment(0, 0, target)

    assert target.getvalue() == whole.getvalue()
    assert count == len(whole.getvalue())


def test_a_segment_is_adopted_by_whoever_can_send_bytes(world: HttpWorld, topic: HttpTopic) -> None:
    """Once under each key; what is no segment is refused."""
    topic.roll()
    sent = io.BytesIO()
    topic.send_segment(0, 0, sent)
    host, _, prefix = world.url.removeprefix("http://").partition("/")
    answers = []
    for data in (sent.getvalue(), sent.getvalue(), b"no segment" * 1000):
        connection = http.client.HTTPConnection(host, timeout=LIMIT_SECONDS)
        path = f"/{prefix}/api/v1/topics/orders/segments?partition=1&key=job"
        connection.request("POST", path, data)
        response = connection.getresponse()
        answers.append((response.status, json.loads(response.read())))
        connection.close()

    assert [status for status, _ in answers] == [200, 200, 400]
    assert [answer.get("is_new") for _, answer in answers] == [True, False, None]
    assert answers[2][1]["code"] == "invalid_argument"
    assert values(topic.records({1: 3}, partitions=[1])) == [b"0", b"2", b"4"]


# A server that is restarted --------------------------------------------------------------------


def test_those_who_wait_outlast_a_restart_of_the_server(scratch: Path) -> None:
    """Reader, member, producer and who follows go on as if nothing had been."""
    path = scratch / "data"
    with segue.open(path, sync="os") as behind:
        server = ServerThread(App(behind, Router(ALL)), port=free_port())
        store = open_http(server.url)
        topic = store.topic("orders", partitions=2, rules=SMALL)
        reader, member = topic.reader("audit"), topic.group("workers").join()
        producer, following = topic.producer("importer"), topic.follow()
        producer.append(b"first", partition=0)
        reading = [reader.poll(), member.poll()]
        member.commit()
        with ThreadPoolExecutor(3) as threads:
            waits = [
                threads.submit(lambda: values(reader.poll(timeout=LIMIT_SECONDS))),
                threads.submit(lambda: values(member.poll(timeout=LIMIT_SECONDS))),
                threads.submit(lambda: values(islice(following, 2))),
            ]
            port = server.port
            server.stop()
            server = ServerThread(App(behind, Router(ALL)), port=port)
            producer.append(b"second", partition=1)
            found = [wait.result(LIMIT_SECONDS) for wait in waits]
        store.close()
        server.stop()

    assert [values(each) for each in reading] == [[b"first"]] * 2
    assert found == [[b"second"], [b"second"], [b"first", b"second"]]
