"""Requests that ask for another protocol: there is none, and they are done like all others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.server.protocol import HEAD_BYTES_MAX
from tests.unit.server_support import Place, all_of, messages, placed

ASKS = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
"""As curl --http2 asks."""
BODY = b'{"messages":[{"body":"once"}]}'
SAID = f"Content-Length: {len(BODY)}"
IN_CHUNKS = b"5\r\n" + BODY[:5] + b"\r\n19;x=y\r\n" + BODY[5:] + b"\r\n0\r\nX: y\r\n\r\n"
PATIENT_PIECES = 3


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


def last(place: Place) -> bytes:
    """Return a request after which the connection ends."""
    return place.head("GET", "/api/v1", "Connection: close")


def answered(place: Place, *pieces: bytes) -> list[bytes]:
    """Return the answers to what is sent piece by piece, the first words of each."""
    with place.connected() as line:
        for piece in pieces:
            line.sendall(piece)
            if len(pieces) <= PATIENT_PIECES:
                place.ask("GET", "/live")  # The piece has been read since.
        return [answer[:3] for answer in all_of(line).split(b"HTTP/1.1 ")[1:]]


def pushed(place: Place) -> list[bytes]:
    """Return all that is in the queue."""
    return [bytes(message.body) for message in place.store.queue("jobs").pop_many(100)]


# Bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 7, 100, 10_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_body_of_who_asks_for_another_protocol_is_read(
    place: Place, size_bytes: int, is_chunked: bool
) -> None:
    """Taken for an empty one it would mean everything, as when dead letters are discarded."""
    said, body = ("Transfer-Encoding: chunked", IN_CHUNKS) if is_chunked else (SAID, BODY)
    sent = place.head("POST", messages("jobs"), *ASKS, said) + body
    pieces = [sent[first : first + size_bytes] for first in range(0, len(sent), size_bytes)]
    answers = answered(place, *pieces, last(place))

    assert answers == [b"200", b"200"]
    assert pushed(place) == [b"once"]


def test_the_body_may_come_after_the_head(place: Place) -> None:
    """However long that takes."""
    head = place.head("POST", messages("jobs"), *ASKS, SAID)
    answers = answered(place, head, BODY[:9], BODY[9:] + last(place))

    assert answers == [b"200", b"200"]
    assert pushed(place) == [b"once"]


def test_requests_sent_ahead_behind_one_that_asks_for_another_protocol_are_answered(
    place: Place,
) -> None:
    """What is behind its body is no other protocol, whether those ask for one or not."""
    push = place.head("POST", messages("jobs"), *ASKS, SAID) + BODY
    look = place.head("GET", "/api/v1", *ASKS)
    plain = place.head("POST", messages("jobs"), SAID) + BODY
    answers = answered(place, (push + look + plain) * 20 + last(place))

    assert answers == [b"200"] * 61
    assert pushed(place) == [b"once"] * 40


def test_who_expects_to_be_asked_for_the_body_is_asked(place: Place) -> None:
    """Nothing else in the head is lost with the wish."""
    head = place.head("POST", messages("jobs"), *ASKS, SAID, "Expect: 100-continue")
    answers = answered(place, head, BODY, last(place))

    assert answers == [b"100", b"200", b"200"]
    assert pushed(place) == [b"once"]


# Connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0", "nonsense"])
def test_to_ask_for_another_protocol_costs_no_connection(place: Place, protocol: str) -> None:
    """The answer is HTTP, and so is what follows."""
    asks = place.head("GET", "/api/v1", "Connection: Upgrade", f"Upgrade: {protocol}")

    assert answered(place, asks, last(place)) == [b"200", b"200"]


@pytest.mark.parametrize(
    ("said", "version"),
    [("Upgrade, close", b"1.1"), ("close, Upgrade", b"1.1"), ("Upgrade", b"1.0")],
)
def test_who_asks_for_the_end_as_well_is_answered_and_gets_it(
    place: Place, said: str, version: bytes
) -> None:
    """Only the wish for another protocol is passed over."""
    head = place.head("POST", messages("jobs"), f"Connection: {said}", "Upgrade: h2c", SAID)
    asks = head.replace(b"HTTP/1.1", b"HTTP/" + version) + BODY

    assert answered(place, asks + last(place)) == [b"200"]
    assert pushed(place) == [b"once"]


def test_headers_are_no_longer_for_who_asks_for_another_protocol(place: Place) -> None:
    """A head that is read twice has the limit that all have."""
    asks = place.head("GET", "/api/v1", *ASKS, "X: " + "x" * HEAD_BYTES_MAX)

    assert answered(place, asks) == [b"431"]


def test_a_body_that_cannot_be_told_from_what_follows_is_refused(place: Place) -> None:
    """As without the wish: what is in it is not guessed."""
    asks = place.head("POST", messages("jobs"), *ASKS, "Transfer-Encoding: gzip")

    assert answered(place, asks + BODY) == [b"400"]
    assert pushed(place) == []


# Tunnels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["127.0.0.1:80", "/api/v1", "example.com:443"])
@pytest.mark.parametrize("lines", [(), ASKS, (SAID,)])
def test_there_are_no_tunnels(place: Place, target: str, lines: tuple[str, ...]) -> None:
    """Nothing behind CONNECT is taken for a request: it is meant for somebody else."""
    said = "\r\n".join(["Host: localhost", *lines, "", ""])
    tunnel = f"CONNECT {target} HTTP/1.1\r\n{said}".encode()

    assert answered(place, tunnel + last(place)) == [b"400"]
    assert answered(place, place.head("GET", "/api/v1") + tunnel + last(place)) == [b"200"]
