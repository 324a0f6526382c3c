"""How bytes go over the line: as text where that is no longer than Base64 is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.json import encode

from segue import TopicRules
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.stores.http.store import HttpStore
from segue.stores.http.wire.base import LONG_BYTES, text_or_bytes
from segue.stores.http.wire.queues import MESSAGE_BYTES_MAX, Draft
from segue.stores.opening import open_directory, open_http

LONG: Final = LONG_BYTES + 1
FRAME_BYTES: Final = 100
"""What an empty message takes up, and more."""


@pytest.fixture
def store(scratch: Path) -> Iterator[HttpStore]:
    """A store behind a server."""
    with (
        open_directory(scratch / "data", sync="os") as behind,
        ServerThread(build_app(behind, has_audit=False)) as server,
        open_http(server.url) as store,
    ):
        yield store


def wire_bytes(body: bytes) -> int:
    """Return how much a message takes up on the line."""
    text, data = text_or_bytes(body)
    return len(encode(Draft(body=text, body_base64=data)))


@pytest.mark.parametrize(
    "piece",
    [
        b"\x01",
        b'"',
        b"\\",
        b"\n",
        b"\x1b[31mred\x1b[0m ",
        b'{"a":""}',
        b"plain words, and a few\n",
        "wörter und ↯".encode(),
        b"\xff",
        b"\0",
        b"\x7f",
    ],
)
def test_a_long_body_takes_up_no_more_than_it_would_as_base64(piece: bytes) -> None:
    """So that the largest one that is allowed fits in a request, whatever is in it."""
    body = piece * (LONG // len(piece) + 1)

    assert wire_bytes(body) <= (len(body) + 2) // 3 * 4 + FRAME_BYTES


@pytest.mark.parametrize(
    "piece", [b"plain words, and a few\n", "wörter und ↯".encode(), b"a\x01" * 9]
)
def test_a_short_body_that_is_text_is_sent_as_text(piece: bytes) -> None:
    """People read it, and its length is of no matter."""
    assert text_or_bytes(piece) == (piece.decode(), None)


@pytest.mark.parametrize(
    "piece", [b"plain words, and a few\n", "wörter und ↯ ".encode(), b'{"a": 1}']
)
def test_a_long_body_that_is_text_is_sent_as_text(piece: bytes) -> None:
    """A few characters that JSON makes longer do not make it bytes."""
    body = piece * (LONG // len(piece) + 1)

    assert text_or_bytes(body) == (body.decode(), None)


def test_the_largest_body_is_taken_whatever_is_in_it(store: HttpStore) -> None:
    """Six bytes for each, as JSON would have it, are more than a server takes at once."""
    value = b"\x01" * MESSAGE_BYTES_MAX
    topic = store.topic("orders", partitions=1, rules=TopicRules(segment_bytes=128 << 20))
    topic.append(value)

    assert [record.value for record in topic.records()] == [value]
