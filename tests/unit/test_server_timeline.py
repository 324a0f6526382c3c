"""What happened to a message, over HTTP: how much of its body comes along, and to whom."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.stores.http.wire.timeline import BODY_BYTES_DEFAULT, BODY_BYTES_MAX
from tests.unit.server_support import Place, new_token, placed


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory that is served."""
    with placed(scratch) as place:
        yield place


def path_of(message: str, **query: int) -> str:
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/api/v1/queues/jobs/messages/{message}/timeline" + (f"?{words}" if words else "")


def test_all_is_told_of_a_message_that_is_settled(place: Place) -> None:
    """Where its status would be nothing at all."""
    queue = place.store.queue("jobs")
    id_ = queue.push(b"work", headers={"for": "ada"})
    queue.lease(owner="ada").fail("no paper", delay=0)
    queue.lease(owner="bob").ack()

    said = place.ask("GET", path_of(id_))
    told = queue.timeline(id_)
    assert said.status == 200
    pushed_us = told.events[0].at_us
    assert said.json == {
        "id": id_,
        "state": "settled",
        "message": {
            "id": id_,
            "body": "work",
            "attempt": 2,
            "pushed_us": pushed_us,
            "headers": {"for": "ada"},
        },
        "body_bytes_total": 4,
        "is_cut": False,
        "due_us": None,
        "owner": None,
        "seconds_left": None,
        "reason": "",
        "tries": 2,
        "letter": None,
        "events": said.json["events"],
        "is_whole": True,
        "since_us": None,
    }
    events = said.json["events"]
    assert isinstance(events, list)
    assert [each["what"] for each in events] == ["pushed", "leased", "failed", "leased", "acked"]
    assert events[2] == {
        "at_us": told.events[2].at_us,
        "what": "failed",
        "attempt": 1,
        "owner": "ada",
        "reason": "no paper",
        "due_us": None,
        "ends_us": None,
    }
    assert isinstance(events[1]["ends_us"], int)


@pytest.mark.parametrize(
    ("body", "body_bytes", "field", "shown"),
    [
        (b"four words of text", 4, "body", "four"),
        (b"four words of text", 0, "body", ""),
        (b"four words of text", 18, "body", "four words of text"),
        ("gr\u00fc\u00dfe".encode(), 3, "body", "gr"),
        ("gr\u00fc\u00dfe".encode(), 4, "body", "gr\u00fc"),
        (b"\xff\x00\xfe\x01", 3, "body_base64", b"\xff\x00\xfe"),
    ],
)
def test_no_more_of_a_body_comes_than_was_asked_for(
    place: Place, body: bytes, body_bytes: int, field: str, shown: str | bytes
) -> None:
    """A text is cut between characters, anything else between bytes; how long it is, is told."""
    id_ = place.store.queue("jobs").push(body)
    said = place.ask("GET", path_of(id_, body_bytes=body_bytes)).json

    message = said["message"]
    assert isinstance(message, dict)
    found = message[field]
    assert (base64.b64decode(found) if isinstance(shown, bytes) else found) == shown
    assert (said["body_bytes_total"], said["is_cut"]) == (len(body), body_bytes < len(body))


def test_a_long_body_is_cut_unless_it_is_asked_for(place: Place) -> None:
    """The page that shows it asks for more only if somebody wants to see it."""
    body = b"x" * (BODY_BYTES_DEFAULT + 1)
    id_ = place.store.queue("jobs").push(body)
    cut = place.ask("GET", path_of(id_)).json
    whole = place.ask("GET", path_of(id_, body_bytes=BODY_BYTES_MAX)).json

    assert isinstance(cut["message"], dict)
    assert isinstance(whole["message"], dict)
    assert (len(cut["message"]["body"]), cut["is_cut"]) == (BODY_BYTES_DEFAULT, True)
    assert (whole["message"]["body"], whole["is_cut"]) == (body.decode(), False)


@pytest.mark.parametrize("body_bytes", [-1, BODY_BYTES_MAX + 1])
def test_how_much_may_be_asked_for_has_a_limit(place: Place, body_bytes: int) -> None:
    """It is refused rather than cut short."""
    id_ = place.store.queue("jobs").push(b"work")
    said = place.ask("GET", path_of(id_, body_bytes=body_bytes))

    assert (said.status, said.code) == (400, "invalid_argument")


def test_what_is_no_id_is_refused_and_an_unknown_one_is_not(place: Place) -> None:
    """Nobody can tell whether there was such a message long ago: that is no error."""
    place.store.queue("jobs").push(b"work")
    assert place.ask("GET", path_of("nonsense")).status == 400

    said = place.ask("GET", path_of("0-7"))
    assert said.status == 200
    assert (said.json["state"], said.json["message"], said.json["events"]) == ("unknown", None, [])
    assert said.json["is_whole"] is False


def test_asking_makes_no_queue(place: Place, scratch: Path) -> None:
    """Whatever name is asked for."""
    said = place.ask("GET", path_of("0-0"))

    assert (said.status, said.json["state"]) == (200, "unknown")
    assert place.store.queues() == []
    assert not (scratch / "queues" / "jobs").exists()


def test_only_who_may_read_the_queue_is_told(scratch: Path) -> None:
    """By role, and by the names a token is for."""
    tokens = scratch / "tokens"
    _, reader = new_token(tokens, "read", names=("jobs",))
    _, producer = new_token(tokens, "produce")
    _, stranger = new_token(tokens, "read", names=("other-*",))
    with placed(scratch / "data", tokens=tokens) as place:
        id_ = place.store.queue("jobs").push(b"work")
        answers = [
            place.ask("GET", path_of(id_), Authorization=token).status
            for token in (reader, producer, stranger)
        ]

    assert answers == [200, 403, 403]
