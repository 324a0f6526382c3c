"""Finding the dead letter of a task among many: near the time at which it is known to have died."""

from itertools import islice
from typing import Final

from segue.delivery.message import DeadLetter, MessageId
from segue.stores.letters import DeadLetters

SLACK_US: Final = 1_000_000
"""How much earlier than its event a letter may be said to have died: clocks differ."""
DELAY_US: Final = 60_000_000
"""How much later a letter is looked for: what is to be settled may have to wait for its store."""
LETTERS_NEAR_MAX: Final = 5_000
"""How many letters that died at about that time are looked at."""


def letter_near(letters: DeadLetters, message_id: MessageId, died_us: int) -> DeadLetter | None:
    """Return the letter of a message that died at about `died_us`; None if it is not there.

    At the cost of those that died then, not of all: letters lie in the order of their deaths.
    """
    for note in islice(letters.notes(_before(letters, died_us - SLACK_US)), LETTERS_NEAR_MAX):
        if note.id == message_id:
            return next(letters.at([note.number]), None)
        if note.died_us > died_us + DELAY_US:
            break
    return None


def _before(letters: DeadLetters, moment_us: int) -> int:
    """Return a number behind which all letters are that died at or after a moment."""
    low, high = -1, letters.newest()
    while low < high:
        middle = (low + high) // 2
        note = next(letters.notes(middle), None)
        if note is None or note.died_us >= moment_us:
            high = middle
        else:
            low = note.number
    return high
