"""Tokens and their share: what one may take of what all have, and when that ends."""

import threading
from pathlib import Path

import pytest

from segue.server import sessions
from segue.server.access import AUDIT_TOPIC
from segue.server.building import build_app
from segue.server.samples import HISTORY_TOPIC
from segue.server.tokens import remove_token
from segue.stores.opening import open_directory
from tests.http_server import shared_http_server
from tests.unit.server_support import Place, Told, new_token, placed, until


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


# Sessions --------------------------------------------------------------------------------------


def opened_reader(place: Place, number: int, token: str) -> Told:
    path = f"/api/v1/topics/orders/readers/r{number}/sessions"
    return place.ask("POST", path, {}, Authorization=token)


def test_one_token_does_not_take_all_sessions(
    scratch: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a client does, those with another token find room."""
    monkeypatch.setattr(sessions, "TOKEN_SESSIONS_MAX", 3)
    _, greedy = new_token(tokens, "consume")
    _, other = new_token(tokens, "consume")
    with placed(scratch, tokens=tokens) as place:
        place.store.topic("orders", partitions=1)
        statuses = [opened_reader(place, number, greedy).status for number in range(4)]

        assert statuses == [200, 200, 200, 503]
        assert opened_reader(place, 4, other).status == 200


# Acts that outlive their token -------------------------------------------------------------------


def test_a_slow_redrive_ends_with_its_token(scratch: Path, tokens: Path) -> None:
    """What is back stays back, and it says how much that is; the rest is dead as before."""
    token, text = new_token(tokens, "admin")
    new_token(tokens, "read")
    with placed(scratch, tokens=tokens) as place:
        queue = place.store.queue("jobs")
        queue.push_many([b"x"] * 5)
        for job in queue.lease_many(5):
            job.bury("bad")
        told: list[Told] = []
        path = "/api/v1/queues/jobs/dead-letters/redrive"
        asking = threading.Thread(
            target=lambda: told.append(place.ask("POST", path, {"rate": 0.01}, Authorization=text))
        )
        asking.start()
        until(lambda: queue.count().ready == 1)
        remove_token(tokens, token.id)
        asking.join()

        assert told[0].json["stopped"] is True
        assert queue.count().dead == 4


# Keys of requests --------------------------------------------------------------------------------


def pushed(place: Place, body: str, key: str, token: str) -> Told:
    return place.push("jobs", body, Authorization=token, Idempotency_Key=key)


def test_each_token_has_keys_of_its_own(scratch: Path, tokens: Path) -> None:
    """Nobody learns which keys another has used, takes them away, or moves another's line on."""
    _, one = new_token(tokens, "produce")
    _, other = new_token(tokens, "produce")
    with placed(scratch, tokens=tokens) as place:
        first = pushed(place, "a", "order-18", one)
        theirs = pushed(place, "b", "order-18", other)
        line = pushed(place, "c", "segue-line:abc/5", one)
        pushed(place, "d", "segue-line:abc/9", other)
        again = [pushed(place, "a", "order-18", one), pushed(place, "c", "segue-line:abc/5", one)]

        assert (theirs.status, theirs.json == first.json) == (200, False)
        assert [answer.json for answer in again] == [first.json, line.json]
        assert place.store.queue("jobs").count().ready == 4


def test_a_key_of_another_request_is_refused(scratch: Path) -> None:
    """Its answer would be taken for that of a request that was never done."""
    with placed(scratch) as place:
        assert place.push("jobs", "a", Idempotency_Key="order-18").status == 200
        assert place.push("jobs", "b", Idempotency_Key="order-18").code == "request_reused"
        assert place.store.queue("jobs").count().ready == 1


def test_a_key_that_is_empty_is_refused(scratch: Path) -> None:
    """Two pushes of somebody who forgot to fill it in would be taken for one."""
    with placed(scratch) as place:
        assert place.push("jobs", Idempotency_Key="").code == "invalid_argument"
        assert place.store.queue("jobs").count().ready == 0


# What the topic of acts is told -------------------------------------------------------------------


def test_who_writes_to_the_audit_is_in_it(scratch: Path, tokens: Path) -> None:
    """Only an admin can, by a route that is not one of theirs alone; that leaves its mark, too."""
    _, text = new_token(tokens, "admin")
    server = shared_http_server()
    with open_directory(scratch, sync="os") as store:
        app = build_app(store, tokens=tokens)
        url = server.add(app)
        place = Place(store, app, url)
        try:
            place.ask("POST", "/api/v1/queues/jobs/pause", Authorization=text)
            until(lambda: AUDIT_TOPIC in store.topics())
            until(lambda: any(store.topic(AUDIT_TOPIC).records()))
            path = f"/api/v1/topics/{AUDIT_TOPIC}/records"
            forged = {"records": [{"json": {"token": "nobody"}}]}
            assert place.ask("POST", path, forged, Authorization=text).status == 200
        finally:
            server.remove(url)
        kept = [record.value or b"" for record in store.topic(AUDIT_TOPIC).records()]

    assert b'"token":"nobody"' in kept[1].replace(b" ", b"")
    assert path.encode() in kept[2]


def test_who_writes_to_the_history_is_in_the_audit(scratch: Path, tokens: Path) -> None:
    """It takes an admin, so it is an act; to read it is none."""
    _, text = new_token(tokens, "admin")
    _, other = new_token(tokens, "produce", "read")
    path = f"/api/v1/topics/{HISTORY_TOPIC}/records"
    made_up = {"records": [{"json": {"at_us": 1}}]}
    server = shared_http_server()
    with open_directory(scratch, sync="os") as store:
        app = build_app(store, tokens=tokens)
        url = server.add(app)
        place = Place(store, app, url)
        try:
            refused = place.ask("POST", path, made_up, Authorization=other)
            done = place.ask("POST", path, made_up, Authorization=text)
            read = place.ask("GET", path, Authorization=other)
        finally:
            server.remove(url)
        kept = [record.value or b"" for record in store.topic(AUDIT_TOPIC).records()]

    assert (refused.status, done.status, read.status) == (403, 200, 200)
    assert [path.encode() in each for each in kept] == [True]


# The file of tokens -------------------------------------------------------------------------------


def test_to_remove_a_token_where_none_is_makes_nothing(tmp_path: Path) -> None:
    """A typo in the name of a store leaves no directory behind."""
    assert remove_token(tmp_path / "typo" / "server" / "tokens.json", "abc") is None
    assert list(tmp_path.iterdir()) == []
