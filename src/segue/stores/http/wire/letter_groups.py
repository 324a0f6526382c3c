"""Dead letters by what they died of, as they are answered."""

from segue.stores.http.wire.base import Answer, Count, Moment


class LetterExample(Answer):
    """One dead letter of a group."""

    number: Count
    id: str
    reason: str
    """The beginning of it."""


class LetterGroupJson(Answer):
    """Dead letters that died of the same."""

    cause: str
    """Empty if they died of several, which the last group may have."""
    pattern: str
    """What their reasons have in common; "(other)" for all that are not told apart."""
    count: Count
    first_us: Moment
    last_us: Moment
    example: LetterExample


class LetterGroupsJson(Answer):
    """Dead letters by what they died of, most of them first."""

    groups: list[LetterGroupJson]
    counted: Count
    """How many dead letters these are."""
    total: Count
    """How many there are, also such as cannot be read."""
    is_complete: bool
    """Whether all that can be read are counted; else ask again, there are too many or it fails."""
    as_of_us: Moment
