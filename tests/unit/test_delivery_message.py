"""What a message is, and how it is laid out in a record."""

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.delivery.message import (
    HAS_KEY,
    HAS_TTL,
    NUMBER_MAX,
    PREFIX_MASK,
    DeadLetter,
    Message,
    MessageId,
    Prefix,
    message_from,
    pack_message,
    unpack_prefix,
)
from segue.errors import InvalidArgument

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PREFIXES: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {},
    optional={
        "h": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "x": st.integers(min_value=0, max_value=NUMBER_MAX),
        "k": TEXTS,
        "n": st.integers(min_value=0, max_value=NUMBER_MAX),
        "a": st.integers(min_value=0, max_value=99),
    },
)


def test_a_plain_message_is_its_body() -> None:
    """Nothing stands before it, so nothing has to be looked at."""
    assert pack_message(b"body", {}) == (b"body", 0)


@given(st.binary(max_size=50), PREFIXES)
def test_a_message_is_read_as_it_was_written(body: bytes, prefix: Prefix) -> None:
    """Whatever body, whatever stands before it."""
    payload, attr = pack_message(body, prefix)

    assert unpack_prefix(payload, attr) == (prefix, body)
    assert bool(attr & HAS_TTL) == ("x" in prefix)
    assert bool(attr & HAS_KEY) == ("k" in prefix)


@given(st.binary(max_size=60), st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_garbage_is_some_message(payload: bytes, attr: int) -> None:
    """Bytes that make no sense say nothing; reading them never fails."""
    prefix, body = unpack_prefix(payload, attr)

    assert payload.endswith(body)
    assert isinstance(prefix, dict)


@pytest.mark.parametrize(
    "head", [b"{}", b'{"h": 5}', b'{"a": "x"}', b'{"x": []}', b'{"t": null}', b"[]", b"{", b"\xff"]
)
def test_a_strange_prefix_does_no_harm(head: bytes) -> None:
    """A damaged or foreign record must not stop the delivery of others."""
    message = message_from(
        MessageId("0-0"), head + b"body", len(head), priority=0, attempt=1, time_us=5
    )

    assert message.body.endswith(b"body")
    assert isinstance(message.attempt, int)
    hash(message.pushed_at)


def test_text_that_is_no_text_is_refused() -> None:
    """Half a character cannot be stored."""
    with pytest.raises(InvalidArgument):
        pack_message(b"", {"k": "\ud800"})


def test_a_message_says_what_it_holds() -> None:
    """As text, as JSON, with times in UTC."""
    payload, attr = pack_message(b'{"a": 1}', {"h": {"n": "v"}, "k": "key", "x": 9, "a": 2, "t": 7})
    message = message_from(
        MessageId("3-17"), payload, attr, priority=3, attempt=1, time_us=1_000_000
    )

    assert (message.text, message.json()) == ('{"a": 1}', {"a": 1})
    assert (message.key, dict(message.headers), message.expires_us) == ("key", {"n": "v"}, 9)
    assert (message.attempt, message.pushed_us) == (3, 7)
    assert message.pushed_at == datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    assert attr & PREFIX_MASK == len(payload) - len(message.body)


def test_a_message_is_a_value() -> None:
    """Nobody changes it under another's hands."""
    message = Message(id=MessageId("0-0"), body=b"x", priority=0)
    with pytest.raises(FrozenInstanceError):
        message.body = b"y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.headers["a"] = "b"  # type: ignore[index]
    with pytest.raises(ValueError, match="Expecting value"):
        message.json()


def test_a_dead_letter_says_when_it_died() -> None:
    """In UTC."""
    letter = DeadLetter(
        message=Message(id=MessageId("0-0"), body=b"", priority=0),
        cause="dead",
        reason="",
        died_us=2_000_000,
        number=0,
        deliveries=1,
    )

    assert letter.died_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
