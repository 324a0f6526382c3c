"""What messages are called: "<priority>-<offset>", or "later-<offset>" if pushed with a delay."""

from typing import Final

from segue.delivery.events import ASIDE
from segue.delivery.message import Key, MessageId
from segue.errors import InvalidArgument

DIGITS_MAX: Final = 20


def message_id(lane: int, offset: int) -> MessageId:
    """Return the id of the message pushed to `lane` at `offset`."""
    return MessageId(f"{lane}-{offset}" if lane < ASIDE else f"later-{offset}")


def key_of(message: str) -> Key:
    """Return where the message with that id was pushed to. Raises InvalidArgument."""
    given: object = message
    if isinstance(given, str):
        lane, _, offset = given.rpartition("-")
        if _is_number(offset):
            if lane == "later":
                return Key(ASIDE, int(offset))
            if _is_number(lane) and int(lane) < ASIDE:
                return Key(int(lane), int(offset))
    raise InvalidArgument(f"{message!r} is no message id")


def lease_of(receipt: object) -> tuple[int, int, int]:
    """Return the lane, offset and token that a receipt names. Raises InvalidArgument."""
    if isinstance(receipt, str):
        message, _, token = receipt.rpartition("/")
        if _is_number(token):
            key = key_of(message)
            return key.lane, key.offset, int(token)
    raise InvalidArgument(f"{receipt!r} is neither a job nor a receipt such as 0-17/42")


def _is_number(text: str) -> bool:
    """Tell whether `text` is a whole number, of no more digits than 64 bits have."""
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
