"""Laws of patterns: whatever a reason says, its pattern is one short line that stays as it is."""

from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue.delivery.reasons import PATTERN_CHARACTERS_MAX, pattern_of

PIECES: Final = st.sampled_from(
    [*"ab1'\"`/.:#…\\0xF-~<\n\t ", "://", "'a'", "/a/b", "0x1f", "C:\\", "\u2028", "\x00"]
)
REASONS: Final = st.lists(PIECES, max_size=300).map("".join) | st.text(max_size=400)


@given(REASONS)
@example("a1'x'")
@example("'abc'd " * 60)
@example("\ud800")
def test_the_pattern_of_a_pattern_is_itself(reason: str) -> None:
    """So that whoever is told a pattern can ask for those that have it."""
    pattern = pattern_of(reason)

    assert pattern_of(pattern) == pattern
    assert len(pattern.splitlines()) <= 1
    assert len(pattern) <= PATTERN_CHARACTERS_MAX
    assert pattern.encode().decode() == pattern


@given(st.integers(min_value=0), st.integers(min_value=0), REASONS)
def test_reasons_that_differ_by_a_number_alone_are_one_pattern(
    one: int, another: int, reason: str
) -> None:
    """Whatever stands around it, if nothing is cut off by its length."""
    patterns = {
        pattern_of(f"took {number} ms: {reason}"[:PATTERN_CHARACTERS_MAX])
        for number in (one, another)
    }
    short = {pattern_of(f"took {number} ms") for number in (one, another)}

    assert short == {"took # ms"}
    assert all(pattern.startswith("took # ms:") for pattern in patterns)


@pytest.mark.parametrize(
    ("reason", "pattern"),
    [
        ("host db12.example.com: port 5432", "host db#.example.com: port #"),
        ("no such user 'anna@x.org'", "no such user '…'"),
        ('KeyError: "user-1"', 'KeyError: "…"'),
        ("can't open /var/lib/x/y.db: it's locked", "can't open …: it's locked"),
        ("either and/or neither", "either and/or neither"),
        ("GET https://a.org/v1/x?y=2 gave 503", "GET https://a.org/… gave #"),
        ("job 550e8400-e29b-41d4-a716-446655440000", "job #"),
        ("at 0x7fe1ab, commit 5f3a9c1", "at #, commit #"),
        ("db1 and db123456 are one name", "db# and db# are one name"),
        ("10.0.0.1:8080 took 3.5 s", "# took # s"),
        ("<b onclick='x()'>12</b>", "<b onclick='…'>#</b>"),
        ("\n\n Traceback:\n  line 2", "Traceback:"),
        ("a\x00b \x1b[31m", "a\x00b \x1b[#m"),
        ("", ""),
    ],
)
def test_what_differs_from_case_to_case_is_left_out(reason: str, pattern: str) -> None:
    """Numbers, ids, what is quoted, paths; and nothing else, whatever it would be elsewhere."""
    assert pattern_of(reason) == pattern
