"""Laws of the index of dead letters: it gives the answers that a plain list of them would."""

from collections import Counter
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from segue.delivery.message import MessageId
from segue.server import letter_index
from segue.server.letter_index import LetterIndex
from segue.stores.letters import LetterNote, runs_of

NUMBER_MAX: Final = 80
CAUSES: Final = ("dead", "failed")
PATTERNS: Final = ("a", "b", "c")

letters = st.dictionaries(
    st.integers(0, NUMBER_MAX),
    st.tuples(st.sampled_from(CAUSES), st.sampled_from(PATTERNS)),
    max_size=60,
)
numbers = st.sets(st.integers(0, NUMBER_MAX + 20), max_size=90)
Letters = dict[int, tuple[str, str]]


def notes(known: Letters) -> list[LetterNote]:
    """Return letters in order, each of which died at the moment of its number."""
    return [
        LetterNote(number, MessageId(f"0-{number}"), *known[number], number)
        for number in sorted(known)
    ]


@given(letters, numbers, letters)
def test_the_index_counts_as_a_list_does(known: Letters, there: set[int], later: Letters) -> None:
    """Whoever comes, goes and comes after that; with the first and the last of each group."""
    index = LetterIndex()
    index.add(notes(known))
    index = index.kept(runs_of(sorted(there)))
    left = {number: what for number, what in known.items() if number in there}
    came = {number + NUMBER_MAX + 1: what for number, what in later.items()}
    index.add(notes(came))
    all_of_them = {**left, **came}
    counts = Counter(all_of_them.values())
    found = {(group.cause, group.pattern): group for group in index.groups()}

    assert {what: group.count for what, group in found.items()} == counts
    for what, group in found.items():
        mine = [number for number, each in all_of_them.items() if each == what]
        assert (group.first_us, group.last_us) == (min(mine), max(mine))
        assert group.example is None or group.example.number == max(mine)
    assert len(index) == len(all_of_them)


@given(letters, numbers, st.integers(-1, NUMBER_MAX), st.integers(-1, NUMBER_MAX))
def test_letters_are_found_as_in_a_list(
    known: Letters, there: set[int], after: int, upto: int
) -> None:
    """By cause, by pattern, by both, and behind a number."""
    index = LetterIndex()
    index.add(notes(known))
    index = index.kept(runs_of(sorted(there)))
    for cause in (None, *CAUSES):
        for pattern in (None, *PATTERNS, "d"):
            found = index.numbers_of(
                cause=cause, pattern=pattern, after=after, upto=upto, count_max=10
            )
            assert (
                found
                == [
                    number
                    for number in sorted(known)
                    if number in there
                    and after < number <= upto
                    and cause in (None, known[number][0])
                    and pattern in (None, known[number][1])
                ][:10]
            )


@given(letters, numbers, st.integers(1, 5))
def test_who_is_there_and_was_not_told_of_is_found(
    known: Letters, there: set[int], some_max: int
) -> None:
    """A few of them, and how many they are."""
    index = LetterIndex()
    index.add(notes(known))
    runs = runs_of(sorted(there))
    upto = max(known, default=-1)
    unknown = index.kept(runs).unknown(runs, upto, some_max)
    missing = [number for number in sorted(there) if number <= upto and number not in known]

    assert (unknown.count, unknown.some) == (len(missing), missing[:some_max])


def test_there_are_no_more_groups_than_a_byte_can_tell_apart() -> None:
    """Which is what each letter takes up for its group."""
    assert letter_index.GROUPS_MAX + letter_index.CAUSES_MAX + 1 <= 256
    index = LetterIndex()
    index.add(
        LetterNote(number, MessageId("0-0"), f"c{number % 97}", f"r{chr(0x4E00 + number)}", 0)
        for number in range(1_000)
    )

    assert sum(group.count for group in index.groups()) == 1_000
    assert len(index.groups()) <= letter_index.GROUPS_MAX + letter_index.CAUSES_MAX + 1
